"""OpenVINO as an engine: it has no plans to choose from, and runs on this machine only."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import final

from hwnas.backends import portable
from hwnas.backends.openvino import session
from hwnas.op import INPUT, Lowered, Node, OpSpec
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
        """Return a timer of one operator, alone, with what starting an inference takes."""
        return self.network(_alone(op), {})

    def time_operator(self, op: OpSpec, plan: str, config: TimingConfig) -> Timing:
        """Return the latency of one operator alone, without what starting an inference takes.

        OpenVINO's profiler cuts to whole microseconds, which is more than many operators take.
        """
        whole, idle = measure(self.operator(op, plan), config), measure(self._idle, config)
        return replace(
            whole,
            median_ms=max(_FLOOR_MS, whole.median_ms - idle.median_ms),
            low_ms=max(_FLOOR_MS, whole.low_ms - idle.high_ms),
            high_ms=max(_FLOOR_MS, whole.high_ms - idle.low_ms),
        )

    @cached_property
    def _idle(self) -> Timer:
        """A timer of next to nothing."""
        return self.network(_alone(OpSpec("add", (1, 1, 1), (1, 1, 1), dtype="float32")), {})

    def network(self, lowered: Lowered, plans: Plans) -> Timer:
        """Return a timer of a whole network, on random weights and images."""
        contents = session.written(portable.random_model(lowered), self._dtype)
        return session.timer(contents, self._threads, lowered[0].op.batch)

    def forget(self, op: OpSpec, plan: str) -> None:
        """Do nothing: nothing is kept."""

    def export(self, lowered: Lowered, plans: Plans, weights: Weights) -> Mapping[str, bytes]:
        """Return the IR of a network of floats."""
        return session.written(write_fp32(lowered, weights, any_batch=True), self._dtype)

    def open(self, files: Mapping[str, Path]) -> Loaded:
        """Return a network as its IR says."""
        contents = {suffix: path.read_bytes() for suffix, path in files.items()}
        timer = session.timer(contents, self._threads, self._batch)
        return Loaded(timer, session.OpenVinoSession(contents, self._threads))


def _alone(op: OpSpec) -> Lowered:
    inputs = (INPUT,) * (2 if op.base in ("add", "mul") or "add" in op.fused else 1)
    return (Node("operator", op, inputs),)
