"""What a backend does for one target. Nothing here needs torch, or a package of a backend."""

import pkgutil
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import CompileError, ConfigError
from hwnas.hardware import backends
from hwnas.hardware.costs.cost_model import Cost, CostModel
from hwnas.hardware.costs.roofline_cost import RooflineCostModel
from hwnas.hardware.latency_tables.latency_table import LatencyTable
from hwnas.hardware.runtimes.interfaces import Session
from hwnas.hardware.runtimes.pool import RetryingPool
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.timing import InterleavedTimings
from hwnas.models.graph import Graph, OpSpec
from hwnas.models.int8.quantised_network import QuantisedNetwork
from hwnas.models.parameters import Weights
from hwnas.models.spaces import Genotype, SearchSpace

Files = Mapping[str, Path]  #: by suffix
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TrainedNetwork:
    """A network with its weights, as backends write it."""

    lowered: Graph  #: as its family lowers it
    weights: Weights  #: in float32, batch norm folded
    int8: QuantisedNetwork | None  #: the same in int8, where it can be written so


class TimingBench(Protocol):
    """The device of a target that is measured."""

    @property
    def table(self) -> LatencyTable:
        """What was measured on it."""
        ...

    @property
    def worker(self) -> RetryingPool:
        """What compiles, runs and times networks, in a process of its own."""
        ...

    def plan(self, op: OpSpec) -> str:
        """Return how an operator is compiled."""
        ...


@dataclass(frozen=True)
class CostContext:
    """What a cost model says the costs of."""

    target: Target
    lower: Callable[[Genotype], Graph]  #: as families lower
    fused_graph: Callable[[Genotype], Graph]  #: as the target runs it: fused, in its dtype
    exported_graph: Callable[[Genotype], Graph]  #: likewise; refuses what cannot be written
    spaces: tuple[str, ...]  #: names of what is searched
    bench: TimingBench | None = None  #: of targets that are measured
    command: str = ""  #: that measures what a latency table lacks


CostModels = Mapping[str, Callable[[CostContext], CostModel]]


@dataclass(frozen=True)
class RemeasuredCost:
    """What files cost that were made earlier."""

    cost: Cost
    #: What the compiler makes of the same again, by suffix; empty where nothing is compiled.
    made: Mapping[str, bytes]


class Artefacts(Protocol):
    """Makes the files of networks for one target, and judges them."""

    def build(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the files of a network by suffix."""
        ...

    def delivered(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the files of an export that are the target's alone, by suffix."""
        ...

    def evaluate(
        self, files: Files, lowered: Graph, batches: Iterable[Floats]
    ) -> tuple[Floats, Cost]:
        """Return the outputs for all images and the cost, both from the files.

        Shapes:
            Batches ``(N, C, R, R)``, one at least; outputs ``(sum of N, n_outputs)``.
        """
        ...

    def remeasure(self, files: Files, lowered: Graph, images: Floats) -> RemeasuredCost:
        """Return the cost from the files alone; images are what is read while it is measured."""
        ...

    def interleaved(self, files: Files, other: Files) -> InterleavedTimings | None:
        """Return the latencies of two networks, timed alternately; none where nothing is."""
        ...


class Backend(Protocol):
    """How networks get onto the device of one target: estimate, compile, run."""

    @property
    def cost_models(self) -> CostModels:
        """The cost models by the names that the description gives, in that order."""
        ...

    def check(self, lowered: Graph) -> None:
        """Refuse a network, as its family lowers it, that cannot be written for the target.

        Raises:
            CompileError: it names the operator.
        """
        ...

    def estimate(self, lowered: Graph) -> Cost | None:
        """Return what a network, as its family lowers it, costs, by layers.

        ``None`` where the target is measured instead.
        """
        ...

    def int8_session(self, network: QuantisedNetwork) -> Session:
        """Return an int8 network in the runtime that stands for the target here."""
        ...

    def artefacts(self, bench: TimingBench | None, cost: str | None = None) -> Artefacts:
        """Return what makes and judges files; targets that are measured have a bench.

        Args:
            bench: The device.
            cost: Name of the cost model that was searched with: what is verified where nothing
                compiles or runs for the target.
        """
        ...

    def unavailable_reason(self, artefact: str, remote: Remote) -> str:
        """Return why an artefact of the target does not run from here; empty if it does."""
        ...

    def user_file(self) -> Path | None:
        """Return a file of the user's own that the target's settings name, if they do."""
        ...


def backend_of(target: Target) -> Backend:
    """Return the backend of a target.

    Raises:
        ConfigError: a package that it needs is not installed.
    """
    description = backends.get(target.runtime)
    found: Backend = backends.resolve_reference(description.factory, description)(target)
    return found


def open_artefact(name: str, contents: Mapping[str, bytes]) -> Session:
    """Return an artefact of an export as something that runs in this process.

    Args:
        name: One of ``backends.artefacts()`` that is opened so.
        contents: Its files by suffix.

    Raises:
        CompileError: what runs it refuses it.
        ConfigError: a package is not installed.
    """
    artefact = backends.artefacts()[name]
    if why := backends.lacking(artefact.needs):
        raise ConfigError(f"{name}: {why}")
    found: Session = pkgutil.resolve_name(artefact.opens)(contents)
    return found


def roofline(costed: CostContext) -> CostModel:
    """Return the cost model that every target has which gives a roofline."""
    return RooflineCostModel(costed.target, costed.exported_graph)


# What can be written as a file for a target; no weights are needed to know it.

_DRAWN = 100  #: networks of a space that are looked at before it is refused


def check_space(
    space: SearchSpace, lower: Callable[[Genotype], Graph], target: Target, backend: Backend
) -> None:
    """Refuse a space of which no network can be written for a target.

    Raises:
        CompileError: it names the operator of the smallest network.
    """
    rng, reasons = random.Random(0), list[str]()
    ends = [space.smallest(), space.largest()]
    for genotype in [*ends, *(space.sample(rng) for _ in range(_DRAWN))]:
        try:
            return backend.check(lower(genotype))
        except CompileError as error:
            reasons.append(str(error))
    raise CompileError(
        f"Target '{target.name}' ({target.runtime}, {target.dtype}) can run no network of space "
        f"'{space.name}', of {len(reasons)} looked at. {reasons[0]}"
    )
