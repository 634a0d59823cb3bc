"""The search loop: ask for a genotype, compute its costs, check constraints, score it, tell."""

import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import Trial

from hwnas.core.errors import (
    BudgetError,
    CollapseError,
    CompileError,
    DeviceCrashError,
    UnfinishedError,
)
from hwnas.core.progress import Progress, TimeLimitReached, stop_trainings
from hwnas.core.quantity import Quantities
from hwnas.hardware.costs.cost_model import Cost, CostModel
from hwnas.models.graph import Graph
from hwnas.models.spaces import Genotype, Option, Space
from hwnas.nas import early_exits
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import incumbent
from hwnas.nas.options import SamplerConfig
from hwnas.nas.pareto.features import Assignment, summary_features, work_features
from hwnas.nas.pareto.sampler import ParetoSampler
from hwnas.nas.pareto.selection import Costs
from hwnas.nas.samplers import RunSampler
from hwnas.nas.targets import binding_words, cost_words
from hwnas.tasks.metrics import costs_in, expected_costs, metric_of, quality_in
from hwnas.tasks.metrics.budget import Budget
from hwnas.tasks.predictions import Predictions
from hwnas.training.evaluation.interfaces import Evaluator

# Positions of the initial designs between the smallest genotype (0) and the largest (1). Random
# genotypes concentrate at medium costs; these cover the whole range of costs.
_INITIAL_POSITIONS = (0.0, 1.0, 0.5, 0.25, 0.75, 0.125, 0.375, 0.625, 0.875)

_MIN_COLLAPSED = 5  # collapsed trainings without a success after which the search is aborted
_MAX_CACHED_COSTS = 100_000
_MAX_CACHED_GRAPHS = 1_000  # graphs are larger than costs
# Candidates per proposal whose mean cost with early exits is estimated from similar networks.
_N_EXIT_ESTIMATES = 40
_UNBUILDABLE = "target"  # name of the constraint "the target can run the network"


def initial_assignments(space: Space) -> list[dict[str, Option]]:
    """Return the assignments of the first trials: smallest genotype, largest, then some between.

    A union of spaces has the smallest and the largest genotype of each of its spaces; the
    assignments between them are shared among the spaces. There are nine, or more for many spaces.
    """
    if not space.root:
        return [_at_position(space, position) for position in _INITIAL_POSITIONS]
    distinct: dict[str, dict[str, Option]] = {}
    for position in _INITIAL_POSITIONS:
        for member in space.members:
            assignment = {**_at_position(space, position), space.root: member.name}
            distinct.setdefault(space.genotype(assignment).id, assignment)
    return list(distinct.values())[: max(len(_INITIAL_POSITIONS), 2 * len(space.members))]


def _at_position(space: Space, position: float) -> dict[str, Option]:
    """Return the assignment that takes the option at ``position`` (0 to 1) of every choice."""
    return {
        name: options[round(position * (len(options) - 1))]
        for name, options in space.choices.items()
    }


class CandidateLimits(Protocol):
    """Decides whether a candidate is scored: one ``Budget``, or the budgets of several targets."""

    @property
    def limits(self) -> Mapping[str, float]:
        """Limits by column, upper ones, and lower ones of maximised quantities."""
        ...

    def violations(self, figures: Quantities) -> dict[str, float]:
        """Return the violation of each limit as a fraction of it; feasible if all are <= 0."""
        ...

    def met(self, figures: Quantities) -> frozenset[str]:
        """Return the names of the targets whose budgets a candidate meets."""
        ...

    def exceeded(self, figures: Quantities) -> str:
        """Return a description of the exceeded limits; empty if the candidate is feasible."""
        ...


