"""A plan that goes on: what telemetry leaves as it is stays; the rest is solved again, near it."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.progress import Progress
from hwnas.fleet import plan_conversion, planner
from hwnas.fleet.hours import Hour
from hwnas.fleet.plan import DeploymentPlan
from hwnas.fleet.plan_conversion import PlacementsByName, as_plan, classes_of
from hwnas.fleet.planner import PlanningOutcome
from hwnas.fleet.problem import PlanningProblem
from hwnas.fleet.resolve import PreviousPlan, columns_of, continued, holds, near, resolved
from hwnas.fleet.simulation import LATE, SimulationSetup
from hwnas.fleet.solver import Solution, bound
from hwnas.fleet.task import UNSERVED, Array, PlanningTask
from hwnas.fleet.telemetry import Telemetry

# What telemetry changes of what was planned for, and what it does not.

_SLOWER = (0.5, 0.95)  # what a goodput is multiplied by at least, and at most, if answers are late
_UNKNOWN = 0.9  # where nothing says how late they are


@dataclass(frozen=True)
class ReplanCause:
    """Why hours are planned again."""

    what: Literal["demand", "late", "down", "back", "files"]
    name: str  #: of the class or device; empty: of all
    hours: frozenset[int]
    words: str


@dataclass(frozen=True)
class PlanChanges:
    """What is to be planned for, and what of it is new."""

    rates: Array  #: ``(classes, hours)`` requests a second, as they are expected
    borne: Array  #: likewise, as they must be borne
    slower: Mapping[tuple[str, int], float]  #: what goodputs of a class's pools turn out to be
    causes: Sequence[ReplanCause]


def changes(
    plan: DeploymentPlan, seen: Telemetry, tolerance: float, *, extrapolate: bool
) -> PlanChanges:
    """Return what telemetry changes of a plan.

    Args:
        plan: What was planned for.
        seen: The telemetry.
        tolerance: What demand may differ by, as a fraction of it, without being new.
        extrapolate: Whether hours that were not seen follow those that were.
    """
    rates = np.array([c.demand for c in plan.classes.values()])
    borne = np.array([c.borne for c in plan.classes.values()])
    causes: list[ReplanCause] = []
    slower: dict[tuple[str, int], float] = {}
    for k, name in enumerate(plan.classes):
        new = _expected(rates[k], seen.rates.get(name, {}), extrapolate=extrapolate)
        moved = np.abs(new - rates[k]) > tolerance * rates[k]
        causes += _demands(name, rates[k], new, moved, {*seen.rates.get(name, {})})
        slower |= _late(plan, name, seen, np.where(moved, new > rates[k], False))
        spike = np.divide(borne[k], rates[k], out=np.ones_like(new), where=rates[k] > 0)
        spike[rates[k] == 0] = spike.max()
        borne[k] = np.where(moved, new * spike, borne[k])
        rates[k] = np.where(moved, new, rates[k])
    causes += [_lateness(name, hour, seen) for name, hour in slower]
    return PlanChanges(rates, borne, slower, causes)


def _expected(planned: Array, seen: Mapping[int, float], *, extrapolate: bool) -> Array:
    """Return the demand of a class by hour: as it was seen, or as the hours that were suggest."""
    new, hours = planned.copy(), [*seen]
    if not hours:
        return new
    was, now = float(planned[hours].sum()), sum(seen.values())
    if extrapolate and was > 0:
        new *= now / was
    new[hours] = [*seen.values()]
    return new


def _demands(
    name: str, old: Array, new: Array, moved: Array, seen: set[int]
) -> Iterator[ReplanCause]:  # fmt: skip
    """Yield what is new of a class's demand: what was measured, and what follows from it."""
    hours = {int(h) for h in np.flatnonzero(moved)}
    for some, how in ((hours & seen, "measured"), (hours - seen, "as in the hours measured")):
        if some:
            was, now = (float(of[sorted(some)].sum()) for of in (old, new))
            change = f"{now / was - 1:+.0%}" if was else f"0 to {now / len(some):.4g} requests/s"
            yield ReplanCause("demand", name, frozenset(some), f"demand of {name} {change} ({how})")


