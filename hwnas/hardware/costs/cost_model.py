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

    name: str  #: name of the operator in its network
    operator: str  #: type of the operator, with its shapes if known
    placement: str  #: ``NPU`` or ``CPU``; empty if unknown
    cycles: float  #: clock cycles for the whole batch; 0 if unknown
    macs: int  #: multiply-accumulates of the whole batch
    latency_ms: float | None = None  #: latency for the whole batch; ``None`` if unknown
    bound: str = ""  #: limiting resource, if known: ``compute``, ``memory`` or ``launch``


@dataclass(frozen=True)
class Cost:
    """The metrics of one network on one target, with details.

    Latency and energy are those of an inference, that is, of the whole batch.
    """

    figures: Quantities  #: metrics by name, which ends with the unit: ``latency_ms``
    #: other numbers by column of result files, such as ``cycles`` or ``power_active_w``
    details: Mapping[str, float] = field(default_factory=dict)
    layers: tuple[LayerCost, ...] = ()  #: costs of operators in order; empty if unknown
    reason: str = ""  #: reason why the target cannot run the network; empty if it can
    #: metrics of each segment of a network with early exits, compiled separately; else empty
    segments: tuple[Quantities, ...] = ()


@dataclass(frozen=True)
class CompiledFile:
    """A compiled file, and the cost of its network."""

    artefact: bytes  #: content of the file
    cost: Cost


class CostModel(Protocol):
    """Returns the cost of a genotype on a target."""

    #: Number of genotypes whose cost a sampler may request for one proposal; ``None``: unlimited.
    max_cost_queries: int | None

    def cost(self, genotype: Genotype) -> Cost:
        """Return the cost of one genotype; ``Cost.reason`` is set if the target cannot run it.

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
    """Return the cost of a network; with early exits, that of running all segments.

    Args:
        graph: Graph of the network.
        cost: Returns the cost of a graph without exits, or of a segment.
    """
    return sequential_cost([cost(segment) for segment in split_at_exits(graph)])


def sequential_cost(costs: Sequence[Cost]) -> Cost:
    """Return the cost of a network that runs all segments: the worst case of early exits.

    ``costs`` are those of the segments in order; a single one is returned unchanged. Metrics are
    combined by ``combine_quantities``; throughput, and metrics that a segment lacks, are left out.
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

    It is the maximum for ``sram_kib`` and ``dram_kib``, which segments share, else the sum. Its
    source is ``modelled`` if sources differ, or the metric is not one of the base costs.
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
        values = [detail[name] for detail in details]
        if name in _POWERS:
            combined[name] = _mean(values, [cost.figures["latency_ms"].value for cost in costs])
        else:
            combined[name] = max(values) if name in (*_MAXIMA, *_FLAGS) else sum(values)
    if _UTILISATION in combined and combined.get(_CYCLES):
        combined[_UTILISATION] = _mean(
            [detail[_UTILISATION] for detail in details], [detail[_CYCLES] for detail in details]
        )
    return combined


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