@dataclass(frozen=True)
class SearchProblem:
    """Search space, constraints, cost model and evaluator of a search."""

    space: Space
    budget: CandidateLimits
    cost_model: CostModel
    evaluator: Evaluator
    first: tuple[Genotype, ...] = ()  #: the first trials, for every sampler
    #: Maps a genotype to its graph, used for summary features and to predict training time.
    #: ``None`` disables both.
    lower: Callable[[Genotype], Graph] | None = None
    #: Returns the predictions of every exit of a scored network. Set only if an objective or a
    #: limit is an expected cost (``expected_latency_ms``, ...).
    exit_predictions: Callable[[Genotype], Sequence[Predictions]] | None = None


class TrialStorage(Protocol):
    """Stores the trials of a search: for one process, or shared by several (``SharedStudy``)."""

    objectives: tuple[str, ...]  #: columns, in the order of the study's objectives
    distributions: dict[str, BaseDistribution]  #: by name of the choice
    candidates: list[Candidate]  #: results of finished trials, in order of trials

    def find(self, genotype: Genotype) -> Candidate | None:
        """Return the result of an earlier trial of a genotype; ``None`` if there is none."""
        ...

    def ask(self, sampler: BaseSampler, n_trials: int) -> Trial | None:
        """Return the next trial to evaluate; ``None`` if ``n_trials`` are finished."""
        ...

    def tell(self, trial: Trial, candidate: Candidate, violations: Mapping[str, float]) -> None:
        """Store the result of a trial; violations are by name of the limit, feasible if <= 0."""
        ...


def run_trials(  # noqa: PLR0913, PLR0917
    problem: SearchProblem,
    study: TrialStorage,
    config: SamplerConfig,
    seed: int,
    n_trials: int,
    progress: Progress,
    end_by: float = math.inf,
) -> list[Candidate]:
    """Evaluate candidates until this and other processes have finished ``n_trials``; return all.

    Samplers other than ``pareto`` start with ``initial_assignments``, unless ``problem.first`` is
    set. A repeated genotype gets the result of its earlier trial. Only feasible candidates are
    scored; scoring may stop early if a candidate is worse than one that costs no more.

    Args:
        problem: The search problem.
        study: The trials.
        config: The sampler.
        seed: Seed of the sampler.
        n_trials: Total number of trials.
        progress: Is notified of every trial.
        end_by: Time in seconds of ``time.monotonic`` at which trials end. A trial is not started
            if half of the median duration exceeds the remaining time. A training that exceeds the
            limit by half of the median is stopped, without a result.
            With a limit, the ``pareto`` sampler maximises expected gain per second.

    Raises:
        CollapseError: a training collapsed, no candidate is scored completely, and five or more
            earlier candidates met the budget.
    """
    cost = _cached_cost(problem.cost_model)
    first = [] if config.name == "pareto" else initial_assignments(problem.space)
    if problem.first:
        first = [_complete_assignment(problem.space, genotype) for genotype in problem.first]
    is_timed = math.isfinite(end_by)
    pareto = _pareto_sampler(problem, study, cost, seed, config.n_startup_trials, is_timed=is_timed)
    sampler = RunSampler(config, seed, study.distributions, pareto, first)
    n_shown, durations = len(study.candidates), [0.0]
    with progress.phase("Search", n_trials, n_shown, end_by - time.monotonic()) as advance:
        while (start := time.monotonic()) + median(durations) / 2 < end_by and (
            trial := study.ask(sampler, n_trials)
        ) is not None:
            genotype = problem.space.genotype(trial.params)
            known = study.find(genotype)
            if known is not None:
                candidate = replace(known, trial=trial.number, per_image=b"")
            else:
                try:
                    with stop_trainings(end_by + median(durations) / 2):
                        candidate = _evaluate(problem, cost, genotype, trial.number, study)
                except TimeLimitReached:
                    break
            study.tell(trial, candidate, violations(problem.budget, candidate))
            durations.append(time.monotonic() - start)
            advance(len(study.candidates) - n_shown)
            n_shown = len(study.candidates)
    return list(study.candidates)


def _complete_assignment(space: Space, genotype: Genotype) -> dict[str, Option]:
    """Return the assignment of a genotype; choices without effect get their first option."""
    return {n: options[0] for n, options in space.choices.items()} | space.assignment(genotype)