def _late(
    plan: DeploymentPlan, name: str, seen: Telemetry, more: Array
) -> dict[tuple[str, int], float]:
    """Return what goodputs turn out to be where answers are late, though no more is asked for."""
    found, limit = {}, plan.classes[name].p99_ms
    late, p99 = seen.late.get(name, {}), seen.p99_ms.get(name, {})
    for hour in sorted({*late, *p99}):
        if not more[hour] and (late.get(hour, 0.0) > LATE or p99.get(hour, 0.0) > limit):
            least, most = _SLOWER
            part = limit / p99[hour] if p99.get(hour, 0.0) > limit else _UNKNOWN
            found[name, hour] = min(max(part, least), most)
    return found


def _lateness(name: str, hour: int, seen: Telemetry) -> ReplanCause:
    late, p99 = seen.late.get(name, {}).get(hour), seen.p99_ms.get(name, {}).get(hour)
    said = [f"{late:.1%} of {name} late"] if late is not None else []
    said += [f"p99 of {name} {p99:.4g} ms"] if p99 is not None else []
    return ReplanCause("late", name, frozenset([hour]), f"{', '.join(said)} (measured)")


def changed(
    problem: PlanningProblem, plan: DeploymentPlan, found: PlanChanges, seen: Telemetry
) -> PlanningProblem:
    """Return a problem with what was seen: its demands, and without the machines that are down.

    Raises:
        ConfigError: telemetry names a device that there is not, or the service is another.
    """
    names = [name for name, _ in problem.classes]
    if names != [*plan.classes] or problem.load.n_hours != found.rates.shape[1]:
        raise ConfigError(
            f"The service has classes {', '.join(names)} and {problem.load.n_hours} hours, the "
            f"plan {', '.join(plan.classes)} and {found.rates.shape[1]}: plan anew, with "
            "python -m hwnas plan."
        )
    devices = dict(problem.fleet.devices)
    for name, down in seen.down.items():
        if name not in devices:
            raise ConfigError(f"telemetry: {unknown_name('device', name, devices)}")
        quota = 0 if down is None else max(0, devices[name].quota - down)
        devices[name] = replace(devices[name], quota=quota)
    load = replace(problem.load, rates=found.rates, borne=found.borne)
    return replace(problem, load=load, fleet=replace(problem.fleet, devices=devices))


def back(bare: Collection[tuple[int, str]]) -> Iterator[ReplanCause]:
    """Yield devices that are whole again, of which there was no machine to spare in some hours."""
    for name in sorted({name for _, name in bare}):
        hours = frozenset(hour for hour, other in bare if other == name)
        yield ReplanCause("back", name, hours, f"all {name} there again: one is to spare")


def downs(plan: DeploymentPlan, problem: PlanningProblem, seen: Telemetry) -> Iterator[ReplanCause]:
    """Yield devices that are down of which the plan uses more machines than there are left."""
    for name, down in seen.down.items():
        left = problem.fleet.devices[name].quota
        hours = {h for of in plan.hours if of.machines.get(name, 0) > left for h in of.hours}
        if hours:
            said = f"all {name}" if down is None else f"{down} of {name}"
            yield ReplanCause("down", name, frozenset(hours), f"{said} down (measured)")


_AGAIN = 0.1  # of the seconds of the first solution: what each correction may take


@dataclass(frozen=True)
class ReplanPolicy:
    """How near a plan stays to what it was."""

    tolerance: float  #: what demand may differ by without being new
    move_cost: float  #: of a replica that is started or stopped, in hours of one
    max_moved_fraction: float  #: share of an hour's replicas that may be stopped
    extrapolate: bool  #: whether hours that were not seen follow those that were
    limit_s: float


@dataclass(frozen=True)
class ReplanningOutcome:
    """A plan after a plan."""

    found: PlanningOutcome
    causes: Sequence[ReplanCause]  #: none: nothing changed, and the plan is what it was
    move_cost: float  #: what a replica that is started or stopped counted, in the plan's unit


