"""Exhaustive search for the least cost of tiny instances with one class and no cascades."""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from hwnas.fleet.task import PlanningTask


def least_cost(task: PlanningTask) -> float:
    """Return the least cost of all plans; infinity if no plan is feasible."""
    devices = [device for _, device in task.problem.devices]
    owned = [i for i, d in enumerate(devices) if not d.is_hourly]
    n_hours = task.problem.load.n_hours
    per_hour = [_plans(task, hour) for hour in range(n_hours)]
    best = math.inf
    for counts in itertools.product(*(range(devices[i].quota + 1) for i in owned)):
        cost = sum(n * (devices[i].price or 0) * n_hours
                   for n, i in zip(counts, owned, strict=True))  # fmt: skip
        for plans in per_hour:
            cost += min((usd for machines, usd in plans
                         if all(machines[i] <= n for n, i in zip(counts, owned, strict=True))),
                        default=math.inf)  # fmt: skip
        best = min(best, cost)
    return best


def _plans(task: PlanningTask, hour: int) -> list[tuple[tuple[int, ...], float]]:
    """Return the machines per device of all feasible plans, with the cost of rented machines."""
    devices = [device for _, device in task.problem.devices]
    stations = sorted({int(q) for q in task.choices.options.first})
    rental_costs: dict[tuple[int, ...], float] = {}
    for pools in itertools.product(*([*_pools(task, q)] for q in stations)):
        machines = []
        for i, device in enumerate(devices):
            on_device = [(n, spread) for q, (n, spread, _) in zip(stations, pools, strict=True)
                   if task.choices.placements[q].device == i and n]  # fmt: skip
            n_machines = math.ceil(sum(n for n, _ in on_device) / device.slots)
            n_machines = max(
                [n_machines, *(math.ceil(n / spread) for n, spread in on_device if spread)]
            )
            machines.append(n_machines)
        if any(n > d.quota for n, d in zip(machines, devices, strict=True)):
            continue
        if _serves(task, hour, stations, pools):
            rental_costs[tuple(machines)] = sum(
                n * (d.price or 0) * (1 + d.start_s / 3600)
                for n, d in zip(machines, devices, strict=True) if d.is_hourly
            )  # fmt: skip
    return [*rental_costs.items()]


def _pools(task: PlanningTask, q: int) -> Iterator[tuple[int, int, float]]:
    """Yield all pools of a placement: replicas, spread and goodput of a replica."""
    station = task.choices.placements[q]
    device = task.problem.devices[station.device][1]
    yield 0, 0, 0.0
    spreads = [s for s in (1, 2, 4, 8) if s <= device.slots] if task.has_redundancy else [0]
    for n in range(1, device.quota * device.slots + 1):
        for spread in spreads:
            goodputs = [v.goodput for v in station.configs if v.least <= n - spread]
            if n > spread and goodputs:
                yield n, spread, max(goodputs)


def _serves(
    task: PlanningTask, hour: int, stations: list[int], pools: tuple[tuple[int, int, float], ...]
) -> bool:
    """Return whether all requests are served if the most accurate placements are filled first."""
    o, (_, requirements) = task.choices.options, task.problem.classes[0]
    accuracy = {int(q): float(o.accuracy[i]) for i, q in enumerate(o.first)}
    order = np.argsort([-accuracy[q] for q in stations])
    for s in range(task.n_scenarios):
        remaining = wanted = float(task.problem.load.provisioned_rates[0, hour])
        total = 0.0
        for j in order:
            n, spread, goodput = pools[j]
            device = task.problem.devices[task.choices.placements[stations[j]].device][1]
            has_failed = s > 0 and device.buy == "spot"
            served = 0.0 if has_failed else min(remaining, goodput * (n if s else n - spread))
            remaining -= served
            total += served * accuracy[stations[j]]
        if (
            remaining > 1e-7 * wanted
            or total < (requirements.floor(degraded=s > 0) - 1e-9) * wanted
        ):
            return False
    return True
