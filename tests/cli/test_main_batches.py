"""Batch size and number of threads as choices of networks, from search to export."""

import csv
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow.parquet as pq
import pytest
import yaml

from hwnas.__main__ import run
from hwnas.core.errors import SpaceError
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import RunFolder
from hwnas.fleet.models import ModelCatalogue, _read_run
from hwnas.hardware.costs.measured_cost import fused_graph
from hwnas.hardware.latency_tables.latency_table import (
    LatencyTable,
    OperatorEntry,
    load_table,
    table_name,
)
from hwnas.hardware.latency_tables.provenance import provenance_facts
from hwnas.hardware.profiling.operator_measurement import network_digest
from hwnas.hardware.target import Remote
from hwnas.hardware.timing import Timing
from hwnas.models import spaces
from hwnas.models.families import annotations, family_of
from hwnas.models.graph import Signature
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import Member
from hwnas.tasks.predictions import PREDICTIONS_FILE, Predictions, pack_predictions
from hwnas.workflows.search import cascades
from tests.conftest import space_yaml, target

#: A machine with one core has no choice of threads.
COUNTS = [1, 2] if len(os.sched_getaffinity(0)) > 1 else [1]
TIMING = ("timing.repeats=3", "timing.min_repeat_ms=0.1")
CHOICE = [f"target.thread_counts=[{','.join(map(str, COUNTS))}]"] * (len(COUNTS) > 1)
OPTIONS = (
    "+target=cpu", "target.runtime=onnxruntime", "target.dtype=int8", "target.batches=[1,4]",
    *CHOICE, *TIMING, "cost=measured", "budget=none", "objectives=[accuracy,throughput_ips]",
    "search_space=few.yaml", "accuracy=trained", "trained.fidelities=[1]", "train.epochs=1",
    "train.batch_size=256", "finish.epochs=0", "finish.min_candidates=8", "finish.probability=1e-9",
    "finish.max_int8_drop=100", f"n_trials={4 * len(COUNTS)}", "study.workers=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of networks with batches of 1 and 4 images on 1 and 2 threads."""
    folder = tmp_path_factory.mktemp("batches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hwnas"])
        patch.chdir(folder)
        few = space_yaml(spaces.load_space(spaces.find("tiny")))
        for name in [*few["choices"]][1:]:  # the first varies
            few["fixed"][name] = few["choices"].pop(name)[0]
        few["fixed"] = {n: v for n, v in few["fixed"].items() if ".blocks.1." not in n}
        (folder / "few.yaml").write_text(yaml.safe_dump(few))
        assert run(["search", *OPTIONS, "run.dir=r"]) == 0
    return folder / "r"