def replanned(
    problem: PlanningProblem,
    plan: DeploymentPlan,
    seen: Telemetry,
    manner: ReplanPolicy,
    seeds: Sequence[int],
    progress: Progress,
) -> ReplanningOutcome:
    """Return a plan with what was seen; hours in which nothing changed are as they were.

    Args:
        problem: What was asked for, and what there is.
        plan: What runs until now.
        seen: The telemetry.
        manner: How near the new plan stays to it.
        seeds: Of the simulations.
        progress: Is told of phases.

    Raises:
        ConfigError: telemetry and plan, or plan and service, are not of the same things.
        BudgetError: a limit leaves demand unserved; it says which.
    """
    began = time.perf_counter()
    found = changes(plan, seen, manner.tolerance, extrapolate=manner.extrapolate)
    whole, problem = problem.fleet.devices, changed(problem, plan, found, seen)
    choices = planner.choices_of(problem, progress)
    marks = _marks(plan, set())
    down = frozenset(n for n, lost in seen.down.items() if lost != 0)
    task = PlanningTask(problem, choices, plan.objective, marks=marks)
    bare = plan_conversion.unspared(plan, whole) if task.spares else frozenset()
    task = replace(task, unspared=frozenset(each for each in bare if each[1] in down))
    names = plan_conversion.named(task)
    task = replace(task, scale=plan_conversion.scales(task, plan, names))
    there = plan_conversion.restored(task, plan, names)
    causes = [*found.causes, *downs(plan, problem, seen), *back(bare - task.unspared)]
    causes += _files(task, plan, there, causes)
    anew = {hour for cause in causes for hour in cause.hours}
    old = _solution(task, plan, [h or _empty(task) for h in there])
    if not anew:
        every = range(len(plan.hours))
        runs, spiked = _simulated(plan, problem, seeds, progress, every)
        kept = replace(plan, begin_min=problem.load.begin_min)
        same = PlanningOutcome(kept, old, runs, {}, 0, spiked)
        return ReplanningOutcome(same, [], 0.0)
    ran = plan_conversion.translated(task, plan, names)
    was = {hour: ran[int(task.group[hour])] for hour in range(problem.load.n_hours)}
    task = _task(task, plan, names, found, anew)
    before = _before(plan, task, causes, manner)
    places = sorted({int(task.group[hour]) for hour in anew})

    def resolve(solved: Solution, task: PlanningTask, hours: Sequence[int]) -> Solution:
        return resolved(solved, task, hours, before, manner.limit_s * _AGAIN, progress)

    spares = task.spares and bool(down)  # which are given up rather than bought anew
    begun = _begun(task, plan, was, anew)
    solve = near if spares else resolved
    first = solve(begun, task, places, before, manner.limit_s, progress)
    if spares and (short := _short(first, places, down)):
        task = replace(task, unspared=task.unspared | short)
        begun = _begun(task, plan, was, anew)
        first = resolved(begun, task, places, before, manner.limit_s, progress)
    best = planner.corrected(first, resolve, seeds, progress, places)
    left = max(1.0, manner.limit_s - (time.perf_counter() - began))
    least = float(min(best.plan.value, bound(best.solution.task, left, progress)))
    others = [i for i in range(len(best.plan.hours)) if i not in places]
    runs, spiked = _simulated(best.plan, problem, seeds, progress, others)
    told = replace(best.plan, bound_kept=least, bound_all=least)
    best = replace(best, plan=told, seen=[*best.seen, *runs], spiked=[*best.spiked, *spiked])
    return ReplanningOutcome(best, causes, before.cost)


def _marks(plan: DeploymentPlan, anew: set[int]) -> tuple[int, ...]:
    """Return marks of hours that tell apart those of different hours of a plan, and new ones."""
    of = {hour: i for i, each in enumerate(plan.hours) for hour in each.hours}
    return tuple(2 * of[hour] + (hour in anew) for hour in range(len(of)))


def _empty(task: PlanningTask) -> Hour:
    """Return an hour in which nothing runs, and nothing is served."""
    unserved = np.ones((task.n_scenarios, len(task.problem.classes)))
    return Hour(np.zeros(len(task.problem.devices)), [], [], unserved)


def _solution(task: PlanningTask, plan: DeploymentPlan, hours: list[Hour]) -> Solution:
    owned = plan_conversion.owned(task, plan)
    return Solution(task, hours, owned, plan.bound_kept, plan.bound_all)


def _files(
    task: PlanningTask,
    plan: DeploymentPlan,
    back: Sequence[Hour | None],
    causes: Sequence[ReplanCause],
) -> list[ReplanCause]:
    """Return a cause if hours cannot go on as they are though nothing was seen in them."""
    known = {hour for cause in causes for hour in cause.hours}
    facts = _facts(task, plan, back)
    owned = plan_conversion.owned(task, plan)
    hours = {
        hour
        for hour in range(task.problem.load.n_hours)
        if hour not in known
        for i in [int(task.group[hour])]
        if not facts or (at := back[i]) is None or not holds(task, _bared(task, at, i), i, owned)
    }
    words = "service.yaml, fleet.yaml or figures that they name are not what they were"
    return [ReplanCause("files", "", frozenset(hours), words)] if hours else []


