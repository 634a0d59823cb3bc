"""What segments of a network cost that run one after the other, all of them: the worst case."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hwnas.core.quantity import Quantities, Quantity
from hwnas.models.graph import Graph
from hwnas.models.partition import cut
from hwnas.models.spaces import Genotype
from hwnas.tasks.metrics import builtin

# What a cost model says of a candidate.


@dataclass(frozen=True)
class LayerCost:
    """One operator as the compiler scheduled it, or as a model sees it."""

    name: str
    operator: str
    placement: str  #: ``NPU`` or ``CPU``; empty where nothing is placed
    cycles: float  #: 0 where unknown
    macs: int
    latency_ms: float | None = None
    bound: str = ""  #: what limits it, where known: ``compute``, ``memory`` or ``launch``


@dataclass(frozen=True)
class Cost:
    """The figures of one network on one target, by column, and how they come about."""

    figures: Quantities
    details: Mapping[str, float] = field(default_factory=dict)
    layers: tuple[LayerCost, ...] = ()
    reason: str = ""  #: why the target cannot run the network, if it cannot
    #: of a network with exits: figures of each segment, compiled on its own
    segments: tuple[Quantities, ...] = ()


@dataclass(frozen=True)
class CompiledFile:
    """A file as the target's compiler leaves it, and what it costs."""

    artefact: bytes
    cost: Cost


class CostModel(Protocol):
    """Says what a genotype costs on a target."""

    #: How many genotypes a sampler may ask about for each that it proposes; ``None``: any number.
    max_cost_queries: int | None

    def cost(self, genotype: Genotype) -> Cost:
        """Return the cost of one genotype.

        Raises:
            CompileError: the target's compiler refuses the network.
        """
        ...


_AT_ONE_TIME = ("sram_kib", "dram_kib")  # only one segment runs
_ADDED = ("latency_ms", "energy_mj", "flash_kib", "macs_m", "params_m")  # others nearly add up
_OF_ALL = "mac_utilisation"  # a mean over cycles
_POWERS = ("power_active_w", "power_idle_w")  # means over time
_FLAGS = ("drifted", "latency_drifted")  # of any
_CYCLES = "cycles"
_OF_WHOLE = builtin.THROUGHPUT_NAME  # follows from the latency of all


def cost_by_segment(graph: Graph, cost: Callable[[Graph], Cost]) -> Cost:
    """Return what a network costs, segment by segment if it has exits.

    Args:
        graph: Its operators.
        cost: Of a network without exits, or of a segment.
    """
    return sequential_cost([cost(segment) for segment in cut(graph)])


def sequential_cost(costs: Sequence[Cost]) -> Cost:
    """Return what a network costs whose segments all run; one alone costs what it costs."""
    if len(costs) == 1:
        return costs[0]
    shared = [name for name in costs[0].figures if all(name in cost.figures for cost in costs)]
    names = [name for name in shared if name != _OF_WHOLE]
    return Cost(
        {name: combine_quantities(name, [cost.figures[name] for cost in costs]) for name in names},
        _details(costs),
        tuple(layer for cost in costs for layer in cost.layers),
        next((cost.reason for cost in costs if cost.reason), ""),
        tuple(cost.figures for cost in costs),
    )


def combine_quantities(name: str, figures: Sequence[Quantity]) -> Quantity:
    """Return a cost of segments that all run, by the costs of each."""
    sources = {figure.source for figure in figures}
    combine = max if name in _AT_ONE_TIME else sum
    low, value, high = (
        combine([getattr(figure, end) for figure in figures]) for end in ("lower", "value", "upper")
    )
    ends = (low, high) if any(figure.low is not None for figure in figures) else (None, None)
    exact = len(sources) == 1 and name in (*_ADDED, *_AT_ONE_TIME)
    return Quantity(value, sources.pop() if exact else "modelled", *ends)


def _details(costs: Sequence[Cost]) -> dict[str, float]:
    details = [cost.details for cost in costs]
    found = {}
    for name in details[0]:
        values = [each[name] for each in details]
        if name in _POWERS:
            found[name] = _mean(values, [cost.figures["latency_ms"].value for cost in costs])
        else:
            found[name] = max(values) if name in (*_AT_ONE_TIME, *_FLAGS) else sum(values)
    if _OF_ALL in found and found.get(_CYCLES):
        found[_OF_ALL] = _mean(
            [each[_OF_ALL] for each in details], [each[_CYCLES] for each in details]
        )
    return found


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
