"""From a plan back to a solution: what its names mean in a task, if they mean the same still."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hwnas.planning.fleet import Device
from hwnas.planning.hours import Hour, PoolRow
from hwnas.planning.moves import Running
from hwnas.planning.plan import HourPlan, Kind, Plan, Route
from hwnas.planning.task import Array, Task
from hwnas.planning.writing import hour_plan, kind_name

Named = Mapping[str, tuple[int, int]]  #: stations and their variants by the names of kinds
_Options = Mapping[tuple[int, int, int, float], int]


def running(plan: Plan, of: HourPlan) -> Running:
    """Return how many replicas there are in an hour of a plan."""
    found: dict[tuple[str, str, int, float], int] = {}
    for pool in of.pools:
        kind = plan.kinds[pool.kind]
        key = kind.device, kind.model, kind.batch, kind.wait_ms
        found[key] = found.get(key, 0) + pool.replicas
    return found


def by_hour(plan: Plan) -> dict[int, HourPlan]:
    """Return what a plan says of each of its hours."""
    return {hour: of for of in plan.hours for hour in of.hours}


def named(task: Task) -> Named:
    """Return the stations of a task, with their variants, by the names that plans give them."""
    return {
        kind_name(task, q, v): (q, v)
        for q, station in enumerate(task.choices.stations)
        for v in range(len(station.variants))
    }


def owned(task: Task, plan: Plan) -> Array:
    """Return the machines that a plan has bought ``(devices,)``."""
    there = plan.devices
    return np.array([float(there[n].bought) if n in there else 0.0
                     for n, _ in task.problem.devices])  # fmt: skip


def unspared(plan: Plan, devices: Mapping[str, Device]) -> frozenset[tuple[int, str]]:
    """Return hours with devices of which a plan has no machine to spare, as some were down.

    Args:
        plan: The plan.
        devices: Those of the fleet, as if none was down.
    """
    short = {n for n, at in plan.devices.items() if n in devices and at.quota < devices[n].quota}
    return frozenset(
        (hour, plan.kinds[pool.kind].device)
        for of in plan.hours
        for pool in of.pools
        for hour in of.hours
        if not pool.spread and plan.kinds[pool.kind].device in short
    )


def scales(task: Task, plan: Plan, names: Named) -> dict[tuple[int, int], float]:
    """Return how goodputs of a plan were corrected, by place of the hour and station."""
    hours = by_hour(plan)
    return {
        (i, names[pool.kind][0]): scale
        for i, hour in enumerate(task.hours)
        for pool in hours[hour].pools
        if pool.kind in names
        and (scale := pool.goodput / plan.kinds[pool.kind].goodput) != 1.0
    }  # fmt: skip


def restored(task: Task, plan: Plan, names: Named) -> list[Hour | None]:
    """Return the hours of a task as a plan has them; ``None``: it could not be planned so now."""
    return [
        hour if hour and _is_same(task, hour, i, plan) else None
        for i, hour in enumerate(translated(task, plan, names))
    ]


def translated(task: Task, plan: Plan, names: Named) -> list[Hour | None]:
    """Return the hours of a task as a plan has them; ``None``: what it names is not there."""
    options, hours = _options(task), by_hour(plan)
    return [_hour(task, hours[hour], names, options) for hour in task.hours]


def _options(task: Task) -> _Options:
    o = task.choices.options
    rows = zip(o.klass, o.first, o.second, o.share, strict=True)
    return {(int(k), int(a), int(b), float(s)): j for j, (k, a, b, s) in enumerate(rows)}


def _hour(task: Task, of: HourPlan, names: Named, options: _Options) -> Hour | None:
    """Return an hour by the places of what it names; ``None``: something is no longer there."""
    devices = [name for name, _ in task.problem.devices]
    classes = [name for name, _ in task.problem.classes]
    machines, flows = np.zeros(len(devices)), []
    try:
        pools = [PoolRow(*names[pool.kind], pool.spread, pool.replicas) for pool in of.pools]
        for name, n in of.machines.items():
            machines[devices.index(name)] = n
        for s, routes in enumerate((of.routes, of.degraded)[: task.n_scenarios]):
            for route in routes:
                flows.append((s, options[_key(route, classes, names)], route.rate))
    except (KeyError, ValueError):
        return None
    return Hour(machines, pools, flows, np.zeros((task.n_scenarios, len(classes))))


def _key(route: Route, classes: list[str], names: Named) -> tuple[int, int, int, float]:
    second = -1 if route.second is None else names[route.second][0]
    return classes.index(route.klass), names[route.first][0], second, route.share


def _is_same(task: Task, back: Hour, i: int, plan: Plan) -> bool:
    """Return whether an hour is written as it was read: figures, machines and all."""
    kinds: dict[str, Kind] = {}
    said, was = hour_plan(task, back, i, kinds), by_hour(plan)[task.hours[i]]
    quota = np.array([device.quota for _, device in task.problem.devices])
    fits = bool((back.machines <= quota).all())
    said, was = (replace(of, hours=[], pools=sorted(of.pools, key=lambda pool: pool.kind))
                 for of in (said, was))  # fmt: skip
    return (
        fits
        and said == was
        and all(_is_kind(kind, plan.kinds[name]) for name, kind in kinds.items())
    )


def _is_kind(now: Kind, was: Kind) -> bool:
    """Return whether a kind is what it was; plans of earlier versions do not say all of it."""
    return was == (replace(now, ran=None) if was.ran is None else now)
