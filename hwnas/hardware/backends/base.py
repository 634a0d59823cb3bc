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
from hwnas.models.int8.quantised_network import QuantisedNetwork, Weights
from hwnas.models.spaces import Genotype, SearchSpace

if TYPE_CHECKING:
    from hwnas.hardware.latency_tables.latency_table import LatencyTable
    from hwnas.hardware.runtimes.pool import RetryingPool

Files = Mapping[str, Path]  #: paths of a network's files, by suffix such as ``.onnx``
Floats = NDArray[np.float32]
Batches = Iterable[Floats]  #: normalised images, each ``(N, C, R, R)``


@dataclass(frozen=True)
class TrainedNetwork:
    """A network with its weights, as backends write it to files."""

    graph: Graph  #: operators, not fused
    weights: Weights  #: float32 weights with batch norm folded
    int8: QuantisedNetwork | None  #: its int8 version; ``None`` if there is none


class TimingBench(Protocol):
    """The device of a target whose latencies are measured."""

    @property
    def table(self) -> "LatencyTable":
        """Latency table of the target."""
        ...

    @property
    def worker(self) -> "RetryingPool":
        """Worker processes that compile, run and time networks."""
        ...

    def plan(self, op: OpSpec) -> str:
        """Return the compilation plan of an operator, a text; see ``runtimes.interfaces``."""
        ...


@dataclass(frozen=True)
class CostContext:
    """Data of a search and its target from which a cost model is created."""

    target: Target
    lower: Callable[[Genotype], Graph]  #: graph of a genotype, not fused
    fused_graph: Callable[[Genotype], Graph]  #: graph of a genotype, fused, in the target's dtype
    #: as ``fused_graph``; it raises ``CompileError`` if the graph cannot be written to a file
    exported_graph: Callable[[Genotype], Graph]
    spaces: tuple[str, ...]  #: names of search spaces
    bench: TimingBench | None = None  #: the device, if latencies are measured
    command: str = ""  #: command that measures operators missing from the latency table


CostModels = Mapping[str, Callable[[CostContext], CostModel]]


@dataclass(frozen=True)
class RemeasuredCost:
    """Cost of the files of an existing export."""

    cost: Cost  #: cost of these files, measured or estimated again
    #: Contents of the files from compiling the network again, by suffix, to compare them with the
    #: existing ones; empty if the backend does not compile.
    recompiled: Mapping[str, bytes]


class Artefacts(Protocol):
    """Writes the files of networks for one target, and evaluates them.

    Methods raise ``CompileError`` if a network cannot be written, compiled or run, and
    ``DeviceError`` if no device answers.
    """

    def build(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the contents of the files that ``evaluate`` reads, by suffix such as ``.onnx``."""
        ...

    def delivered(self, network: TrainedNetwork) -> Mapping[str, bytes]:
        """Return the contents of the files that only this target adds to an export, by suffix.

        Empty if the files of every export (ONNX) are sufficient.
        """
        ...

    def evaluate(self, files: Files, graph: Graph, batches: Batches) -> tuple[Floats, Cost]:
        """Return the outputs ``(n_images, n_outputs)`` of all batches, and the cost of the files.

        Args:
            files: Files from ``build``; weights are read from them only.
            graph: Graph of the network, not fused.
            batches: At least one batch of normalised images.
        """
        ...

    def remeasure(self, files: Files, graph: Graph, images: Floats) -> RemeasuredCost:
        """Return the cost of existing files, timed on the device or estimated by the compiler.

        Args:
            files: Files from ``build``; weights are read from them only.
            graph: Graph of the network, not fused.
            images: Normalised images that are run before timing, ``(N, C, R, R)``.

        Raises:
            ConfigError: the target is not connected, and no compiler estimates its costs.
        """
        ...

    def interleaved(self, files: Files, other: Files) -> InterleavedTimings | None:
        """Return the latencies of two networks, loaded from their files and timed in turns.

        ``None`` if the backend only estimates costs.
        """
        ...


class Backend(Protocol):
    """Estimation, compilation and execution of networks for one target."""

    @property
    def cost_models(self) -> CostModels:
        """Functions that create the cost models, by the name of the model (``cost=NAME``)."""
        ...

    def check(self, graph: Graph) -> None:
        """Check that a network (a graph that is not fused) can be written for the target.

        Raises:
            CompileError: it cannot; the message names the operator.
        """
        ...

    def estimate(self, graph: Graph, cost: str | None = None) -> Cost | None:
        """Return the estimated cost of a network (a graph that is not fused).

        ``None`` if the target is measured instead. ``cost`` is as in ``artefacts``.
        """
        ...

    def int8_session(self, network: QuantisedNetwork) -> Session:
        """Return an int8 network, loaded on this machine by the runtime nearest to the target's."""
        ...

    def artefacts(self, bench: TimingBench | None, cost: str | None = None) -> Artefacts:
        """Return the object that writes and evaluates the files of networks.

        Args:
            bench: The device; required if the target is measured.
            cost: Name of the search's cost model, which gives the costs if the backend neither
                measures nor compiles. ``None``: the backend's default estimate.
        """
        ...

    def unavailable_reason(self, artefact: str, remote: Remote) -> str:
        """Return why an artefact (by name) cannot run from this machine; empty text if it can."""
        ...

    def user_file(self) -> Path | None:
        """Return the user's own file on which costs depend, such as a device file, or ``None``."""
        ...


def backend_of(target: Target) -> Backend:
    """Return the backend of a target.

    Raises:
        ConfigError: the backend is unknown or cannot be loaded, a required package is not
            installed, or the backend does not support the target's settings on this machine.
    """
    description = backends.get(target.runtime)
    backend: Backend = backends.resolve_reference(description.factory, description)(target)
    return backend


def open_artefact(name: str, contents: Mapping[str, bytes]) -> Session:
    """Return the network of an exported artefact, loaded in this process.

    Args:
        name: Name of an artefact type whose ``opens`` is not empty, see ``backends.artefacts``.
        contents: Contents of its files, by suffix.

    Raises:
        CompileError: the runtime cannot load it.
        ConfigError: a required package is not installed.
    """
    artefact = backends.artefacts()[name]
    if reason := backends.lacking(artefact.needs):
        raise ConfigError(f"{name} cannot be opened: {reason}")
    session: Session = pkgutil.resolve_name(artefact.opens)(contents)
    return session


def roofline(context: CostContext) -> CostModel:
    """Return the roofline cost model of a target.

    Raises:
        ConfigError: the target has no roofline.
    """
    from hwnas.hardware.costs.roofline_cost import RooflineCostModel

    return RooflineCostModel(context.target, context.exported_graph)


_N_SAMPLED = 100


def check_space(
    space: SearchSpace, lower: Callable[[Genotype], Graph], target: Target, backend: Backend
) -> None:
    """Check that at least one of 102 networks of a space can be written for the target.

    These are the smallest, the largest and 100 sampled networks, whose graphs ``lower`` returns.

    Raises:
        CompileError: none can; the message has the reason for the smallest network.
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
        f"'{space.name}' ({len(reasons)} tried). Choose another search space, target.dtype or "
        f"target. The reason for the smallest network: {reasons[0]}"
    )
