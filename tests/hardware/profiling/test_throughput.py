import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import pytest

from hwnas.core.errors import CompileError
from hwnas.core.progress import NullProgress
from hwnas.hardware.costs.measured_cost import fused_graph
from hwnas.hardware.costs.table_cost import LatencyFeatures
from hwnas.hardware.profiling import throughput
from hwnas.hardware.profiling.operator_measurement import MeasuredNetwork
from hwnas.hardware.profiling.passes import RepeatedMeasurement
from hwnas.hardware.profiling.throughput import (
    BatchThroughput,
    compare_runtimes,
    recommended_batch,
    time_batch_sizes,
)
from hwnas.hardware.runtimes.worker import Worker
from hwnas.hardware.target import Target
from hwnas.hardware.timing import Timing
from hwnas.models import families
from hwnas.models.families import annotations
from hwnas.models.graph import Graph, OpSpec, Signature
from hwnas.models.spaces import SearchSpace
from hwnas.training.data import DatasetConfig
from hwnas.workflows import profile_throughput
from hwnas.workflows.config import ProfileConfig
from hwnas.workflows.networks import Networks
from tests.conftest import target
from tests.hardware.profiling.fakes import CPU, subject, timing

TARGETS = [
    replace(CPU, runtime=runtime, dtype=dtype)
    for runtime, dtype in (("tvm", "float32"), ("onnxruntime", "float32"), ("onnxruntime", "int8"))
]


class FakeTargetWorker:
    """A worker of one target; its latencies depend on runtime, dtype and batch."""

    def __init__(self, target: Target, refuses: str = ""):
        self.target, self.closed = target, False
        self.tuned: list[OpSpec] = []
        self._refuses, self._turn = refuses, 0

    def tune(self, op: OpSpec, limit: int, first: str = "") -> str:
        assert (op.dtype, op.batch) == (self.target.dtype, self.target.batch)
        self.tuned.append(op)
        if self._refuses == "tune":
            raise CompileError("refused")
        return str(op)

    def time_network(self, lowered: Graph, plans: Mapping[OpSpec, str]) -> Timing:
        assert {node.op: str(node.op) for node in lowered} == plans
        self._turn += 1
        if self._refuses == "later" and self._turn == 3:
            raise CompileError("refused")
        runtime = 1.0 if self.target.runtime == "tvm" else 2.0
        disturbed = 10.0 if self._turn <= 2 else 1.0  # all of the first turn
        return timing(runtime * self.target.batch * len(lowered) * disturbed)

    def percentiles(self, lowered: Graph, plans: Mapping[OpSpec, str], n: int) -> dict[str, float]:
        return dict.fromkeys(("p50_ms", "p90_ms", "p99_ms"), 1.0)

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> "FakeTargetWorker":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@pytest.fixture
def opened() -> list[FakeTargetWorker]:
    return []


def _open(opened: list[FakeTargetWorker], **refuses: str) -> Callable[[Target], Worker]:
    def open_worker(target: Target) -> Worker:
        opened.append(FakeTargetWorker(target, refuses.get(f"{target.runtime}_{target.dtype}", "")))
        return cast(Worker, opened[-1])

    return open_worker


@pytest.fixture
def lowered(tiny: SearchSpace, task: Signature) -> list[Graph]:
    target = replace(CPU, runtime="onnxruntime", dtype="int8")
    return [subject(tiny, task, target).lower(g) for g in (tiny.smallest(), tiny.largest())]


def test_recommended_batch_is_smallest_near_optimum() -> None:
    results = [
        BatchThroughput(size, size / rate * 1e3) for size, rate in ((1, 500), (4, 960), (16, 1000))
    ]
    assert [round(batch.images_per_s) for batch in results] == [500, 960, 1000]
    assert recommended_batch(results).size == 4
    assert recommended_batch(results[::-1]).size == 4
    assert (
        recommended_batch([BatchThroughput(1, 1.0), BatchThroughput(2, 2.0)]).size == 1
    )  # no gain at all
    assert recommended_batch([BatchThroughput(1, 1.0), BatchThroughput(8, 1.0)]).size == 8


def test_each_batch_size_is_tuned_and_timed(
    lowered: list[Graph], opened: list[FakeTargetWorker]
) -> None:
    results = time_batch_sizes(lowered[0], CPU, _open(opened), NullProgress())
    assert [batch.size for batch in results] == list(throughput.BATCHES)
    assert [worker.target.batch for worker in opened] == list(throughput.BATCHES)
    n = len({node.op for node in fused_graph(lowered[0], CPU)})
    assert all(len(worker.tuned) == n and worker.closed for worker in opened)
    per_image = results[0].latency_ms
    assert [b.latency_ms for b in results] == pytest.approx([b.size * per_image for b in results])


