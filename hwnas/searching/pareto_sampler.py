"""``sampler=pareto``: knows the costs of candidates, and learns only what is expensive.

The expensive objective (accuracy) gets a Gaussian process over the logarithm of its error; all
other objectives are computed before a candidate is chosen. The candidate of the highest expected
gain of hypervolume is proposed: among all of a space that can be enumerated, else among children of
the front and random ones. What is proposed depends on the seed, the trial's number and the trials
before it alone: a study that is resumed goes on as it would have.
"""

import random
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.trial import FrozenTrial

from hwnas.pareto import non_dominated
from hwnas.searching import spread
from hwnas.searching.choices import Assignment, Bred, Choices
from hwnas.searching.expectation import (
    Expectation,
    History,
    Knowledge,
    Known,
    Learner,
    ModelledCost,
)
from hwnas.searching.features import Features
from hwnas.searching.history import Scale, Trials
from hwnas.searching.proposal import ATTRIBUTE, Proposal, is_fixed
from hwnas.searching.shortlist import Chosen, Scored, account, ranked

Array = NDArray[np.float64]
#: Assignments to their costs ``(n, m)``: each objective but the expensive one, in the study's
#: order. Not finite where a candidate cannot run or breaks a limit: it is not proposed.
Costs = Callable[[Sequence[Assignment]], Array]

ENUMERATED = 50_000  #: assignments up to which all of a space are looked at
_POOL, _GENERATIONS = 200, 3  # where there are more
_DRAWN = 100  # where nothing is known to fit
_COMPARED = 400  # of the first candidates' part of the range of costs
_SHORTLIST = 40  # parents of a generation; candidates of which all that can be known is asked


