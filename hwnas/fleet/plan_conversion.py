"""Conversion of solutions of the optimiser to plans (``plan.yaml``) and back."""

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
from hwnas.fleet.task import Array, Objective, PlanningTask

_MIN_RATE = 1e-6  # of a route: below is rounding
_TOLERANCE = 1e-6  # relative, of budgets


def to_plan(solution: Solution, notes: Sequence[str] = ()) -> DeploymentPlan:
    """Return a solution as a plan, with figures of nine significant digits.

    ``notes`` are messages on ignored or missing inputs.
    """
    task = solution.task
    problem = task.problem
    kinds: dict[str, PoolType] = {}
    hours = [to_hour_plan(task, hour, i, kinds) for i, hour in enumerate(solution.hours)]
    return DeploymentPlan(
        format=plans.FORMAT,
        objective=task.objective,
        unit=plans.UNITS[task.objective],
        value=_digits(solution.value),
        bound_kept=_digits(solution.bound_kept),
        bound_all=_digits(solution.bound_all),
        jitter=problem.service.jitter,
        classes=class_requirements(problem),
        devices=_devices(solution),
        kinds=dict(sorted(kinds.items())),
        hours=hours,
        carbon={r: [float(v) for v in values] for r, values in sorted(problem.carbon.items())},
        notes=[*notes],
        begin_min=problem.load.begin_min,
    )


def _digits(value: float) -> float:
    return float(f"{value:.9g}")


def class_requirements(problem: PlanningProblem) -> dict[str, ClassRequirements]:
    """Return the requirements and demand of classes by name, as in plans."""
    load = problem.load
    return {
        name: ClassRequirements(
            c.p99_ms, c.floor(degraded=False), c.floor(degraded=True), c.regions,
            [_digits(v) for v in load.rates[k]], [_digits(v) for v in load.provisioned_rates[k]],
            load.trace_of[k],
        )
        for k, (name, c) in enumerate(problem.classes)
    }  # fmt: skip


def _devices(solution: Solution) -> dict[str, PlannedMachine]:
    used = {d for hour in solution.hours for d, n in enumerate(hour.machines) if n}
    return {
        name: PlannedMachine(
            device.region, device.buy, device.price or 0.0, device.slots, device.quota,
            device.idle_w, device.power_w, device.start_s,
            int(solution.owned[d]) * (not device.is_hourly),
        )
        for d, (name, device) in enumerate(solution.task.problem.devices)
        if d in used or (solution.owned[d] and not device.is_hourly)
    }  # fmt: skip


def to_hour_plan(task: PlanningTask, hour: Hour, i: int, kinds: dict[str, PoolType]) -> HourPlan:
    """Return hour ``i`` of a solution as in plans, and add its pool types to ``kinds`` by name."""
    names: dict[int, str] = {}
    pools = []
    for row in sorted(hour.pools, key=lambda row: row.placement):
        name, kind = _kind(task, row)
        kinds.setdefault(name, kind)
        names[row.placement] = name
        goodput = task.goodput(i, row.placement, row.config)
        pools.append(ReplicaPool(name, row.replicas, row.max_per_machine, _digits(goodput)))
    devices = task.problem.devices
    return HourPlan(
        [int(h) for h in range(task.problem.load.n_hours) if task.group[h] == i],
        {devices[d][0]: int(n) for d, n in enumerate(hour.machines) if n},
        pools,
        *(_routes(task, hour, s, names) for s in (0, 1)),
    )


def pool_type_name(task: PlanningTask, placement: int, config: int) -> str:
    """Return the name of a pool type in plans, as ``DEVICE/MODEL/b8w2/20ms``.

    b is the batch size, w the wait in ms (if any), then the p99 limit; index of the arrival process
    and minimum of replicas follow where they are needed.
    """
    place, problem = task.choices.placements[placement], task.problem
    serving = place.configs[config]
    name = f"{problem.devices[place.device][0]}/{place.model}/b{serving.batch}"
    name += f"w{serving.wait_ms:g}" * (serving.wait_ms > 0) + f"/{place.limit_ms:g}ms"
    return (
        name
        + f"/{place.process}" * (len(problem.arrivals) > 1)
        + f"/{serving.least}" * bool(config)
    )


