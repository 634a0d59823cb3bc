"""The search: ask, cost, constrain, score, tell."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hwnas.accuracy.base import Evaluator
from hwnas.cost.base import Cost, CostModel
from hwnas.errors import BudgetError, CompileError
from hwnas.figure import COLUMNS
from hwnas.pareto import non_dominated
from hwnas.progress import Progress
from hwnas.results import Candidate
from hwnas.search.choices import Assignment
from hwnas.search.rival import rival
from hwnas.search.sampler import Known, SamplerConfig, Samplers
from hwnas.search.study import Study
from hwnas.space import Genotype, Option, SearchSpace
from hwnas.target import Budget

# The first trials: genotypes at these fractions of the way from the smallest to the largest. Random
# genotypes gather in the middle of the range of costs; these spread the first front over all of it.
_LADDER = (0.0, 1.0, 0.5, 0.25, 0.75, 0.125, 0.375, 0.625, 0.875)
_REMEMBERED = 100_000  # costs
_UNBUILDABLE = "target"  # name of the constraint that a network meets by running on the target


@dataclass(frozen=True)
class Problem:
    """What is searched for."""

    space: SearchSpace
    budget: Budget
    cost_model: CostModel
    evaluator: Evaluator


def search(
    problem: Problem,
    study: Study,
    sampler: SamplerConfig,
    seed: int,
    n_trials: int,
    progress: Progress,
) -> list[Candidate]:
    """Evaluate candidates until ``n_trials`` are finished, counting those of earlier runs.

    Where costs are not known to the sampler, the first trials go from the smallest genotype (if
    anything fits a budget, it probably does) to the largest. A genotype that comes again is told
    its known figures. Only candidates that fit the target and the budget are scored for accuracy;
    scoring may stop when a candidate is found to be less accurate than one that costs no more.

    Args:
        problem: What is searched for.
        study: Keeps the trials.
        sampler: Which sampler proposes trials.
        seed: Of the sampler.
        n_trials: How many trials there are in the end.
        progress: Is told of every trial.
    """
    known = {candidate.id: candidate for candidate in study.candidates}
    cost = _remembered(problem.cost_model)
    samplers = Samplers(sampler, seed, _known(problem, study, cost))
    with progress.phase("Search", n_trials, len(study.candidates)) as advance:
        for number in range(len(study.candidates), n_trials):
            if sampler.name != "pareto" and number < len(_LADDER):
                study.enqueue(_rung(problem.space, _LADDER[number]))
            trial = study.ask(samplers(number))
            genotype = problem.space.genotype(trial.params)
            if genotype.id in known:
                candidate = _again(known[genotype.id], number)
            else:
                candidate = _evaluate(problem, cost, genotype, number, study)
            known[candidate.id] = candidate
            study.tell(trial, candidate, violations(problem.budget, candidate))
            advance(1)
    return study.candidates


def _rung(space: SearchSpace, fraction: float) -> dict[str, Option]:
    """Return the assignment in which every choice is this far up its options."""
    return {
        name: options[round(fraction * (len(options) - 1))]
        for name, options in space.choices.items()
    }


def violations(budget: Budget, candidate: Candidate) -> dict[str, float]:
    """Return by how much each constraint is violated, as a fraction of its limit; <= 0 fits."""
    if not all(name in candidate.figures for name in budget.limits):
        return {_UNBUILDABLE: 1.0}
    over = budget.violations(candidate.figures)
    unrunnable = bool(candidate.reason) and max(over.values(), default=0.0) <= 0
    return {**over, _UNBUILDABLE: 1.0 if unrunnable else 0.0}


def _remembered(cost_model: CostModel) -> Callable[[Genotype], Cost]:
    """Return a cost model that is asked once for each genotype, by sampler and search."""

    @lru_cache(_REMEMBERED)
    def cost(genotype: Genotype) -> Cost:
        try:
            return replace(cost_model.cost(genotype), layers=())  # many are kept
        except CompileError as error:
            return Cost({}, reason=str(error))

    return cost


def _known(problem: Problem, study: Study, cost: Callable[[Genotype], Cost]) -> Known:
    """Return what a sampler may know of the search."""
    space = problem.space
    names = [name for name in study.objectives if name != "accuracy"]

    def row(assignment: Assignment) -> list[float]:
        found = cost(space.genotype(assignment))
        if found.reason or _over_budget(problem.budget, found):
            return [math.nan] * len(names)
        return [found.figures[name].value for name in names]

    def costs(assignments: Sequence[Assignment]) -> NDArray[np.float64]:
        return np.array([row(assignment) for assignment in assignments]).reshape(-1, len(names))

    affordable = problem.cost_model.n_affordable
    return Known(
        search_space=study.distributions,
        active=lambda assignment: space.genotype(assignment).to_dict(),
        optional=space.optional(),
        costs=None if affordable == 0 else costs,
        n_costs=affordable or None,
        expensive=study.objectives.index("accuracy"),
    )


def _again(known: Candidate, number: int) -> Candidate:
    """Return what is known of a genotype as another trial's."""
    return replace(known, trial=number, right=b"")


