"""``sampler=pareto``: computes the costs of candidates, and models only the expensive objective.

The logarithm of the error of the expensive objective (accuracy) is modelled by a Gaussian process;
all other objectives are computed before a candidate is chosen. The sampler proposes the candidate
with the highest expected gain of hypervolume: among all candidates of a space that can be
enumerated, else among children of the front and random ones. With a time limit, it maximises the
gain per second. A proposal depends only on the seed, the trial's number and earlier trials, so a
resumed study makes the same proposals.
"""

import math
import random
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, final

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.trial import FrozenTrial

from hwnas.core.errors import ConfigError
from hwnas.nas.pareto import selection, startup
from hwnas.nas.pareto.expectation import Expectation, History, Knowledge, Learner
from hwnas.nas.pareto.features import (
    Assignment,
    ChoiceFeatures,
    FeatureFunction,
    ProposalSpace,
    Work,
)
from hwnas.nas.pareto.history import ObjectiveScale, Trials
from hwnas.nas.pareto.models import FeasibilityModel, learned
from hwnas.nas.pareto.selection import CostedSpace, Costs, account, ranked
from hwnas.nas.trial_attributes import ATTRIBUTE, Proposal, is_fixed, set_system_attr

_DISCRETE = CategoricalDistribution, IntDistribution
_N_OBJECTIVES = 2, 3


