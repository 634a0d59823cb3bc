"""Hours of a solution; and one that is quickly found: the relaxed program's, rounded up."""

from dataclasses import dataclass

import numpy as np

from hwnas.planning.columns import spreads
from hwnas.planning.pricing import Priced
from hwnas.planning.task import Array, Task


@dataclass(frozen=True)
class PoolRow:
    """A pool of an hour."""

    station: int
    variant: int
    spread: int
    replicas: int


@dataclass
class Hour:
    """What a solution says of an hour."""

    machines: Array  #: ``(devices,)``
    pools: list[PoolRow]
    flows: list[tuple[int, int, float]]  #: scenario, option, requests a second
    unserved: Array  #: parts of demands ``(scenarios, classes)``


def rounded(task: Task, guide: Priced, i: int) -> Hour:
    """Return an hour that serves what the relaxed program serves, with whole replicas.

    It may have more machines than there can be.
    """
    c, flows = guide.columns, []
    rates = np.zeros((task.n_scenarios, len(task.choices.stations)))
    o = task.choices.options
    for j in np.flatnonzero((c.hour == i) & (guide.rates > 1e-9)):
        s, option, rate = int(c.scenario[j]), int(c.option[j]), float(guide.rates[j])
        flows.append((s, option, rate))
        rates[s, o.first[option]] += rate
        if o.second[option] >= 0:
            rates[s, o.second[option]] += rate * o.share[option]
    machines, pools = np.zeros(len(task.problem.devices)), []
    for d in range(machines.size):
        own = [
            q for q, s in enumerate(task.choices.stations) if s.device == d and rates[:, q].any()
        ]
        tried = [_packed(task, rates, i, own, spread) for spread in _spreads(task, d)]
        machines[d], rows = min(tried, key=lambda found: found[0])
        pools += rows
    unserved = np.zeros((task.n_scenarios, len(task.problem.classes)))
    return Hour(machines, pools, flows, unserved)


def _spreads(task: Task, d: int) -> list[int]:
    return spreads(task.problem.devices[d][1].slots) if task.spares else [0]


def _packed(
    task: Task, rates: Array, i: int, own: list[int], spread: int
) -> tuple[float, list[PoolRow]]:
    """Return how many machines stations need if each has so many replicas to spare."""
    rows = []
    for q in own:
        station = task.choices.stations[q]
        variant = station.variants[0]
        goodput = task.goodput(i, q, variant.goodput)
        busy = max(rates[0, q] / goodput, rates[1:, q].max(initial=0.0) / goodput - spread)
        n = max(int(np.ceil(busy * (1 - 1e-9))), variant.least) + spread
        rows.append(PoolRow(q, 0, spread, n))
    slots = task.problem.devices[task.choices.stations[own[0]].device][1].slots if own else 1
    need = np.ceil(sum(row.replicas for row in rows) / slots)
    if spread:
        need = max([need, *(np.ceil(row.replicas / spread) for row in rows)])
    return float(need), rows
