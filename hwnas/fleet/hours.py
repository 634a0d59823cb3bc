"""Hours of a solution; and one that is quickly found: the relaxed program's, rounded up."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hwnas.fleet.column_generation import ColumnGenerationResult
from hwnas.fleet.task import Array, PlanningTask

Flow = tuple[int, int, float]  #: scenario, option, requests a second


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
    flows: list[Flow]
    unserved: Array  #: parts of demands ``(scenarios, classes)``


def rounded(task: PlanningTask, guide: ColumnGenerationResult, i: int) -> Hour:
    """Return an hour that serves what the relaxed program serves, with whole replicas.

    It may have more machines than there can be.
    """
    c = guide.columns
    flows = [
        (int(c.scenario[j]), int(c.option[j]), float(guide.rates[j]))
        for j in np.flatnonzero((c.hour == i) & (guide.rates > 1e-9))
    ]
    rates = sent(task, flows)
    machines, pools = np.zeros(len(task.problem.devices)), []
    for d in range(machines.size):
        own = [
            q for q, s in enumerate(task.choices.stations) if s.device == d and rates[:, q].any()
        ]
        tried = [_packed(task, rates, i, own, spread) for spread in task.spreads(i, d)]
        machines[d], rows = min(tried, key=lambda found: found[0])
        pools += rows
    unserved = np.zeros((task.n_scenarios, len(task.problem.classes)))
    return Hour(machines, pools, flows, unserved)


def served(task: PlanningTask, flows: Sequence[Flow]) -> Array:
    """Return the requests a second that flows serve ``(scenarios, classes)``."""
    found = np.zeros((task.n_scenarios, len(task.problem.classes)))
    for s, option, rate in flows:
        found[s, task.choices.options.klass[option]] += rate
    return found


def grown(task: PlanningTask, i: int, hour: Hour, flows: Sequence[Flow]) -> Hour:
    """Return an hour, at a place of a task, that serves its demands in the proportions of flows.

    Its pools are what they were, with as many replicas or more, and those of further stations. So
    are its machines, of which there may be more than there can be.
    """
    wanted, have = task.problem.load.borne[:, task.hours[i]], served(task, flows)
    klass = task.choices.options.klass
    factors = np.divide(wanted, have, out=np.zeros_like(have), where=have > 0)
    merged: dict[tuple[int, int], float] = {}
    for s, o, rate in flows:
        merged[s, o] = merged.get((s, o), 0.0) + rate * float(factors[s, klass[o]])
    rates, machines = sent(task, [(*key, rate) for key, rate in merged.items()]), hour.machines
    there = {row.station for row in hour.pools}
    rows = [*hour.pools]
    for q in (int(q) for q in np.flatnonzero(rates.any(0)) if q not in there):
        rows.append(PoolRow(q, 0, max(task.spreads(i, task.choices.stations[q].device)), 0))
    rows = [replace(r, replicas=max(r.replicas, _needed(task, rates, i, r))) for r in rows]
    most = []
    for d, (_, device) in enumerate(task.problem.devices):
        own = [row for row in rows if task.choices.stations[row.station].device == d]
        most.append(max(float(machines[d]), _machines(own, device.slots)))
    unserved = np.where((have == 0) & (wanted > 0), 1.0, 0.0)
    return Hour(np.array(most), rows, [(*key, rate) for key, rate in merged.items()], unserved)


def sent(task: PlanningTask, flows: Sequence[Flow]) -> Array:
    """Return the requests a second that flows send to stations ``(scenarios, stations)``."""
    rates, o = np.zeros((task.n_scenarios, len(task.choices.stations))), task.choices.options
    for s, option, rate in flows:
        rates[s, o.first[option]] += rate
        if o.second[option] >= 0:
            rates[s, o.second[option]] += rate * o.share[option]
    return rates


def sent_usd(task: PlanningTask, i: int, hour: Hour) -> float:
    """Return what an hour pays for links, in $."""
    sending = task.sending(i)
    return sum(float(sending[o]) * x for s, o, x in hour.flows if s == 0)


def _needed(task: PlanningTask, rates: Array, i: int, row: PoolRow) -> int:
    """Return how many replicas a pool needs for the requests that are sent to it."""
    variant = task.choices.stations[row.station].variants[row.variant]
    goodput, spread = task.goodput(i, row.station, row.variant), row.spread
    busy = rates[:, row.station] / goodput
    most = max(busy[0], busy[1:].max(initial=0.0) - spread)
    return max(int(np.ceil(most * (1 - 1e-9))), variant.least) + spread


def _machines(rows: list[PoolRow], slots: int) -> float:
    """Return how many machines pools need of which one holds no more than they have to spare."""
    wide = [np.ceil(row.replicas / row.spread) for row in rows if row.spread]
    return float(max([np.ceil(sum(row.replicas for row in rows) / slots), *wide]))


def _packed(
    task: PlanningTask, rates: Array, i: int, own: list[int], spread: int
) -> tuple[float, list[PoolRow]]:
    """Return how many machines stations need if each has so many replicas to spare."""
    rows = [PoolRow(q, 0, spread, 0) for q in own]
    rows = [replace(row, replicas=_needed(task, rates, i, row)) for row in rows]
    slots = task.problem.devices[task.choices.stations[own[0]].device][1].slots if own else 1
    return _machines(rows, slots), rows