@final
class ParetoSampler(BaseSampler):
    """An Optuna sampler for two or three objectives of which one is expensive.

    Example::

        def costs(assignments):  # e.g. from a latency table
            return np.array([[latency(a)] for a in assignments])

        study = optuna.create_study(
            directions=["maximize", "minimize"], sampler=ParetoSampler(costs, seed=0)
        )

    Args:
        costs: Computes all objectives but the expensive one, to be minimised: of what is maximised
            the negative. Without it they are modelled, too.
        seed: Of everything random.
        search_space: What is searched; default: what all trials of the study have in common.
        active: Returns what of an assignment has an effect; equal results are the same candidate.
        optional: Choices that may have no effect.
        root: A choice that decides which others matter; the first trials cover its options.
        scope: Returns the choices that may matter in an assignment; default: all.
        expensive: The number of the expensive objective.
        bound: The best value that it can have; default: 1 or 100 if values are fractions or per
            cent of something maximised, 0 if something positive is minimised.
        n_startup: Trials before the model is asked, spread over costs and choices.
        n_costs: Candidates of a proposal whose costs are computed, where that takes long; those of
            the others are modelled. Default: all.
        features: Computes what else is known of candidates before they are evaluated ``(n, k)``, of
            numbers that are finite. The 40 candidates that gain most by choices and costs are told
            apart by a model that reads these, too. Default: nothing.
    """

    def __init__(  # noqa: PLR0913
        self,
        costs: Costs | None = None,
        *,
        seed: int = 0,
        search_space: Mapping[str, BaseDistribution] | None = None,
        active: Callable[[Assignment], Assignment] = dict,
        optional: Sequence[str] = (),
        root: str = "",
        scope: Callable[[Assignment], Sequence[str]] | None = None,
        expensive: int = 0,
        bound: float | None = None,
        n_startup: int = 10,
        n_costs: int | None = None,
        features: Knowledge | None = None,
    ):
        self._costs, self._seed = costs, seed
        self._search_space, self._active, self._optional = search_space, active, optional
        self._root, self._scope = root, scope
        self._expensive, self._bound = expensive, bound
        self._n_startup, self._n_costs = n_startup, n_costs
        self._features = features
        self._common = IntersectionSearchSpace()
        self._independent = RandomSampler(seed=seed)
        self._space: Choices | None = None
        self._trials: Trials | None = None
        self._all: Known | None = None
        self._learner = Learner(n_startup)

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return what is proposed together: all choices among options."""
        if self._search_space is not None:
            return dict(self._search_space)
        return {
            name: distribution
            for name, distribution in self._common.calculate(study).items()
            if isinstance(distribution, (CategoricalDistribution, IntDistribution))
        }

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the candidate that is expected to gain most; record why."""
        if search_space.keys() <= trial.params.keys():  # none, or tried again as it was
            return {}
        if self._space is None or self._space.options.keys() != search_space.keys():
            choices = {name: _options(d) for name, d in search_space.items()}
            features = Features(choices, self._optional)
            self._space = Choices(choices, self._active, features, self._root, self._scope)
            self._trials = Trials(self._space, self._expensive, self._bound)
            self._all = None
        assert self._trials is not None
        rng = random.Random(f"pareto {self._seed} {trial.number}")
        history, scale = self._trials.history(study, trial)
        taken = self._trials.taken | {self._space.key(a) for a in history.pending}
        assignment, proposal = self._propose(self._space, history, scale, taken, rng)
        if not is_fixed(trial.system_attrs):
            raw = proposal.to_json()
            study._storage.set_trial_system_attr(trial._trial_id, ATTRIBUTE, raw)
        return dict(assignment)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        """Return a random value of what is not a choice of all trials."""
        return self._independent.sample_independent(study, trial, name, distribution)

    def _propose(
        self,
        space: Choices,
        history: History,
        scale: Scale,
        taken: Container[Hashable],
        rng: random.Random,
    ) -> tuple[Assignment, Proposal]:
        evaluated = history.evaluated
        nothing_fits = self._enumerates(space) and not self._enumerated(space).assignments
        if len(evaluated.errors) < self._n_startup or nothing_fits:
            return self._spread(space, history, taken, rng)
        model = self._expectation(space, history, evaluated)
        if space.size > ENUMERATED or self._n_costs is not None:
            best, n_candidates = self._evolved(space, evaluated, taken, model, rng)
        else:
            best, n_candidates = self._best(space, taken, model)
        if not best:
            return _other(space, taken, rng), Proposal("random")
        if self._features is not None:
            model = self._expectation(space, history, evaluated, self._features)
            best = ranked(space, best, model)
        chosen = self._exact(space, best, n_candidates, model, history.n_ahead)
        return chosen.bred.assignment, account(space, chosen, model, scale)

    def _costed(
        self,
        space: Choices,
        assignments: Sequence[Assignment],
        modelled: Sequence[ModelledCost] = (),
    ) -> Known:
        """Return candidates that fit all limits, with their features and costs."""
        features = space.vectors(assignments)
        if modelled:
            costs = np.column_stack([cost.predict(features) for cost in modelled])
        elif self._costs is not None:
            costs = np.asarray(self._costs(assignments), np.float64)
        else:
            costs = np.zeros((len(assignments), 0))
        fits = np.asarray(np.isfinite(costs).all(axis=1))
        kept = [a for a, fit in zip(assignments, fits.tolist(), strict=True) if fit]
        return Known(kept, features[fits], costs[fits])

    def _enumerates(self, space: Choices) -> bool:
        """Whether the costs of all candidates are computed at once."""
        return space.size <= ENUMERATED and self._costs is not None and self._n_costs is None

    def _enumerated(self, space: Choices, modelled: Sequence[ModelledCost] = ()) -> Known:
        """Return all candidates of the space."""
        if self._costs is None:
            return self._costed(space, space.all(), modelled)
        if self._all is None:
            self._all = self._costed(space, space.all())
        return self._all

    def _spread(
        self,
        space: Choices,
        history: History,
        taken: Container[Hashable],
        rng: random.Random,
    ) -> tuple[Assignment, Proposal]:
        """Return one of the first candidates: each from another part of the range of costs.

        Of this part, the one that is least like all before it.
        """
        known = self._enumerated(space) if self._enumerates(space) else self._first(space, rng)
        free = [i for i, a in enumerate(known.assignments) if space.key(a) not in taken]
        if not free:  # nothing fits, as far as is known; if anything does, it is small
            for smallest, _ in space.ends():
                if space.key(smallest) not in taken:
                    return smallest, Proposal("smallest")
            return _other(space, taken, rng), Proposal("random")
        if known.costs.shape[1] == 0:
            return known.assignments[rng.choice(free)], Proposal("startup", len(free))
        number = len(history.errors) + len(history.pending) + history.n_ahead
        number, free = spread.of_branch(space, known.assignments, free, number)
        by_cost = np.argsort(known.costs[free, 0], kind="stable")
        width = max(1, len(free) * len(space.branches()) // self._n_startup)
        # The cheapest, the dearest, and then always the middle of what is widest.
        share = float(number) if number < 2 else spread.radical_inverse(number - 1)
        start = round(share * max(0, len(free) - width))
        if not self._enumerates(space):  # what is drawn gathers where most of the space is: spread
            start = spread.logarithmic(known.costs[free, 0][by_cost], share, width)
        part: list[int] = by_cost[start : start + width].tolist()
        rows = [free[i] for i in rng.sample(part, min(len(part), _COMPARED))]
        before = history.features
        if history.pending:
            before = np.vstack([*before, *space.vectors(history.pending)])
        chosen = rows[spread.least_alike(known.features[rows], before)]
        return known.assignments[chosen], Proposal("startup", len(free), len(free))

    def _first(self, space: Choices, rng: random.Random) -> Known:
        """Return candidates that fit all limits, before anything was evaluated.

        Random ones; where they don't fit, those between the smallest options and random ones; where
        these don't, what is found by taking smaller and smaller options.
        """
        pool = [space.draw(rng) for _ in range(self._n_costs or _POOL)]
        ends = [end for both in space.ends() for end in both]
        pool[-len(ends) :] = ends
        smallest = space.smallest()
        for share in (0.0, 0.5, 0.75, 0.9, 0.97):
            mixed = [
                {
                    n: smallest[n] if rng.random() < share and n != space.root else option
                    for n, option in a.items()
                }
                for a in pool
            ]
            known = self._costed(space, mixed)
            if 4 * len(known.assignments) >= len(pool):
                break
        return known

    def _expectation(
        self,
        space: Choices,
        history: History,
        evaluated: History,
        knowledge: Knowledge | None = None,
    ) -> Expectation:
        """Return what is expected after what is known."""
        modelled = self._costs is None or self._n_costs is not None
        costs = self._learner.costs(history) if modelled else []
        pending = self._costed(space, history.pending, costs) if history.pending else None
        everything = self._enumerated(space).costs if self._enumerates(space) else None
        return self._learner.expectation(evaluated, costs, pending, everything, knowledge)

    def _best(
        self, space: Choices, taken: Container[Hashable], model: Expectation
    ) -> tuple[list[Scored], int]:
        """Return the best of all candidates that were not proposed yet, and of how many."""
        known = self._enumerated(space, model.costs)
        gains = model.gains(known)
        order: list[int] = np.argsort(-gains, kind="stable").tolist()
        free = [i for i in order if space.key(known.assignments[i]) not in taken]
        best = free[:_SHORTLIST]
        rows = [(float(gains[i]), Bred(known.assignments[i]), known.costs[i]) for i in best]
        return rows, len(free)

    def _evolved(
        self,
        space: Choices,
        history: History,
        taken: Container[Hashable],
        model: Expectation,
        rng: random.Random,
    ) -> tuple[list[Scored], int]:
        """Return the best of some generations: children of the front, of the best of these, ...

        And of how many candidates these are the best.
        """
        points = np.column_stack([history.errors, history.costs])
        front = np.flatnonzero(non_dominated(points, [False] * points.shape[1])).tolist()
        parents = [Bred(history.assignments[i], frozenset({history.numbers[i]})) for i in front]
        pool: dict[Hashable, Bred] = {}
        best: list[Scored] = []
        n_known = 0
        for generation in range(_GENERATIONS):
            drawn = [space.child(parents, rng) for _ in range(_POOL)]
            if generation == 0:
                drawn += [Bred(space.draw(rng)) for _ in range(_POOL // 2)]
            keys = ((space.key(bred.assignment), bred) for bred in drawn)
            new = {key: bred for key, bred in keys if key not in taken and key not in pool}
            if not new:
                continue
            pool |= new
            known = self._costed(space, [bred.assignment for bred in new.values()], model.costs)
            n_known += len(known.assignments)
            gains = model.gains(known).tolist()
            rows = zip(gains, known.assignments, known.costs, strict=True)
            best += [(gain, pool[space.key(a)], costs) for gain, a, costs in rows]
            best = sorted(best, key=lambda row: -row[0])[:_SHORTLIST]
            parents = [bred for _, bred, _ in best] or parents
        return best, n_known

    def _exact(
        self,
        space: Choices,
        best: Sequence[Scored],
        n_candidates: int,
        model: Expectation,
        n_ahead: int,
    ) -> Chosen:
        """Return the best by computed costs, some at a time until one fits all limits.

        Where others choose from the same, each takes another one.
        """
        _, bred, costs = best[min(n_ahead, len(best) - 1)]
        first = Chosen(bred, costs, n_candidates, 0 if model.costs else n_candidates)
        if not self._n_costs:
            return first
        by_key = {space.key(bred.assignment): bred for _, bred, _ in best}
        for start in range(0, len(best), self._n_costs):
            part = [bred.assignment for _, bred, _ in best[start : start + self._n_costs]]
            known = self._costed(space, part)
            if known.assignments:
                order: list[int] = np.argsort(-model.gains(known), kind="stable").tolist()
                i = order[min(n_ahead, len(order) - 1)]
                bred, n_costed = by_key[space.key(known.assignments[i])], start + len(part)
                return replace(first, bred=bred, costs=known.costs[i], n_costed=n_costed)
        return replace(first, n_costed=len(best))


def _other(space: Choices, taken: Container[Hashable], rng: random.Random) -> Assignment:
    """Return a random candidate; in all likelihood, one that was not proposed yet."""
    drawn = [space.draw(rng) for _ in range(_DRAWN)]
    return next((a for a in drawn if space.key(a) not in taken), drawn[0])


def _options(distribution: BaseDistribution) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, IntDistribution)
    return list(range(distribution.low, distribution.high + 1, distribution.step))