def _evaluate(
    problem: Problem,
    costing: Callable[[Genotype], Cost],
    genotype: Genotype,
    number: int,
    study: Study,
) -> Candidate:
    cost = costing(genotype)
    if reason := cost.reason or _over_budget(problem.budget, cost):
        return Candidate(number, genotype, cost.figures, cost.details, reason)
    found = rival(study.candidates, cost.figures, study.objectives)
    score = problem.evaluator.score(genotype, found)
    figures = {"accuracy": score.accuracy, **cost.figures}
    read = {} if score.n_images is None else {"n_images": score.n_images}
    return Candidate(
        number,
        genotype,
        figures,
        {**read, **cost.details},
        stopped=score.stopped,
        right=score.right,
    )


def _over_budget(budget: Budget, cost: Cost) -> str:
    over = [name for name, by in budget.violations(cost.figures).items() if by > 0]
    return "; ".join(
        f"{name} {cost.figures[name].upper:.4g} over budget {budget.limits[name]:g}"
        for name in over
    )


def front(candidates: Sequence[Candidate], objectives: Sequence[str]) -> list[Candidate]:
    """Return the non-dominated feasible candidates, each genotype once, fastest first.

    Only what was read whole is on it.
    """
    distinct = {c.id: c for c in reversed(candidates) if c.state == "complete"}
    feasible = sorted(distinct.values(), key=lambda c: c.trial)
    points = np.array([[c.figures[name].value for name in objectives] for c in feasible])
    mask = non_dominated(points, [COLUMNS[name].maximise for name in objectives])
    members = [c for c, on_front in zip(feasible, mask, strict=True) if on_front]
    return sorted(members, key=lambda c: (c.figures["latency_ms"].value, c.id))


def nothing_fits(candidates: Sequence[Candidate], budget: Budget, folder: str) -> BudgetError:
    """Return the error that names the binding limit and the nearest candidate."""
    with_cost = [c for c in candidates if all(name in c.figures for name in budget.limits)]
    if not with_cost or not budget.limits:
        reasons = {c.reason for c in candidates}
        return BudgetError(
            f"The target can run none of {len(candidates)} candidates, for example: "
            f"{min(reasons)} Everything tried is in {folder}."
        )
    nearest = min(with_cost, key=lambda c: max(violations(budget, c).values()))
    over = budget.violations(nearest.figures)
    limit = max(over, key=lambda name: over[name])
    value = nearest.figures[limit].upper
    if over[limit] <= 0:  # within the budget, but the target cannot run it
        detail = f"the nearest, {nearest.id}, fits the limits but: {nearest.reason}."
    else:
        detail = (
            f"the binding limit is budget.{limit}={budget.limits[limit]:g}: the nearest candidate, "
            f"{nearest.id}, needs {value:.4g}."
        )
    return BudgetError(
        f"None of {len(candidates)} candidates meets the budget; {detail} "
        f"Everything tried is in {folder}."
    )
