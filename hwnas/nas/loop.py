"""The search: ask, cost, constrain, score, tell."""

import math
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

from hwnas.core.errors import BudgetError, CollapseError, CompileError
from hwnas.core.progress import Progress
from hwnas.core.quantity import Quantities
from hwnas.hardware.costs.cost_model import Cost, CostModel
from hwnas.models.graph import Graph
from hwnas.models.spaces import Genotype, Option, Space
from hwnas.nas import early_exits
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import incumbent
from hwnas.nas.options import SamplerConfig
from hwnas.nas.pareto import network_summary
from hwnas.nas.pareto.features import Assignment
from hwnas.nas.samplers import RunSampler, SamplerContext
from hwnas.tasks.metrics import column, means, paid, quality
from hwnas.tasks.metrics.budget import Budget
from hwnas.tasks.predictions import ExitPredictionRecord
from hwnas.training.evaluation.base import Evaluator

# The first trials of samplers that know no costs: from the smallest genotype to the largest.

# The first trials: genotypes at these fractions of the way from the smallest to the largest. Random
# genotypes gather in the middle of the range of costs; these spread the first front over all of it.
_LADDER = (0.0, 1.0, 0.5, 0.25, 0.75, 0.125, 0.375, 0.625, 0.875)


def rungs(space: Space) -> list[dict[str, Option]]:
    """Return the assignments of the first trials; of several spaces, each has its share.

    Each has its smallest and its largest genotype; there are more only as far as ``_LADDER`` goes.
    """
    if not space.root:
        return [_rung(space, fraction) for fraction in _LADDER]
    found: dict[str, dict[str, Option]] = {}
    for fraction in _LADDER:
        for member in space.members:
            rung = {**_rung(space, fraction), space.root: member.name}
            found.setdefault(space.genotype(rung).id, rung)
    return list(found.values())[: max(len(_LADDER), 2 * len(space.members))]


def _rung(space: Space, fraction: float) -> dict[str, Option]:
    """Return the assignment in which every choice is this far up its options."""
    return {
        name: options[round(fraction * (len(options) - 1))]
        for name, options in space.choices.items()
    }


_COLLAPSED = 5  # candidates of which none was trained: others will not be, either
_REMEMBERED = 100_000  # costs
_RECENT = 1_000  # graphs, which are larger
# Candidates of a proposal whose costs of images that leave early are guessed; those of the others
# are modelled by what trained ones came to.
_GUESSED = 40
_UNBUILDABLE = "target"  # name of the constraint that a network meets by running on the target


class CandidateLimits(Protocol):
    """What says whether a candidate is worth being scored: one ``Budget``, or those of targets."""

    @property
    def limits(self) -> Mapping[str, float]:
        """Limits by column: upper ones, and lower ones of what is to be maximised."""
        ...

    def violations(self, figures: Quantities) -> dict[str, float]:
        """Return how far a candidate is beyond each limit, as a fraction of it; <= 0 fits."""
        ...

    def met(self, figures: Quantities) -> frozenset[str]:
        """Return the names of the budgets that a candidate fits."""
        ...

    def exceeded(self, figures: Quantities) -> str:
        """Return which limits a candidate is beyond, in words; empty if it fits."""
        ...


@dataclass(frozen=True)
class SearchProblem:
    """What is searched for."""

    space: Space
    budget: CandidateLimits
    cost_model: CostModel
    evaluator: Evaluator
    first: tuple[Genotype, ...] = ()  #: the first trials, whatever the sampler
    #: Operators of a network, which sum it up and say how long it trains; none: nothing does.
    lower: Callable[[Genotype], Graph] | None = None
    #: What exits of a scored network answer, and its end, where means over images that leave early
    #: are asked for; none: nobody asks.
    heard: Callable[[Genotype], Sequence[ExitPredictionRecord]] | None = None


class TrialStorage(Protocol):
    """Keeps the trials of a search: in a process of its own, or for many (``SharedStudy``)."""

    objectives: tuple[str, ...]
    distributions: dict[str, BaseDistribution]
    candidates: list[Candidate]  #: what became of finished trials, in their order

    @property
    def spent_s(self) -> float:
        """The seconds that trials took, by the clock, however many processes worked on them."""
        ...

    def find(self, genotype: Genotype) -> Candidate | None:
        """Return what became of a genotype, if it was tried before."""
        ...

    def ask(self, sampler: BaseSampler, n_trials: int) -> Trial | None:
        """Return the next trial; none where ``n_trials`` are finished."""
        ...

    def tell(self, trial: Trial, candidate: Candidate, violations: Mapping[str, float]) -> None:
        """Keep what became of a trial."""
        ...


