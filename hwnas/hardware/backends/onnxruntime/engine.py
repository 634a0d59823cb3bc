"""onnxruntime as an engine: it has no plans to choose from, and runs on this machine only."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import final

from hwnas.hardware.backends import onnx_files
from hwnas.hardware.backends.base import TimingBench, TrainedNetwork
from hwnas.hardware.backends.measured_backend import MeasuredBackend, alone, less, with_and_without
from hwnas.hardware.backends.onnx_files import random_model
from hwnas.hardware.backends.onnxruntime import OnnxRuntimeSettings, provider
from hwnas.hardware.backends.onnxruntime import session as ort
from hwnas.hardware.backends.onnxruntime.session import node_times
from hwnas.hardware.costs.measured_cost import dtype_of, fused_graph
from hwnas.hardware.runtimes.interfaces import LoadedNetwork, OperatorPlans
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.timing import Timer, Timing, TimingConfig, measure, summarise
from hwnas.models.graph import INPUT, Graph, Node, OpSpec, Shape
from hwnas.models.onnx.writer import write_fp32
from hwnas.models.parameters import Parameters

# onnxruntime as a backend: what it runs are the ONNX files that every export holds.


def backend(target: Target) -> MeasuredBackend:
    """Return the backend of a target.

    Raises:
        ConfigError: the installed onnxruntime does not have its provider, or its meter may be of
            another GPU.
    """
    provider.check_meter(target)
    provider.check_listed(provider.section(target))
    return MeasuredBackend(target, _write)


def _write(network: TrainedNetwork, target: Target, bench: TimingBench) -> Mapping[str, bytes]:
    lowered = network.lowered
    return {
        ".onnx": onnx_files.write_onnx(
            network, fused_graph(lowered, target), dtype_of(lowered, target)
        )
    }


# Times operators one by one with onnxruntime, each between others as in a network.

_FEW = 4  # so few channels come from the image itself, which no layout change precedes
_REPEATS = 3  # of a profile, as far apart in time as there are operators
_NAME = "operator"
#: Of one that became part of another, or that noise hides: a table's latencies are positive.
_LEAST_MS = 1e-6


def operator_times(ops: Iterable[OpSpec], n_threads: int, n_runs: int) -> dict[OpSpec, list[float]]:
    """Return the milliseconds of operators in three profiles, without what starting takes.

    Each is profiled in a network of its own that has a convolution or linear layer before it and a
    mean after it: alone it would pay for changes of layout that networks do not have. Latencies of
    networks are sums of these times but for a scale and an overhead of each operator, to be fitted.

    Args:
        ops: Operators, fused (``op.fuse``) in float32 and not fused in int8, as onnxruntime does.
        n_threads: Threads that they run on.
        n_runs: Runs of each profile.

    Raises:
        CompileError: an operator cannot be written or run.
    """
    models = {op: random_model(in_context(op)) for op in ops}
    times: dict[OpSpec, list[float]] = {op: [] for op in models}
    for _ in range(_REPEATS):
        for op, model in models.items():
            times[op].append(max(_LEAST_MS, node_times(model, n_threads, n_runs)[_NAME]))
    return times


def in_context(op: OpSpec) -> Graph:
    """Return a network of the operator, called ``operator``, what feeds it and what reads it."""
    nodes: list[Node] = []
    _, *size = op.in_shape
    image = (min(_FEW, op.in_shape[0]), size[0], size[1])

    def fed(name: str, shape: Shape) -> str:
        """Return the name of a tensor of a shape, computed from the image."""
        tokens = shape[2] == 1 and shape[1] > 1
        kind = "linear" if tokens else "conv2d+bn+relu6"
        stride = -(-image[1] // shape[1])
        feed = OpSpec(kind, image, shape, stride=stride, dtype=op.dtype, batch=op.batch)
        nodes.append(Node(name, feed, (INPUT,)))
        return name

    inputs = [INPUT if op.in_shape == image else fed("feed", op.in_shape)]
    if op.base == "add" or "add" in op.fused:
        inputs.append(fed("other", op.out_shape))
    if op.base == "mul":
        gate = OpSpec("mean", op.in_shape, (op.in_shape[0], 1, 1), dtype=op.dtype, batch=op.batch)
        nodes.append(Node("gate", gate, (inputs[0],)))
        inputs.append("gate")
    nodes.append(Node(_NAME, op, tuple(inputs)))
    if op.out_shape[1:] != (1, 1):
        read = OpSpec("mean", op.out_shape, (op.out_shape[0], 1, 1), dtype=op.dtype, batch=op.batch)
        nodes.append(Node("reader", read, (_NAME,)))
    return Graph.of(nodes)


_RUNS = 100  #: of an operator in one profile
#: What every provider must run.
_PROBE = OpSpec("conv2d+bn+relu", (8, 8, 8), (8, 8, 8), 3, dtype="float32")


def open_engine(target: Target, remote: Remote) -> "OrtEngine":
    """Return onnxruntime on this machine.

    Raises:
        ConfigError: it does not have the target's provider, or that cannot be made here.
    """
    chosen = provider.section(target)
    provider.check_made(chosen, random_model(alone(_PROBE)))
    return OrtEngine(target, chosen)


@final
class OrtEngine:
    """onnxruntime on this machine, by one execution provider."""

    def __init__(self, target: Target, chosen: OnnxRuntimeSettings):
        self._threads, self._batch, self._chosen = target.threads, target.batch, chosen

    def plans(self, op: OpSpec, limit: int) -> Sequence[str]:
        """Return the one plan there is: onnxruntime decides by itself."""
        return [""]

    def operator(self, op: OpSpec, plan: str) -> Timer:
        """Return a timer of one operator, alone, with what starting an inference takes."""
        inputs = (INPUT,) * (2 if op.base in ("add", "mul") or "add" in op.fused else 1)
        return self.network(Graph.of((Node("operator", op, inputs),)), {})

    def time_operator(self, op: OpSpec, plan: str, config: TimingConfig) -> Timing:
        """Return the latency of one operator between others.

        On the CPU onnxruntime's profiler says it. Elsewhere it sees operators start, not end, or a
        whole network as one: there it is what a network takes longer that has the operator.
        """
        if not self._chosen.is_cpu:
            whole, without = (
                measure(self.network(net, {}), config) for net in with_and_without(op)
            )
            return less(whole, without)
        return summarise(operator_times([op], op.threads or self._threads, _RUNS)[op])

    def network(self, lowered: Graph, plans: OperatorPlans) -> Timer:
        """Return a timer of a whole network, on random weights and images."""
        threads = max(node.op.threads for node in lowered) or self._threads
        return ort.timer(random_model(lowered), threads, chosen=self._chosen)

    def forget(self, op: OpSpec, plan: str) -> None:
        """Do nothing: nothing is kept."""

    def export(
        self, lowered: Graph, plans: OperatorPlans, weights: Parameters
    ) -> Mapping[str, bytes]:
        """Return the ONNX file of a float32 network."""
        assert isinstance(weights, Mapping)
        return {".onnx": write_fp32(lowered, weights)}

    def open(self, files: Mapping[str, Path]) -> LoadedNetwork:
        """Return a network as its ONNX file says."""
        model = files[".onnx"].read_bytes()
        threads = ort.threads_of(model) or self._threads
        timer = ort.timer(model, threads, self._batch, self._chosen)
        return LoadedNetwork(timer, ort.OrtSession(model, threads, self._chosen))
