"""Replanning: unchanged hours stay; the others are solved again with few moved replicas."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hwnas.core.errors import BudgetError
from hwnas.core.progress import Progress
from hwnas.fleet import plan_conversion, planner
from hwnas.fleet.hours import Hour
from hwnas.fleet.plan import DeploymentPlan
from hwnas.fleet.plan_changes import (
    PlanChanges,
    ReplanCause,
    apply_changes,
    detect_changes,
    devices_down,
    restored_devices,
)
from hwnas.fleet.plan_conversion import PlacementsByName, class_requirements, to_plan
from hwnas.fleet.planner import PlanningOutcome
from hwnas.fleet.problem import PlanningProblem
from hwnas.fleet.resolve import (
    PreviousPlan,
    columns_of,
    continue_hours,
    is_feasible,
    resolve_near,
    resolve_with_more,
)
from hwnas.fleet.simulation import SimulationSetup
from hwnas.fleet.solver import Solution, lower_bound
from hwnas.fleet.task import UNSERVED, PlanningTask
from hwnas.fleet.telemetry import Telemetry

_CORRECTION_SHARE = 0.1  # time limit of a correction, as a fraction of the first solution's


@dataclass(frozen=True)
class ReplanPolicy:
    """Limits on the changes of a plan; the options of the verb ``replan``."""

    tolerance: float  #: relative change of demand that is ignored
    move_cost: float  #: penalty of a started or stopped replica, in mean costs of a replica-hour
    #: maximum fraction of an hour's replicas that is stopped, unless demand would be unserved
    max_moved_fraction: float
    extrapolate: bool  #: True: scale unobserved hours like the observed ones
    limit_s: float  #: time limit of the first solution in seconds; of a correction a tenth of it


@dataclass(frozen=True)
class ReplanningOutcome:
    """A new plan that replaces the current one."""

    planning: PlanningOutcome
    causes: Sequence[ReplanCause]  #: empty: the plan is unchanged
    move_cost: float  #: penalty of a started or stopped replica, in the plan's unit


def replan(
    problem: PlanningProblem,
    plan: DeploymentPlan,
    telemetry: Telemetry,
    policy: ReplanPolicy,
    seeds: Sequence[int],
    progress: Progress,
) -> ReplanningOutcome:
    """Return a plan for the observed demand and failures; unchanged hours stay as they are.

    If nothing changed beyond the tolerance, the plan is the current one (with ``begin_min`` of
    ``problem``) and ``causes`` is empty.

    Args:
        problem: Planning problem as in ``service.yaml`` and ``fleet.yaml`` now.
        plan: Current plan.
        telemetry: Observed demand, latencies and failed machines.
        policy: Limits on the changes.
        seeds: Seeds of the simulations.
        progress: Receives phases.

    Raises:
        ConfigError: telemetry, plan and service do not match, or no model keeps the limits of a
            class.
        BudgetError: a limit leaves demand unserved, or a daily budget is exceeded; the message
            names it.
    """
    began = time.perf_counter()
    result = detect_changes(plan, telemetry, policy.tolerance, extrapolate=policy.extrapolate)
    fleet_devices, problem = problem.fleet.devices, apply_changes(problem, plan, result, telemetry)
    choices = planner.read_choices(problem, progress)
    marks = _hour_marks(plan, set())
    down = frozenset(n for n, lost in telemetry.down.items() if lost != 0)
    task = PlanningTask(problem, choices, plan.objective, marks=marks)
    bare = (
        plan_conversion.hours_without_redundancy(plan, fleet_devices)
        if task.has_redundancy
        else frozenset()
    )
    task = replace(task, without_redundancy=frozenset(pair for pair in bare if pair[1] in down))
    names = plan_conversion.placements_by_name(task)
    task = replace(task, scale=plan_conversion.goodput_corrections(task, plan, names))
    restored_hours = plan_conversion.restore_hours(task, plan, names)
    causes = [
        *result.causes,
        *devices_down(plan, problem, telemetry),
        *restored_devices(bare - task.without_redundancy),
    ]
    old = _solution(task, plan, [h or _empty_hour(task) for h in restored_hours])
    causes += _file_causes(old, plan, restored_hours, causes)
    changed_hours = {hour for cause in causes for hour in cause.hours}
    if not changed_hours:
        _check_budgets(old)
        every = range(len(plan.hours))
        runs, spiked = _simulate_places(plan, problem, seeds, progress, every)
        unchanged_plan = replace(plan, begin_min=problem.load.begin_min)
        same = PlanningOutcome(unchanged_plan, old, runs, {}, 0, spiked)
        return ReplanningOutcome(same, [], 0.0)
    planned_hours = plan_conversion.translate_hours(task, plan, names)
    previous = {hour: planned_hours[int(task.group[hour])] for hour in range(problem.load.n_hours)}
    task = _changed_task(task, plan, names, result, changed_hours)
    before = _previous_plan(plan, task, causes, policy)
    places = sorted({int(task.group[hour]) for hour in changed_hours})

    def resolve(solved: Solution, task: PlanningTask, hours: Sequence[int]) -> Solution:
        return resolve_with_more(
            solved, task, hours, before, policy.limit_s * _CORRECTION_SHARE, progress
        )

    spares = task.has_redundancy and bool(down)  # give up redundancy rather than buy machines
    start_solution = _start_solution(task, plan, previous, changed_hours)
    solve = resolve_near if spares else resolve_with_more
    first = solve(start_solution, task, places, before, policy.limit_s, progress)
    if spares and (short := _unserved_hours(first, places, down)):
        task = replace(task, without_redundancy=task.without_redundancy | short)
        start_solution = _start_solution(task, plan, previous, changed_hours)
        first = resolve_with_more(start_solution, task, places, before, policy.limit_s, progress)
    best = planner.correct(first, resolve, seeds, progress, places)
    rest_s = max(1.0, policy.limit_s - (time.perf_counter() - began))
    least = float(min(best.plan.value, lower_bound(best.solution.task, rest_s, progress)))
    others = [i for i in range(len(best.plan.hours)) if i not in places]
    runs, spiked = _simulate_places(best.plan, problem, seeds, progress, others)
    _check_budgets(best.solution)
    bounded = replace(best.plan, bound_kept=least, bound_all=least)
    best = replace(
        best,
        plan=bounded,
        statistics=[*best.statistics, *runs],
        spike_statistics=[*best.spike_statistics, *spiked],
    )
    return ReplanningOutcome(best, causes, before.move_cost)


def _hour_marks(plan: DeploymentPlan, changed_hours: set[int]) -> tuple[int, ...]:
    """Return marks that separate hours of different plan records, and changed hours."""
    index = {hour: i for i, hour_plan in enumerate(plan.hours) for hour in hour_plan.hours}
    return tuple(2 * index[hour] + (hour in changed_hours) for hour in range(len(index)))


def _empty_hour(task: PlanningTask) -> Hour:
    """Return an hour without pools that serves nothing."""
    unserved = np.ones((task.n_scenarios, len(task.problem.classes)))
    return Hour(np.zeros(len(task.problem.devices)), [], [], unserved)


def _solution(task: PlanningTask, plan: DeploymentPlan, hours: list[Hour]) -> Solution:
    owned = plan_conversion.bought_machines(task, plan)
    return Solution(task, hours, owned, plan.bound_kept, plan.bound_all)


def _file_causes(
    old: Solution,
    plan: DeploymentPlan,
    back: Sequence[Hour | None],
    causes: Sequence[ReplanCause],
) -> list[ReplanCause]:
    """Return a cause for hours that became infeasible without telemetry: files have changed."""
    known, task = {hour for cause in causes for hour in cause.hours}, old.task
    facts = _has_same_facts(old, plan)
    owned = plan_conversion.bought_machines(task, plan)
    hours = {
        hour
        for hour in range(task.problem.load.n_hours)
        if hour not in known
        for i in [int(task.group[hour])]
        if not facts
        or (previous := back[i]) is None
        or not is_feasible(task, _without_spares(task, previous, i), i, owned)
    }
    text = "the service file, the fleet file or files that they name have changed"
    return [ReplanCause("files", "", frozenset(hours), text)] if hours else []


def _check_budgets(solution: Solution) -> None:
    """Check the daily budgets of the service file.

    Raises:
        BudgetError: the solution exceeds one.
    """
    if exceeded := plan_conversion.exceeded_budgets(solution):
        raise BudgetError(
            f"{' '.join(exceeded)} Raise the budget, or make a new plan with hwnas plan."
        )


def _has_same_facts(old: Solution, plan: DeploymentPlan) -> bool:
    """Return True if classes and devices are those of the plan."""
    request_class = class_requirements(old.task.problem)
    same = all(
        replace(request_class[name], demand=[], borne=[]) == replace(planned, demand=[], borne=[])
        for name, planned in plan.classes.items()
    )
    devices = to_plan(old).devices
    return same and all(
        replace(device, quota=plan.devices[name].quota, bought=0)
        == replace(plan.devices[name], bought=0)
        for name, device in devices.items()
        if name in plan.devices
    )


def _changed_task(
    task: PlanningTask,
    plan: DeploymentPlan,
    names: PlacementsByName,
    changes: PlanChanges,
    changed_hours: set[int],
) -> PlanningTask:
    """Return a task with changed hours separated and the goodputs of late classes lowered."""
    task = replace(task, marks=_hour_marks(plan, changed_hours), scale={})
    scale = plan_conversion.goodput_corrections(task, plan, names)
    hours, worst = plan.by_hour(), dict[tuple[int, int], float]()
    for (name, hour), factor in changes.slower.items():
        routes = [*hours[hour].routes, *hours[hour].degraded]
        pool_types = {
            kind for r in routes if r.klass == name for kind in (r.first, r.second) if kind
        }
        for kind in pool_types & {*names}:
            key = int(task.group[hour]), names[kind][0]
            worst[key] = min(worst.get(key, 1.0), factor)  # once for equal hours
    lower = {key: scale.get(key, 1.0) * factor for key, factor in worst.items()}
    return replace(task, scale={**scale, **lower})


def _previous_plan(
    plan: DeploymentPlan, task: PlanningTask, causes: Sequence[ReplanCause], policy: ReplanPolicy
) -> PreviousPlan:
    """Return the current replicas, and the penalty of moving one."""
    running = {
        h: plan_conversion.running_replicas(plan, pools) for h, pools in plan.by_hour().items()
    }
    hours = sum(n for pools in running.values() for n in pools.values())
    return PreviousPlan(
        running,
        plan_conversion.bought_machines(task, plan),
        policy.move_cost * plan.value / max(hours, 1),
        policy.max_moved_fraction,
        frozenset(cause.name for cause in causes if cause.what == "down"),
    )


def _start_solution(
    task: PlanningTask,
    plan: DeploymentPlan,
    previous: dict[int, Hour | None],
    changed_hours: set[int],
) -> Solution:
    """Return a solution whose changed hours are the current ones, scaled to their demand."""
    hours = [previous[hour] or _empty_hour(task) for hour in task.hours]
    result = _solution(task, plan, [_without_spares(task, hour, i) for i, hour in enumerate(hours)])
    previous_hours = [hour for hour in previous.values() if hour is not None]
    result.hour_columns = [columns_of(task, previous_hours)] * len(task.hours)
    result.hours = continue_hours(
        result, [i for i, hour in enumerate(task.hours) if hour in changed_hours]
    )
    return result


def _unserved_hours(
    solution: Solution, places: Sequence[int], down: Collection[str]
) -> frozenset[tuple[int, str]]:
    """Return (hour, device) pairs of unserved hours and devices that are down."""
    short = {i for i in places if (solution.hours[i].unserved > UNSERVED).any()}
    return frozenset((h, n) for h, i in enumerate(solution.task.group) if i in short for n in down)


def _without_spares(task: PlanningTask, hour: Hour, i: int) -> Hour:
    """Return an hour whose pools have spare replicas only where required."""
    placements = task.choices.placements
    pools = [
        replace(row, max_per_machine=0)
        if task.replica_limits(i, placements[row.placement].device) == [0]
        else row
        for row in hour.pools
    ]
    return replace(hour, pools=pools)


def _simulate_places(
    plan: DeploymentPlan,
    problem: PlanningProblem,
    seeds: Sequence[int],
    progress: Progress,
    places: Sequence[int],
) -> planner.Runs:
    """Return the statistics of some hours of a plan, and of their spikes."""
    hours = [plan.hours[i].hours[0] for i in places]
    return planner.simulate_hours(
        plan, SimulationSetup(planner.arrivals_by_class(problem)), seeds, progress, hours
    )
