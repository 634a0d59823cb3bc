"""A plan that goes on: what telemetry leaves as it is stays; the rest is solved again, near it."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hwnas.planning import planner, restoring
from hwnas.planning.changes import Cause, Changes, back, changed, changes, downs
from hwnas.planning.hours import Hour
from hwnas.planning.moves import Before
from hwnas.planning.plan import Plan
from hwnas.planning.planner import Planned
from hwnas.planning.problem import Problem
from hwnas.planning.resolving import columns_of, continued, holds, near, resolved
from hwnas.planning.restoring import Named
from hwnas.planning.simulation import Scene
from hwnas.planning.solving import Solution, bound
from hwnas.planning.task import UNSERVED, Task
from hwnas.planning.telemetry import Telemetry
from hwnas.planning.writing import as_plan, classes_of
from hwnas.progress import Progress

_AGAIN = 0.1  # of the seconds of the first solution: what each correction may take


@dataclass(frozen=True)
class Manner:
    """How near a plan stays to what it was."""

    tolerance: float  #: what demand may differ by without being new
    move_cost: float  #: of a replica that is started or stopped, in hours of one
    most_moved: float  #: share of an hour's replicas that may be stopped
    extrapolate: bool  #: whether hours that were not seen follow those that were
    limit_s: float


@dataclass(frozen=True)
class Replanned:
    """A plan after a plan."""

    found: Planned
    causes: Sequence[Cause]  #: none: nothing changed, and the plan is what it was
    move_cost: float  #: what a replica that is started or stopped counted, in the plan's unit


def replanned(
    problem: Problem,
    plan: Plan,
    seen: Telemetry,
    manner: Manner,
    seeds: Sequence[int],
    progress: Progress,
) -> Replanned:
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
    task = Task(problem, choices, plan.objective, marks=marks)
    bare = restoring.unspared(plan, whole) if task.spares else frozenset()
    task = replace(task, unspared=frozenset(each for each in bare if each[1] in down))
    names = restoring.named(task)
    task = replace(task, scale=restoring.scales(task, plan, names))
    there = restoring.restored(task, plan, names)
    causes = [*found.causes, *downs(plan, problem, seen), *back(bare - task.unspared)]
    causes += _files(task, plan, there, causes)
    anew = {hour for cause in causes for hour in cause.hours}
    old = _solution(task, plan, [h or _empty(task) for h in there])
    if not anew:
        every = range(len(plan.hours))
        runs, spiked = _simulated(plan, problem, seeds, progress, every)
        kept = replace(plan, begin_min=problem.load.begin_min)
        same = Planned(kept, old, runs, {}, 0, spiked)
        return Replanned(same, [], 0.0)
    ran = restoring.translated(task, plan, names)
    was = {hour: ran[int(task.group[hour])] for hour in range(problem.load.n_hours)}
    task = _task(task, plan, names, found, anew)
    before = _before(plan, task, causes, manner)
    places = sorted({int(task.group[hour]) for hour in anew})

    def resolve(solved: Solution, task: Task, hours: Sequence[int]) -> Solution:
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
    return Replanned(best, causes, before.cost)


def _marks(plan: Plan, anew: set[int]) -> tuple[int, ...]:
    """Return marks of hours that tell apart those of different hours of a plan, and new ones."""
    of = {hour: i for i, each in enumerate(plan.hours) for hour in each.hours}
    return tuple(2 * of[hour] + (hour in anew) for hour in range(len(of)))


def _empty(task: Task) -> Hour:
    """Return an hour in which nothing runs, and nothing is served."""
    unserved = np.ones((task.n_scenarios, len(task.problem.classes)))
    return Hour(np.zeros(len(task.problem.devices)), [], [], unserved)


def _solution(task: Task, plan: Plan, hours: list[Hour]) -> Solution:
    owned = restoring.owned(task, plan)
    return Solution(task, hours, owned, plan.bound_kept, plan.bound_all)


def _files(
    task: Task, plan: Plan, back: Sequence[Hour | None], causes: Sequence[Cause]
) -> list[Cause]:
    """Return a cause if hours cannot go on as they are though nothing was seen in them."""
    known = {hour for cause in causes for hour in cause.hours}
    facts = _facts(task, plan, back)
    owned = restoring.owned(task, plan)
    hours = {
        hour
        for hour in range(task.problem.load.n_hours)
        if hour not in known
        for i in [int(task.group[hour])]
        if not facts or (at := back[i]) is None or not holds(task, _bared(task, at, i), i, owned)
    }
    words = "service.yaml, fleet.yaml or figures that they name are not what they were"
    return [Cause("files", "", frozenset(hours), words)] if hours else []


def _facts(task: Task, plan: Plan, back: Sequence[Hour | None]) -> bool:
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


def _task(task: Task, plan: Plan, names: Named, found: Changes, anew: set[int]) -> Task:
    """Return a task in which hours that changed are apart, with goodputs that turned out lower."""
    task = replace(task, marks=_marks(plan, anew), scale={})
    scale = restoring.scales(task, plan, names)
    hours, worst = restoring.by_hour(plan), dict[tuple[int, int], float]()
    for (name, hour), factor in found.slower.items():
        routes = [*hours[hour].routes, *hours[hour].degraded]
        own = {kind for r in routes if r.klass == name for kind in (r.first, r.second) if kind}
        for kind in own & {*names}:
            where = int(task.group[hour]), names[kind][0]
            worst[where] = min(worst.get(where, 1.0), factor)  # once, of hours that are alike
    lower = {where: scale.get(where, 1.0) * factor for where, factor in worst.items()}
    return replace(task, scale={**scale, **lower})


def _before(plan: Plan, task: Task, causes: Sequence[Cause], manner: Manner) -> Before:
    """Return what ran, and what a move counts: a part of what a replica takes on the mean."""
    running = {h: restoring.running(plan, of) for h, of in restoring.by_hour(plan).items()}
    hours = sum(n for of in running.values() for n in of.values())
    return Before(
        running,
        restoring.owned(task, plan),
        manner.move_cost * plan.value / max(hours, 1),
        manner.most_moved,
        frozenset(cause.name for cause in causes if cause.what == "down"),
    )


def _begun(task: Task, plan: Plan, was: dict[int, Hour | None], anew: set[int]) -> Solution:
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


def _bared(task: Task, hour: Hour, i: int) -> Hour:
    """Return an hour whose pools have none to spare of what need not be."""
    stations = task.choices.stations
    pools = [
        replace(row, spread=0) if task.spreads(i, stations[row.station].device) == [0] else row
        for row in hour.pools
    ]
    return replace(hour, pools=pools)


def _simulated(
    plan: Plan,
    problem: Problem,
    seeds: Sequence[int],
    progress: Progress,
    places: Sequence[int],
) -> planner.Runs:
    """Return what simulations see of some hours of a plan, and of spikes in them."""
    hours = [plan.hours[i].hours[0] for i in places]
    return planner.simulated(plan, Scene(planner.arrivals(problem)), seeds, progress, hours)
