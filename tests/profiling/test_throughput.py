from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import pytest

from hwnas.cost.host import as_run
from hwnas.errors import CompileError
from hwnas.graph import Graph
from hwnas.op import OpSpec, Signature
from hwnas.profiling import throughput
from hwnas.profiling.throughput import Batch, batches, compare_runtimes, sweet_spot
from hwnas.progress import Silent
from hwnas.runtimes.worker import Worker
from hwnas.space import SearchSpace
from hwnas.target import Target
from hwnas.timing import Timing
from tests.profiling.fakes import CPU, subject, timing

TARGETS = [
    replace(CPU, runtime=runtime, dtype=dtype)
    for runtime, dtype in (("tvm", "float32"), ("onnxruntime", "float32"), ("onnxruntime", "int8"))
]


class Opened:
    """A worker of one target; latencies are those of its runtime, dtype and batch."""

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

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@pytest.fixture
def opened() -> list[Opened]:
    return []


def _open(opened: list[Opened], **refuses: str) -> Callable[[Target], Worker]:
    def open_worker(target: Target) -> Worker:
        opened.append(Opened(target, refuses.get(f"{target.runtime}_{target.dtype}", "")))
        return cast(Worker, opened[-1])

    return open_worker


@pytest.fixture
def lowered(tiny: SearchSpace, task: Signature) -> list[Graph]:
    target = replace(CPU, runtime="onnxruntime", dtype="int8")
    return [subject(tiny, task, target).lower(g) for g in (tiny.smallest(), tiny.largest())]


def test_sweet_spot_is_the_smallest_batch_with_nearly_the_highest_throughput() -> None:
    found = [Batch(size, size / rate * 1e3) for size, rate in ((1, 500), (4, 960), (16, 1000))]
    assert [round(batch.images_per_s) for batch in found] == [500, 960, 1000]
    assert sweet_spot(found).size == 4
    assert sweet_spot(found[::-1]).size == 4
    assert sweet_spot([Batch(1, 1.0), Batch(2, 2.0)]).size == 1  # no gain at all
    assert sweet_spot([Batch(1, 1.0), Batch(8, 1.0)]).size == 8


def test_each_batch_size_is_tuned_and_timed_for_itself(
    lowered: list[Graph], opened: list[Opened]
) -> None:
    found = batches(lowered[0], CPU, _open(opened), Silent())
    assert [batch.size for batch in found] == list(throughput.BATCHES)
    assert [worker.target.batch for worker in opened] == list(throughput.BATCHES)
    n = len({node.op for node in as_run(lowered[0], CPU)})
    assert all(len(worker.tuned) == n and worker.closed for worker in opened)
    per_image = found[0].latency_ms
    assert [b.latency_ms for b in found] == pytest.approx([b.size * per_image for b in found])


def test_runtimes_take_turns_and_the_median_counts(
    lowered: list[Graph], opened: list[Opened]
) -> None:
    found = compare_runtimes(lowered, TARGETS, _open(opened), Silent())
    assert list(found) == ["tvm float32", "onnxruntime float32", "onnxruntime int8"]
    assert [w.target for w in opened] == TARGETS
    assert all(worker.closed for worker in opened)
    for worker in opened:
        assert len(worker.tuned) == len(set(worker.tuned))  # once, not in every turn
    tvm, ort, int8 = found.values()
    assert ort == [2 * ms for ms in tvm]
    assert all(a >= b for a, b in zip(int8, ort, strict=True))  # sums are not fused
    assert max(tvm) < 40  # the disturbed turn is not in it


@pytest.mark.parametrize("when", ["tune", "later"])
def test_runtime_that_refuses_is_left_out(
    lowered: list[Graph], opened: list[Opened], when: str
) -> None:
    found = compare_runtimes(lowered, TARGETS, _open(opened, onnxruntime_int8=when), Silent())
    assert list(found) == ["tvm float32", "onnxruntime float32"]
    assert all(len(values) == len(lowered) for values in found.values())
    assert all(worker.closed for worker in opened)


def test_workers_are_closed_after_a_mistake(
    lowered: list[Graph], opened: list[Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Opened, lowered: Graph, plans: Mapping[OpSpec, str]) -> Timing:
        raise KeyboardInterrupt

    monkeypatch.setattr(Opened, "time_network", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare_runtimes(lowered, TARGETS, _open(opened), Silent())
    assert len(opened) == 3
    assert all(worker.closed for worker in opened)
