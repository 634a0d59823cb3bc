"""The planner: solve, simulate, lower the goodputs of late pools, and solve again."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hwnas.core.errors import BudgetError
from hwnas.core.progress import Progress
from hwnas.fleet import infeasibility, simulation
from hwnas.fleet.demand import Arrivals
from hwnas.fleet.hours import Flow, placement_rates
from hwnas.fleet.model_sources import untimed_batches
from hwnas.fleet.placements import Goodputs
from hwnas.fleet.plan import DeploymentPlan
from hwnas.fleet.plan_conversion import exceeded_budgets, to_plan
from hwnas.fleet.problem import PlanningProblem, ignored_predictions, missing_key_notes
from hwnas.fleet.routes import PlanChoices, find_choices
from hwnas.fleet.simulation import (
    LATE,
    WARY,
    ClassStatistics,
    HourStatistics,
    Kill,
    SimulationSetup,
    simulate_hour,
)
from hwnas.fleet.solver import Solution, solve_again, solve_task
from hwnas.fleet.task import Objective, PlanningTask

# Headroom: the load that pools sustain beyond their goodputs, by simulation. Goodputs assume one
# pool per class; in a plan pools share requests, and bursts of several classes do not coincide.

_LOADS = (1.04, 1.08, 1.15, 1.25, 1.4, 1.6, 1.8, 2.0, 2.3, 2.6, 3.0)  # factors of the demand
_MORE = 1.01  # minimum increase of a goodput

Scale = dict[tuple[int, int], float]  #: factors of goodputs by hour index and placement


def find_headroom(
    solution: Solution, plan: DeploymentPlan, setup: SimulationSetup, seed: int, progress: Progress
) -> Scale:
    """Return higher factors of goodputs for pools that sustain more load in simulations.

    They are by (hour index, placement index), and replace those of the task. Pools without headroom
    are left out.
    """
    scale: Scale = {}
    with progress.phase("Headroom", len(plan.hours)) as advance:
        for i, hour_plan in enumerate(plan.hours):
            borne = _max_loads_of_hour(plan, hour_plan.hours[0], setup, seed)
            scale |= _headroom_of_hour(solution, i, borne)
            advance(1)
    return scale


def _max_loads_of_hour(
    plan: DeploymentPlan, hour: int, setup: SimulationSetup, seed: int
) -> dict[str, float]:
    def seen(load: float) -> Mapping[str, ClassStatistics]:
        heavier = replace(setup, load=load, spike=plan.spikes(hour))
        return simulate_hour(plan, hour, heavier, seed).classes

    return max_loads(seen)


def max_loads(simulate: Callable[[float], Mapping[str, ClassStatistics]]) -> dict[str, float]:
    """Return the largest factor of the demand, from 1.04 to 3, up to which each class is not late.

    A class is late if more than 0.8 % of its requests are. Classes that are late at 1.04 are left
    out. All classes are loaded together.

    Args:
        simulate: Returns the statistics of the classes at a factor of the demand.
    """
    borne: dict[str, float] = {}
    late: set[str] = set()
    for load in _LOADS:
        classes = simulate(load)
        late |= {name for name, c in classes.items() if c.late > WARY}
        borne |= dict.fromkeys({*classes} - late, load)
        if late == {*classes}:
            break
    return borne


def _headroom_of_hour(solution: Solution, i: int, borne: Mapping[str, float]) -> Scale:
    """Return higher goodputs of an hour's pools for classes' load factors ``borne``."""
    task, hour, scale = solution.task, solution.hours[i], Scale()
    loads, rates = _placement_loads(task, hour.flows, borne), placement_rates(task, hour.flows)[0]
    for row in hour.pools:
        q = row.placement
        takes = loads.get(q, 1.0) * rates[q] / row.replicas
        more = takes / task.goodput(i, q, row.config)
        if more > _MORE:
            scale[i, q] = task.scale.get((i, q), 1.0) * more
    return scale


def _placement_loads(
    task: PlanningTask, flows: Sequence[Flow], borne: Mapping[str, float]
) -> dict[int, float]:
    """Return the load factor of each placement: the minimum over its classes."""
    o, loads = task.choices.options, dict[int, float]()
    names = [name for name, _ in task.problem.classes]
    for s, option, _ in flows:
        load = borne.get(names[o.request_class[option]], 1.0)
        for q in (int(o.first[option]), int(o.second[option])):
            if q >= 0 and s == 0:
                loads[q] = min(loads.get(q, np.inf), load)
    return loads


_ROUNDS = 12  # maximum corrections
_STEP = 0.95
_CONFIRMING = 2  # factor of the number of seeds in the confirmation
_LOOSER_ROUNDS, _GAIN = 6, 1e-3  # raising goodputs: maximum rounds, minimum gain

Runs = tuple[
    list[HourStatistics], list[HourStatistics]
]  #: statistics of hours at the expected demand, and at the peak demand (``demand.spike``)
Resolve = Callable[[Solution, PlanningTask, Sequence[int]], Solution]


@dataclass(frozen=True)
class PlanningOutcome:
    """A plan and the statistics of its simulations."""

    plan: DeploymentPlan
    solution: Solution  #: solution of the optimiser, from which the plan is made
    statistics: Sequence[HourStatistics]  #: one per simulated hour and seed, at expected demand
    #: simulations of failures at peak hours, by failed device, or ``spot`` for all spot machines
    failures: Mapping[str, Sequence[HourStatistics]]
    rounds: int  #: number of corrections of goodputs
    spike_statistics: Sequence[HourStatistics] = ()  #: simulations of hours at their peak demand
    is_late: bool = False  #: True if some class is late after all corrections

    @property
    def late(self) -> float:
        """Largest fraction of late requests over classes, hours and seeds, without failures."""
        runs = (*self.statistics, *self.spike_statistics)
        return max((c.late for run in runs for c in run.classes.values()), default=0.0)


def make_plan(
    problem: PlanningProblem,
    objective: Objective,
    limit_s: float,
    seeds: Sequence[int],
    progress: Progress,
) -> PlanningOutcome:
    """Return the best plan found in time, corrected by simulations so that no class is late.

    ``is_late`` of the result is True if corrections did not suffice.

    Args:
        problem: Service, fleet, models and demand.
        objective: Minimised quantity.
        limit_s: Time limit of the first solution in seconds; corrections take additional time.
        seeds: Seeds of the simulations.
        progress: Receives phases.

    Raises:
        ConfigError: no model keeps the limits of a class.
        BudgetError: a limit leaves demand unserved; the message names it.
    """
    result = find_choices(problem, Goodputs(problem.service.jitter), progress)
    return plan_task(PlanningTask(problem, result, objective), limit_s, seeds, progress)


def plan_task(
    task: PlanningTask, limit_s: float, seeds: Sequence[int], progress: Progress
) -> PlanningOutcome:
    """Return the best plan for a task, corrected by simulations so that no class is late.

    Goodputs of late pools are lowered, and those of pools with headroom are raised. For a large
    task they are raised once, with half of ``limit_s``. The corrections fit ``seeds``, so the plan
    is simulated and corrected again with twice as many other seeds. Arguments are as in
    ``make_plan``.

    Raises:
        BudgetError: a limit leaves demand unserved; the message names it.
    """

    def resolve(solution: Solution, task: PlanningTask, hours: Sequence[int]) -> Solution:
        return solve_again(solution, task, hours, limit_s, progress)

    first = correct(solve_task(task, limit_s, progress), resolve, seeds, progress)
    best = raise_goodputs(
        first, resolve, limit_s / (1 + bool(first.solution.hour_columns)), seeds, progress
    )
    others = range(max(seeds) + 1, max(seeds) + 1 + _CONFIRMING * len(seeds))
    outcomes = [_confirm(best, resolve, others, progress)]
    if best is not first and (outcomes[0].is_late or outcomes[0].plan.value >= first.plan.value):
        outcomes.append(_confirm(first, resolve, others, progress))
    best = min(outcomes, key=lambda outcome: (outcome.is_late, outcome.plan.value))
    # Hours of large tasks are corrected one by one.
    notes, plan = [*best.plan.notes, *exceeded_budgets(best.solution)], best.plan
    kept, every = (min(bound, plan.value) for bound in (plan.bound_kept, plan.bound_all))
    return replace(best, plan=replace(plan, bound_kept=kept, bound_all=every, notes=notes))


def raise_goodputs(
    best: PlanningOutcome,
    resolve: Resolve,
    limit_s: float,
    seeds: Sequence[int],
    progress: Progress,
) -> PlanningOutcome:
    """Return a plan with goodputs raised as simulations allow; ``best`` itself if none is better.

    ``limit_s`` is the time limit of each new solution in seconds.
    """
    if best.is_late:
        return best
    scene = SimulationSetup(arrivals_by_class(best.solution.task.problem))
    for _ in range(1 if best.solution.hour_columns else _LOOSER_ROUNDS):
        task = best.solution.task
        scale = find_headroom(best.solution, best.plan, scene, seeds[0], progress)
        if not scale:
            break
        wider = replace(task, scale={**task.scale, **scale})
        result = solve_task(wider, limit_s, progress)
        if not result.serves or result.value >= best.plan.value * (1 - _GAIN):
            break
        try:
            other = correct(result, resolve, seeds, progress)
        except BudgetError:  # goodputs were lowered below those of ``best``
            break
        if other.plan.value >= best.plan.value or other.is_late:
            break
        best = replace(other, rounds=best.rounds + other.rounds + 1)
    return best


def _confirm(
    outcome: PlanningOutcome, resolve: Resolve, seeds: Sequence[int], progress: Progress
) -> PlanningOutcome:
    """Return a plan corrected with other seeds; marked late if that is infeasible."""
    try:
        other = correct(outcome.solution, resolve, seeds, progress)
    except BudgetError:
        return replace(outcome, is_late=True)
    return replace(other, rounds=outcome.rounds + other.rounds)


def correct(
    solution: Solution,
    resolve: Resolve,
    seeds: Sequence[int],
    progress: Progress,
    only: Sequence[int] | None = None,
) -> PlanningOutcome:
    """Return the plan of a solution, solved again with lower goodputs until no class is late.

    Lateness is simulated, also with the failures that the plan must survive. ``is_late`` of the
    result is True if 12 corrections did not suffice.

    Args:
        solution: Solution.
        resolve: Solves hours of a solution again for a task with lower goodputs.
        seeds: Seeds of the simulations.
        progress: Receives phases.
        only: Indices of the hours to simulate without failures; default: all.

    Raises:
        BudgetError: a limit leaves demand unserved; the message names it.
    """
    rounds, before = 0, None
    runs: Runs = ([], [])
    while True:
        if not solution.serves:
            raise BudgetError(infeasibility.explain_unserved(solution, progress))
        problem = solution.task.problem
        notes = [*untimed_batches(problem.catalogue, problem.fleet), *missing_key_notes(problem)]
        notes += [*ignored_predictions(problem), *problem.notes]
        plan, setup = to_plan(solution, notes), SimulationSetup(arrivals_by_class(problem))
        places = range(len(plan.hours)) if only is None else only
        hours = [plan.hours[i].hours[0] for i in places]
        # Corrections change few hours.
        same_hours = {h for h in hours if before and simulation.is_same_hour(plan, before, h)}
        new_hours = [h for h in hours if h not in same_hours]
        runs = _merge_runs(
            runs, same_hours, simulate_hours(plan, setup, seeds, progress, new_hours)
        )
        before = plan
        late = _late_placements(solution, [*runs[0], *runs[1]])
        is_last = rounds == _ROUNDS
        killed = {}
        if not late or is_last:
            killed = _simulate_failures(solution, plan, setup, seeds[0], progress)
        late |= {
            placement
            for statistics in killed.values()
            for placement in _late_placements(solution, statistics)
        }
        if not late or is_last:
            every = [*runs[0], *runs[1], *(run for group in killed.values() for run in group)]
            is_late = bool(_late_placements(solution, every, LATE))
            return PlanningOutcome(
                plan, solution, runs[0], killed, rounds, runs[1], is_late=is_late
            )
        rounds += 1
        scale = {
            **solution.task.scale,
            **{w: solution.task.scale.get(w, 1.0) * _STEP for w in late},
        }
        lower = replace(solution.task, scale=scale)
        solution = resolve(solution, lower, sorted({i for i, _ in late}))


def simulate_hours(
    plan: DeploymentPlan,
    setup: SimulationSetup,
    seeds: Sequence[int],
    progress: Progress,
    hours: Sequence[int],
) -> Runs:
    """Return the statistics of ``hours`` at the expected demand, and of those with a higher peak.

    There is one entry per hour and seed, see ``simulation.simulate``.
    """
    expected = simulation.simulate(plan, setup, seeds, progress, hours)
    spikes = [h for h in hours if plan.spikes(h)]
    if not spikes:
        return expected, []
    return expected, simulation.simulate(plan, replace(setup, spike=True), seeds, progress, spikes)


def _merge_runs(before: Runs, same_hours: Collection[int], new_runs: Runs) -> Runs:
    """Return former statistics of unchanged hours and new ones of the others."""
    result = [
        sorted([*(run for run in old if run.hour in same_hours), *new], key=lambda run: run.hour)
        for old, new in zip(before, new_runs, strict=True)
    ]
    return result[0], result[1]


def arrivals_by_class(problem: PlanningProblem) -> dict[str, Arrivals]:
    """Return the arrival process of each class, by name of the class."""
    return {
        name: problem.arrivals[process]
        for (name, _), process in zip(problem.classes, problem.process_of, strict=True)
    }


def read_choices(problem: PlanningProblem, progress: Progress) -> PlanChoices:
    """Return the placements and options of a problem, with newly simulated goodputs.

    Raises:
        ConfigError: no model keeps the limits of a class.
    """
    return find_choices(problem, Goodputs(problem.service.jitter), progress)


def _late_placements(
    solution: Solution, statistics: Sequence[HourStatistics], limit: float = WARY
) -> set[tuple[int, int]]:
    """Return (hour index, placement) pairs of classes with a larger late fraction than a limit."""
    task, late = solution.task, set()
    names = [name for name, _ in task.problem.classes]
    o = task.choices.options
    for run in statistics:
        i = int(task.group[run.hour])
        for name, c in run.classes.items():
            if max(c.late, c.late_after) > limit and c.late * c.requests > 1:
                k = names.index(name)
                for _, option, _ in solution.hours[i].flows:
                    if o.request_class[option] == k:
                        late |= {(i, int(q)) for q in (o.first[option], o.second[option]) if q >= 0}
    return late


def _simulate_failures(
    solution: Solution, plan: DeploymentPlan, setup: SimulationSetup, seed: int, progress: Progress
) -> dict[str, Sequence[HourStatistics]]:
    """Return the statistics of the failures to survive, at the peaks."""
    survive, borne = (
        solution.task.problem.service.survive,
        solution.task.problem.load.provisioned_rates,
    )
    peaks = sorted({int(row.argmax()) for row in borne})
    devices = [*plan.devices] if survive.any_one else []
    devices += ["spot"] * bool(survive.all_of)
    return {
        device: simulation.simulate(
            plan, replace(setup, kills=[Kill(device)], spike=True), [seed], progress,
            [h for h in peaks if _is_used(plan, h, device)
             and (h, device) not in solution.task.without_redundancy],
        )
        for device in devices
    }  # fmt: skip


def _is_used(plan: DeploymentPlan, hour: int, device: str) -> bool:
    """Return True if machines of the failing device run in an hour."""
    machines = plan.at(hour).machines
    if device == "spot":
        return any(plan.devices[name].buy == "spot" for name in machines)
    return device in machines
