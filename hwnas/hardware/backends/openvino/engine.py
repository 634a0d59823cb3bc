"""OpenVINO as an engine: it has no plans to choose from, and runs on this machine only."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import final

from hwnas.hardware.backends import onnx_files
from hwnas.hardware.backends.base import TimingBench, TrainedNetwork
from hwnas.hardware.backends.measured_backend import MeasuredBackend, alone, less, nothing
from hwnas.hardware.backends.openvino import session
from hwnas.hardware.costs.measured_cost import dtype_of
from hwnas.hardware.runtimes.interfaces import LoadedNetwork, OperatorPlans
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.timing import Timer, Timing, TimingConfig, measure
from hwnas.models.graph import Graph, OpSpec, fuse
from hwnas.models.onnx.writer import write_fp32
from hwnas.models.parameters import Parameters


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

    def network(self, lowered: Graph, plans: OperatorPlans) -> Timer:
        """Return a timer of a whole network, on random weights and images."""
        contents = session.openvino_ir(onnx_files.random_model(lowered), self._dtype)
        return session.timer(contents, self._threads, lowered[0].op.batch)

    def forget(self, op: OpSpec, plan: str) -> None:
        """Do nothing: nothing is kept."""

    def export(
        self, lowered: Graph, plans: OperatorPlans, weights: Parameters
    ) -> Mapping[str, bytes]:
        """Return the IR of a network of floats."""
        assert isinstance(weights, Mapping)
        return session.openvino_ir(write_fp32(lowered, weights, any_batch=True), self._dtype)

    def open(self, files: Mapping[str, Path]) -> LoadedNetwork:
        """Return a network as its IR says."""
        contents = {suffix: path.read_bytes() for suffix, path in files.items()}
        timer = session.timer(contents, self._threads, self._batch)
        return LoadedNetwork(timer, session.OpenVinoSession(contents, self._threads))


# OpenVINO as a backend: its IR, from the ONNX file that every export holds.


def backend(target: Target) -> MeasuredBackend:
    """Return the backend of a target.

    Raises:
        ConfigError: this CPU does not compute in the target's dtype.
    """
    session.check_cpu(target.dtype)
    return MeasuredBackend(target, _write, delivered=_write)  # what is verified is delivered


def _write(network: TrainedNetwork, target: Target, bench: TimingBench) -> Mapping[str, bytes]:
    fused = fuse(network.lowered, "float32")
    dtype = dtype_of(network.lowered, target)
    return session.openvino_ir(onnx_files.write_onnx(network, fused, dtype, any_batch=True), dtype)
