"""What segments of a network cost that run one after the other, all of them: the worst case."""

from collections.abc import Callable, Sequence

from hwnas.cost.base import Cost
from hwnas.figure import Figure
from hwnas.graph import Graph
from hwnas.metrics.builtin import throughput
from hwnas.segments import cut

_AT_ONE_TIME = ("sram_kib", "dram_kib")  # only one segment runs
_ADDED = ("latency_ms", "energy_mj", "flash_kib", "macs_m", "params_m")  # others nearly add up
_OF_ALL = "mac_utilisation"  # a mean over cycles
_POWERS = ("power_active_w", "power_idle_w")  # means over time
_FLAGS = ("drifted", "latency_drifted")  # of any
_CYCLES = "cycles"
_OF_WHOLE = throughput.NAME  # follows from the latency of all


def one_by_one(lowered: Graph, cost: Callable[[Graph], Cost]) -> Cost:
    """Return what a network costs, segment by segment if it has exits.

    Args:
        lowered: Its operators.
        cost: Of a network without exits, or of a segment.
    """
    return in_a_row([cost(segment) for segment in cut(lowered)])


def in_a_row(costs: Sequence[Cost]) -> Cost:
    """Return what a network costs whose segments all run; one alone costs what it costs."""
    if len(costs) == 1:
        return costs[0]
    shared = [name for name in costs[0].figures if all(name in cost.figures for cost in costs)]
    names = [name for name in shared if name != _OF_WHOLE]
    return Cost(
        {name: together(name, [cost.figures[name] for cost in costs]) for name in names},
        _details(costs),
        tuple(layer for cost in costs for layer in cost.layers),
        next((cost.reason for cost in costs if cost.reason), ""),
        tuple(cost.figures for cost in costs),
    )


def together(name: str, figures: Sequence[Figure]) -> Figure:
    """Return a cost of segments that all run, by the costs of each."""
    sources = {figure.source for figure in figures}
    combine = max if name in _AT_ONE_TIME else sum
    low, value, high = (
        combine([getattr(figure, end) for figure in figures]) for end in ("lower", "value", "upper")
    )
    ends = (low, high) if any(figure.low is not None for figure in figures) else (None, None)
    exact = len(sources) == 1 and name in (*_ADDED, *_AT_ONE_TIME)
    return Figure(value, sources.pop() if exact else "modelled", *ends)


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
