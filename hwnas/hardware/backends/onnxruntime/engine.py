"""The backend and the engine of onnxruntime: it has no plans and runs on this machine only."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import final

from hwnas.hardware.backends import onnx_files
from hwnas.hardware.backends.base import TimingBench, TrainedNetwork
from hwnas.hardware.backends.measured_backend import (
    MeasuredBackend,
    isolated_operator,
    subtract_timing,
    with_and_without_operator,
)
from hwnas.hardware.backends.onnx_files import random_model
from hwnas.hardware.backends.onnxruntime import OnnxRuntimeSettings, provider
from hwnas.hardware.backends.onnxruntime import session as ort
from hwnas.hardware.backends.onnxruntime.session import node_times
from hwnas.hardware.costs.measured_cost import dtype_of, fused_graph
from hwnas.hardware.runtimes.interfaces import LoadedNetwork, OperatorPlans
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.timing import Timer, Timing, TimingConfig, measure, summarise
from hwnas.models.graph import INPUT, Graph, Node, OpSpec, Shape
from hwnas.models.int8.quantised_network import Parameters
from hwnas.models.onnx.writer import write_fp32


def backend(target: Target) -> MeasuredBackend:
    """Return the backend of a target.

    Raises:
        ConfigError: the installed onnxruntime lacks the target's provider, or the energy meter may
            read another GPU than the one that runs networks.
    """
    provider.check_meter(target)
    provider.check_listed(provider.provider_settings(target))
    return MeasuredBackend(target, _write)


def _write(network: TrainedNetwork, target: Target, bench: TimingBench) -> Mapping[str, bytes]:
    graph = network.graph
    return {
        ".onnx": onnx_files.write_onnx(network, fused_graph(graph, target), dtype_of(graph, target))
    }


# Timing of single operators, each between others as in a network.

_MAX_IMAGE_CHANNELS = 4  # at most so many channels come directly from the image
_REPEATS = 3  # profiles, spread over the time of all operators
_NAME = "operator"
#: Latency of operators that were fused into others or that noise hides: tables need positive ones.
_MIN_MS = 1e-6


def operator_times(ops: Iterable[OpSpec], n_threads: int, n_runs: int) -> dict[OpSpec, list[float]]:
    """Return three latencies of each operator in ms on the CPU, without the start of an inference.

    Each is a mean over the faster half of about ``n_runs`` inferences, at least 1e-6 ms. The three
    are measured minutes apart if there are many operators.

    Raises:
        CompileError: onnxruntime cannot run a network with the operator.
    """
    models = {op: random_model(in_context(op)) for op in ops}
    times: dict[OpSpec, list[float]] = {op: [] for op in models}
    for _ in range(_REPEATS):
        for op, model in models.items():
            times[op].append(max(_MIN_MS, node_times(model, n_threads, n_runs)[_NAME]))
    return times


def in_context(op: OpSpec) -> Graph:
    """Return a network in which ``op``, named ``operator``, is between other operators.

    Its inputs are computed from the image, and its output is averaged by a last operator.
    """
    nodes: list[Node] = []
    _, *size = op.in_shape
    image = (min(_MAX_IMAGE_CHANNELS, op.in_shape[0]), size[0], size[1])

    def feed(name: str, shape: Shape) -> str:
        """Return the name of a tensor of a shape, computed from the image."""
        tokens = shape[2] == 1 and shape[1] > 1
        kind = "linear" if tokens else "conv2d+bn+relu6"
        stride = -(-image[1] // shape[1])
        spec = OpSpec(kind, image, shape, stride=stride, dtype=op.dtype, batch=op.batch)
        nodes.append(Node(name, spec, (INPUT,)))
        return name

    inputs = [INPUT if op.in_shape == image else feed("feed", op.in_shape)]
    if op.base == "add" or "add" in op.fused:
        inputs.append(feed("other", op.out_shape))
    if op.base == "mul":
        gate = OpSpec("mean", op.in_shape, (op.in_shape[0], 1, 1), dtype=op.dtype, batch=op.batch)
        nodes.append(Node("gate", gate, (inputs[0],)))
        inputs.append("gate")
    nodes.append(Node(_NAME, op, tuple(inputs)))
    if op.out_shape[1:] != (1, 1):
        reader = OpSpec(
            "mean", op.out_shape, (op.out_shape[0], 1, 1), dtype=op.dtype, batch=op.batch
        )
        nodes.append(Node("reader", reader, (_NAME,)))
    return Graph.of(nodes)


_RUNS = 100  #: runs of an operator in one profile
#: Operator that every provider must run.
_PROBE = OpSpec("conv2d+bn+relu", (8, 8, 8), (8, 8, 8), 3, dtype="float32")


def open_engine(target: Target, remote: Remote) -> "OrtEngine":
    """Return the engine of a target, after its provider ran a small network.

    Raises:
        ConfigError: the installed onnxruntime lacks the provider, or it does not work here.
    """
    chosen = provider.provider_settings(target)
    provider.check_usable(chosen, random_model(isolated_operator(_PROBE)))
    return OrtEngine(target, chosen)


@final
class OrtEngine:
    """onnxruntime on this machine, with one execution provider."""

    def __init__(self, target: Target, chosen: OnnxRuntimeSettings):
        self._threads, self._batch, self._chosen = target.threads, target.batch, chosen

    def plans(self, op: OpSpec, limit: int) -> Sequence[str]:
        """Return ``[""]``: onnxruntime schedules by itself."""
        return [""]

    def operator(self, op: OpSpec, plan: str) -> Timer:
        """Return a timer of one operator, including the time to start an inference."""
        inputs = (INPUT,) * (2 if op.base in ("add", "mul") or "add" in op.fused else 1)
        return self.network(Graph.of((Node("operator", op, inputs),)), {})

    def time_operator(self, op: OpSpec, plan: str, config: TimingConfig) -> Timing:
        """Return the latency of one operator in a network, in ms.

        On the CPU it is from onnxruntime's profiler, and ``config`` is not used. Profilers of other
        providers see only the start of operators, or the network as one operator: there it is the
        difference between a network with the operator and one without it.
        """
        if not self._chosen.is_cpu:
            whole, without = (
                measure(self.network(net, {}), config) for net in with_and_without_operator(op)
            )
            return subtract_timing(whole, without)
        return summarise(operator_times([op], op.threads or self._threads, _RUNS)[op])

    def network(self, graph: Graph, plans: OperatorPlans) -> Timer:
        """Return a timer of a network, with random weights and images."""
        threads = max(node.op.threads for node in graph) or self._threads
        return ort.timer(random_model(graph), threads, chosen=self._chosen)

    def forget(self, op: OpSpec, plan: str) -> None:
        """Do nothing: nothing is cached."""

    def export(
        self, graph: Graph, plans: OperatorPlans, weights: Parameters
    ) -> Mapping[str, bytes]:
        """Return the content of a float32 network's ONNX file, by its suffix ``.onnx``."""
        assert isinstance(weights, Mapping)
        return {".onnx": write_fp32(graph, weights)}

    def open(self, files: Mapping[str, Path]) -> LoadedNetwork:
        """Return a network loaded from its ONNX file, ``files[".onnx"]``, and its timer."""
        model = files[".onnx"].read_bytes()
        threads = ort.threads_of(model) or self._threads
        timer = ort.timer(model, threads, self._batch, self._chosen)
        return LoadedNetwork(timer, ort.OrtSession(model, threads, self._chosen))
