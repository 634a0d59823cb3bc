"""Costs of an export on other targets than that of its proof."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from hwnas.core.errors import ConfigError
from hwnas.export import measure
from hwnas.export.options import VerifyConfig
from hwnas.export.proof_file import Proof, operators_to_json
from hwnas.hardware.target import Target, facts
from hwnas.models.graph import INPUT, Graph, Node, OpSpec
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