def violations(budget: CandidateLimits, candidate: Candidate) -> dict[str, float]:
    """Return the violation of each limit as a fraction of it, by name; feasible if all are <= 0.

    The additional key ``target`` is 1 if a candidate within the limits is infeasible, for example
    because the target cannot run it, else 0. It is the only key if a limited quantity is unknown.
    """
    if not all(name in candidate.figures for name in budget.limits):
        return {_UNBUILDABLE: 1.0}
    over = budget.violations(candidate.figures)
    unrunnable = bool(candidate.reason) and max(over.values(), default=0.0) <= 0
    return {**over, _UNBUILDABLE: 1.0 if unrunnable else 0.0}


def _cached_cost(cost_model: CostModel) -> Callable[[Genotype], Cost]:
    """Return a cost function that calls the cost model once per genotype."""

    @lru_cache(_MAX_CACHED_COSTS)
    def cost(genotype: Genotype) -> Cost:
        try:
            return replace(cost_model.cost(genotype), layers=())  # layers would take much memory
        except (CompileError, DeviceCrashError) as error:  # of this network only
            return Cost({}, reason=str(error))

    return cost


def _pareto_sampler(
    problem: SearchProblem,
    study: TrialStorage,
    cost: Callable[[Genotype], Cost],
    seed: int,
    n_startup: int,
    *,
    is_timed: bool,
) -> ParetoSampler:
    """Return the ``pareto`` sampler of a search, with all that is known before any evaluation."""
    space = problem.space
    max_queries = problem.cost_model.max_cost_queries
    if max_queries is None and expected_costs(study.objectives):
        max_queries = _N_EXIT_ESTIMATES
    summary = work = None
    if problem.lower is not None:
        lower = lru_cache(_MAX_CACHED_GRAPHS)(problem.lower)  # shared: both need the same graph
        summary = summary_features(space, lower)
        work = work_features(space, lower) if is_timed else None
    return ParetoSampler(
        None if max_queries == 0 else _costs(problem, study, cost),
        seed=seed,
        search_space=study.distributions,
        active=lambda assignment: space.assignment(space.genotype(assignment)),
        optional=space.optional(),
        root=space.root,
        scope=space.scope,
        expensive=study.objectives.index(quality_in(study.objectives)),
        n_startup=n_startup,
        n_costs=max_queries or None,
        work=work,
        summary=summary,
    )


def _costs(problem: SearchProblem, study: TrialStorage, cost: Callable[[Genotype], Cost]) -> Costs:
    """Return a function from assignments to costs to be minimised; NaN if infeasible."""
    names = costs_in(study.objectives)
    signs = [-1.0 if metric_of(name).maximise else 1.0 for name in names]
    full = [metric_of(name).mean_of or name for name in names]
    fraction = _exit_fraction(problem, study)

    def row(assignment: Assignment) -> list[float]:
        genotype = problem.space.genotype(assignment)
        result = cost(genotype)
        unknown = not all(name in result.figures for name in full)
        if unknown or result.reason or problem.budget.exceeded(result.figures):
            return [math.nan] * len(names)
        values = [result.figures[name].value for name in full]
        parts = [fraction(genotype, name) if metric_of(name).mean_of else 1.0 for name in names]
        return [s * v * part for s, v, part in zip(signs, values, parts, strict=True)]

    def costs(assignments: Sequence[Assignment]) -> NDArray[np.float64]:
        return np.array([row(assignment) for assignment in assignments]).reshape(-1, len(names))

    return costs


def _exit_fraction(problem: SearchProblem, study: TrialStorage) -> Callable[[Genotype, str], float]:
    """Return an estimate of expected cost divided by full cost of an untrained network.

    It is the median over scored networks with the same exits, and 1 without exits.
    """

    @lru_cache(_MAX_CACHED_COSTS)
    def exits_of(genotype: Genotype) -> tuple[str, ...]:
        return () if problem.lower is None else problem.lower(genotype).exits

    def fraction(genotype: Genotype, name: str) -> float:
        exits, full = exits_of(genotype), metric_of(name).mean_of
        similar = [
            c.figures[name].value / c.figures[full].value
            for c in study.candidates
            if c.state != "infeasible" and exits_of(c.genotype) == exits
        ]
        return median(similar) if exits and similar else 1.0

    return fraction


