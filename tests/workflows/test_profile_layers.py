"""Genotypes on the command line, and operators that a target does not run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hwnas.__main__ import run
from hwnas.core.errors import SpaceError
from hwnas.hardware.backends.vela.backend import VelaBackend
from hwnas.hardware.costs.cost_model import Cost
from hwnas.models.graph import Graph
from hwnas.models.spaces import SearchSpace
from hwnas.workflows.profile_layers import find_genotype


def test_operators_outside_the_npu_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = VelaBackend.estimate

    def estimate(backend: VelaBackend, graph: Graph, cost: str | None = None) -> Cost:
        return replace(known(backend, graph, cost), reason="1 operator falls back: Softmax")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(VelaBackend, "estimate", estimate)
    assert run(["profile", "+target=npu", "search_space=tiny", "genotype=smallest"]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "1 operator falls back: Softmax. Their latency is not known" in line
    assert not (tmp_path / "runs").exists()


def test_names_of_genotype_are_checked(tiny: SearchSpace) -> None:
    options = tiny.largest().to_dict()
    assert find_genotype(tiny, json.dumps(options)) == tiny.largest()
    with pytest.raises(SpaceError, match="Unknown name 'deph'"):
        find_genotype(tiny, json.dumps({**options, "deph": 2}))
    fixed = replace(tiny, fixed={**tiny.fixed, "head.width": 128})
    assert find_genotype(fixed, json.dumps({**options, "head.width": 128}))
    with pytest.raises(SpaceError, match=r"fixes head\.width=128, not 256"):
        find_genotype(fixed, json.dumps({**options, "head.width": 256}))
