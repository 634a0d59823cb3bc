"""Text values with arbitrary characters on the command line."""

import random
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from hwnas.__main__ import run
from hwnas.core.errors import ConfigError
from hwnas.workflows.config import grammar
from hwnas.workflows.config.arguments import for_hydra
from hwnas.workflows.config.compose import compose
from tests.conftest import few_of

SIGNS = "aü{}#='\"[](),~$\\ \n?*%:&!;|<>`^@漢.x"
ODD = [
    "größe", "{x}", "a#b", "a=b=c", "it's", 'say "x"', "[x", "x]", "(x)", "~x", "a,b", "${x}", "\t",
    "\\${x}", "x\\", "\\'", "'x", "x'", "a\nb", "a b", "漢字", "%20", "${oc.env:HOME}", "1e5", "x$",
    "true", "!x", "a: b", "-x", "@x", "|", "<>", "*", "x;y", "choice(a,b)", "???", ".", "nan",
]  # fmt: skip


def _dir(value: str) -> Any:
    return compose("compare", ["runs=a", f"run.dir={value}"]).run.dir


@pytest.mark.slow
@pytest.mark.parametrize("text", few_of([*ODD[::2], *ODD[1::2]], 19))
def test_paths_are_taken_literally(text: str) -> None:
    expected = "./???" if text == "???" else text
    assert _dir(text) == expected
    assert _dir(grammar.quoted_if_needed(text)) == expected  # as printed in messages
    quoted = f"run.dir={grammar.in_quotes(text)}"  # for Hydra
    both = compose("compare", [f"runs={grammar.listed([text, 'b'])}", quoted])
    assert (both.run.dir, both.paths) == (expected, [expected, "b"])


def test_random_text_is_taken_literally() -> None:
    rng = random.Random(0)
    parser = OverridesParser.create()
    for _ in range(500):
        text = "".join(rng.choice(SIGNS) for _ in range(rng.randint(1, 12)))
        if text in ("???", "null") or (text[0] in "'\"" and text[0] == text[-1]):
            continue
        parsed = parser.parse_override(for_hydra(f"run.dir={text}")).value()
        assert OmegaConf.create({"dir": parsed}).dir == text
        assert grammar.text_of(grammar.quoted_if_needed(text)) == text


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("[a,b]", ["a", "b"]),
        ("[a, b c ,'d,e']", ["a", "b c", "d,e"]),
        ("[it's,ü]", ["it's", "ü"]),
        ("[]", []),
        ("a,b", "a,b"),
        ("[a].yaml", "[a].yaml"),
        ("'[a]'", "[a]"),
        ("null", None),
    ],
)
def test_lists_are_parsed_for_list_options(written: str, read: object) -> None:
    config = compose("search", ["+target=npu", f"search_space={written}"])
    assert config.search_space == read
    assert _dir("[a,b]") == "[a,b]"  # a single folder


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("search_space=a,b", "search_space='a','b'"),
        ("search_space=[a,b],c", "search_space=['a','b'],'c'"),
        ("train.optimiser=sgd,null", "train.optimiser='sgd',null"),
        ("run.dir='a,b'", "run.dir='a,b'"),
        ("dataset.path=it's,b", "dataset.path='it\\'s','b'"),
        ("dataset.path=choice(a,b)", "dataset.path=choice(a,b)"),
        ("seed=0,1", "seed=0,1"),
        ("dataset=digits,cifar10", "dataset='digits','cifar10'"),
    ],
)
def test_commas_separate_runs_of_a_sweep(argument: str, expected: str) -> None:
    assert for_hydra(argument, swept=True) == expected


@pytest.mark.parametrize("value", ["", "''", '""', "\udcff", "a\0b"])
def test_invalid_paths_raise(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^run\.dir"):
        _dir(value)


@pytest.mark.slow
def test_sweep_supports_unusual_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["hwnas"])
    folders = ["ü ${x}", "{a#b", "it's"]
    swept = f"run.dir={','.join(folders)}"
    options = ["+target=npu", "search_space=tiny", "accuracy=supernet", "finish.epochs=0"]
    quick = ["train.epochs=1", "n_trials=2"]
    assert run(["search", "-m", *options, *quick, swept]) == 0
    assert sorted(path.parent.name for path in tmp_path.glob("*/front.json")) == sorted(folders)
    capsys.readouterr()
    for folder in folders:
        assert run(["search", f"run.resume={folder}", "n_trials=3"]) == 0