def _evaluate(
    problem: SearchProblem,
    costing: Callable[[Genotype], Cost],
    genotype: Genotype,
    number: int,
    study: TrialStorage,
) -> Candidate:
    cost, has_exits = costing(genotype), problem.exit_predictions is not None
    if reason := cost.reason or problem.budget.exceeded(cost.figures):
        expected = early_exits.costs_without_exits(cost.figures) if has_exits else {}
        return Candidate(number, genotype, {**cost.figures, **expected}, cost.details, reason)
    met = problem.budget.met(cost.figures)
    complete = [c for c in study.candidates if c.state == "complete"]
    rival = None  # expected costs are known only after a complete training
    if not has_exits:
        comparable = [c for c in complete if met <= problem.budget.met(c.figures)]
        rival = incumbent(comparable, cost.figures, study.objectives)
    try:
        score = problem.evaluator.score(genotype, rival)
    except CollapseError as error:
        fitting = [c for c in study.candidates if not problem.budget.exceeded(c.figures)]
        if not complete and len(fitting) >= _MIN_COLLAPSED:  # the training recipe is the cause
            raise
        return Candidate(number, genotype, cost.figures, cost.details, str(error))
    figures = {quality_in(study.objectives): score.figure, **cost.figures}
    if problem.exit_predictions is not None:
        predictions = {"validation": problem.exit_predictions(genotype)}
        figures |= early_exits.expected(cost.figures, cost.segments, predictions)
    n_images = {} if score.n_images is None else {"n_images": score.n_images}
    return Candidate(
        number,
        genotype,
        figures,
        {**n_images, **score.details, **cost.details},
        problem.budget.exceeded(figures),
        stopped=score.stopped,
        per_image=score.per_image,
    )


def no_feasible_candidate(
    candidates: Sequence[Candidate], budget: Budget, folder: str
) -> BudgetError:
    """Return the error of a search without feasible candidates.

    Its message has the limit that the nearest candidate misses most, or the reason of a candidate.

    Args:
        candidates: All candidates.
        budget: Limits of the target.
        folder: Folder with ``candidates.parquet``, for the message.
    """
    if not candidates:
        return UnfinishedError(
            "The time limit ended before a candidate was scored. Measurements of the target are "
            f"kept. Continue with more time: "
            f"hwnas resume {shlex.quote(folder)} minutes=NUMBER"
        )
    with_cost = [c for c in candidates if all(name in c.figures for name in budget.limits)]
    if not with_cost or not budget.limits:
        reasons = {c.reason for c in candidates}
        can_run = any(c.figures for c in candidates)
        return BudgetError(
            f"{'None could be scored' if can_run else 'The target can run none'} of "
            f"{len(candidates)} candidates, for example: {min(reasons).rstrip('.')}. "
            f"{'Correct this, or choose' if can_run else 'Choose'} another search_space or target. "
            f"All candidates are in {folder}."
        )
    nearest = min(with_cost, key=lambda c: max(violations(budget, c).values()))
    over = budget.violations(nearest.figures)
    limit = max(over, key=lambda name: over[name])
    value = metric_of(limit).binding(nearest.figures[limit])
    if over[limit] <= 0:  # within the budget, but the target cannot run it
        detail = f"the nearest, {nearest.id}, meets the limits but: {nearest.reason.rstrip('.')}."
    else:
        detail = (
            f"{binding_words(limit, budget.limits[limit])} the nearest candidate, {nearest.id}, "
            f"{cost_words(limit, value)}."
        )
    return BudgetError(
        f"None of {len(candidates)} candidates meets the budget; {detail} "
        f"Relax the budget or choose another search_space. All candidates are in {folder}."
    )