def run_trials(  # noqa: PLR0913, PLR0917
    problem: SearchProblem,
    study: TrialStorage,
    sampler: SamplerConfig,
    seed: int,
    n_trials: int,
    progress: Progress,
    limit_s: float = math.inf,
) -> list[Candidate]:
    """Evaluate candidates until ``n_trials`` are finished, by this process or others.

    Where costs are not known to the sampler, the first trials go from the smallest genotype (if
    anything fits a budget, it probably does) to the largest. A genotype that comes again is told
    its known figures. Only candidates that fit the target and the budget are scored;
    scoring may stop when a candidate is found to be worse than one that costs no more. Where
    the time is limited, a sampler that can looks for gains for each second.

    Args:
        problem: What is searched for.
        study: Keeps the trials.
        sampler: Which sampler proposes trials.
        seed: Of the sampler.
        n_trials: How many trials there are in the end.
        progress: Is told of every trial.
        limit_s: Seconds after which no other trial is begun, by any process.
    """
    cost = _remembered(problem.cost_model)
    ladder = rungs(problem.space)
    first = [] if sampler.name == "pareto" else ladder
    if problem.first:
        first = [_whole(problem.space, genotype) for genotype in problem.first]
    known = _known(problem, study, cost)
    if problem.lower is not None:
        lower = lru_cache(_RECENT)(
            problem.lower
        )  # for both: the one is asked right after the other
        known = replace(known, summary=network_summary.summary(problem.space, lower))
        if math.isfinite(limit_s):
            known = replace(known, work=network_summary.work(problem.space, lower))
    run_sampler = RunSampler(sampler, seed, known, first)
    shown = len(study.candidates)
    with progress.phase("Search", n_trials, shown, limit_s - study.spent_s) as advance:
        while study.spent_s < limit_s and (trial := study.ask(run_sampler, n_trials)) is not None:
            genotype = problem.space.genotype(trial.params)
            earlier = study.find(genotype)
            if earlier is not None:
                candidate = _again(earlier, trial.number)
            else:
                candidate = _evaluate(problem, cost, genotype, trial.number, study)
            study.tell(trial, candidate, violations(problem.budget, candidate))
            advance(len(study.candidates) - shown)
            shown = len(study.candidates)
    return list(study.candidates)


def _whole(space: Space, genotype: Genotype) -> dict[str, Option]:
    """Return a genotype as an assignment of all choices, those without effect, too."""
    any_of = {name: options[0] for name, options in space.choices.items()}
    return any_of | space.assignment(genotype)


def violations(budget: CandidateLimits, candidate: Candidate) -> dict[str, float]:
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


def _known(
    problem: SearchProblem, study: TrialStorage, cost: Callable[[Genotype], Cost]
) -> SamplerContext:
    """Return what a sampler may know of the search."""
    space = problem.space
    names = paid(study.objectives)
    signs = [-1.0 if column(name).maximise else 1.0 for name in names]

    share = _mean_share(problem, study)

    def row(assignment: Assignment) -> list[float]:
        genotype = space.genotype(assignment)
        found = cost(genotype)
        known = {n: column(n).mean_of if problem.heard is not None else "" for n in names}
        whole = [known[name] or name for name in names]
        unknown = not all(name in found.figures for name in whole)
        if unknown or found.reason or problem.budget.exceeded(found.figures):
            return [math.nan] * len(names)
        values = [found.figures[name].value for name in whole]
        parts = [share(genotype, name) if known[name] else 1.0 for name in names]
        return [s * v * part for s, v, part in zip(signs, values, parts, strict=True)]

    def computed(assignments: Sequence[Assignment]) -> NDArray[np.float64]:
        return np.array([row(assignment) for assignment in assignments]).reshape(-1, len(names))

    affordable = problem.cost_model.max_cost_queries
    if problem.heard is not None and means(names) and affordable is None:
        affordable = _GUESSED
    return SamplerContext(
        search_space=study.distributions,
        active=lambda assignment: space.assignment(space.genotype(assignment)),
        optional=space.optional(),
        root=space.root,
        scope=space.scope,
        costs=None if affordable == 0 else computed,
        n_costs=affordable or None,
        expensive=study.objectives.index(quality(study.objectives)),
    )