def _kind(task: PlanningTask, row: PoolRow) -> tuple[str, PoolType]:
    placement = task.choices.placements[row.placement]
    config, problem = placement.configs[row.config], task.problem
    device = problem.devices[placement.device][0]
    goodput = _digits(config.goodput)
    model = problem.catalogue.models.get(placement.model)
    timed = problem.catalogue.on(problem.fleet, device, placement.model)
    return pool_type_name(task, row.placement, row.config), PoolType(
        device, placement.model, config.batch, config.wait_ms, placement.limit_ms, goodput,
        config.least,
        None if model is None else _figure(model.accuracy.to_json()),
        {str(b): _figure(f.to_json()) for b, f in timed.items() if b <= config.batch},
        problem.catalogue.memory_mib(placement.model) or 0.0, "" if model is None else model.place,
        problem.catalogue.ran_on(problem.fleet, device, placement.model, config.batch),
    )  # fmt: skip


def _figure(row: list[float | str | None]) -> QuantityRow:
    value, source, low, high = row
    return (value, source, low, high)  # type: ignore[return-value]


def _routes(
    task: PlanningTask, hour: Hour, scenario: int, names: dict[int, str]
) -> list[RequestRoute]:
    o, result = task.choices.options, []
    for s, option, rate in hour.flows:
        if s == scenario and rate > _MIN_RATE:
            first, second = int(o.first[option]), int(o.second[option])
            reach, onward = _times(task, int(o.request_class[option]), first, second)
            result.append(RequestRoute(
                task.problem.classes[int(o.request_class[option])][0], _digits(rate), names[first],
                names[second] if second >= 0 else None, float(o.share[option]),
                float(o.threshold[option]), float(o.accuracy[option]), reach, onward,
                float(o.usd[option]),
            ))  # fmt: skip
    return sorted(result, key=lambda r: (r.klass, r.first, r.second or "", r.share))


def _times(task: PlanningTask, k: int, first: int, second: int) -> tuple[float, float]:
    """Return the milliseconds to the first placement, and from it to the second."""
    problem, placements = task.problem, task.choices.placements
    request_class = problem.classes[k][1]
    region = problem.devices[placements[first].device][1].region
    reach = problem.network_paths[request_class.source][region].ms(request_class.payload_kib)
    if second < 0:
        return reach, 0.0
    tail = placements[second].model
    cut = [s.activation_kib for s in problem.splits
           if (s.head, s.tail) == (placements[first].model, tail)]  # fmt: skip
    other = problem.devices[placements[second].device][1].region
    return reach, problem.network_paths[region][other].ms(
        cut[0] if cut else request_class.payload_kib
    )


# From a plan back to a solution.

PlacementsByName = Mapping[str, tuple[int, int]]  #: (placement, config) by name of the pool type
_Options = Mapping[tuple[int, int, int, float], int]


def running_replicas(plan: DeploymentPlan, hour_plan: HourPlan) -> Running:
    """Return the number of replicas in an hour by (device, model, batch size, wait in ms)."""
    result: dict[tuple[str, str, int, float], int] = {}
    for pool in hour_plan.pools:
        kind = plan.kinds[pool.kind]
        key = kind.device, kind.model, kind.batch, kind.wait_ms
        result[key] = result.get(key, 0) + pool.replicas
    return result


def placements_by_name(task: PlanningTask) -> PlacementsByName:
    """Return (placement, config) indices of a task by the name of the pool type in plans."""
    return {
        pool_type_name(task, q, v): (q, v)
        for q, placement in enumerate(task.choices.placements)
        for v in range(len(placement.configs))
    }


def bought_machines(task: PlanningTask, plan: DeploymentPlan) -> Array:
    """Return the number of machines of each device that a plan has bought ``(devices,)``."""
    devices = plan.devices
    return np.array([float(devices[n].bought) if n in devices else 0.0
                     for n, _ in task.problem.devices])  # fmt: skip


def hours_without_redundancy(
    plan: DeploymentPlan, devices: Mapping[str, DeviceType]
) -> frozenset[tuple[int, str]]:
    """Return the (hour, device) pairs in which a plan has no spare replicas, as machines are down.

    Args:
        plan: The plan.
        devices: Devices of ``fleet.yaml``; machines are down if the plan has a lower quota.
    """
    short = {
        n
        for n, machine in plan.devices.items()
        if n in devices and machine.quota < devices[n].quota
    }
    return frozenset(
        (hour, plan.kinds[pool.kind].device)
        for hour_plan in plan.hours
        for pool in hour_plan.pools
        for hour in hour_plan.hours
        if not pool.spread and plan.kinds[pool.kind].device in short
    )


