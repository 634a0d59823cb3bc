"""What a runtime offers: it runs networks, and it times operators and networks on a device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hwnas.figure import Figure
from hwnas.graph import Graph
from hwnas.int8.network import QuantisedNetwork
from hwnas.metering import Energy
from hwnas.op import OpSpec
from hwnas.timing import Timer, Timing, TimingConfig

#: Weight and bias by node name, of the shapes that torch has; batch norm folded.
Weights = Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]
#: What a network is exported with: real weights, or all that it is in int8.
Parameters = Weights | QuantisedNetwork
#: How each operator is scheduled, in the runtime's own words; empty where there is no choice.
Plans = Mapping[OpSpec, str]

#: In ONNX files, the first dimension of images where an inference may read any number of them.
BATCH = "batch"
#: Property of ONNX models: on how many threads one runs, where its network chose.
THREADS = "threads"
#: In the metadata of ONNX files, the key of the names of all operators, one a line.
OPERATORS = "operators"


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

    def network(self, lowered: Graph, plans: Plans) -> Timer:
        """Return a timer of a whole network, on random weights and images."""
        ...

    def forget(self, op: OpSpec, plan: str) -> None:
        """Free what was compiled of an operator."""
        ...

    def export(self, lowered: Graph, plans: Plans, weights: Parameters) -> Mapping[str, bytes]:
        """Return the files of a compiled network, by their suffixes: ``{".onnx": ...}``."""
        ...

    def open(self, files: Mapping[str, Path]) -> "Loaded":
        """Return a network as its files say, loaded on the device; files are by suffix."""
        ...


@dataclass(frozen=True)
class Loaded:
    """A compiled network on its device."""

    timer: Timer
    session: Session
    uncounted: int = 0  #: inferences that the timer runs each time beside those it is asked for


@dataclass(frozen=True)
class Judged:
    """What a compiled network showed on its device."""

    outputs: NDArray[np.float32]  #: ``(N, n_outputs)``
    timing: Timing
    energy: Energy | None  #: where the target has a meter
    p99: Figure | None = None  #: latency of single inferences in ms, where that was asked for
