"""Costs of an export on other targets than that of its proof."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from hwnas.__main__ import run
from hwnas.core.errors import CompileError, ConfigError, RunError
from hwnas.export import measure
from hwnas.export.options import VerifyConfig
from hwnas.export.proof_file import Proof, operators_to_json
from hwnas.hardware.backends import base
from hwnas.hardware.target import Remote, Target, facts
from hwnas.models.graph import INPUT, Graph, Node, OpSpec
from hwnas.workflows import verify
from hwnas.workflows.reporter import RecordingReporter
from tests.conftest import target

CPU = replace(target("cpu"), batch=8)


def _proof(proof_target: Target) -> Proof:
    limits = {"latency_ms": {"limit": 3.0}}
    node = Node("fc", OpSpec("linear", (8, 1, 1), (4, 1, 1)), (INPUT,))
    operators = operators_to_json(Graph.of((node,)))
    content = {"model": {"operators": operators}, "artefacts": {"model.so": {}}, "budget": limits}
    return cast(Proof, {**content, "target": facts(proof_target)})


def test_library_with_other_batch_raises(tmp_path: Path) -> None:
    config = VerifyConfig(export=str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"model.so was .* for 8 .*, not target.batch=1: set target.batch=8"
    ):
        measure.measure(tmp_path, _proof(CPU), replace(CPU, batch=1), config)


@pytest.mark.parametrize(
    ("other", "limits"),
    [
        (CPU, {"latency_ms": 3.0}),
        (replace(CPU, meter="rapl"), {"latency_ms": 3.0}),
        (replace(CPU, name="another"), {}),
        (replace(CPU, batch=1), {}),
        (replace(CPU, threads=2), {}),
        (replace(CPU, dtype="int8"), {}),
    ],
)
def test_budget_applies_only_to_same_target(other: Target, limits: dict[str, float]) -> None:
    assert measure._limits(_proof(CPU), other) == limits


def test_compiler_of_same_target_may_differ() -> None:
    board = target("raspi4")
    settings: Any = vars(board)["tvm"]
    here = replace(board, tvm=replace(settings, cc="/opt/bin/aarch64-g++"))  # type: ignore[call-arg]
    assert measure.is_same_target(_proof(board), here)
    assert not measure.is_same_target(_proof(board), replace(board, threads=3))


def test_library_of_another_platform_needs_its_compiler() -> None:
    board = target("raspi4")
    settings: Any = vars(board)["tvm"]
    unknown = replace(board, tvm=replace(settings, cc=""))  # type: ignore[call-arg]
    reason = base.backend_of(unknown).unavailable_reason("model.tar", Remote())
    assert "needs a compiler: add +target=raspi4 target.tvm.cc=COMPILER" in reason


def test_missing_meter_of_this_machine_is_no_failed_check() -> None:
    repeated = verify._RepeatedProof.__new__(verify._RepeatedProof)
    repeated._folder, repeated._reporter = Path("export"), RecordingReporter()
    repeated._config = VerifyConfig(export="export")
    repeated._sessions, repeated._not_run, repeated.failed = {"model.so": cast(Any, None)}, [], []
    with repeated._catch_failures("model.so"):
        raise ConfigError("target.meter=rapl: no CPU package.")
    assert not repeated.failed
    with pytest.raises(RunError, match=r"none of its files can run .* model\.so: target\.meter"):
        repeated._check_any_runs()
    with repeated._catch_failures("model.tar"):
        raise CompileError("it cannot be linked.")
    assert repeated.failed == ["model.tar: it cannot be linked"]


def test_verify_refuses_several_targets(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "export", "+target=[npu,cpu]"]) == 2
    assert "Only the verbs search and split support several targets" in capsys.readouterr().err
