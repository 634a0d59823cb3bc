"""Options of earlier versions: refused with their new name, translated in old manifests."""

import json
from pathlib import Path

import pytest

from hwnas.__main__ import run
from hwnas.core.manifest import read_manifest
from hwnas.core.options import fingerprint_options, option_defaults
from hwnas.core.renamed_options import DELETED, RENAMED
from hwnas.training.options import FinishConfig, TrainingConfig
from hwnas.workflows.config import SCHEMAS

PAIRS = [(schema, old, new) for schema, names in RENAMED.items() for old, new in names.items()]


@pytest.mark.parametrize(("schema", "old", "new"), PAIRS)
def test_error_for_old_name_gives_new_name(
    capsys: pytest.CaptureFixture[str], schema: str, old: str, new: str
) -> None:
    names = [name for name, _ in option_defaults(SCHEMAS[schema])]
    assert any(f"{name}.".startswith(f"{new}.") for name in names)
    assert old not in names
    verb = ["search", "accuracy=table"] if schema == "tabular" else [schema]
    assert run([*verb, f"{old}=1"]) == 2
    assert capsys.readouterr().err == f"hwnas: {old} was renamed: write {new}=VALUE.\n"


@pytest.mark.parametrize(
    ("schema", "option"), [("search", "sampler.features"), ("compare", "recost")]
)
def test_error_for_deleted_option_gives_replacement(
    capsys: pytest.CaptureFixture[str], schema: str, option: str
) -> None:
    instead = DELETED[schema][option]
    assert run([schema, f"{option}=true"]) == 2
    assert capsys.readouterr().err == f"hwnas: {option} was deleted: {instead}.\n"


def test_old_manifest_is_read_with_new_names(tmp_path: Path) -> None:
    common = {"n_trials": 4, "seed": 0, "budget": {}, "sampler": {"name": "random"}}
    finish = {"probability": 0.2, "n_least": 3, "n_most": None, "minutes": None}
    config = {**common, "target": {"name": "npu"}, "dataset": {"name": "digits"}, "cost": "vela",
              "search_space": "tiny", "finish": finish, "train": {"unaugmented": 0.5},
              "table": {"accept_foreign": True, "dir": "t"}}  # fmt: skip
    arguments = ["+target=[npu,cpu]", "finish.n_least=3", "cpu.table.accept_foreign=true"]
    targets = {name: {"config": {**config, "target": {"name": name}}} for name in ("npu", "cpu")}
    content = {"format": 2, "verb": "search", "arguments": arguments, "config": config,
               "targets": targets, "objectives": ["accuracy", "npu.latency_ms"]}  # fmt: skip
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    manifest = read_manifest(tmp_path)
    assert manifest["arguments"] == [
        "+target=[npu,cpu]", "finish.min_candidates=3", "cpu.table.allow_other_machine=true",
    ]  # fmt: skip
    for options in (manifest["config"], manifest["targets"]["cpu"]["config"]):
        assert options["finish"] == {
            "probability": 0.2, "min_candidates": 3, "max_candidates": None, "minutes": None,
        }  # fmt: skip
        assert options["train"] == {"plain_fraction": 0.5}
        assert options["table"] == {"allow_other_machine": True, "dir": "t"}  # type: ignore[typeddict-item]


def test_old_manifest_of_benchmark_table_is_read(tmp_path: Path) -> None:
    table = {"path": "t.csv", "accuracy": "acc", "costs": {"latency_ms": "ms"}}
    config = {"n_trials": 4, "seed": 0, "budget": {}, "sampler": {"name": "random"},
              "accuracy": "table", "table": table}  # fmt: skip
    arguments = ["accuracy=table", "++table.costs={latency_ms: ms}", "table.path=t.csv"]
    content = {"format": 2, "verb": "search", "arguments": arguments, "config": config}
    (tmp_path / "manifest.json").write_text(json.dumps(content))
    manifest = read_manifest(tmp_path)
    assert manifest["config"]["benchmark"] == table
    assert manifest["arguments"][1:] == [
        "++benchmark.costs={latency_ms: ms}",
        "benchmark.path=t.csv",
    ]


def test_fingerprints_keep_old_names() -> None:
    assert "n_least" in fingerprint_options(FinishConfig())
    assert "unaugmented" in fingerprint_options(TrainingConfig())