def goodput_corrections(
    task: PlanningTask, plan: DeploymentPlan, names: PlacementsByName
) -> dict[tuple[int, int], float]:
    """Return the factors by which a plan corrects goodputs, by (hour index, placement index).

    Factors of 1, and pools that the task does not have, are left out. ``names`` is the result of
    ``placements_by_name``.
    """
    hours = plan.by_hour()
    return {
        (i, names[pool.kind][0]): scale
        for i, hour in enumerate(task.hours)
        for pool in hours[hour].pools
        if pool.kind in names
        and (scale := pool.goodput / plan.kinds[pool.kind].goodput) != 1.0
    }  # fmt: skip


def restore_hours(
    task: PlanningTask, plan: DeploymentPlan, names: PlacementsByName
) -> list[Hour | None]:
    """Return the hours of a plan as hours of a task's solution, if they are unchanged.

    ``None`` for an hour whose names, figures or routes differ in the task, or that exceeds a quota.
    ``names`` is the result of ``placements_by_name``.
    """
    return [
        hour if hour and _is_same(task, hour, i, plan) else None
        for i, hour in enumerate(translate_hours(task, plan, names))
    ]


def translate_hours(
    task: PlanningTask, plan: DeploymentPlan, names: PlacementsByName
) -> list[Hour | None]:
    """Return the hours of a plan as hours of a task's solution.

    ``None`` for an hour with a device, pool type or route that the task does not have. ``names`` is
    the result of ``placements_by_name``.
    """
    options, hours = _options(task), plan.by_hour()
    return [_hour(task, hours[hour], names, options) for hour in task.hours]


def _options(task: PlanningTask) -> _Options:
    o = task.choices.options
    rows = zip(o.request_class, o.first, o.second, o.share, strict=True)
    return {(int(k), int(a), int(b), float(s)): j for j, (k, a, b, s) in enumerate(rows)}


def _hour(
    task: PlanningTask, hour_plan: HourPlan, names: PlacementsByName, options: _Options
) -> Hour | None:
    """Return an hour of a plan as an hour of a task; ``None`` if a name no longer exists."""
    devices = [name for name, _ in task.problem.devices]
    classes = [name for name, _ in task.problem.classes]
    machines, flows = np.zeros(len(devices)), []
    try:
        pools = [PoolRow(*names[pool.kind], pool.spread, pool.replicas) for pool in hour_plan.pools]
        for name, n in hour_plan.machines.items():
            machines[devices.index(name)] = n
        for s, routes in enumerate((hour_plan.routes, hour_plan.degraded)[: task.n_scenarios]):
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
    """Return True if an hour would be written as it was read, within the quotas."""
    kinds: dict[str, PoolType] = {}
    now, previous = to_hour_plan(task, back, i, kinds), plan.at(task.hours[i])
    quota = np.array([device.quota for _, device in task.problem.devices])
    fits = bool((back.machines <= quota).all())
    now, previous = (
        replace(hour_plan, hours=[], pools=sorted(hour_plan.pools, key=lambda pool: pool.kind))
        for hour_plan in (now, previous)
    )
    return (
        fits
        and now == previous
        and all(_is_kind(kind, plan.kinds[name]) for name, kind in kinds.items())
    )


def _is_kind(now: PoolType, previous: PoolType) -> bool:
    """Return True if a pool type is unchanged; plans of earlier versions lack ``ran``."""
    return previous == (replace(now, ran=None) if previous.ran is None else now)


def exceeded_budgets(solution: Solution) -> list[str]:
    """Return sentences on the daily budgets of the service file that a solution exceeds."""
    problem, sentences = solution.task.problem, []
    budgets, days = problem.service.budgets, problem.load.n_hours / 24
    limits: dict[Objective, tuple[str, float | None]] = {
        "cost": ("cost_per_day", budgets.cost_per_day),
        "carbon": ("carbon_kg_per_day", budgets.carbon_kg_per_day),
    }
    for name, (option, limit) in limits.items():
        per_day = solution.objective_value(name) / days
        if limit is not None and per_day > limit * (1 + _TOLERANCE):
            sentences.append(
                f"The plan takes {per_day:.4g} {plans.UNITS[name]} a day, more than "
                f"budgets.{option}={limit:g}."
            )
    return sentences
