"""Precision as a choice of networks, from search to export."""

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pyarrow.parquet as pq
import pytest
import yaml
from onnx import numpy_helper

from hwnas.__main__ import run
from hwnas.core.quantity import Quantity
from hwnas.hardware.backends.measured_backend import MeasuredArtefacts
from hwnas.hardware.costs.measured_cost import MeasuredCostModel
from hwnas.hardware.runtimes.pool import RetryingPool
from hwnas.hardware.timing import InterleavedTimings, Timing
from hwnas.models import spaces
from tests.conftest import last_of, space_yaml

pytestmark = pytest.mark.slow

ORT = ("+target=cpu", "target.runtime=onnxruntime")
TIMING = ("timing.repeats=3", "timing.min_repeat_ms=0.1")
OPTIONS = (
    *ORT, *TIMING, "cost=measured", "budget=none", "accuracy=trained", "trained.fidelities=[1]",
    "train.epochs=1", "train.batch_size=256", "finish.epochs=0", "finish.min_candidates=12",
    "finish.probability=1e-9", "finish.max_int8_drop=100", "n_trials=9", "study.workers=1",
)  # fmt: skip


def fake_interleaved(*interval: float) -> Any:
    """Return a replacement for interleaved timings with a fixed ratio."""
    timing = Timing(1.0, 0.9, 1.1, 9)
    return lambda *_: InterleavedTimings(
        timing, timing, Quantity(interval[1], "measured", interval[0], interval[2])
    )


FASTER, SLOWER = fake_interleaved(0.7, 0.8, 0.9), fake_interleaved(0.9, 0.95, 1.1)


@pytest.fixture(autouse=True, scope="module")
def faster_int8() -> Iterator[pytest.MonkeyPatch]:
    """Make int8 faster than float32 on any machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hwnas"])
        patch.setattr(MeasuredCostModel, "interleaved", FASTER)
        patch.setattr(MeasuredArtefacts, "interleaved", FASTER)
        # Only for the operator table, which no figure here uses.
        patch.setattr(
            RetryingPool, "time_operators", lambda _, work: [Timing(1.0, 0.9, 1.1, 3)] * len(work)
        )
        yield patch


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a search in ``run`` and its search space."""
    folder = tmp_path_factory.mktemp("precision")
    raw = space_yaml(spaces.load_space(spaces.find("tiny")))
    raw["choices"] |= {"precision": ["float32", "int8"], "float_edges": [0, 1]}
    raw["when"] = {"float_edges": {"precision": ["int8"]}}
    (folder / "choosing.yaml").write_text(yaml.safe_dump(raw))
    assert run(["search", *OPTIONS, *_path_options(folder), f"run.dir={folder / 'run'}"]) == 0
    return folder


def _path_options(folder: Path) -> list[str]:
    return [
        f"search_space={folder / 'choosing.yaml'}", f"run.supernets={folder / 'networks'}",
        f"table.dir={folder / 'tables'}",
    ]  # fmt: skip


def _rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "front.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _member_id(root: Path, precision: str, edges: str = "") -> str:
    """Return the id of a front member with a precision."""
    rows = [
        r for r in _rows(root / "run") if (r["precision"], r["float_edges"]) == (precision, edges)
    ]
    assert rows, "the seed draws no such network"
    return rows[0]["id"]


def test_members_have_chosen_precision(root: Path) -> None:
    rows = _rows(root / "run")
    assert {(row["precision"], row["float_edges"]) for row in rows} == {
        ("float32", ""), ("int8", "0"), ("int8", "1"),
    }  # fmt: skip
    for row in rows:
        model = onnx.load(root / "run" / row["onnx"])
        kinds = {node.op_type for node in model.graph.node}
        assert ("QuantizeLinear" in kinds) is (row["precision"] == "int8")
        weights = {t.name: numpy_helper.to_array(t).dtype for t in model.graph.initializer}
        is_float = row["precision"] == "float32" or row["float_edges"] == "1"
        assert weights["classifier/weight"] == ("float32" if is_float else "int8")
        assert bool(row["verified_accuracy_int8"]) is (row["precision"] == "int8")
        ratio = row["verified_int8_over_float32"]
        assert ratio == ("0.8" if row["precision"] == "int8" else "")
    table = pq.read_table(root / "run" / "candidates.parquet").to_pylist()
    for row in table:
        assert (row["int8_over_float32"] is not None) is (row["precision"] == "int8")


def _export(root: Path, name: str, genotype_id: str) -> tuple[int, Path, dict[str, Any]]:
    code = run(["export", f"run={root / 'run'}", f"dir={root / name}", f"id={genotype_id}"])
    (proof,) = (root / name).rglob("proof.json")
    return code, proof.parent, json.loads(proof.read_text())


