"""The planner: solve, simulate, correct goodputs where answers come late, and solve again."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hwnas.core.errors import BudgetError
from hwnas.core.progress import Progress
from hwnas.fleet import infeasibility, simulation
from hwnas.fleet.demand import Arrivals
from hwnas.fleet.hours import Flow, sent
from hwnas.fleet.model_sources import unmeasured
from hwnas.fleet.placements import Goodputs
from hwnas.fleet.plan import DeploymentPlan
from hwnas.fleet.plan_conversion import as_plan
from hwnas.fleet.problem import PlanningProblem, counted_as_nothing, unheard
from hwnas.fleet.routes import PlanChoices, choices
from hwnas.fleet.simulation import (
    WARY,
    ClassStatistics,
    HourStatistics,
    Kill,
    SimulationSetup,
    simulate_hour,
)
from hwnas.fleet.solver import Solution, again, solution
from hwnas.fleet.task import Objective, PlanningTask

# Headroom: how much more the pools of a plan take than their goodputs say, as simulations see it.
#
# Goodputs hold for any pool of a size to which all requests of a kind go. In a plan pools share
# them,
# and take those of several classes, whose bursts do not come together.

_LOADS = (1.04, 1.08, 1.15, 1.25, 1.4, 1.6, 1.8, 2.0, 2.3, 2.6, 3.0)  # times what comes
_MORE = 1.01  # a station that takes hardly more stays as it is

Scale = dict[tuple[int, int], float]  #: of goodputs, by place of the hour and station


def looser(
    found: Solution, plan: DeploymentPlan, scene: SimulationSetup, seed: int, progress: Progress
) -> Scale:
    """Return higher goodputs of stations that a plan uses, where simulations see that they hold.

    Args:
        found: The solution.
        plan: The same as a plan: as many hours, in their order.
        scene: How requests come.
        seed: Of the simulations.
        progress: Is told of the phase.
    """
    scale: Scale = {}
    with progress.phase("Headroom", len(plan.hours)) as advance:
        for i, of in enumerate(plan.hours):
            borne = _borne(plan, of.hours[0], scene, seed)
            scale |= _of_hour(found, i, borne)
            advance(1)
    return scale


def _borne(plan: DeploymentPlan, hour: int, scene: SimulationSetup, seed: int) -> dict[str, float]:
    def seen(load: float) -> Mapping[str, ClassStatistics]:
        heavier = replace(scene, load=load, spike=plan.spikes(hour))
        return simulate_hour(plan, hour, heavier, seed).classes

    return loads_borne(seen)


def loads_borne(seen: Callable[[float], Mapping[str, ClassStatistics]]) -> dict[str, float]:
    """Return how many times its demand each class bears, all together; as far as was looked.

    Args:
        seen: Gives what a simulation sees of classes at so many times what comes.
    """
    borne: dict[str, float] = {}
    late: set[str] = set()
    for load in _LOADS:
        classes = seen(load)
        late |= {name for name, c in classes.items() if c.late > WARY}
        borne |= dict.fromkeys({*classes} - late, load)
        if late == {*classes}:
            break
    return borne


def _of_hour(found: Solution, i: int, borne: Mapping[str, float]) -> Scale:
    """Return higher goodputs of the stations of an hour: of what its replicas were seen to take.

    Args:
        found: The solution.
        i: The place of the hour.
        borne: Times what comes that each class bears.
    """
    task, hour, scale = found.task, found.hours[i], Scale()
    loads, rates = _loads(task, hour.flows, borne), sent(task, hour.flows)[0]
    for row in hour.pools:
        q = row.station
        takes = loads.get(q, 1.0) * rates[q] / row.replicas
        more = takes / task.goodput(i, q, row.variant)
        if more > _MORE:
            scale[i, q] = task.scale.get((i, q), 1.0) * more
    return scale


def _loads(
    task: PlanningTask, flows: Sequence[Flow], borne: Mapping[str, float]
) -> dict[int, float]:
    """Return how many times what comes stations bear: what all classes do that they serve."""
    o, loads = task.choices.options, dict[int, float]()
    names = [name for name, _ in task.problem.classes]
    for s, option, _ in flows:
        load = borne.get(names[o.klass[option]], 1.0)
        for q in (int(o.first[option]), int(o.second[option])):
            if q >= 0 and s == 0:
                loads[q] = min(loads.get(q, np.inf), load)
    return loads


_ROUNDS = 12  # of corrections: each takes a twentieth at least of a goodput
_STEP = 0.95
_CONFIRMING = 2  # times as many seeds as corrections had
_LOOSER_ROUNDS, _GAIN = 6, 1e-3  # of higher goodputs; and what they must bring

Runs = tuple[list[HourStatistics], list[HourStatistics]]  #: of hours, and of spikes
Resolve = Callable[[Solution, PlanningTask, Sequence[int]], Solution]


@dataclass(frozen=True)
class PlanningOutcome:
    """A plan, and what its simulations saw."""

    plan: DeploymentPlan
    solution: Solution
    seen: Sequence[HourStatistics]
    killed: Mapping[str, Sequence[HourStatistics]]  #: by what failed
    rounds: int  #: of corrections
    spiked: Sequence[HourStatistics] = ()  #: what they saw of spikes, in hours that have one
    is_late: bool = False  #: whether requests come late still, after all corrections

    @property
    def late(self) -> float:
        """The largest share of late requests that was seen of a class in an hour."""
        runs = (*self.seen, *self.spiked)
        return max((c.late for seen in runs for c in seen.classes.values()), default=0.0)


def planned(
    problem: PlanningProblem,
    objective: Objective,
    limit_s: float,
    seeds: Sequence[int],
    progress: Progress,
) -> PlanningOutcome:
    """Return the best plan that is found, corrected until no class is late in any hour.

    Args:
        problem: What is asked for, and what there is.
        objective: What is made as small as can be.
        limit_s: Seconds that the first solution may take.
        seeds: Of the simulations.
        progress: Is told of phases.

    Raises:
        ConfigError: no model fits a class.
        BudgetError: a limit leaves demand unserved; it says which.
    """
    found = choices(problem, Goodputs(problem.service.jitter), progress)
    return planned_of(PlanningTask(problem, found, objective), limit_s, seeds, progress)


def planned_of(
    task: PlanningTask, limit_s: float, seeds: Sequence[int], progress: Progress
) -> PlanningOutcome:
    """Return the best plan for a task; as ``planned``.

    Goodputs are lowered where answers come late, and raised where simulations see that pools take
    more: once where a plan takes long to solve, in half of the time. What was corrected until its
    simulations were just in time is simulated with other seeds in the end, twice as many: of
    several hours and classes, one is soon in time by chance.
    """

    def resolve(found: Solution, task: PlanningTask, hours: Sequence[int]) -> Solution:
        return again(found, task, hours, limit_s, progress)

    first = corrected(solution(task, limit_s, progress), resolve, seeds, progress)
    best = loosened(first, resolve, limit_s / (1 + bool(first.solution.kept)), seeds, progress)
    others = range(max(seeds) + 1, max(seeds) + 1 + _CONFIRMING * len(seeds))
    found = [_confirmed(best, resolve, others, progress)]
    if best is not first and (found[0].is_late or found[0].plan.value >= first.plan.value):
        found.append(_confirmed(first, resolve, others, progress))
    best = min(found, key=lambda each: (each.is_late, each.plan.value))
    bound = min(best.plan.bound_kept, best.plan.value)
    return replace(best, plan=replace(best.plan, bound_kept=bound))


def loosened(
    best: PlanningOutcome,
    resolve: Resolve,
    limit_s: float,
    seeds: Sequence[int],
    progress: Progress,
) -> PlanningOutcome:
    """Return a plan with goodputs as its simulations see them, if it is a better one.

    Args:
        best: The plan, as it is.
        resolve: As of ``corrected``.
        limit_s: Seconds that each solution may take.
        seeds: Of the simulations.
        progress: Is told of phases.
    """
    if best.is_late:
        return best
    scene = SimulationSetup(arrivals(best.solution.task.problem))
    for _ in range(1 if best.solution.kept else _LOOSER_ROUNDS):
        task = best.solution.task
        scale = looser(best.solution, best.plan, scene, seeds[0], progress)
        if not scale:
            break
        wider = replace(task, scale={**task.scale, **scale})
        found = solution(wider, limit_s, progress)
        if not found.serves or found.value >= best.plan.value * (1 - _GAIN):
            break
        try:
            other = corrected(found, resolve, seeds, progress)
        except BudgetError:  # goodputs were corrected to below those of the plan that there is
            break
        if other.plan.value >= best.plan.value or other.is_late:
            break
        best = replace(other, rounds=best.rounds + other.rounds + 1)
    return best


def _confirmed(
    found: PlanningOutcome, resolve: Resolve, seeds: Sequence[int], progress: Progress
) -> PlanningOutcome:
    """Return a plan corrected by other seeds; one that counts as late where there is none."""
    try:
        other = corrected(found.solution, resolve, seeds, progress)
    except BudgetError:
        return replace(found, is_late=True)
    return replace(other, rounds=found.rounds + other.rounds)


def corrected(
    found: Solution,
    resolve: Resolve,
    seeds: Sequence[int],
    progress: Progress,
    only: Sequence[int] | None = None,
) -> PlanningOutcome:
    """Return a solution as a plan, solved again with lower goodputs until nothing is late.

    Args:
        found: The solution.
        resolve: Solves hours of a solution again, as a task with lower goodputs.
        seeds: Of the simulations.
        progress: Is told of phases.
        only: Places of the hours that are simulated; default: all.

    Raises:
        BudgetError: a limit leaves demand unserved; it says which.
    """
    rounds, before = 0, None
    runs: Runs = ([], [])
    while True:
        if not found.serves:
            raise BudgetError(infeasibility.refusal(found, progress))
        problem = found.task.problem
        notes = [*unmeasured(problem.catalogue, problem.fleet), *counted_as_nothing(problem)]
        notes += [*unheard(problem), *problem.notes]
        plan, scene = as_plan(found, notes), SimulationSetup(arrivals(problem))
        places = range(len(plan.hours)) if only is None else only
        hours = [plan.hours[i].hours[0] for i in places]
        # Corrections leave most hours as they were.
        kept = {h for h in hours if before and simulation.is_alike(plan, before, h)}
        anew = [h for h in hours if h not in kept]
        runs = _of(runs, kept, simulated(plan, scene, seeds, progress, anew))
        before = plan
        late = _late(found, [*runs[0], *runs[1]])
        killed = {} if late else _killed(found, plan, scene, seeds[0], progress)
        late |= {where for each in killed.values() for where in _late(found, each)}
        if not late or rounds == _ROUNDS:
            return PlanningOutcome(
                plan, found, runs[0], killed, rounds, runs[1], is_late=bool(late)
            )
        rounds += 1
        scale = {**found.task.scale, **{w: found.task.scale.get(w, 1.0) * _STEP for w in late}}
        lower = replace(found.task, scale=scale)
        found = resolve(found, lower, sorted({i for i, _ in late}))


def simulated(
    plan: DeploymentPlan,
    scene: SimulationSetup,
    seeds: Sequence[int],
    progress: Progress,
    hours: Sequence[int],
) -> Runs:
    """Return what simulations of hours see, and what they see of spikes in those that have one."""
    seen = simulation.simulate(plan, scene, seeds, progress, hours)
    spikes = [h for h in hours if plan.spikes(h)]
    if not spikes:
        return seen, []
    return seen, simulation.simulate(plan, replace(scene, spike=True), seeds, progress, spikes)


def _of(before: Runs, kept: Collection[int], anew: Runs) -> Runs:
    """Return what was seen before of hours that are kept, and what was seen anew of others."""
    found = [
        sorted([*(run for run in old if run.hour in kept), *new], key=lambda run: run.hour)
        for old, new in zip(before, anew, strict=True)
    ]
    return found[0], found[1]


def arrivals(problem: PlanningProblem) -> dict[str, Arrivals]:
    """Return how requests of each class come."""
    return {
        name: problem.arrivals[process]
        for (name, _), process in zip(problem.classes, problem.process_of, strict=True)
    }


def choices_of(problem: PlanningProblem, progress: Progress) -> PlanChoices:
    """Return what a plan chooses from."""
    return choices(problem, Goodputs(problem.service.jitter), progress)


def _late(found: Solution, seen: Sequence[HourStatistics]) -> set[tuple[int, int]]:
    """Return places of hours and stations whose requests come late too often."""
    task, late = found.task, set()
    names = [name for name, _ in task.problem.classes]
    o = task.choices.options
    for each in seen:
        i = int(task.group[each.hour])
        for name, c in each.classes.items():
            if max(c.late, c.late_after) > WARY and c.late * c.requests > 1:
                k = names.index(name)
                for _, option, _ in found.hours[i].flows:
                    if o.klass[option] == k:
                        late |= {(i, int(q)) for q in (o.first[option], o.second[option]) if q >= 0}
    return late


def _killed(
    found: Solution, plan: DeploymentPlan, scene: SimulationSetup, seed: int, progress: Progress
) -> dict[str, Sequence[HourStatistics]]:
    """Return what failures do in the hours of the peaks that a plan must survive."""
    survive, borne = found.task.problem.service.survive, found.task.problem.load.borne
    peaks = sorted({int(row.argmax()) for row in borne})
    whats = [*plan.devices] if survive.any_one else []
    whats += ["spot"] * bool(survive.all_of)
    return {
        what: simulation.simulate(
            plan, replace(scene, kills=[Kill(what)]), [seed], progress,
            [h for h in peaks if _has(plan, h, what) and (h, what) not in found.task.unspared],
        )
        for what in whats
    }  # fmt: skip


def _has(plan: DeploymentPlan, hour: int, what: str) -> bool:
    """Return whether there is in an hour what is to fail."""
    machines = next(each for each in plan.hours if hour in each.hours).machines
    if what == "spot":
        return any(plan.devices[name].buy == "spot" for name in machines)
    return what in machines
