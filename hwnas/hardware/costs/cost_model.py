"""The interface of cost models, and the cost of segments that run one after another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from hwnas.core.quantity import Quantities, Quantity, sum_of
from hwnas.models.graph import Graph, split_at_exits
from hwnas.models.spaces import Genotype
from hwnas.tasks.metrics import builtin


@dataclass(frozen=True)
class LayerCost:
    """Cost of one operator, as scheduled by a compiler or predicted by a model."""

    name: str
    operator: str  #: type of the operator, with its shapes if known
    placement: str  #: ``NPU`` or ``CPU``; empty if unknown
    cycles: float  #: 0 where unknown
    macs: int  #: of the whole batch
    latency_ms: float | None = None  #: ``None`` if unknown
    bound: str = ""  #: limiting resource, if known: ``compute``, ``memory`` or ``launch``


@dataclass(frozen=True)
class Cost:
    """The metrics of one network on one target, with details."""

    figures: Quantities  #: metrics by name, which ends with the unit: ``latency_ms``
    details: Mapping[str, float] = field(default_factory=dict)  #: other numbers by column name
    layers: tuple[LayerCost, ...] = ()  #: empty if unknown
    reason: str = ""  #: reason why the target cannot run the network; empty if it can
    #: metrics of each segment of a network with early exits, compiled separately; else empty
    segments: tuple[Quantities, ...] = ()


@dataclass(frozen=True)
class CompiledFile:
    """A compiled file, and its cost."""

    artefact: bytes  #: content of the file
    cost: Cost


class CostModel(Protocol):
    """Returns the cost of a genotype on a target."""

    #: Number of genotypes that a sampler may cost per proposal; ``None``: unlimited.
    max_cost_queries: int | None

    def cost(self, genotype: Genotype) -> Cost:
        """Return the cost of one genotype.

        Raises:
            CompileError: the target's compiler cannot compile the network.
        """
        ...


_MAXIMA = ("sram_kib", "dram_kib")  # maximum over segments: only one runs at a time
# sums are exact; those of other metrics are modelled
_ADDED = ("latency_ms", "energy_mj", "flash_kib", "macs_m", "params_m")
_UTILISATION = "mac_utilisation"  # mean weighted by cycles
_POWERS = ("power_active_w", "power_idle_w")  # means weighted by latency
_FLAGS = ("drifted", "latency_drifted")  # set if set for any segment
_CYCLES = "cycles"
_DERIVED = builtin.THROUGHPUT_NAME  # derived from the total latency


def cost_by_segment(graph: Graph, cost: Callable[[Graph], Cost]) -> Cost:
    """Return the cost of a network, as the sum of its segments if it has exits.

    Args:
        graph: Its graph.
        cost: Cost of a network without exits, or of a segment.
    """
    return sequential_cost([cost(segment) for segment in split_at_exits(graph)])


def sequential_cost(costs: Sequence[Cost]) -> Cost:
    """Return the cost of a network that runs all segments: the worst case of early exits.

    Throughput, which depends on the total latency, and metrics that a segment lacks are left out.
    """
    if len(costs) == 1:
        return costs[0]
    shared = [name for name in costs[0].figures if all(name in cost.figures for cost in costs)]
    names = [name for name in shared if name != _DERIVED]
    return Cost(
        {name: combine_quantities(name, [cost.figures[name] for cost in costs]) for name in names},
        _details(costs),
        tuple(layer for cost in costs for layer in cost.layers),
        next((cost.reason for cost in costs if cost.reason), ""),
        tuple(cost.figures for cost in costs),
    )


def combine_quantities(name: str, figures: Sequence[Quantity]) -> Quantity:
    """Return a metric of a network from those of its segments, all of which run.

    It is the maximum for memories that segments share, else the sum.
    """
    if name in _MAXIMA:
        largest = max(figures, key=lambda figure: figure.value)
        ends = (max(f.lower for f in figures), max(f.upper for f in figures))
        total = largest if largest.low is None else replace(largest, low=ends[0], high=ends[1])
    else:
        total = sum_of(figures)
    exact = len({figure.source for figure in figures}) == 1 and name in (*_ADDED, *_MAXIMA)
    return total if exact else replace(total, source="modelled")


def _details(costs: Sequence[Cost]) -> dict[str, float]:
    details = [cost.details for cost in costs]
    combined = {}
    for name in details[0]:
        values = [each[name] for each in details]
        if name in _POWERS:
            combined[name] = _mean(values, [cost.figures["latency_ms"].value for cost in costs])
        else:
            combined[name] = max(values) if name in (*_MAXIMA, *_FLAGS) else sum(values)
    if _UTILISATION in combined and combined.get(_CYCLES):
        combined[_UTILISATION] = _mean(
            [each[_UTILISATION] for each in details], [each[_CYCLES] for each in details]
        )
    return combined


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
