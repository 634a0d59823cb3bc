"""OpenVINO as an engine: it has no plans to choose from, and runs on this machine only."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import final

from hwnas.backends import portable
from hwnas.backends.openvino import session
from hwnas.graph import INPUT, Graph, Node
from hwnas.op import OpSpec
from hwnas.runtimes.base import Loaded, Plans, Weights
from hwnas.runtimes.onnx_writer import write_fp32
from hwnas.target import Remote, Target
from hwnas.timing import Timer, Timing, TimingConfig, measure

_FLOOR_MS = 1e-5  # of an operator that takes less than starting an inference varies


@final
class OpenVinoEngine:
    """OpenVINO on this machine's CPU."""

    def __init__(self, target: Target, remote: Remote):
        session.check_cpu(target.dtype)
        self._dtype, self._threads, self._batch = target.dtype, target.threads, target.batch

    def plans(self, op: OpSpec, limit: int) -> Sequence[str]:
        """Return the one plan there is: OpenVINO decides by itself."""
        return [""]

    def operator(self, op: OpSpec, plan: str) -> Timer:
        """Return a timer of one operator, with what feeds it and starting an inference."""
        return self.network(_alone(op), {})

    def time_operator(self, op: OpSpec, plan: str, config: TimingConfig) -> Timing:
        """Return the latency of one operator, without what starting an inference takes.

        OpenVINO's profiler cuts to whole microseconds, which is more than many operators take.
        """
        before = _alone(op)[:-1]
        other = self.network(Graph.of(before), {}) if before else self._idle
        whole, without = measure(self.operator(op, plan), config), measure(other, config)
        return replace(
            whole,
            median_ms=max(_FLOOR_MS, whole.median_ms - without.median_ms),
            low_ms=max(_FLOOR_MS, whole.low_ms - without.high_ms),
            high_ms=max(_FLOOR_MS, whole.high_ms - without.low_ms),
        )

    @cached_property
    def _idle(self) -> Timer:
        """A timer of next to nothing."""
        op = OpSpec("add", (1, 1, 1), (1, 1, 1), dtype="float32")
        return self.network(Graph.of((Node("add", op, (INPUT, INPUT)),)), {})

    def network(self, lowered: Graph, plans: Plans) -> Timer:
        """Return a timer of a whole network, on random weights and images."""
        contents = session.written(portable.random_model(lowered), self._dtype)
        return session.timer(contents, self._threads, lowered[0].op.batch)

    def forget(self, op: OpSpec, plan: str) -> None:
        """Do nothing: nothing is kept."""

    def export(self, lowered: Graph, plans: Plans, weights: Weights) -> Mapping[str, bytes]:
        """Return the IR of a network of floats."""
        return session.written(write_fp32(lowered, weights, any_batch=True), self._dtype)

    def open(self, files: Mapping[str, Path]) -> Loaded:
        """Return a network as its IR says."""
        contents = {suffix: path.read_bytes() for suffix, path in files.items()}
        timer = session.timer(contents, self._threads, self._batch)
        return Loaded(timer, session.OpenVinoSession(contents, self._threads))


def _alone(op: OpSpec) -> Graph:
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
