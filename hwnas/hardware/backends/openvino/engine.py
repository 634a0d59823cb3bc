"""The backend and the engine of OpenVINO: it has no plans and runs on this machine only."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import final

from hwnas.hardware.backends import onnx_files
from hwnas.hardware.backends.base import TimingBench, TrainedNetwork
from hwnas.hardware.backends.measured_backend import (
    MeasuredBackend,
    empty_network,
    isolated_operator,
    subtract_timing,
)
from hwnas.hardware.backends.openvino import session
from hwnas.hardware.costs.measured_cost import dtype_of
from hwnas.hardware.runtimes.interfaces import LoadedNetwork, OperatorPlans
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.timing import Timer, Timing, TimingConfig, measure
from hwnas.models.graph import Graph, OpSpec, fuse
from hwnas.models.int8.quantised_network import Parameters
from hwnas.models.onnx.writer import write_fp32


@final
class OpenVinoEngine:
    """OpenVINO on this machine's CPU.

    Raises:
        ConfigError: this CPU does not support the target's dtype.
    """

    def __init__(self, target: Target, remote: Remote):
        session.check_cpu(target.dtype)
        self._dtype, self._threads, self._batch = target.dtype, target.threads, target.batch

    def plans(self, op: OpSpec, limit: int) -> Sequence[str]:
        """Return ``[""]``: OpenVINO schedules by itself."""
        return [""]

    def operator(self, op: OpSpec, plan: str) -> Timer:
        """Return a timer of one operator, including its inputs and the start of an inference."""
        return self.network(isolated_operator(op), {})

    def time_operator(self, op: OpSpec, plan: str, config: TimingConfig) -> Timing:
        """Return the latency of one operator in ms, without the start of an inference.

        It is the difference between a network with the operator and one without it: OpenVINO's
        profiler truncates to microseconds, which is more than many operators take.
        """
        inputs = isolated_operator(op)[:-1]
        other = self.network(Graph.of(inputs), {}) if inputs else self._idle
        return subtract_timing(measure(self.operator(op, plan), config), measure(other, config))

    @cached_property
    def _idle(self) -> Timer:
        """A timer of the start of an inference."""
        return self.network(empty_network(), {})

    def network(self, graph: Graph, plans: OperatorPlans) -> Timer:
        """Return a timer of a network, with random weights and images."""
        contents = session.openvino_ir(onnx_files.random_model(graph), self._dtype)
        return session.timer(contents, self._threads, graph[0].op.batch)

    def forget(self, op: OpSpec, plan: str) -> None:
        """Do nothing: nothing is cached."""

    def export(
        self, graph: Graph, plans: OperatorPlans, weights: Parameters
    ) -> Mapping[str, bytes]:
        """Return the files of a floating-point network in OpenVINO's format IR, by suffix.

        The suffixes are ``.xml`` (the graph) and ``.bin`` (its weights).
        """
        assert isinstance(weights, Mapping)
        return session.openvino_ir(write_fp32(graph, weights, any_batch=True), self._dtype)

    def open(self, files: Mapping[str, Path]) -> LoadedNetwork:
        """Return a network loaded from its files ``.xml`` and ``.bin``, and its timer."""
        contents = {suffix: path.read_bytes() for suffix, path in files.items()}
        timer = session.timer(contents, self._threads, self._batch)
        return LoadedNetwork(timer, session.OpenVinoSession(contents, self._threads))


def backend(target: Target) -> MeasuredBackend:
    """Return the backend of a target.

    Raises:
        ConfigError: this CPU does not support the target's dtype.
    """
    session.check_cpu(target.dtype)
    # delivered files are the verified ones
    return MeasuredBackend(target, _write, delivered=_write)


def _write(network: TrainedNetwork, target: Target, bench: TimingBench) -> Mapping[str, bytes]:
    fused = fuse(network.graph, "float32")
    dtype = dtype_of(network.graph, target)
    return session.openvino_ir(onnx_files.write_onnx(network, fused, dtype, any_batch=True), dtype)
