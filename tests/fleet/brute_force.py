"""The least cost of tiny instances of one class and single models, by trying every plan."""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from hwnas.fleet.task import PlanningTask


def least_cost(task: PlanningTask) -> float:
    """Return the least cost of any plan; infinity where there is none."""
    devices = [device for _, device in task.problem.devices]
    owned = [i for i, d in enumerate(devices) if not d.is_hourly]
    n_hours = task.problem.load.n_hours
    per_hour = [_plans(task, hour) for hour in range(n_hours)]
    best = math.inf
    for bought in itertools.product(*(range(devices[i].quota + 1) for i in owned)):
        cost = sum(n * (devices[i].price or 0) * n_hours
                   for n, i in zip(bought, owned, strict=True))  # fmt: skip
        for plans in per_hour:
            cost += min((usd for machines, usd in plans
                         if all(machines[i] <= n for n, i in zip(bought, owned, strict=True))),
                        default=math.inf)  # fmt: skip
        best = min(best, cost)
    return best


def _plans(task: PlanningTask, hour: int) -> list[tuple[tuple[int, ...], float]]:
    """Return machines by device, with what those cost that are rented, of all plans that serve."""
    devices = [device for _, device in task.problem.devices]
    stations = sorted({int(q) for q in task.choices.options.first})
    found: dict[tuple[int, ...], float] = {}
    for pools in itertools.product(*([*_pools(task, q)] for q in stations)):
        machines = []
        for i, device in enumerate(devices):
            own = [(n, spread) for q, (n, spread, _) in zip(stations, pools, strict=True)
                   if task.choices.placements[q].device == i and n]  # fmt: skip
            need = math.ceil(sum(n for n, _ in own) / device.slots)
            need = max([need, *(math.ceil(n / spread) for n, spread in own if spread)])
            machines.append(need)
        if any(n > d.quota for n, d in zip(machines, devices, strict=True)):
            continue
        if _serves(task, hour, stations, pools):
            found[tuple(machines)] = sum(
                n * (d.price or 0) * (1 + d.start_s / 3600)
                for n, d in zip(machines, devices, strict=True) if d.is_hourly
            )  # fmt: skip
    return [*found.items()]


def _pools(task: PlanningTask, q: int) -> Iterator[tuple[int, int, float]]:
    """Yield replicas, spread, and goodput of a replica, of all pools of a station."""
    station = task.choices.placements[q]
    device = task.problem.devices[station.device][1]
    yield 0, 0, 0.0
    spreads = [s for s in (1, 2, 4, 8) if s <= device.slots] if task.has_redundancy else [0]
    for n in range(1, device.quota * device.slots + 1):
        for spread in spreads:
            able = [v.goodput for v in station.configs if v.least <= n - spread]
            if n > spread and able:
                yield n, spread, max(able)


def _serves(
    task: PlanningTask, hour: int, stations: list[int], pools: tuple[tuple[int, int, float], ...]
) -> bool:
    """Return whether the most accurate stations first, as far as they go, serve all."""
    o, (_, asked) = task.choices.options, task.problem.classes[0]
    accuracy = {int(q): float(o.accuracy[i]) for i, q in enumerate(o.first)}
    order = np.argsort([-accuracy[q] for q in stations])
    for s in range(task.n_scenarios):
        left = wanted = float(task.problem.load.provisioned_rates[0, hour])
        total = 0.0
        for j in order:
            n, spread, goodput = pools[j]
            device = task.problem.devices[task.choices.placements[stations[j]].device][1]
            gone = s > 0 and device.buy == "spot"
            taken = 0.0 if gone else min(left, goodput * (n if s else n - spread))
            left -= taken
            total += taken * accuracy[stations[j]]
        if left > 1e-7 * wanted or total < (asked.floor(degraded=s > 0) - 1e-9) * wanted:
            return False
    return True