@final
class ParetoSampler(BaseSampler):
    """An Optuna sampler for two or three objectives, one of them expensive to evaluate.

    Example::

        def costs(assignments):  # e.g. from a latency table
            return np.array([[latency(a)] for a in assignments])

        study = optuna.create_study(
            directions=["maximize", "minimize"], sampler=ParetoSampler(costs, seed=0)
        )

    Args:
        costs: Returns all objectives except the expensive one, ``(n, m)``, to be minimised
            (maximised ones negated). Default: these objectives are modelled, too.
        seed: Seed of all random numbers.
        search_space: The choices; default: the intersection of all trials of the study.
        active: Returns the part of an assignment that has an effect; assignments with equal active
            parts are the same candidate.
        optional: Choices that may have no effect.
        root: A choice that determines the effective choices; the first trials cover its options.
        scope: Returns the choices that may have an effect in an assignment; default: all.
        expensive: Index of the expensive objective.
        bound: Best possible value of the expensive objective; default: 1 or 100 for maximised
            fractions or percentages, 0 for minimised positive values, else better than the best
            trial by the range of all.
        n_startup: Number of trials before the model is used, spread over costs and choices.
        n_costs: Number of candidates per proposal with computed costs, if that is slow; costs of
            the others are modelled. Default: all.
        features: Returns additional features of candidates, ``(n, k)``, finite, for example
            zero-cost scores. A model with these features re-ranks the 40 best candidates.
        work: Returns non-negative quantities that trial time is linear in, ``(n, k)``. The sampler
            then maximises gain per second, using a model fitted to ended trials.
        summary: Returns fast summary features of a candidate, the first of which grows with the
            network's size; called for all compared candidates.

    A trial with an infinite objective, one of a magnitude above 1e100 or a violated constraint is
    infeasible. The candidate of a failed trial (NaN, or an exception) is not proposed again.

    Raises:
        ConfigError: An argument is not allowed; at a trial: the study has one objective or more
            than three, none with the index ``expensive``, or ``costs`` returns another shape.
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
        work: Work | None = None,
        summary: FeatureFunction | None = None,
    ):
        lowest = {"expensive": (expensive, 0), "n_startup": (n_startup, 1), "n_costs": (n_costs, 1)}
        for name, (value, least) in lowest.items():
            if value is not None and value < least:
                raise ConfigError(f"ParetoSampler: {name} is {value}. Allowed: {least} or more")
        if bound is not None and not math.isfinite(bound):
            raise ConfigError(f"ParetoSampler: bound is {bound}. Allowed: a finite number or None")
        for name, distribution in (search_space or {}).items():
            if not isinstance(distribution, _DISCRETE):
                raise ConfigError(
                    f"ParetoSampler: search_space[{name!r}] is a {type(distribution).__name__}. "
                    "Allowed: CategoricalDistribution, IntDistribution"
                )
        if search_space is not None:
            for name, choice in (("root", root), *(("optional", choice) for choice in optional)):
                _check_choice(name, choice, search_space, "not in search_space")
        self._costs, self._seed = costs, seed
        self._search_space, self._active, self._optional = search_space, active, optional
        self._root, self._scope = root, scope
        self._expensive, self._bound = expensive, bound
        self._n_startup, self._n_costs = n_startup, n_costs
        self._features, self._work, self._summary = features, work, summary
        self._common = IntersectionSearchSpace()
        self._independent = RandomSampler(seed=seed)
        self._costed: CostedSpace | None = None
        self._trials: Trials | None = None
        self._learner: Learner | None = None

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Check the number of objectives of the study, and the index of the expensive one.

        Raises:
            ConfigError: there are fewer than two or more than three, or none has this index.
        """
        n = len(study.directions)
        if n not in _N_OBJECTIVES:
            raise ConfigError(
                f"ParetoSampler: the study has {n} objective{'s' * (n > 1)}. Allowed: 2 or 3, "
                "one expensive objective and one or two costs"
            )
        if self._expensive >= n:
            raise ConfigError(
                f"ParetoSampler: expensive is {self._expensive}, and the study has {n} objectives. "
                f"Allowed: 0 to {n - 1}"
            )

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the distributions of the given choices, else of the discrete ones in common."""
        if self._search_space is not None:
            return dict(self._search_space)
        return {
            name: distribution
            for name, distribution in self._common.calculate(study).items()
            if isinstance(distribution, _DISCRETE)
        }

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the options of the proposed candidate, by choice; empty if the trial has them.

        The reason is recorded as a system attribute of the trial, unless the user gave its options.

        Raises:
            ConfigError: ``root`` is no choice, or ``costs`` returns an array of another shape.
        """
        if search_space.keys() <= trial.params.keys():  # no choices, or a retried trial
            return {}
        if self._costed is None or self._costed.space.options.keys() != search_space.keys():
            _check_choice("root", self._root, search_space, "no parameter of all trials")
            choices = {name: _options(d) for name, d in search_space.items()}
            features = ChoiceFeatures(choices, self._optional, self._summary)
            space = ProposalSpace(choices, self._active, features, self._root, self._scope)
            n_objectives = len(study.directions)
            self._costed = CostedSpace(space, self._costs, self._n_costs, n_objectives)
            self._trials = Trials(space, self._expensive, self._bound)
            self._learner = Learner(self._n_startup, features.n_shares)
        assert self._trials is not None
        rng = random.Random(f"pareto {self._seed} {trial.number}")
        others = partial(self._trials.others, study, trial)
        history, scale = self._trials.history(study, trial)
        taken = self._trials.taken | {self._costed.space.key(a) for a in history.pending}
        assignment, proposal = self._propose(self._costed, history, scale, taken, rng, others)
        if not is_fixed(trial.system_attrs):
            raw = proposal.to_json()
            set_system_attr(study, trial, ATTRIBUTE, raw)
        return dict(assignment)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        """Return a random value of a parameter outside the common search space."""
        return self._independent.sample_independent(study, trial, name, distribution)

    def _propose(
        self,
        costed: CostedSpace,
        history: History,
        scale: ObjectiveScale,
        taken: Container[Hashable],
        rng: random.Random,
        others: Callable[[], tuple[Sequence[Assignment], int]],
    ) -> tuple[Assignment, Proposal]:
        space, evaluated = costed.space, history.evaluated
        nothing_fits = costed.are_computed and not costed.all().assignments
        if len(evaluated.errors) < self._n_startup or nothing_fits:
            return startup.propose(costed, history, taken, self._n_startup, rng)
        odds = _odds(space, history)
        model = replace(self._expectation(costed, history, evaluated), odds=odds)
        if costed.are_listed:
            best, n_candidates = selection.of_all(costed, taken, model)
        else:
            best, n_candidates = selection.evolved(costed, evaluated, taken, model, rng)
        if not best:
            return startup.other(space, taken, rng), Proposal("random")
        if self._features is not None:
            more = self._expectation(costed, history, evaluated, self._features)
            model = replace(more, odds=odds)
            best = ranked(space, best, model)
        chosen = selection.exact(costed, best, n_candidates, model, others)
        return chosen.bred.assignment, account(space, chosen, model, scale)

    def _expectation(
        self,
        costed: CostedSpace,
        history: History,
        evaluated: History,
        knowledge: Knowledge | None = None,
    ) -> Expectation:
        """Return the model of errors and gains, given all trials."""
        assert self._learner is not None
        costs = self._learner.costs(history) if costed.are_modelled else []
        pending = costed.of(history.pending, costs) if history.pending else None
        everything = costed.all().costs if costed.are_computed else None
        pace = learned(self._work, evaluated.assignments, evaluated.seconds)
        return self._learner.expectation(evaluated, costs, pending, everything, knowledge, pace)


def _check_choice(name: str, choice: str, choices: Iterable[str], problem: str) -> None:
    """Refuse an argument ``name`` whose value is not one of the choices; empty: none."""
    if choice and choice not in choices:
        raise ConfigError(
            f"ParetoSampler: {name} is {choice!r}, which is {problem}. Allowed: "
            f"{', '.join(choices)}"
        )


def _odds(space: ProposalSpace, history: History) -> FeasibilityModel | None:
    """Return the feasibility model; ``None`` if all tried candidates were feasible."""
    features, fitted = history.tried
    return (
        None
        if fitted.all()
        else FeasibilityModel(np.vstack(features), fitted, space.features.n_shares)
    )


def _options(distribution: BaseDistribution) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, IntDistribution)
    return list(range(distribution.low, distribution.high + 1, distribution.step))