def _facts(task: PlanningTask, plan: DeploymentPlan, back: Sequence[Hour | None]) -> bool:
    """Return whether classes and devices are what they were when the plan was made."""
    asked = classes_of(task.problem)
    same = all(
        replace(asked[name], demand=[], borne=[]) == replace(was, demand=[], borne=[])
        for name, was in plan.classes.items()
    )
    there = as_plan(_solution(task, plan, [hour or _empty(task) for hour in back])).devices
    return same and all(
        replace(at, quota=plan.devices[name].quota, bought=0)
        == replace(plan.devices[name], bought=0)
        for name, at in there.items()
        if name in plan.devices
    )


def _task(
    task: PlanningTask,
    plan: DeploymentPlan,
    names: PlacementsByName,
    found: PlanChanges,
    anew: set[int],
) -> PlanningTask:
    """Return a task in which hours that changed are apart, with goodputs that turned out lower."""
    task = replace(task, marks=_marks(plan, anew), scale={})
    scale = plan_conversion.scales(task, plan, names)
    hours, worst = plan_conversion.by_hour(plan), dict[tuple[int, int], float]()
    for (name, hour), factor in found.slower.items():
        routes = [*hours[hour].routes, *hours[hour].degraded]
        own = {kind for r in routes if r.klass == name for kind in (r.first, r.second) if kind}
        for kind in own & {*names}:
            where = int(task.group[hour]), names[kind][0]
            worst[where] = min(worst.get(where, 1.0), factor)  # once, of hours that are alike
    lower = {where: scale.get(where, 1.0) * factor for where, factor in worst.items()}
    return replace(task, scale={**scale, **lower})


def _before(
    plan: DeploymentPlan, task: PlanningTask, causes: Sequence[ReplanCause], manner: ReplanPolicy
) -> PreviousPlan:
    """Return what ran, and what a move counts: a part of what a replica takes on the mean."""
    running = {
        h: plan_conversion.running(plan, of) for h, of in plan_conversion.by_hour(plan).items()
    }
    hours = sum(n for of in running.values() for n in of.values())
    return PreviousPlan(
        running,
        plan_conversion.owned(task, plan),
        manner.move_cost * plan.value / max(hours, 1),
        manner.max_moved_fraction,
        frozenset(cause.name for cause in causes if cause.what == "down"),
    )


def _begun(
    task: PlanningTask, plan: DeploymentPlan, was: dict[int, Hour | None], anew: set[int]
) -> Solution:
    """Return a solution whose new hours are what they were, and what their demands take more."""
    hours = [was[hour] or _empty(task) for hour in task.hours]
    found = _solution(task, plan, [_bared(task, hour, i) for i, hour in enumerate(hours)])
    there = [hour for hour in was.values() if hour is not None]
    found.kept = [columns_of(task, i, there) for i in range(len(task.hours))]
    found.hours = continued(found, [i for i, hour in enumerate(task.hours) if hour in anew])
    return found


def _short(
    found: Solution, places: Sequence[int], down: Collection[str]
) -> frozenset[tuple[int, str]]:
    """Return the hours that are not served, each with the devices that are down."""
    short = {i for i in places if (found.hours[i].unserved > UNSERVED).any()}
    return frozenset((h, n) for h, i in enumerate(found.task.group) if i in short for n in down)


def _bared(task: PlanningTask, hour: Hour, i: int) -> Hour:
    """Return an hour whose pools have none to spare of what need not be."""
    stations = task.choices.stations
    pools = [
        replace(row, spread=0) if task.spreads(i, stations[row.station].device) == [0] else row
        for row in hour.pools
    ]
    return replace(hour, pools=pools)


def _simulated(
    plan: DeploymentPlan,
    problem: PlanningProblem,
    seeds: Sequence[int],
    progress: Progress,
    places: Sequence[int],
) -> planner.Runs:
    """Return what simulations see of some hours of a plan, and of spikes in them."""
    hours = [plan.hours[i].hours[0] for i in places]
    return planner.simulated(
        plan, SimulationSetup(planner.arrivals(problem)), seeds, progress, hours
    )