def test_runtimes_are_interleaved_with_median(
    lowered: list[Graph], opened: list[FakeTargetWorker]
) -> None:
    result = compare_runtimes(lowered, TARGETS, _open(opened), NullProgress())
    assert list(result) == ["tvm float32", "onnxruntime float32", "onnxruntime int8"]
    assert [w.target for w in opened] == TARGETS
    assert all(worker.closed for worker in opened)
    for worker in opened:
        assert len(worker.tuned) == len(set(worker.tuned))  # once, not in every turn
    tvm, ort, int8 = result.values()
    assert ort == [2 * ms for ms in tvm]
    assert all(a >= b for a, b in zip(int8, ort, strict=True))  # sums are not fused
    assert max(tvm) < 40  # without the disturbed turn


@pytest.mark.parametrize("when", ["tune", "later"])
def test_refusing_runtime_is_excluded(
    lowered: list[Graph], opened: list[FakeTargetWorker], when: str
) -> None:
    result = compare_runtimes(
        lowered, TARGETS, _open(opened, onnxruntime_int8=when), NullProgress()
    )
    assert list(result) == ["tvm float32", "onnxruntime float32"]
    assert all(len(values) == len(lowered) for values in result.values())
    assert all(worker.closed for worker in opened)


@pytest.fixture
def messages_for(
    tiny: SearchSpace,
    task: Signature,
    opened: list[FakeTargetWorker],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[float], list[str]]:
    """Return a function from a latency to the messages for networks with run choices."""
    device = replace(target("cpu"), runtime="onnxruntime", batches=[4, 8], thread_counts=[2, 3])
    several = annotations.with_run_choices(tiny, device.running)
    parts = Networks(device, several, {tiny.name: families.get(tiny.family)}, task)
    config = ProfileConfig(target=device, dataset=DatasetConfig("digits"))
    genotypes = [several.sample(random.Random(i)) for i in range(3)]

    def open_worker(target: Target, *_: object) -> FakeTargetWorker:
        opened.append(FakeTargetWorker(target))
        return opened[-1]

    def lines(ms: float) -> list[str]:
        wholes = [
            MeasuredNetwork(g, LatencyFeatures(1, 1, 1), 1, RepeatedMeasurement(timing(ms)), "")
            for g in genotypes
        ]
        return profile_throughput.throughput_messages(config, parts, wholes, NullProgress())

    monkeypatch.setattr(profile_throughput, "Worker", open_worker)
    monkeypatch.setattr(
        profile_throughput, "_comparable_targets", lambda plain: [replace(plain, batch=1)]
    )
    return lines


def test_batch_sizes_and_runtimes_ignore_run_choices(
    messages_for: Callable[[float], list[str]], opened: list[FakeTargetWorker]
) -> None:
    singles, sizes, runtimes = messages_for(50.0)
    assert "over 400 single inferences" in singles
    assert "1: " in sizes
    per_image = [part.split()[-1] for part in sizes.partition(". Recommended")[0].split(", ")]
    assert len({*per_image}) == 1
    assert "onnxruntime float32 1.00" in runtimes
    chosen, *others = opened  # which assert that operators are of the batch of their target
    assert chosen.target.batch in (4, 8)
    assert {op.threads for op in chosen.tuned} == {chosen.target.threads}
    assert {worker.target.threads for worker in others[:-1]} == {chosen.target.threads}
    assert {op.threads for worker in others for op in worker.tuned} == {0}


def test_failed_comparisons_are_reported(
    messages_for: Callable[[float], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: FakeTargetWorker, *arguments: object) -> Timing:
        raise CompileError("no answer")

    monkeypatch.setattr(FakeTargetWorker, "time_network", refused)
    singles, sizes, runtimes = messages_for(1e-3)
    assert "over 2000 single inferences" in singles
    assert sizes == "Batch sizes: no answer"
    assert "cannot run a network" in runtimes


def test_workers_are_closed_after_interrupt(
    lowered: list[Graph], opened: list[FakeTargetWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: FakeTargetWorker, lowered: Graph, plans: Mapping[OpSpec, str]) -> Timing:
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeTargetWorker, "time_network", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare_runtimes(lowered, TARGETS, _open(opened), NullProgress())
    assert len(opened) == 3
    assert all(worker.closed for worker in opened)
