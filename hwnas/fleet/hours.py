"""Hours of a solution, and a heuristic: the solution of the linear program rounded up."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hwnas.fleet.program import OptionColumns
from hwnas.fleet.task import Array, PlanningTask

#: index of the scenario, index of the option, requests/s. Scenario 0 is normal operation, 1 the
#: failure of all spot machines.
Flow = tuple[int, int, float]


@dataclass(frozen=True)
class PoolRow:
    """A pool (equal replicas of a model on a device) in an hour of a solution."""

    placement: int  #: index into the task's placements
    config: int  #: index into the placement's serving configs
    #: maximum replicas on one machine, and number of spare ones; 0: no limit and no spares
    max_per_machine: int
    replicas: int  #: number of replicas, including spare ones


@dataclass
class Hour:
    """An hour of a solution."""

    machines: Array  #: number of machines ``(devices,)``
    pools: list[PoolRow]
    flows: list[Flow]  #: requests/s of options, in each scenario
    unserved: Array  #: unserved fraction of the demand, in [0, 1] ``(scenarios, classes)``


def round_up(task: PlanningTask, columns: OptionColumns, rates: Array, i: int) -> Hour:
    """Return hour ``i`` of the task with the flows of the linear program, and whole replicas.

    ``rates`` are the requests/s of ``columns`` in its solution ``(columns,)``. The hour may exceed
    quotas; its ``unserved`` is 0.
    """
    flows = [
        (int(columns.scenario[j]), int(columns.option[j]), float(rates[j]))
        for j in np.flatnonzero((columns.hour == i) & (rates > 1e-9))
    ]
    sent = placement_rates(task, flows)
    machines, pools = np.zeros(len(task.problem.devices)), []
    for d in range(machines.size):
        placements = [
            q for q, s in enumerate(task.choices.placements) if s.device == d and sent[:, q].any()
        ]
        options = [
            _pools_of_device(task, sent, i, placements, spread)
            for spread in task.replica_limits(i, d)
        ]
        machines[d], rows = min(options, key=lambda result: result[0])
        pools += rows
    unserved = np.zeros((task.n_scenarios, len(task.problem.classes)))
    return Hour(machines, pools, flows, unserved)


def served_rates(task: PlanningTask, flows: Sequence[Flow]) -> Array:
    """Return the requests/s of each class that flows serve ``(scenarios, classes)``."""
    result = np.zeros((task.n_scenarios, len(task.problem.classes)))
    for s, option, rate in flows:
        result[s, task.choices.options.request_class[option]] += rate
    return result


def scale_hour(task: PlanningTask, i: int, hour: Hour, flows: Sequence[Flow]) -> Hour:
    """Return hour ``i`` with ``flows`` scaled so that they serve the demand of the task.

    Pools of ``hour`` keep or gain replicas; pools and machines may be added. Classes without flows
    are unserved. The result may exceed quotas. ``i`` is an index into ``task.hours``.
    """
    demand, served = (
        task.problem.load.provisioned_rates[:, task.hours[i]],
        served_rates(task, flows),
    )
    request_class = task.choices.options.request_class
    factors = np.divide(demand, served, out=np.zeros_like(served), where=served > 0)
    merged: dict[tuple[int, int], float] = {}
    for s, o, rate in flows:
        merged[s, o] = merged.get((s, o), 0.0) + rate * float(factors[s, request_class[o]])
    rates, machines = (
        placement_rates(task, [(*key, rate) for key, rate in merged.items()]),
        hour.machines,
    )
    placements = {row.placement for row in hour.pools}
    rows = [*hour.pools]
    for q in (int(q) for q in np.flatnonzero(rates.any(0)) if q not in placements):
        rows.append(
            PoolRow(q, 0, max(task.replica_limits(i, task.choices.placements[q].device)), 0)
        )
    rows = [replace(r, replicas=max(r.replicas, _replicas_needed(task, rates, i, r))) for r in rows]
    counts = []
    for d, (_, device) in enumerate(task.problem.devices):
        device_pools = [row for row in rows if task.choices.placements[row.placement].device == d]
        counts.append(max(float(machines[d]), machines_needed(device_pools, device.slots)))
    unserved = np.where((served == 0) & (demand > 0), 1.0, 0.0)
    return Hour(np.array(counts), rows, [(*key, rate) for key, rate in merged.items()], unserved)


def placement_rates(task: PlanningTask, flows: Sequence[Flow]) -> Array:
    """Return the requests/s that flows send to each placement ``(scenarios, placements)``.

    Escalated requests count at both placements.
    """
    rates, o = np.zeros((task.n_scenarios, len(task.choices.placements))), task.choices.options
    for s, option, rate in flows:
        rates[s, o.first[option]] += rate
        if o.second[option] >= 0:
            rates[s, o.second[option]] += rate * o.share[option]
    return rates


def transfer_usd(task: PlanningTask, i: int, hour: Hour) -> float:
    """Return the cost of network transfers in hour ``i`` of the task in $, in normal operation."""
    sending = task.sending(i)
    return sum(float(sending[o]) * x for s, o, x in hour.flows if s == 0)


def _replicas_needed(task: PlanningTask, rates: Array, i: int, row: PoolRow) -> int:
    """Return the replicas that a pool needs for the requests sent to it."""
    config = task.choices.placements[row.placement].configs[row.config]
    goodput, spread = task.goodput(i, row.placement, row.config), row.max_per_machine
    busy = rates[:, row.placement] / goodput
    n_busy = max(busy[0], busy[1:].max(initial=0.0) - spread)
    return max(int(np.ceil(n_busy * (1 - 1e-9))), config.least) + spread


def machines_needed(rows: list[PoolRow], slots: int) -> float:
    """Return the machines that pools need if each keeps its redundancy."""
    wide = [np.ceil(row.replicas / row.max_per_machine) for row in rows if row.max_per_machine]
    return float(max([np.ceil(sum(row.replicas for row in rows) / slots), *wide]))


def _pools_of_device(
    task: PlanningTask, rates: Array, i: int, placements: list[int], spread: int
) -> tuple[float, list[PoolRow]]:
    """Return the machines and pools for placements with so many spare replicas each."""
    rows = [PoolRow(q, 0, spread, 0) for q in placements]
    rows = [replace(row, replicas=_replicas_needed(task, rates, i, row)) for row in rows]
    slots = (
        task.problem.devices[task.choices.placements[placements[0]].device][1].slots
        if placements
        else 1
    )
    return machines_needed(rows, slots), rows
