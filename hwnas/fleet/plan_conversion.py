"""From a solution to a plan: names instead of places, and every figure with its source."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hwnas.core.quantity import QuantityRow
from hwnas.fleet import plan as plans
from hwnas.fleet.fleet_file import DeviceType
from hwnas.fleet.hours import Hour, PoolRow
from hwnas.fleet.plan import (
    ClassRequirements,
    DeploymentPlan,
    HourPlan,
    PlannedMachine,
    PoolType,
    ReplicaPool,
    RequestRoute,
)
from hwnas.fleet.problem import PlanningProblem
from hwnas.fleet.resolve import Running
from hwnas.fleet.solver import Solution
from hwnas.fleet.task import Array, PlanningTask

_LEAST_RATE = 1e-6  # of a route: less is rounding


def as_plan(found: Solution, notes: Sequence[str] = ()) -> DeploymentPlan:
    """Return a solution as a plan."""
    task = found.task
    problem = task.problem
    kinds: dict[str, PoolType] = {}
    hours = [hour_plan(task, hour, i, kinds) for i, hour in enumerate(found.hours)]
    return DeploymentPlan(
        format=plans.FORMAT,
        objective=task.objective,
        unit=plans.UNITS[task.objective],
        value=_digits(found.value),
        bound_kept=_digits(found.bound_kept),
        bound_all=_digits(found.bound_all),
        jitter=problem.service.jitter,
        classes=classes_of(problem),
        devices=_devices(found),
        kinds=dict(sorted(kinds.items())),
        hours=hours,
        carbon={r: [float(v) for v in values] for r, values in sorted(problem.carbon.items())},
        notes=[*notes],
        begin_min=problem.load.begin_min,
    )


def _digits(value: float) -> float:
    return float(f"{value:.9g}")


def classes_of(problem: PlanningProblem) -> dict[str, ClassRequirements]:
    """Return what classes ask for as plans say it."""
    load = problem.load
    return {
        name: ClassRequirements(
            c.p99_ms, c.floor(degraded=False), c.floor(degraded=True), c.regions,
            [_digits(v) for v in load.rates[k]], [_digits(v) for v in load.borne[k]],
            load.trace_of[k],
        )
        for k, (name, c) in enumerate(problem.classes)
    }  # fmt: skip


def _devices(found: Solution) -> dict[str, PlannedMachine]:
    used = {d for hour in found.hours for d, n in enumerate(hour.machines) if n}
    return {
        name: PlannedMachine(
            at.region, at.buy, at.price or 0.0, at.slots, at.quota, at.idle_w, at.power_w,
            at.start_s, int(found.owned[d]) * (not at.is_hourly),
        )
        for d, (name, at) in enumerate(found.task.problem.devices)
        if d in used or (found.owned[d] and not at.is_hourly)
    }  # fmt: skip


def hour_plan(task: PlanningTask, hour: Hour, i: int, kinds: dict[str, PoolType]) -> HourPlan:
    """Return an hour at a place of a task as plans say it; its kinds are added to those known."""
    names: dict[int, str] = {}
    pools = []
    for row in sorted(hour.pools, key=lambda row: row.station):
        name, kind = _kind(task, row)
        kinds.setdefault(name, kind)
        names[row.station] = name
        goodput = task.goodput(i, row.station, row.variant)
        pools.append(ReplicaPool(name, row.replicas, row.spread, _digits(goodput)))
    devices = task.problem.devices
    return HourPlan(
        [int(h) for h in range(task.problem.load.n_hours) if task.group[h] == i],
        {devices[d][0]: int(n) for d, n in enumerate(hour.machines) if n},
        pools,
        *(_routes(task, hour, s, names) for s in (0, 1)),
    )


def kind_name(task: PlanningTask, station: int, variant: int) -> str:
    """Return what a way to run a model on a device is called in plans."""
    at, problem = task.choices.stations[station], task.problem
    how = at.variants[variant]
    name = f"{problem.devices[at.device][0]}/{at.model}/b{how.batch}"
    name += f"w{how.wait_ms:g}" * (how.wait_ms > 0) + f"/{at.limit_ms:g}ms"
    return name + f"/{at.process}" * (len(problem.arrivals) > 1) + f"/{how.least}" * bool(variant)


def _kind(task: PlanningTask, row: PoolRow) -> tuple[str, PoolType]:
    station = task.choices.stations[row.station]
    variant, problem = station.variants[row.variant], task.problem
    device = problem.devices[station.device][0]
    goodput = _digits(variant.goodput)
    model = problem.catalogue.models.get(station.model)
    timed = problem.catalogue.on(problem.fleet, device, station.model)
    return kind_name(task, row.station, row.variant), PoolType(
        device, station.model, variant.batch, variant.wait_ms, station.limit_ms, goodput,
        variant.least,
        None if model is None else _figure(model.accuracy.to_json()),
        {str(b): _figure(f.to_json()) for b, f in timed.items() if b <= variant.batch},
        problem.catalogue.memory_mib(station.model) or 0.0, "" if model is None else model.place,
        problem.catalogue.ran_on(problem.fleet, device, station.model, variant.batch),
    )  # fmt: skip


def _figure(row: list[float | str | None]) -> QuantityRow:
    value, source, low, high = row
    return (value, source, low, high)  # type: ignore[return-value]


def _routes(
    task: PlanningTask, hour: Hour, scenario: int, names: dict[int, str]
) -> list[RequestRoute]:
    o, found = task.choices.options, []
    for s, option, rate in hour.flows:
        if s == scenario and rate > _LEAST_RATE:
            first, second = int(o.first[option]), int(o.second[option])
            reach, onward = _times(task, int(o.klass[option]), first, second)
            found.append(RequestRoute(
                task.problem.classes[int(o.klass[option])][0], _digits(rate), names[first],
                names[second] if second >= 0 else None, float(o.share[option]),
                float(o.threshold[option]), float(o.accuracy[option]), reach, onward,
                float(o.usd[option]),
            ))  # fmt: skip
    return sorted(found, key=lambda r: (r.klass, r.first, r.second or "", r.share))


def _times(task: PlanningTask, k: int, first: int, second: int) -> tuple[float, float]:
    """Return the milliseconds to the first station, and from it to the second."""
    problem, stations = task.problem, task.choices.stations
    asked = problem.classes[k][1]
    region = problem.devices[stations[first].device][1].region
    reach = problem.ways[asked.source][region].ms(asked.payload_kib)
    if second < 0:
        return reach, 0.0
    tail = stations[second].model
    cut = [s.activation_kib for s in problem.splits
           if (s.head, s.tail) == (stations[first].model, tail)]  # fmt: skip
    other = problem.devices[stations[second].device][1].region
    return reach, problem.ways[region][other].ms(cut[0] if cut else asked.payload_kib)


# From a plan back to a solution: what its names mean in a task, if they mean the same still.

PlacementsByName = Mapping[
    str, tuple[int, int]
]  #: stations and their variants by the names of kinds
_Options = Mapping[tuple[int, int, int, float], int]


def running(plan: DeploymentPlan, of: HourPlan) -> Running:
    """Return how many replicas there are in an hour of a plan."""
    found: dict[tuple[str, str, int, float], int] = {}
    for pool in of.pools:
        kind = plan.kinds[pool.kind]
        key = kind.device, kind.model, kind.batch, kind.wait_ms
        found[key] = found.get(key, 0) + pool.replicas
    return found


def by_hour(plan: DeploymentPlan) -> dict[int, HourPlan]:
    """Return what a plan says of each of its hours."""
    return {hour: of for of in plan.hours for hour in of.hours}


def named(task: PlanningTask) -> PlacementsByName:
    """Return the stations of a task, with their variants, by the names that plans give them."""
    return {
        kind_name(task, q, v): (q, v)
        for q, station in enumerate(task.choices.stations)
        for v in range(len(station.variants))
    }


def owned(task: PlanningTask, plan: DeploymentPlan) -> Array:
    """Return the machines that a plan has bought ``(devices,)``."""
    there = plan.devices
    return np.array([float(there[n].bought) if n in there else 0.0
                     for n, _ in task.problem.devices])  # fmt: skip


def unspared(plan: DeploymentPlan, devices: Mapping[str, DeviceType]) -> frozenset[tuple[int, str]]:
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


def scales(
    task: PlanningTask, plan: DeploymentPlan, names: PlacementsByName
) -> dict[tuple[int, int], float]:
    """Return how goodputs of a plan were corrected, by place of the hour and station."""
    hours = by_hour(plan)
    return {
        (i, names[pool.kind][0]): scale
        for i, hour in enumerate(task.hours)
        for pool in hours[hour].pools
        if pool.kind in names
        and (scale := pool.goodput / plan.kinds[pool.kind].goodput) != 1.0
    }  # fmt: skip


def restored(
    task: PlanningTask, plan: DeploymentPlan, names: PlacementsByName
) -> list[Hour | None]:
    """Return the hours of a task as a plan has them; ``None``: it could not be planned so now."""
    return [
        hour if hour and _is_same(task, hour, i, plan) else None
        for i, hour in enumerate(translated(task, plan, names))
    ]


def translated(
    task: PlanningTask, plan: DeploymentPlan, names: PlacementsByName
) -> list[Hour | None]:
    """Return the hours of a task as a plan has them; ``None``: what it names is not there."""
    options, hours = _options(task), by_hour(plan)
    return [_hour(task, hours[hour], names, options) for hour in task.hours]


def _options(task: PlanningTask) -> _Options:
    o = task.choices.options
    rows = zip(o.klass, o.first, o.second, o.share, strict=True)
    return {(int(k), int(a), int(b), float(s)): j for j, (k, a, b, s) in enumerate(rows)}


def _hour(
    task: PlanningTask, of: HourPlan, names: PlacementsByName, options: _Options
) -> Hour | None:
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


def _key(
    route: RequestRoute, classes: list[str], names: PlacementsByName
) -> tuple[int, int, int, float]:
    second = -1 if route.second is None else names[route.second][0]
    return classes.index(route.klass), names[route.first][0], second, route.share


def _is_same(task: PlanningTask, back: Hour, i: int, plan: DeploymentPlan) -> bool:
    """Return whether an hour is written as it was read: figures, machines and all."""
    kinds: dict[str, PoolType] = {}
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


def _is_kind(now: PoolType, was: PoolType) -> bool:
    """Return whether a kind is what it was; plans of earlier versions do not say all of it."""
    return was == (replace(now, ran=None) if was.ran is None else now)