def _members(searched: Path) -> list[dict[str, str]]:
    with (searched / "front.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_members_have_throughput_of_their_batch(searched: Path) -> None:
    members = _members(searched)
    assert {row["batch"] for row in members} <= {"1", "4"}
    assert {row.get("threads", "1") for row in members} <= {*map(str, COUNTS)}
    for row in members:
        for prefix in ("", "verified_"):
            ms, ips = float(row[f"{prefix}latency_ms"]), float(row[f"{prefix}throughput_ips"])
            assert ips == pytest.approx(1e3 * int(row["batch"]) / ms, rel=1e-6)
        model = onnx.load(searched / "models" / f"{row['id']}.onnx")
        model_batch = model.graph.input[0].type.tensor_type.shape.dim[0].dim_value
        assert model_batch == int(row["batch"])
        threads = [item.value for item in model.metadata_props if item.key == "threads"]
        assert threads == [row["threads"]] * ("threads" in row)


@pytest.mark.slow
def test_batch_sizes_share_weights(searched: Path) -> None:
    rows = pq.read_table(searched / "candidates.parquet").to_pylist()
    choices = [
        name for name in yaml.safe_load(Path(searched.parent, "few.yaml").read_text())["choices"]
    ]
    architectures = {tuple(row.get(name) for name in choices) for row in rows}
    assert (len(rows), len(architectures)) == (
        4 * len(COUNTS),
        2,
    )  # all of the space with all run options
    trained = {path.parent for path in (searched.parent / "runs").rglob("*.safetensors")}
    assert len(trained) == len(architectures)
    genotype = spaces.Genotype("s", (("batch", 4), ("depth", 2), ("threads", 2)))
    other = spaces.Genotype("s", (("batch", 1), ("depth", 2), ("threads", 1)))
    assert annotations.weight_relevant_genotype(genotype) == annotations.weight_relevant_genotype(
        other
    )


@pytest.mark.slow
def test_export_has_batch_and_threads(searched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(searched.parent)
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    member = max(_members(searched), key=lambda row: int(row["batch"]))
    assert member["batch"] == "4"
    assert run(["export", f"run={searched}", f"id={member['id']}", "dir=e"]) == 0
    (path,) = Path("e").rglob("proof.json")
    proof = json.loads(path.read_text())
    assert proof["target"]["batch"] == 4
    assert proof["target"]["threads"] == int(member.get("threads", "1"))
    arguments = proof["commands"]["Costs"].split()
    assert "target.batch=4" in arguments
    assert len(COUNTS) == 1 or f"target.threads={member['threads']}" in arguments
    assert "thread_counts" not in proof["commands"]["Costs"]
    assert run(["verify", str(path.parent)]) == 0


@pytest.mark.slow
def test_plan_reads_latencies_by_batch(searched: Path) -> None:
    catalogue, batches = (
        ModelCatalogue(),
        {row["id"]: int(row["batch"]) for row in _members(searched)},
    )
    _read_run(catalogue, searched)
    assert catalogue.latency_ms
    for (_, name), times in catalogue.latency_ms.items():
        assert {*times} == {batches[name.partition("-")[0]]}


def test_operators_have_batch_and_stable_digests() -> None:
    plain = spaces.load_space(spaces.find("tiny"))
    with_batches, cpu, signature = (
        annotations.with_run_choices(plain, {"batch": [1, 4]}),
        target("cpu"),
        Signature(1, 10),
    )
    assert table_name(replace(cpu, batches=[1, 4])) == "tvm-float32-1t-b1+4"
    for n in (1, 4):
        chosen = {**with_batches.smallest().to_dict(), "batch": n}
        lowered = annotations.lower(
            family_of(with_batches), with_batches, with_batches.genotype(chosen), signature
        )
        assert {node.op.batch for node in fused_graph(lowered, cpu)} == {n}
        plain_graph = annotations.lower(family_of(plain), plain, plain.smallest(), signature)
        if n == 1:
            assert network_digest(fused_graph(lowered, cpu)) == network_digest(
                fused_graph(plain_graph, cpu)
            )
    assert annotations.with_run_choices(plain, {"batch": [], "threads": []}) is plain


def test_operators_have_threads_and_tables_store_them(tmp_path: Path) -> None:
    plain, cpu = spaces.load_space(spaces.find("tiny")), target("cpu")
    with_threads = annotations.with_run_choices(plain, {"threads": [1, 2]})
    assert table_name(replace(cpu, thread_counts=[1, 2])) == "tvm-float32-1+2t-b1"
    graphs = [
        fused_graph(
            annotations.lower(
                family_of(with_threads),
                with_threads,
                with_threads.genotype({**with_threads.smallest().to_dict(), "threads": n}),
                Signature(1, 10),
            ),
            cpu,
        )
        for n in (1, 2)
    ]
    assert network_digest(graphs[0]) != network_digest(graphs[1])
    ops = [graph[0].op for graph in graphs]
    assert [str(op).endswith(f" {n}t") for n, op in zip((1, 2), ops, strict=True)] == [True, True]
    table = LatencyTable(tmp_path / "t", provenance=provenance_facts(cpu, Remote()))
    table.entries = {
        op: OperatorEntry("", Timing(i, i, i, 3, False)) for i, op in enumerate(ops, 1)
    }
    table.save()
    assert load_table(table.path).entries == table.entries


def test_run_label_names_batch_and_threads() -> None:
    labels = {(): "", (("batch", 8),): "b8", (("threads", 2),): "2t"}
    assert {
        options: annotations.run_label(spaces.Genotype("s", options)) for options in labels
    } == labels
    assert annotations.run_label(spaces.Genotype("s", (("batch", 8), ("threads", 2)))) == "2t-b8"


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ({"batch": (1, 0)}, "'batch' is 0; allowed: whole numbers from 1 to 65536"),
        ({"batch": (1, "x")}, "'batch' is x; allowed"),
        ({"stem.batch": (1, 2)}, "'stem.batch' is not allowed: batch applies to whole"),
        ({"threads": (0, 1)}, "'threads' is 0; allowed: whole numbers from 1 to 1024"),
        ({"stem.threads": (1, 2)}, "'stem.threads' is not allowed: threads applies to whole"),
    ],
)
def test_invalid_run_options_raise(added: dict[str, tuple[object, ...]], message: str) -> None:
    plain = spaces.load_space(spaces.find("tiny"))
    choices: dict[str, tuple[Any, ...]] = {**plain.choices, **added}
    invalid = spaces.SearchSpace(plain.name, plain.family, choices, plain.fixed)
    with pytest.raises(SpaceError, match=message):
        annotations.check_run_options(invalid)
    space = spaces.SearchSpace("s", plain.family, {"batch": (1, 2)}, {})
    with pytest.raises(SpaceError, match=r"remove target\.batches=\[1, 2\]"):
        annotations.with_run_choices(space, {"batch": [1, 2]})
    space = spaces.SearchSpace("s", plain.family, {"threads": (1, 2)}, {})
    with pytest.raises(SpaceError, match=r"or target\.thread_counts=\[NUMBER,NUMBER\]"):
        annotations.with_run_choices(space, {})


