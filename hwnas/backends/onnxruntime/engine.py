"""onnxruntime as an engine: it has no plans to choose from, and runs on this machine only."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

from hwnas.backends.onnxruntime import session as ort
from hwnas.backends.onnxruntime.operators import operator_times
from hwnas.backends.portable import random_model
from hwnas.graph import INPUT, Graph, Node
from hwnas.op import OpSpec
from hwnas.runtimes.base import Loaded, Plans, Weights
from hwnas.runtimes.onnx_writer import write_fp32
from hwnas.target import Remote, Target
from hwnas.timing import Timer, Timing, TimingConfig, summarise

_RUNS = 100  #: of an operator in one profile


def open_engine(target: Target, remote: Remote) -> "OrtEngine":
    """Return onnxruntime on this machine."""
    return OrtEngine(target)


@final
class OrtEngine:
    """onnxruntime on this machine's CPU."""

    def __init__(self, target: Target):
        self._threads, self._batch = target.threads, target.batch

    def plans(self, op: OpSpec, limit: int) -> Sequence[str]:
        """Return the one plan there is: onnxruntime decides by itself."""
        return [""]

    def operator(self, op: OpSpec, plan: str) -> Timer:
        """Return a timer of one operator, alone, with what starting an inference takes."""
        inputs = (INPUT,) * (2 if op.base in ("add", "mul") or "add" in op.fused else 1)
        return ort.timer(random_model(Graph.of((Node("operator", op, inputs),))), self._threads)

    def time_operator(self, op: OpSpec, plan: str, config: TimingConfig) -> Timing:
        """Return the latency of one operator between others, from onnxruntime's profiler."""
        return summarise(operator_times([op], self._threads, _RUNS)[op])

    def network(self, lowered: Graph, plans: Plans) -> Timer:
        """Return a timer of a whole network, on random weights and images."""
        return ort.timer(random_model(lowered), self._threads)

    def forget(self, op: OpSpec, plan: str) -> None:
        """Do nothing: nothing is kept."""

    def export(self, lowered: Graph, plans: Plans, weights: Weights) -> Mapping[str, bytes]:
        """Return the ONNX file of a float32 network."""
        return {".onnx": write_fp32(lowered, weights)}

    def open(self, files: Mapping[str, Path]) -> Loaded:
        """Return a network as its ONNX file says."""
        model = files[".onnx"].read_bytes()
        timer = ort.timer(model, self._threads, self._batch)
        return Loaded(timer, ort.OrtSession(model, self._threads))
