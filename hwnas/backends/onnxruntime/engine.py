"""onnxruntime as an engine: it has no plans to choose from, and runs on this machine only."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

from hwnas.backends.alone import alone, less, with_and_without
from hwnas.backends.onnxruntime import provider
from hwnas.backends.onnxruntime import session as ort
from hwnas.backends.onnxruntime.operators import operator_times
from hwnas.backends.onnxruntime.settings import OnnxRuntime
from hwnas.backends.portable import random_model
from hwnas.graph import INPUT, Graph, Node
from hwnas.op import OpSpec
from hwnas.runtimes.base import Loaded, Parameters, Plans
from hwnas.runtimes.onnx_writer import write_fp32
from hwnas.target import Remote, Target
from hwnas.timing import Timer, Timing, TimingConfig, measure, summarise

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

    def __init__(self, target: Target, chosen: OnnxRuntime):
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

    def network(self, lowered: Graph, plans: Plans) -> Timer:
        """Return a timer of a whole network, on random weights and images."""
        threads = max(node.op.threads for node in lowered) or self._threads
        return ort.timer(random_model(lowered), threads, chosen=self._chosen)

    def forget(self, op: OpSpec, plan: str) -> None:
        """Do nothing: nothing is kept."""

    def export(self, lowered: Graph, plans: Plans, weights: Parameters) -> Mapping[str, bytes]:
        """Return the ONNX file of a float32 network."""
        assert isinstance(weights, Mapping)
        return {".onnx": write_fp32(lowered, weights)}

    def open(self, files: Mapping[str, Path]) -> Loaded:
        """Return a network as its ONNX file says."""
        model = files[".onnx"].read_bytes()
        threads = ort.threads_of(model) or self._threads
        timer = ort.timer(model, threads, self._batch, self._chosen)
        return Loaded(timer, ort.OrtSession(model, threads, self._chosen))
