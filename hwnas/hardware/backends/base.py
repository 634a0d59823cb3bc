"""Interfaces of backends. Importing them needs neither torch nor a package of a backend."""

import pkgutil
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import CompileError, ConfigError
from hwnas.hardware import backends
from hwnas.hardware.costs.cost_model import Cost, CostModel
from hwnas.hardware.runtimes.interfaces import Session
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.timing import InterleavedTimings
from hwnas.models.graph import Graph, OpSpec
from hwnas.models.int8.quantised_network import QuantisedNetwork
from hwnas.models.parameters import Weights
from hwnas.models.spaces import Genotype, SearchSpace

if TYPE_CHECKING:
    from hwnas.hardware.latency_tables.latency_table import LatencyTable
    from hwnas.hardware.runtimes.pool import RetryingPool

Files = Mapping[str, Path]  #: paths by file suffix
Floats = NDArray[np.float32]
Batches = Iterable[Floats]


@dataclass(frozen=True)
class TrainedNetwork:
    """A network with its weights, as backends write it to files."""

    graph: Graph  #: not fused
    weights: Weights  #: float32, batch norm folded
    int8: QuantisedNetwork | None  #: the int8 network, if it can be written


class TimingBench(Protocol):
    """The connected device of a target."""

    @property
    def table(self) -> "LatencyTable":
        """Its latency table."""
        ...

    @property
    def worker(self) -> "RetryingPool":
        """Worker processes that compile, run and time networks."""
        ...

    def plan(self, op: OpSpec) -> str:
        """Return the plan of an operator."""
        ...


@dataclass(frozen=True)
class CostContext:
    """What cost models are made from."""

    target: Target
    lower: Callable[[Genotype], Graph]  #: not fused
    fused_graph: Callable[[Genotype], Graph]  #: as executed: fused, in the target's dtype
    #: as ``fused_graph``; refuses graphs that cannot be written
    exported_graph: Callable[[Genotype], Graph]
    spaces: tuple[str, ...]  #: names of search spaces
    bench: TimingBench | None = None  #: the device, if latencies are measured
    command: str = ""  #: command that measures missing operators


CostModels = Mapping[str, Callable[[CostContext], CostModel]]


@dataclass(frozen=True)
class RemeasuredCost:
    """Cost of existing files."""

    cost: Cost
    #: Files of compiling the same network again, by suffix; empty if nothing is compiled.
    recompiled: Mapping[str, bytes]


class Artefacts(Protocol):
    """Writes the files of networks for one target, and evaluates them."""

    def build(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the files of a network by suffix."""
        ...

    def delivered(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the target-specific files of an export, by suffix."""
        ...

    def evaluate(self, files: Files, graph: Graph, batches: Batches) -> tuple[Floats, Cost]:
        """Return the outputs for all images and the cost, from the files alone.

        Shapes:
            At least one batch ``(N, C, R, R)``; outputs ``(sum of N, n_outputs)``.
        """
        ...

    def remeasure(self, files: Files, graph: Graph, images: Floats) -> RemeasuredCost:
        """Return the cost from the files alone; ``images`` are the input of measurements."""
        ...

    def interleaved(self, files: Files, other: Files) -> InterleavedTimings | None:
        """Return interleaved latencies of two networks; ``None`` if nothing is measured."""
        ...


class Backend(Protocol):
    """Estimation, compilation and execution of networks for one target."""

    @property
    def cost_models(self) -> CostModels:
        """Cost models by name, in the order of the description."""
        ...

    def check(self, graph: Graph) -> None:
        """Refuse a network, not fused, that cannot be written for the target.

        Raises:
            CompileError: it names the operator.
        """
        ...

    def estimate(self, graph: Graph) -> Cost | None:
        """Return the estimated cost of a network, not fused, by layer.

        ``None`` if the target is measured instead.
        """
        ...

    def int8_session(self, network: QuantisedNetwork) -> Session:
        """Return a session of an int8 network in the runtime that represents the target here."""
        ...

    def artefacts(self, bench: TimingBench | None, cost: str | None = None) -> Artefacts:
        """Return the writer and evaluator of files.

        Args:
            bench: The device, if the target is measured.
            cost: Name of the search's cost model, which evaluates if nothing is measured or
                compiled.
        """
        ...

    def unavailable_reason(self, artefact: str, remote: Remote) -> str:
        """Return why an artefact cannot run from this machine; empty if it can."""
        ...

    def user_file(self) -> Path | None:
        """Return the user's file that the target's settings name, if any."""
        ...


def backend_of(target: Target) -> Backend:
    """Return the backend of a target.

    Raises:
        ConfigError: a required package is not installed.
    """
    description = backends.get(target.runtime)
    backend: Backend = backends.resolve_reference(description.factory, description)(target)
    return backend


def open_artefact(name: str, contents: Mapping[str, bytes]) -> Session:
    """Return a session of an exported artefact in this process.

    Args:
        name: Name of an artefact with ``opens``, see ``backends.artefacts``.
        contents: Its files, by suffix.

    Raises:
        CompileError: the runtime refuses it.
        ConfigError: a required package is not installed.
    """
    artefact = backends.artefacts()[name]
    if reason := backends.lacking(artefact.needs):
        raise ConfigError(f"{name}: {reason}")
    session: Session = pkgutil.resolve_name(artefact.opens)(contents)
    return session


def roofline(context: CostContext) -> CostModel:
    """Return the roofline cost model of a target."""
    from hwnas.hardware.costs.roofline_cost import RooflineCostModel

    return RooflineCostModel(context.target, context.exported_graph)


_N_SAMPLED = 100  #: sampled networks of a space before it is refused


def check_space(
    space: SearchSpace, lower: Callable[[Genotype], Graph], target: Target, backend: Backend
) -> None:
    """Refuse a space if none of its sampled networks can be written for the target.

    Raises:
        CompileError: it names an operator of the smallest network.
    """
    rng, reasons = random.Random(0), list[str]()
    ends = [space.smallest(), space.largest()]
    for genotype in [*ends, *(space.sample(rng) for _ in range(_N_SAMPLED))]:
        try:
            return backend.check(lower(genotype))
        except CompileError as error:
            reasons.append(str(error))
    raise CompileError(
        f"Target '{target.name}' ({target.runtime}, {target.dtype}) can run no network of space "
        f"'{space.name}' ({len(reasons)} sampled). {reasons[0]}"
    )
