import re
from pathlib import Path

import pytest

from hwnas.core.errors import ConfigError
from hwnas.tasks.metrics.budget import Budget
from hwnas.workflows.config.arguments import (
    as_arguments,
    check_meaning,
    for_hydra,
    in_units,
    of_target,
    with_names,
)
from hwnas.workflows.config.compose import compose
from hwnas.workflows.config.flags import check_folders, check_own_names
from hwnas.workflows.config.grammar import with_groups


def test_folder_argument_needs_no_option_name(tmp_path: Path) -> None:
    odd = tmp_path / "a=b"
    odd.mkdir()
    arguments = ["--config-dir", "mine", str(odd), "+target=board", "-h"]
    expected = [f"export={odd}", "--config-dir", "mine", *arguments[3:]]
    assert with_names("verify", arguments) == expected
    with pytest.raises(ConfigError, match=r"'b' is one argument too many .* hwnas verify EXPORT "):
        with_names("verify", ["a", "b"])


LONG = f'genotype={{"{"x" * 300}": 1}}'


@pytest.mark.parametrize(
    ("verb", "arguments", "expected"),
    [
        ("why", ["a", "3f2a"], ["run=a", "id=3f2a"]),
        ("export", ["a", "pick=all"], ["run=a", "pick=all"]),
        ("compare", ["a", "b", "seed=1"], ["runs=[a,b]", "seed=1"]),
        ("compare", ["runs/*"], ["runs=runs/*"]),
        ("search", ["npu", "cpu"], ["+target=[npu,cpu]"]),
        ("search", ["target=npu"], ["+target=npu"]),
        ("plan", ["s.yaml", "f.yaml"], ["service=s.yaml", "fleet=f.yaml"]),
        ("resume", ["a"], ["run.resume=a"]),
        ("export", ["a", "--cfg", "job"], ["run=a", "--cfg", "job"]),
        ("train", [LONG], [LONG]),  # longer than a file name may be
    ],
)
def test_positional_arguments_get_option_names(
    verb: str, arguments: list[str], expected: list[str]
) -> None:
    assert with_names(verb, arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run=a", "b"], "'b' is without the name of an option, and run is given already"),
        (["--resume=a"], "Unknown flag '--resume'. To continue a search: hwnas resume RUN"),
        (["--config", "a"], "--config-dir DIR"),
        (["--n-trials=5"], "Options have no dashes: write n_trials=5"),
    ],
)
def test_unknown_flags_raise(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        with_names("export", arguments)


def test_name_of_file_is_its_group(tmp_path: Path) -> None:
    (tmp_path / "sampler").mkdir()
    (tmp_path / "sampler" / "mine.yaml").write_text("name: tpe")
    folder = f"--config-dir={tmp_path}"
    assert with_groups([folder, "+dataset.name='images'", "sampler.name=mine"]) == [
        folder, "dataset='images'", "sampler=mine",
    ]  # fmt: skip
    assert with_groups(["+target=npu", "target.name=npu"]) == ["+target=npu"]
    assert with_groups(["dataset.name=digits,images"]) == ["dataset=digits,images"]
    unchanged = ["dataset.name=photos", "target.name=lab", "study.name=npu", "sampler.name=mine"]
    assert with_groups(unchanged) == unchanged
    with pytest.raises(ConfigError, match="dataset is given twice"):
        compose("train", ["dataset=digits", "dataset.name=images"])
    named = as_arguments({"dataset": {"name": "images", "path": "photos"}})
    assert compose("train", named) == compose("train", ["dataset=images", "dataset.path=photos"])


def test_home_is_expanded_in_values() -> None:
    assert with_names("search", ["dataset.path=~/a", "+target=npu"]) == [
        f"dataset.path={Path.home()}/a", "+target=npu",
    ]  # fmt: skip


def test_limits_are_converted_to_metric_units() -> None:
    assert in_units(["budget.latency=500us", "npu.budget.flash=100KB", "budget.sram='2 MiB'"]) == [
        "budget.latency_ms=0.5", "npu.budget.flash_kib=97.65625", "budget.sram_kib=2048.0",
    ]  # fmt: skip
    unchanged = ["budget.latency_ms=0.5", "budget=edge", "budget.name=own", "budget.own_ms=1"]
    assert in_units(unchanged) == unchanged
    assert in_units(["budget.latency=null"]) == ["budget.latency_ms=null"]
    for text in ("quarterms", "1/4ms"):
        with pytest.raises(ConfigError, match=r"a number with a unit \(ms, s, .*=0.5ms"):
            in_units([f"budget.latency={text}"])


def test_folder_of_files_is_a_keyword_in_python() -> None:
    assert as_arguments({"config_dir": Path("my dir"), "target": "board", "seed": 1}) == [
        "--config-dir=my dir", "+target=board", "seed=1",
    ]  # fmt: skip


def test_target_arguments_are_selected() -> None:
    search = ["+target=[npu,cpu]", "cpu.target.threads=2", "seed=1", "--config-dir", "mine"]
    assert of_target(search, 0) == ["+target=npu", "--config-dir", "mine"]
    assert of_target(search, 1) == ["+target=cpu", "target.threads=2", "--config-dir", "mine"]
    for flags in (["--config-dir=mine"], ["-cd", "mine"]):
        assert of_target([*flags, "+target=board", "seed=1"], 0) == ["+target=board", *flags]
        assert of_target(["+target=board", *flags], 0) == ["+target=board", *flags]
    board = ["+target=raspi4", "rpc.tracker=HOST:1", "budget=none"]
    assert of_target(board, 0) == board[:2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seed=1", "seed=2"], "seed is given twice: seed=1 and seed=2"),
        (["budget=tiny", "~budget"], "budget is given twice: budget=tiny and ~budget"),
        (["+target=npu", "target=cpu"], "target is given twice"),
        (["budget.latency_ms=1", "++budget.latency_ms=2"], "budget.latency_ms is given twice"),
        (["objectives=[]"], "objectives=[] is empty"),
        (["task=regression", "objectives=[ ]"], "write objectives=[mae,latency_ms]"),
        (["hydra.run.dir=a b"], "write run.dir=a b"),
        (["hydra.launcher._target_=foo.bar"], "hydra/launcher=NAME"),
    ],
)
def test_contradictory_arguments_raise(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_meaning("search", arguments)


def test_repeated_equal_arguments_are_allowed() -> None:
    arguments = ["seed=1", "+seed=1", "~budget", "--config-dir=a", "--config-dir=b"]
    assert check_meaning("search", arguments) == [*arguments[:2], "budget=none", *arguments[3:]]
    assert check_meaning("compare", ["~budget"]) == ["~budget"]


def test_budget_name_must_be_text() -> None:
    with pytest.raises(ConfigError, match=r"budget.name must be text, such as edge, got \[1\]"):
        Budget.of({"name": [1]})


@pytest.mark.parametrize("value", ["7", "-1", "0.5", "1e3", "true,2"])
def test_numbers_are_no_booleans(value: str) -> None:
    with pytest.raises(
        ConfigError, match=re.escape(f"extrapolate must be true or false, got {value}")
    ):
        for_hydra(f"extrapolate={value}")
    for allowed in ("false", "1", "0"):
        assert for_hydra(f"extrapolate={allowed}") == f"extrapolate={allowed}"


def test_unused_invalid_config_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "draft.yaml").write_text("name: [")
    (tmp_path / "target" / "mine.yaml").write_text("defaults: [npu]\nname: mine")
    arguments = ["--config-dir", str(tmp_path), "+target=mine"]
    check_folders(arguments)
    for target in ("+target=draft", "+target=[npu,draft]"):
        with pytest.raises(ConfigError, match=r"draft\.yaml"):
            check_folders([*arguments, target])
    (tmp_path / "target" / "mine.yaml").write_text("defaults: [draft]\nname: mine")
    with pytest.raises(ConfigError, match=r"draft\.yaml"):
        check_folders(arguments)


def test_config_file_with_name_of_shipped_one_is_refused(tmp_path: Path) -> None:
    """Hydra would read the shipped file without a message."""
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "npu.yaml").write_text("defaults: [cpu]\nname: npu")
    (tmp_path / "target" / "mine.yaml").write_text("defaults: [cpu]\nname: pixel")
    folder = ["--config-dir", str(tmp_path)]
    with pytest.raises(ConfigError, match=r"npu is the name of a shipped target.* my_npu\.yaml"):
        check_own_names([*folder, "+target=npu"])
    with pytest.raises(ConfigError, match="name: pixel is that of a shipped target"):
        check_own_names([*folder, "+target=mine"])
    check_own_names([*folder, "+target=cpu"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["kit=a", "genotype=largest"], "genotype has no effect with kit"),
        (["measured=a.csv", "tolerance=0.1"], "tolerance has no effect with measured"),
        (["genotype=largest", "n=50"], "n has no effect without kit"),
        (["kit=a", "drift=0.1"], "drift has no effect without measured"),
        (["genotype=largest", "front_of=runs/a"], "front_of has no effect without kit"),
    ],
)
def test_profile_options_without_effect_are_refused(options: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose("profile", ["+target=pixel", *options])
