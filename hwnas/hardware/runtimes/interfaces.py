"""What a runtime offers: it runs networks, and it times operators and networks on a device."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hwnas.core.quantity import Quantity
from hwnas.hardware.meters.meter import MeasuredEnergy
from hwnas.hardware.timing import Timer, Timing, TimingConfig
from hwnas.models.graph import Graph, OpSpec
from hwnas.models.parameters import Parameters

#: How each operator is scheduled, in the runtime's own words; empty where there is no choice.
OperatorPlans = Mapping[OpSpec, str]


class Session(Protocol):
    """A network loaded into a runtime."""

    def run(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs ``(N, n_outputs)`` for normalised images ``(N, C, H, W)``."""
        ...


@runtime_checkable
class Segment(Protocol):
    """A part of a network with exits, loaded into a runtime."""

    def outputs(self, images: NDArray[np.float32]) -> tuple[NDArray[np.float32], ...]:
        """Return what the next segment reads, if there is one, and the outputs ``(N, n_outputs)``.

        Images, and what segments read, are ``(N, C, H, W)``.
        """
        ...


class Engine(Protocol):
    """A runtime on one device, as the latency tables need it. Networks come fused (``op.fuse``).

    Every method may raise ``CompileError`` for what the runtime cannot compile, and ``DeviceError``
    where the device does not answer.
    """

    def plans(self, op: OpSpec, limit: int) -> Sequence[str]:
        """Return at most ``limit`` plans to try, the most promising first; never none."""
        ...

    def operator(self, op: OpSpec, plan: str) -> Timer:
        """Return a timer of one operator, alone, on random data."""
        ...

    def time_operator(self, op: OpSpec, plan: str, config: TimingConfig) -> Timing:
        """Return what one operator adds to the latency of a network, as nearly as can be told."""
        ...

    def network(self, graph: Graph, plans: OperatorPlans) -> Timer:
        """Return a timer of a whole network, on random weights and images."""
        ...

    def forget(self, op: OpSpec, plan: str) -> None:
        """Free what was compiled of an operator."""
        ...

    def export(
        self, graph: Graph, plans: OperatorPlans, weights: Parameters
    ) -> Mapping[str, bytes]:
        """Return the files of a compiled network, by their suffixes: ``{".onnx": ...}``."""
        ...

    def open(self, files: Mapping[str, Path]) -> "LoadedNetwork":
        """Return a network as its files say, loaded on the device; files are by suffix."""
        ...


@dataclass(frozen=True)
class LoadedNetwork:
    """A compiled network on its device."""

    timer: Timer
    session: Session
    uncounted: int = 0  #: inferences that the timer runs each time beside those it is asked for


@dataclass(frozen=True)
class DeviceEvaluation:
    """What a compiled network showed on its device."""

    outputs: NDArray[np.float32]  #: ``(N, n_outputs)``
    timing: Timing
    energy: MeasuredEnergy | None  #: where the target has a meter
    p99: Quantity | None = None  #: latency of single inferences in ms, where that was asked for


# Tensors in memory.


@dataclass(frozen=True)
class Buffer:
    """Shape and dtype of a tensor in memory."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def n_bytes(self) -> int:
        """Bytes that it takes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize
