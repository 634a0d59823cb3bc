"""Help pages, catalogues of names, versions and shell completion."""

import re
from pathlib import Path

import pytest
import yaml

from hwnas.__main__ import run
from hwnas.cli import help
from hwnas.cli.catalog import catalog, kinds, names_of
from hwnas.cli.completion import completion_script, completions
from hwnas.cli.help_texts import ABOUT, COMMON, EXAMPLES, GROUPS, USAGE, VERBS
from hwnas.core import package
from hwnas.core.errors import ConfigError
from hwnas.workflows.config import SCHEMAS
from tests.conftest import options_with_defaults


def _fits(page: str, lines: int) -> bool:
    rows = page.splitlines()
    return len(rows) <= lines and max(map(len, rows)) <= 80


def test_copy_of_a_target_is_listed_with_its_own_description(tmp_path: Path) -> None:
    copy = tmp_path / "target" / "phone.yaml"
    copy.parent.mkdir()
    copy.write_text(
        re.sub("(?m)^description:.*", "description: My phone", catalog(["targets", "pixel"]))
    )
    assert re.search(r"(?m)^phone +My phone$", catalog(["targets", "--config-dir", str(tmp_path)]))
    copy.write_text("# +target=pixel\n# A phone\ndefaults: [pixel]\n")
    assert re.search(r"(?m)^phone +A phone$", catalog(["targets", "--config-dir", str(tmp_path)]))


def test_overview_and_short_help_fit_a_terminal() -> None:
    assert _fits(help.overview(), 60)
    assert {*ABOUT} == {*USAGE} == {*EXAMPLES} == {*VERBS}
    for verb in VERBS:
        page = help.verb_help(verb)
        assert _fits(page, 60), verb
        assert page.startswith(f"usage: hwnas {verb} ")
        assert all(f"  hwnas {example}" in page for example in EXAMPLES[verb])


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb in SCHEMAS])
def test_long_help_lists_all_options(verb: str) -> None:
    page = help.verb_help(verb, "all")
    assert max(map(len, page.splitlines())) <= 80
    assert {*COMMON.get(verb, ())} <= {*help._options(verb), *GROUPS}
    for name, _ in options_with_defaults(verb):
        group = name.removesuffix(".name")
        if not name.startswith("budget."):
            assert f"{group if group in GROUPS else f'  {name}'}=" in page


def test_option_help_has_description_default_and_range() -> None:
    page = " ".join(help.verb_help("verify", "limit_s").split())
    assert "limit_s=NUMBER time limit" in page
    assert "[default 120 s; over 0, up to 86400]" in page
    assert "benchmark.path=FILE" in help.verb_help("search", "benchmark")
    with pytest.raises(ConfigError, match=r"Unknown group 'trian'.*Did you mean 'train'"):
        help.verb_help("search", "trian")


@pytest.mark.parametrize(
    "arguments", [["search", "-h"], ["--help", "search"], ["help", "search"], ["search", "--help"]]
)
def test_help_can_be_requested_in_four_ways(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 0
    assert capsys.readouterr().out.startswith("usage: hwnas search")


def test_catalog_lists_names_with_details() -> None:
    for kind in kinds():
        page = catalog([kind])
        assert max(map(len, page.splitlines())) <= 80
        for name in names_of(kind):
            assert name in page
            assert catalog([kind, name]).strip()
    assert "needs target.facts.grid_g_per_kwh" in catalog(["metrics"])
    assert "B, KB, MB" in catalog(["metrics", "flash_kib"])
    with pytest.raises(ConfigError, match=r"Unknown space 'tinyy'.*Did you mean 'tiny'"):
        catalog(["spaces", "tinyy"])


def test_catalog_lists_files_of_config_dir(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "board.yaml").write_text("name: board\ndescription: My board\n")
    for folder in (["--config-dir", str(tmp_path)], [f"--config-dir={tmp_path}"]):
        assert re.search(r"^board +My board$", catalog(["targets", *folder]), re.MULTILINE)
        assert "description: My board" in catalog([*folder, "targets", "board"])
    assert "usage: hwnas list" in catalog(["--config-dir", str(tmp_path)])
    with pytest.raises(ConfigError, match="no such folder"):
        catalog(["targets", "--config-dir", "nowhere"])
    assert "My board" not in catalog(["targets"])


@pytest.mark.parametrize("flag", [["--cfg", "job"], ["-c", "job", "--resolve"]])
def test_invalid_configuration_is_not_printed(
    flag: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["search", "+target=npu", "n_trials=-5", *flag]) == 2
    assert "n_trials must be a whole number in" in capsys.readouterr().err
    assert run(["search", "+target=npu", "n_trials=5", *flag]) == 0
    assert "n_trials: 5" in capsys.readouterr().out


def test_space_details_equal_its_file() -> None:
    content = yaml.safe_load(catalog(["spaces", "mbconv_small"]))
    path = package.ROOT / "search_spaces" / "mbconv_small.yaml"
    assert content == yaml.safe_load(path.read_text(encoding="utf-8"))


def test_version_lists_dependencies(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"hwnas {package.__version__}\n")
    assert all(name in output for name in ("torch", "optuna", "vela", "tvm", "threads"))


@pytest.mark.parametrize(
    ("before", "prefix", "expected"),
    [
        ([], "se", ["search", "serve-check"]),
        (["search"], "+tar", ["+target="]),
        (["search"], "+target=n", ["+target=npu", "+target=nvidia_a100"]),
        (["search"], "budget.lat", ["budget.latency_ms=", "budget.latency_p99_ms="]),
        (["train"], "train.distillation=", ["train.distillation=true", "train.distillation=false"]),
        (["list", "spaces"], "ti", ["tiny"]),
        (["resume"], "n_tr", ["n_trials="]),
        (["search"], "budget", ["budget="]),
        (["search"], "task", ["task="]),
        (["search"], "dataset.in_memory=", ["dataset.in_memory=true"]),
    ],
)
def test_completion_suggests_options(before: list[str], prefix: str, expected: list[str]) -> None:
    assert [*completions(before, prefix)][: len(expected)] == expected


def test_target_is_not_completed_where_it_is_refused() -> None:
    assert [*completions(["export"], "+t")] == []


def test_help_of_single_options() -> None:
    assert "classification or regression" in help.verb_help("search", "task")
    assert help.verb_help("resume", "n_trials") == help.verb_help("search", "n_trials")


def test_completion_scripts_support_three_shells() -> None:
    assert all("hwnas" in completion_script([shell]) for shell in ("bash", "zsh", "fish"))
    with pytest.raises(ConfigError, match=r"Unknown shell 'tcsh'"):
        completion_script(["tcsh"])
