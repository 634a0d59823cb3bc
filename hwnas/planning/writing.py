"""From a solution to a plan: names instead of places, and every figure with its source."""

from collections.abc import Sequence

from hwnas.figure import FigureRow
from hwnas.planning import plan as plans
from hwnas.planning.hours import Hour, PoolRow
from hwnas.planning.plan import Asked, HourPlan, Kind, Machine, Plan, Pool, Route
from hwnas.planning.problem import Problem
from hwnas.planning.solving import Solution
from hwnas.planning.task import Task

_LEAST_RATE = 1e-6  # of a route: less is rounding


def as_plan(found: Solution, notes: Sequence[str] = ()) -> Plan:
    """Return a solution as a plan."""
    task = found.task
    problem = task.problem
    kinds: dict[str, Kind] = {}
    hours = [hour_plan(task, hour, i, kinds) for i, hour in enumerate(found.hours)]
    return Plan(
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


def classes_of(problem: Problem) -> dict[str, Asked]:
    """Return what classes ask for as plans say it."""
    load = problem.load
    return {
        name: Asked(
            c.p99_ms, c.floor(degraded=False), c.floor(degraded=True), c.regions,
            [_digits(v) for v in load.rates[k]], [_digits(v) for v in load.borne[k]],
            load.trace_of[k],
        )
        for k, (name, c) in enumerate(problem.classes)
    }  # fmt: skip


def _devices(found: Solution) -> dict[str, Machine]:
    used = {d for hour in found.hours for d, n in enumerate(hour.machines) if n}
    return {
        name: Machine(
            at.region, at.buy, at.price or 0.0, at.slots, at.quota, at.idle_w, at.power_w,
            at.start_s, int(found.owned[d]) * (not at.is_hourly),
        )
        for d, (name, at) in enumerate(found.task.problem.devices)
        if d in used or (found.owned[d] and not at.is_hourly)
    }  # fmt: skip


def hour_plan(task: Task, hour: Hour, i: int, kinds: dict[str, Kind]) -> HourPlan:
    """Return an hour at a place of a task as plans say it; its kinds are added to those known."""
    names: dict[int, str] = {}
    pools = []
    for row in sorted(hour.pools, key=lambda row: row.station):
        name, kind = _kind(task, row)
        kinds.setdefault(name, kind)
        names[row.station] = name
        goodput = task.goodput(i, row.station, row.variant)
        pools.append(Pool(name, row.replicas, row.spread, _digits(goodput)))
    devices = task.problem.devices
    return HourPlan(
        [int(h) for h in range(task.problem.load.n_hours) if task.group[h] == i],
        {devices[d][0]: int(n) for d, n in enumerate(hour.machines) if n},
        pools,
        *(_routes(task, hour, s, names) for s in (0, 1)),
    )


def kind_name(task: Task, station: int, variant: int) -> str:
    """Return what a way to run a model on a device is called in plans."""
    at, problem = task.choices.stations[station], task.problem
    how = at.variants[variant]
    name = f"{problem.devices[at.device][0]}/{at.model}/b{how.batch}"
    name += f"w{how.wait_ms:g}" * (how.wait_ms > 0) + f"/{at.limit_ms:g}ms"
    return name + f"/{at.process}" * (len(problem.arrivals) > 1) + f"/{how.least}" * bool(variant)


def _kind(task: Task, row: PoolRow) -> tuple[str, Kind]:
    station = task.choices.stations[row.station]
    variant, problem = station.variants[row.variant], task.problem
    device = problem.devices[station.device][0]
    goodput = _digits(variant.goodput)
    model = problem.catalogue.models.get(station.model)
    timed = problem.catalogue.on(problem.fleet, device, station.model)
    return kind_name(task, row.station, row.variant), Kind(
        device, station.model, variant.batch, variant.wait_ms, station.limit_ms, goodput,
        variant.least,
        None if model is None else _figure(model.accuracy.to_json()),
        {str(b): _figure(f.to_json()) for b, f in timed.items() if b <= variant.batch},
        problem.catalogue.memory_mib(station.model) or 0.0, "" if model is None else model.place,
        problem.catalogue.ran_on(problem.fleet, device, station.model, variant.batch),
    )  # fmt: skip


def _figure(row: list[float | str | None]) -> FigureRow:
    value, source, low, high = row
    return (value, source, low, high)  # type: ignore[return-value]


def _routes(task: Task, hour: Hour, scenario: int, names: dict[int, str]) -> list[Route]:
    o, found = task.choices.options, []
    for s, option, rate in hour.flows:
        if s == scenario and rate > _LEAST_RATE:
            first, second = int(o.first[option]), int(o.second[option])
            reach, onward = _times(task, int(o.klass[option]), first, second)
            found.append(Route(
                task.problem.classes[int(o.klass[option])][0], _digits(rate), names[first],
                names[second] if second >= 0 else None, float(o.share[option]),
                float(o.threshold[option]), float(o.accuracy[option]), reach, onward,
                float(o.usd[option]),
            ))  # fmt: skip
    return sorted(found, key=lambda r: (r.klass, r.first, r.second or "", r.share))


def _times(task: Task, k: int, first: int, second: int) -> tuple[float, float]:
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
