"""Interfaces of runtimes: they run networks, and time operators and networks on a device.

A compilation plan is the configuration with which a runtime compiles an operator, such as the size
of its tiles, as the runtime's text. Runtimes that schedule by themselves have one plan, ``""``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hwnas.core.quantity import Quantity
from hwnas.hardware.timing import Timer, Timing, TimingConfig
from hwnas.models.graph import Graph, OpSpec
from hwnas.models.int8.quantised_network import Parameters

if TYPE_CHECKING:
    from hwnas.hardware.meters.meter import MeasuredEnergy

#: Compilation plan of each operator; may be empty for runtimes that schedule by themselves.
OperatorPlans = Mapping[OpSpec, str]


class Session(Protocol):
    """A network loaded by a runtime."""

    def run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs ``(N, n_outputs)`` for normalised images ``(N, C, H, W)``."""
        ...


@runtime_checkable
class Segment(Protocol):
    """A segment of a network with early exits, loaded by a runtime."""

    def outputs(self, images: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
        """Return ``(features, outputs)``; ``(outputs,)`` for the last segment.

        ``outputs`` are ``(N, n_outputs)``; ``features`` are the input of the next segment. The
        first segment reads normalised images ``(N, C, H, W)``, others the features of the segment
        before.
        """
        ...


class Engine(Protocol):
    """A runtime on one device. Networks are fused (``graph.fuse``).

    Every method may raise ``CompileError`` for what the runtime cannot compile, and ``DeviceError``
    if the device does not answer.
    """

    def plans(self, op: OpSpec, limit: int) -> Sequence[str]:
        """Return 1 to ``limit`` compilation plans of an operator, the most promising first."""
        ...

    def operator(self, op: OpSpec, plan: str) -> Timer:
        """Return a timer of one isolated operator on random data: seconds for n runs."""
        ...

    def time_operator(self, op: OpSpec, plan: str, config: TimingConfig) -> Timing:
        """Return an estimate of what an operator adds to a network's latency (of the batch)."""
        ...

    def network(self, graph: Graph, plans: OperatorPlans) -> Timer:
        """Return a timer of a network with random weights and images: seconds for n inferences."""
        ...

    def forget(self, op: OpSpec, plan: str) -> None:
        """Free the memory of an operator that was compiled with ``plan``."""
        ...

    def export(
        self, graph: Graph, plans: OperatorPlans, weights: Parameters
    ) -> Mapping[str, bytes]:
        """Return the contents of a compiled network's files, by suffix: ``{".onnx": ...}``.

        ``weights`` are by operator name for float32, a ``QuantisedNetwork`` for int8.
        """
        ...

    def open(self, files: Mapping[str, Path]) -> "LoadedNetwork":
        """Return a network loaded on the device from its files, which are given by suffix."""
        ...


@dataclass(frozen=True)
class LoadedNetwork:
    """A compiled network, loaded on its device."""

    timer: Timer  #: runs n inferences and returns the seconds
    session: Session  #: computes its outputs
    uncounted: int = 0  #: additional inferences per call of the timer, which it does not time


@dataclass(frozen=True)
class DeviceEvaluation:
    """Outputs and measurements of a compiled network on its device."""

    outputs: NDArray[np.float32]  #: ``(N, n_outputs)``
    timing: Timing  #: latency of an inference (of the whole batch)
    #: energy of an inference; ``None`` if the target has no meter
    energy: "MeasuredEnergy | None"
    #: p99 latency in ms of the runs of ``timing``; ``None`` if not requested, or it takes too long
    p99: Quantity | None = None


@dataclass(frozen=True)
class Buffer:
    """Shape and dtype of a tensor in memory."""

    shape: tuple[int, ...]  #: shape of the tensor
    dtype: str  #: numpy's name of its dtype

    @property
    def n_bytes(self) -> int:
        """Size of the tensor in bytes, without padding."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize
