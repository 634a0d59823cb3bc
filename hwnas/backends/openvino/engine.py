"""OpenVINO as an engine: it has no plans to choose from, and runs on this machine only."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import final

from hwnas.backends import portable
from hwnas.backends.alone import alone, less, nothing
from hwnas.backends.openvino import session
from hwnas.graph import Graph
from hwnas.op import OpSpec
from hwnas.runtimes.base import Loaded, Parameters, Plans
from hwnas.runtimes.onnx_writer import write_fp32
from hwnas.target import Remote, Target
from hwnas.timing import Timer, Timing, TimingConfig, measure


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
        return self.network(alone(op), {})

    def time_operator(self, op: OpSpec, plan: str, config: TimingConfig) -> Timing:
        """Return the latency of one operator, without what starting an inference takes.

        OpenVINO's profiler cuts to whole microseconds, which is more than many operators take.
        """
        before = alone(op)[:-1]
        other = self.network(Graph.of(before), {}) if before else self._idle
        return less(measure(self.operator(op, plan), config), measure(other, config))

    @cached_property
    def _idle(self) -> Timer:
        """A timer of next to nothing."""
        return self.network(nothing(), {})

    def network(self, lowered: Graph, plans: Plans) -> Timer:
        """Return a timer of a whole network, on random weights and images."""
        contents = session.written(portable.random_model(lowered), self._dtype)
        return session.timer(contents, self._threads, lowered[0].op.batch)

    def forget(self, op: OpSpec, plan: str) -> None:
        """Do nothing: nothing is kept."""

    def export(self, lowered: Graph, plans: Plans, weights: Parameters) -> Mapping[str, bytes]:
        """Return the IR of a network of floats."""
        assert isinstance(weights, Mapping)
        return session.written(write_fp32(lowered, weights, any_batch=True), self._dtype)

    def open(self, files: Mapping[str, Path]) -> Loaded:
        """Return a network as its IR says."""
        contents = {suffix: path.read_bytes() for suffix, path in files.items()}
        timer = session.timer(contents, self._threads, self._batch)
        return Loaded(timer, session.OpenVinoSession(contents, self._threads))
