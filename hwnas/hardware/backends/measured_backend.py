"""Shared code of backends whose latencies are measured: cost models, files, operator timing."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np

from hwnas.hardware.backends import onnx_files
from hwnas.hardware.backends.base import (
    Batches,
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
from hwnas.hardware.costs.measured_cost import fused_graph, host_cost
from hwnas.hardware.runtimes.interfaces import DeviceEvaluation
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.timing import InterleavedTimings, Timing
from hwnas.models.graph import INPUT, Graph, Node, OpSpec
from hwnas.tasks.metrics import builtin

#: Function that returns the contents of a network's files, by suffix, for a target and its device.
Write = Callable[[TrainedNetwork, Target, TimingBench], Mapping[str, bytes]]

_MAX_IMAGES = 256  #: images per call of a worker, which has a time limit


@final
@dataclass(frozen=True)
class MeasuredBackend:
    """A backend whose latencies are measured, from the functions that write its files."""

    target: Target
    write: Write  #: writes the files that are run and timed
    #: writes the files that only this target adds to an export; ``None``: there are none
    delivered: Write | None = None
    #: see ``Backend.unavailable_reason``; ``None``: every artefact runs on this machine
    unavailable: Callable[[Target, str, Remote], str] | None = None

    int8_session = staticmethod(onnx_files.int8_session)

    @property
    def cost_models(self) -> CostModels:
        """Functions that create the cost models ``table``, ``measured`` and ``roofline``."""
        return {"table": _table_model, "measured": _measured_model, "roofline": roofline}

    def check(self, graph: Graph) -> None:
        """Check that a network can be written in int8, if the target computes it in int8.

        Raises:
            CompileError: it cannot; the message names the operator.
        """
        onnx_files.check_int8(graph, self.target)

    def estimate(self, graph: Graph, cost: str | None = None) -> Cost | None:
        """Return ``None``: the target is measured."""
        return None

    def artefacts(self, bench: TimingBench | None, cost: str | None = None) -> "MeasuredArtefacts":
        """Return the object that writes files and evaluates them on the device, ``bench``."""
        assert bench is not None
        return MeasuredArtefacts(self, bench)

    def unavailable_reason(self, artefact: str, remote: Remote) -> str:
        """Return why an artefact cannot run from this machine; empty if it can."""
        check = self.unavailable
        return "" if check is None else check(self.target, artefact, remote)

    def user_file(self) -> Path | None:
        """Return ``None``: costs depend on no file of the user."""
        return None


@final
class MeasuredArtefacts:
    """Writes the files of networks, and runs and times them on the device; see ``Artefacts``."""

    def __init__(self, backend: MeasuredBackend, bench: TimingBench):
        self._backend, self._target, self._bench = backend, backend.target, bench

    def build(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the contents of the files that ``evaluate`` reads, by suffix."""
        return self._backend.write(network, self._target, self._bench)

    def delivered(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the contents of the files that only this target adds to an export, by suffix."""
        write = self._backend.delivered
        return {} if write is None else write(network, self._target, self._bench)

    def evaluate(self, files: Files, graph: Graph, batches: Batches) -> tuple[Floats, Cost]:
        """Return the outputs ``(n_images, n_outputs)`` on the device, and the measured cost.

        Latency and, with a meter, energy are measured; memory is modelled. ``Cost.details`` has
        ``drifted``, 1 if the speed of the device changed during the measurement.

        Raises:
            CompileError: the runtime cannot load the files, crashes, or exceeds the time limit.
            DeviceError: no device answers.
            RunError: the energy cannot be measured.
        """
        chunks = _chunks(batches, fused_graph(graph, self._target)[0].op.batch)
        evaluation = self._bench.worker.evaluate(files, next(chunks))
        others = [self._bench.worker.run(files, images) for images in chunks]
        return np.concatenate([evaluation.outputs, *others]), self._cost(evaluation, graph)

    def remeasure(self, files: Files, graph: Graph, images: Floats) -> RemeasuredCost:
        """Return the cost of existing files, measured as by ``evaluate``; nothing is compiled."""
        return RemeasuredCost(self._cost(self._bench.worker.evaluate(files, images), graph), {})

    def interleaved(self, files: Files, other: Files) -> InterleavedTimings:
        """Return the latencies of two networks on the device, timed in turns."""
        return self._bench.worker.interleaved(files, other)

    def _cost(self, evaluation: DeviceEvaluation, graph: Graph) -> Cost:
        fused, timing = fused_graph(graph, self._target), evaluation.timing
        cost = host_cost(fused, self._target, timing.figure, evaluation.energy)
        tail = {} if evaluation.p99 is None else {builtin.LATENCY_P99.name: evaluation.p99}
        details = {**cost.details, "drifted": float(timing.drifted)}
        return Cost({**cost.figures, **tail}, details)


def _chunks(batches: Iterable[Floats], batch: int) -> Iterator[Floats]:
    """Yield chunks of whole batches that fit into the time limit of a call."""
    size = max(1, _MAX_IMAGES // batch) * batch
    for images in batches:
        for start in range(0, max(1, len(images)), size):
            yield images[start : start + size]


def _table_model(context: CostContext) -> CostModel:
    from hwnas.hardware.costs.table_cost import TableCostModel  # imports scipy

    bench, graph = context.bench, context.fused_graph
    assert bench is not None
    return TableCostModel(bench.table, context.target, graph, context.spaces, context.command)


def _measured_model(context: CostContext) -> CostModel:
    from hwnas.hardware.costs.measured_cost import MeasuredCostModel

    bench = context.bench
    assert bench is not None
    return MeasuredCostModel(bench.worker, context.target, context.exported_graph, bench.plan)


# Timing of operators by the difference of two networks, for runtimes that cannot time single ones.

_MIN_MS = 1e-5  # minimum latency of an operator; the start of an inference varies by more


def isolated_operator(op: OpSpec) -> Graph:
    """Return a graph whose last node is the operator; its first input is the image.

    A second input, if the operator has one, is computed before it.
    """
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


def empty_network(batch: int = 1) -> Graph:
    """Return a network that only adds two numbers: its latency is the start of an inference."""
    op = OpSpec("add", (1, 1, 1), (1, 1, 1), dtype="float32", batch=batch)
    return Graph.of((Node("add", op, (INPUT, INPUT)),))


def with_and_without_operator(op: OpSpec) -> tuple[Graph, Graph]:
    """Return a network with an operator, and the same network without it.

    The difference of their latencies is that of the operator. Both read an image of the same size
    and return few numbers, so that copies to and from a device cancel out, except for operators
    that average the image or multiply all of it.
    """
    nodes = tuple(isolated_operator(op))
    before = nodes[:-1]
    if not before and op.out_shape[1:] == (1, 1):
        return Graph.of(nodes), empty_network(op.batch)
    return _with_mean(nodes, op), _with_mean(before, op)


def _with_mean(nodes: tuple[Node, ...], op: OpSpec) -> Graph:
    """Return a graph with a mean over the last node's output, or over the image."""
    last, shape = (nodes[-1].name, nodes[-1].op.out_shape) if nodes else (INPUT, op.in_shape)
    if nodes and shape[1:] == (1, 1):
        return Graph.of(nodes)
    mean = OpSpec("mean", shape, (shape[0], 1, 1), dtype=op.dtype, batch=op.batch)
    return Graph.of((*nodes, Node("reader", mean, (last,))))


def subtract_timing(whole: Timing, without: Timing) -> Timing:
    """Return the latency ``whole - without``; value and both ends are at least 1e-5 ms.

    The interval is from the smallest to the largest difference of the two intervals. The other
    fields are those of ``whole``.
    """
    return replace(
        whole,
        median_ms=max(_MIN_MS, whole.median_ms - without.median_ms),
        low_ms=max(_MIN_MS, whole.low_ms - without.high_ms),
        high_ms=max(_MIN_MS, whole.high_ms - without.low_ms),
    )
