"""What backends share whose latencies are measured: cost models, and files judged on the device."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np

from hwnas.hardware.backends import onnx_files
from hwnas.hardware.backends.base import (
    CostContext,
    CostModels,
    Files,
    Floats,
    RemeasuredCost,
    TimingBench,
    TrainedNetwork,
    roofline,
)
from hwnas.hardware.costs.cost_model import Cost, CostModel
from hwnas.hardware.costs.measured_cost import dtype_of, fused_graph, host_cost
from hwnas.hardware.runtimes.interfaces import DeviceEvaluation, Session
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.timing import InterleavedTimings, Timing
from hwnas.models.graph import INPUT, Graph, Node, OpSpec
from hwnas.models.int8.quantised_network import QuantisedNetwork
from hwnas.tasks.metrics import builtin

#: Writes the files of a network by suffix: on a target, with what compiles for it.
Write = Callable[[TrainedNetwork, Target, TimingBench], Mapping[str, bytes]]

_PIECE = 256  #: images that are sent at once: each call of a worker has a limit of its own


def check_int8(lowered: Graph, target: Target) -> None:
    """Refuse a network that cannot be written in int8, where the target computes it so.

    Raises:
        CompileError: it names the operator.
    """
    if dtype_of(lowered, target) == "int8":
        from hwnas.models.onnx import writer

        writer.check_int8(lowered)


def nowhere_else(target: Target, artefact: str, remote: Remote) -> str:
    """Return that every artefact runs on this machine."""
    return ""


def nothing_more(
    network: TrainedNetwork, target: Target, bench: TimingBench
) -> Mapping[str, bytes]:
    """Return no files: what every export holds is enough."""
    return {}


@final
@dataclass(frozen=True)
class MeasuredBackend:
    """A backend of engines; what differs between them are the files that they run."""

    target: Target
    write: Write  #: files that are verified
    delivered: Write = nothing_more  #: files of an export that are the target's alone
    written: Callable[[Graph, Target], None] = check_int8  #: refuses what cannot be written
    unavailable: Callable[[Target, str, Remote], str] = (
        nowhere_else  #: as ``Backend.unavailable_reason``
    )

    @property
    def cost_models(self) -> CostModels:
        """A latency table, measurement of each network, and the model of all targets."""
        return {"table": _table, "measured": _measured, "roofline": roofline}

    def check(self, lowered: Graph) -> None:
        """Refuse a network that cannot be written for the target."""
        self.written(lowered, self.target)

    def estimate(self, lowered: Graph) -> Cost | None:
        """Return nothing: the target is measured."""
        return None

    def int8_session(self, network: QuantisedNetwork) -> Session:
        """Return an int8 network as this machine runs its ONNX file."""
        return onnx_files.int8_session(network)

    def artefacts(self, bench: TimingBench | None, cost: str | None = None) -> "MeasuredArtefacts":
        """Return what makes files and judges them on the device."""
        assert bench is not None
        return MeasuredArtefacts(self, bench)

    def unavailable_reason(self, artefact: str, remote: Remote) -> str:
        """Return why an artefact of the target does not run from here; empty if it does."""
        return self.unavailable(self.target, artefact, remote)

    def user_file(self) -> Path | None:
        """Return nothing: there is none."""
        return None


@final
class MeasuredArtefacts:
    """Files that are loaded from disk, run on the device and timed whole."""

    def __init__(self, backend: MeasuredBackend, bench: TimingBench):
        self._backend, self._target, self._bench = backend, backend.target, bench

    def build(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the files of a network by suffix."""
        return self._backend.write(network, self._target, self._bench)

    def delivered(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the files of an export that are the target's alone, by suffix."""
        return self._backend.delivered(network, self._target, self._bench)

    def evaluate(
        self, files: Files, lowered: Graph, batches: Iterable[Floats]
    ) -> tuple[Floats, Cost]:
        """Run the files over the images on the device, and time them."""
        left = _pieces(batches, fused_graph(lowered, self._target)[0].op.batch)
        judged = self._bench.worker.evaluate(files, next(left))
        others = [self._bench.worker.run(files, images) for images in left]
        return np.concatenate([judged.outputs, *others]), self._cost(judged, lowered)

    def remeasure(self, files: Files, lowered: Graph, images: Floats) -> RemeasuredCost:
        """Return the cost of files, timed on the device."""
        return RemeasuredCost(self._cost(self._bench.worker.evaluate(files, images), lowered), {})

    def interleaved(self, files: Files, other: Files) -> InterleavedTimings:
        """Return the latencies of two networks, timed alternately on the device."""
        return self._bench.worker.interleaved(files, other)

    def _cost(self, judged: DeviceEvaluation, lowered: Graph) -> Cost:
        fused, timing = fused_graph(lowered, self._target), judged.timing
        cost = host_cost(fused, self._target, timing.figure, judged.energy)
        tail = {} if judged.p99 is None else {builtin.LATENCY_P99.name: judged.p99}
        details = {**cost.details, "drifted": float(timing.drifted)}
        return Cost({**cost.figures, **tail}, details)


def _pieces(batches: Iterable[Floats], batch: int) -> Iterator[Floats]:
    """Yield the images in pieces of whole inferences, which the slowest network answers in time."""
    size = max(1, _PIECE // batch) * batch
    for images in batches:
        for start in range(0, max(1, len(images)), size):
            yield images[start : start + size]


def _table(costed: CostContext) -> CostModel:
    from hwnas.hardware.costs.table_cost import (
        TableCostModel,
    )  # by scipy, which files on devices do without

    assert costed.bench is not None
    table = costed.bench.table
    return TableCostModel(table, costed.target, costed.fused_graph, costed.spaces, costed.command)


def _measured(costed: CostContext) -> CostModel:
    from hwnas.hardware.costs.measured_cost import MeasuredCostModel

    bench = costed.bench
    assert bench is not None
    return MeasuredCostModel(bench.worker, costed.target, costed.exported_graph, bench.plan)


# Operators timed by what they add to a network, for runtimes that do not tell single ones.

_FLOOR_MS = 1e-5  # of an operator that takes less than starting an inference varies


def alone(op: OpSpec) -> Graph:
    """Return an operator that reads the image, last, and what computes its second input, if any."""
    before: list[Node] = []
    inputs = [INPUT]
    if op.base == "mul":
        gate = OpSpec("mean", op.in_shape, (op.in_shape[0], 1, 1), dtype=op.dtype, batch=op.batch)
        before, inputs = [Node("gate", gate, (INPUT,))], [INPUT, "gate"]
    elif op.base == "add" or "add" in op.fused:
        kind = "linear" if op.out_shape[2] == 1 < op.out_shape[1] else "conv2d+bn"
        stride = -(-op.in_shape[1] // op.out_shape[1])
        feed = replace(op, kind=kind, kernel=1, stride=stride, groups=1)
        before, inputs = [Node("other", feed, (INPUT,))], [INPUT, "other"]
    return Graph.of((*before, Node("operator", op, tuple(inputs))))


def nothing(batch: int = 1) -> Graph:
    """Return a network whose latency is what starting an inference takes."""
    op = OpSpec("add", (1, 1, 1), (1, 1, 1), dtype="float32", batch=batch)
    return Graph.of((Node("add", op, (INPUT, INPUT)),))


def with_and_without(op: OpSpec) -> tuple[Graph, Graph]:
    """Return a network with an operator, and the same without it.

    Both read the same image and give few numbers: copies to a device that has memory of its own
    count for neither, but for those of operators that average the image, or multiply all of it.
    """
    whole = tuple(alone(op))
    before = whole[:-1]
    if not before and op.out_shape[1:] == (1, 1):
        return Graph.of(whole), nothing(op.batch)
    return _averaged(whole, op), _averaged(before, op)


def _averaged(nodes: tuple[Node, ...], op: OpSpec) -> Graph:
    """Return nodes with a mean over what the last of them gives, or over the image."""
    last, shape = (nodes[-1].name, nodes[-1].op.out_shape) if nodes else (INPUT, op.in_shape)
    if nodes and shape[1:] == (1, 1):
        return Graph.of(nodes)
    mean = OpSpec("mean", shape, (shape[0], 1, 1), dtype=op.dtype, batch=op.batch)
    return Graph.of((*nodes, Node("reader", mean, (last,))))


def less(whole: Timing, without: Timing) -> Timing:
    """Return what one timing is longer than another, with an interval that holds both of theirs."""
    return replace(
        whole,
        median_ms=max(_FLOOR_MS, whole.median_ms - without.median_ms),
        low_ms=max(_FLOOR_MS, whole.low_ms - without.high_ms),
        high_ms=max(_FLOOR_MS, whole.high_ms - without.low_ms),
    )