def _mean_share(problem: SearchProblem, study: TrialStorage) -> Callable[[Genotype, str], float]:
    """Return what is guessed of means over images that leave early, before a network is trained.

    Of the cost of the whole way it is the share that networks with the same exits have; their
    median. Without exits it is all of it.
    """

    @lru_cache(_REMEMBERED)
    def exits_of(genotype: Genotype) -> tuple[str, ...]:
        return () if problem.lower is None else problem.lower(genotype).exits

    def share(genotype: Genotype, name: str) -> float:
        own, whole = exits_of(genotype), column(name).mean_of
        alike = [
            c.figures[name].value / c.figures[whole].value
            for c in study.candidates
            if c.state != "infeasible" and exits_of(c.genotype) == own
        ]
        return median(alike) if own and alike else 1.0

    return share


def _again(known: Candidate, number: int) -> Candidate:
    """Return what is known of a genotype as another trial's."""
    return replace(known, trial=number, per_image=b"")


def _evaluate(
    problem: SearchProblem,
    costing: Callable[[Genotype], Cost],
    genotype: Genotype,
    number: int,
    study: TrialStorage,
) -> Candidate:
    cost = costing(genotype)
    if reason := cost.reason or problem.budget.exceeded(cost.figures):
        most = {} if problem.heard is None else early_exits.to_the_end(cost.figures)
        return Candidate(number, genotype, {**cost.figures, **most}, cost.details, reason)
    met = problem.budget.met(cost.figures)
    complete = [c for c in study.candidates if c.state == "complete"]
    incumbents = [c for c in complete if met <= problem.budget.met(c.figures)]
    found = None  # what it costs images that leave early is known of what is trained to the end
    if problem.heard is None:
        found = incumbent(incumbents, cost.figures, study.objectives)
    try:
        score = problem.evaluator.score(genotype, found)
    except CollapseError as error:
        fitting = [c for c in study.candidates if not problem.budget.exceeded(c.figures)]
        if not complete and len(fitting) >= _COLLAPSED:  # the recipe's fault
            raise
        return Candidate(number, genotype, cost.figures, cost.details, str(error))
    figures = {quality(study.objectives): score.figure, **cost.figures}
    if problem.heard is not None:
        figures |= early_exits.expected(
            cost.figures, cost.segments, {"validation": problem.heard(genotype)}
        )
    read = {} if score.n_images is None else {"n_images": score.n_images}
    return Candidate(
        number,
        genotype,
        figures,
        {**read, **score.details, **cost.details},
        problem.budget.exceeded(figures),
        stopped=score.stopped,
        per_image=score.per_image,
    )


def nothing_fits(candidates: Sequence[Candidate], budget: Budget, folder: str) -> BudgetError:
    """Return the error that names the binding limit and the nearest candidate."""
    with_cost = [c for c in candidates if all(name in c.figures for name in budget.limits)]
    if not with_cost or not budget.limits:
        reasons = {c.reason for c in candidates}
        is_run = any(c.figures for c in candidates)  # but could not be trained
        return BudgetError(
            f"{'None could be scored' if is_run else 'The target can run none'} of "
            f"{len(candidates)} candidates, for example: "
            f"{min(reasons)} Everything tried is in {folder}."
        )
    nearest = min(with_cost, key=lambda c: max(violations(budget, c).values()))
    over = budget.violations(nearest.figures)
    limit = max(over, key=lambda name: over[name])
    value = column(limit).binding(nearest.figures[limit])
    if over[limit] <= 0:  # within the budget, but the target cannot run it
        detail = f"the nearest, {nearest.id}, fits the limits but: {nearest.reason}."
    else:
        detail = (
            f"the binding limit is budget.{limit}={budget.limits[limit]:g}: the nearest candidate, "
            f"{nearest.id}, {'reaches' if column(limit).maximise else 'needs'} "
            f"{f'{value:.4g} {column(limit).unit}'.rstrip()}."
        )
    return BudgetError(
        f"None of {len(candidates)} candidates meets the budget; {detail} "
        f"Everything tried is in {folder}."
    )