@pytest.mark.slow
def test_int8_export_checks_precision(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, folder, proof = _export(root, "edges", _member_id(root, "int8", "1"))
    assert code == 0
    assert proof["target"]["dtype"] == "int8"
    assert proof["own_artefact"] == "model.int8.onnx"
    assert [o["name"] for o in proof["model"]["operators"] if o.get("in_float")] == [
        "stem", "pool", "classifier",
    ]  # fmt: skip
    assert "3 operators in float32" in proof["finishing"]["int8"]
    (check,) = (check for check in proof["checks"] if check["name"] == "int8.latency")
    assert (check["found"], check["allowed"], check["holds"]) == (0.9, 1.0, True)
    assert "target.dtype=int8" in proof["commands"]["Costs"].split()
    run_record = root / "run" / "models" / f"{proof['model']['id']}.json"
    assert proof["source"]["reported"]["figures"] == json.loads(run_record.read_text())["figures"]
    capsys.readouterr()
    costs = ["verify", str(folder), *ORT, "target.dtype=int8", *TIMING]
    assert run(costs) == 0
    assert "model.int8.onnx on cpu" in capsys.readouterr().out


def test_float32_export_has_no_int8_check(root: Path) -> None:
    code, _, proof = _export(root, "reals", _member_id(root, "float32"))
    assert code == 0
    assert proof["target"]["dtype"] == "float32"
    assert proof["own_artefact"] == "model.fp32.onnx"
    assert "int8.latency" not in {check["name"] for check in proof["checks"]}
    # Its int8 file has no float32 operators.
    assert not any(operator.get("in_float") for operator in proof["model"]["operators"])


@pytest.mark.slow
def test_slower_int8_is_not_delivered(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MeasuredArtefacts, "interleaved", SLOWER)
    code, folder, _ = _export(root, "slow", _member_id(root, "int8", "0"))
    assert code == 1
    assert folder.name.endswith(".failed")
    assert "int8.latency" in capsys.readouterr().err
    repeated = root / "again"
    assert (
        run(
            [
                "search",
                *last_of(*OPTIONS, *_path_options(root), f"run.dir={repeated}", "n_trials=6"),
            ]
        )
        == 0
    )
    rows = _rows(repeated)
    int8_ids = [row["id"] for row in rows if row["precision"] == "int8"]
    assert int8_ids
    assert {row["id"] for row in rows if row["verified_on_front"] == "True"}.isdisjoint(int8_ids)
    out = " ".join(capsys.readouterr().out.split())
    for genotype_id in int8_ids:
        assert f"{genotype_id} is not delivered: in int8 it takes 0.95 times (0.90 to 1.10)" in out
    assert f"{len(int8_ids)} in int8 no faster than in float32" in out


@pytest.mark.slow
def test_search_rejects_slower_int8(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MeasuredCostModel, "interleaved", SLOWER)
    folder = root / "refusing"
    assert (
        run(["search", *last_of(*OPTIONS, *_path_options(root), f"run.dir={folder}", "n_trials=6")])
        == 0
    )
    table = pq.read_table(folder / "candidates.parquet").to_pylist()
    infeasible = [row for row in table if row["state"] == "infeasible"]
    assert infeasible
    assert {row["id"] for row in infeasible} == {r["id"] for r in table if r["precision"] == "int8"}
    assert all("in int8 it takes 0.95 times" in row["reason"].lower() for row in infeasible)
    assert {row["precision"] for row in _rows(folder)} == {"float32"}


@pytest.mark.parametrize("target", ["npu", "cpu"])
def test_targets_with_fixed_precision_reject_space(
    target: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["search", f"+target={target}", *_path_options(root), f"run.dir={root / 'no'}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"the choice 'precision', but target '{target}'" in line
    assert not (root / "no").exists()


@pytest.mark.slow
def test_int8_space_may_have_empty_front(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MeasuredArtefacts, "interleaved", SLOWER)
    raw = yaml.safe_load((root / "choosing.yaml").read_text())
    raw["choices"] = {
        n: o for n, o in raw["choices"].items() if n not in ("precision", "float_edges")
    }
    raw["fixed"] |= {"precision": "int8", "float_edges": 1}
    (root / "whole.yaml").write_text(yaml.safe_dump({n: raw[n] for n in raw if n != "when"}))
    paths = [place for place in _path_options(root) if not place.startswith("search_space")]
    folder = root / "whole"
    options = last_of(*OPTIONS, *paths, f"search_space={root / 'whole.yaml'}", "n_trials=2")
    assert run(["search", *options, f"run.dir={folder}"]) == 0
    rows = _rows(folder)
    assert {row["verified_on_front"] for row in rows} == {"False"}
    assert f"{len(rows)} verified: 0 networks on the front" in " ".join(
        capsys.readouterr().out.split()
    )
    export = [f"run={folder}", f"dir={root / 'none'}", "pick=fastest"]
    assert run(["export", *export]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "front" in line