def test_unsupported_batches_and_threads_are_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    assert run(["search", "+target=cpu", "target.batches=[8,8]"]) == 2
    assert "target.batches=[8, 8]: values must be different." in capsys.readouterr().err
    assert run(["search", "+target=cpu", "target.thread_counts=[2]"]) == 2
    assert "target.thread_counts=[2] has one value: set target.threads=2" in capsys.readouterr().err
    assert run(["search", "+target=npu", "target.batches=[1,2]"]) == 2
    error = capsys.readouterr().err
    assert "or set target.batches=[]" in error
    assert "onnxruntime or tvm" in error
    assert run(["search", "+target=cpu", "target.thread_counts=[1,2]"]) == 2
    error = capsys.readouterr().err
    assert "or use a target with target.runtime=onnxruntime." in error
    arguments = ["target.runtime=onnxruntime", "target.thread_counts=[1,999]", "cost=measured"]
    assert run(["search", "+target=cpu", *arguments, "search_space=tiny"]) == 2
    assert "target.thread_counts=[1, 999], but only" in capsys.readouterr().err
    assert run(["search", "+target=cpu", *arguments[:2], "cost=roofline"]) == 2
    assert "a roofline is for one number of threads" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target_batch", "options", "n"), [(1, {}, 1), (8, {}, 0), (8, {"batch": 1}, 1)]
)
def test_cascades_require_batch_size_one(
    target_batch: int, options: dict[str, int], n: int, tmp_path: Path
) -> None:
    candidate = Candidate(0, spaces.Genotype("s", tuple(options.items())), {})
    predictions = Predictions(np.ones(4, np.bool_), np.ones(4))
    packed = pack_predictions("m", dict.fromkeys(("validation", "test"), predictions))
    (tmp_path / PREDICTIONS_FILE.format(candidate.id)).parent.mkdir(parents=True)
    RunFolder(tmp_path).write_bytes(PREDICTIONS_FILE.format(candidate.id), packed)
    member = Member(candidate, {"latency_ms": Quantity(1.0, "measured")}, {}, {})
    assert len(cascades.stages(RunFolder(tmp_path), [member], target_batch)) == n
