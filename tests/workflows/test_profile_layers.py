"""Genotypes on the command line, and operators that a target does not run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hwnas.__main__ import run
from hwnas.core.errors import ConfigError, SpaceError
from hwnas.hardware.backends.onnx_files import random_weights
from hwnas.hardware.backends.vela.backend import VelaBackend
from hwnas.hardware.costs.cost_model import Cost
from hwnas.models import families
from hwnas.models.graph import Graph, Signature
from hwnas.models.onnx.writer import write_fp32
from hwnas.models.spaces import SearchSpace, find, load_space
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


def test_network_file_of_another_space_is_refused(tiny: SearchSpace, tmp_path: Path) -> None:
    def write(space: SearchSpace) -> str:
        genotype = space.largest()
        path = tmp_path / "models" / f"{genotype.id}.json"
        path.parent.mkdir(exist_ok=True)
        content = {"genotype": genotype.to_dict(), "figures": {}, "details": {}, "files": {}}
        path.write_text(json.dumps(content))
        return str(path)

    assert find_genotype(tiny, write(tiny)) == tiny.largest()
    with_bits = replace(tiny, choices={**tiny.choices, "weight_bits": (4, 8)})
    with pytest.raises(
        ConfigError, match=r"it has weight_bits\). Give the search_space of its run"
    ):
        find_genotype(tiny, write(with_bits))
    batched = replace(tiny, choices={**tiny.choices, "batch": (1, 8)})
    with pytest.raises(ConfigError, match=r"it has batch\). Give the target\.batches of its run"):
        find_genotype(tiny, write(batched))
    assert find_genotype(tiny, write(batched), ignored=["batch"]) == tiny.largest()
    with pytest.raises(ConfigError, match=r"of another search space than 'tiny'\. Give the search"):
        find_genotype(tiny, write(replace(tiny, name="tiny_exits")))


def test_model_that_dtype_does_not_support_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    task = Signature(3, 2)
    space = load_space(find("vit_small"))
    lowered = families.get(space.family).lower(space, space.smallest(), task)
    Path("vit.onnx").write_bytes(write_fp32(lowered, random_weights(lowered, 0)))
    assert run(["profile", "+target=sketch", "genotype=vit.onnx"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "int8" in line
