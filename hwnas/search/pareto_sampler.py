"""``sampler=pareto``: knows the costs of candidates, and learns only what is expensive.

The expensive objective (accuracy) gets a Gaussian process over the logarithm of its error; all
other objectives are computed before a candidate is chosen. The candidate of the highest expected
gain of hypervolume is proposed: among all of a space that can be enumerated, else among children of
the front and random ones. What is proposed depends on the seed, the trial's number and the trials
before it alone: a study that is resumed goes on as it would have.
"""

import itertools
import math
import random
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from hwnas.pareto import non_dominated
from hwnas.search.acquisition import expected_improvement, log_normal_improvement
from hwnas.search.surrogate import Features, Hyperparameters, Surrogate, fit

Array = NDArray[np.float64]
Assignment = Mapping[str, Any]
#: Assignments to their costs ``(n, m)``: each objective but the expensive one, in the study's
#: order. Not finite where a candidate cannot run or breaks a limit: it is not proposed.
Costs = Callable[[Sequence[Assignment]], Array]

ENUMERATED = 50_000  #: assignments up to which all of a space are looked at
_POOL, _GENERATIONS, _PARENTS = 200, 3, 40  # where there are more
_TRIES = 60  # generations in which something that fits every limit is looked for
_MOST = 400  # observations that a Gaussian process is given: its time must not grow for ever
_REFERENCE = 0.85  # quantile of the first errors beyond which an error counts as no result
_CLIP = (
    0.5  # how far, in logarithms, errors beyond that are told apart: networks that don't work at
)
# all would take all the attention of a model of those that do
_CURIOSITY = 0.7  # what uncertainty is multiplied by


@dataclass(frozen=True)
class _Space:
    """What can be proposed."""

    choices: Mapping[str, Sequence[Any]]
    active: Callable[[Assignment], Assignment]
    features: Features

    @property
    def size(self) -> int:
        """The number of assignments."""
        return math.prod(len(options) for options in self.choices.values())

    def all(self) -> list[Assignment]:
        """Return all assignments, of those without a difference one."""
        rows = itertools.product(*self.choices.values())
        found = (dict(zip(self.choices, row, strict=True)) for row in rows)
        return list({self.key(assignment): assignment for assignment in found}.values())

    def key(self, assignment: Assignment) -> Hashable:
        """Return what is equal for equal candidates."""
        return tuple(sorted(self.active(assignment).items()))

    def vectors(self, assignments: Sequence[Assignment]) -> Array:
        """Return the features of assignments, ``(n, d)``."""
        return self.features([self.active(assignment) for assignment in assignments])

    def draw(self, rng: random.Random) -> Assignment:
        """Return an assignment with every option drawn evenly."""
        return {name: rng.choice(options) for name, options in self.choices.items()}

    def child(self, parents: Sequence[Assignment], rng: random.Random) -> Assignment:
        """Return a child of one or two parents, some of its choices changed."""
        a, b = rng.choice(parents), rng.choice(parents)
        names = list(self.choices)
        child = {name: a[name] for name in names}
        if rng.random() < 0.5:
            child |= {name: b[name] for name in names if rng.random() < 0.5}
        for name in rng.sample(names, min(len(names), rng.choice((1, 1, 2, 3)))):
            options = self.choices[name]
            if all(isinstance(option, (int, float)) for option in options):
                at = options.index(child[name]) + rng.choice((-1, 1))
                child[name] = options[min(max(at, 0), len(options) - 1)]
            else:
                child[name] = rng.choice(options)
        return child


@dataclass(frozen=True)
class _Known:
    """Candidates with what is known before they are evaluated."""

    assignments: Sequence[Assignment]
    features: Array
    costs: Array


@dataclass(frozen=True)
class _History:
    """What is known of trials: ``(n, d)`` features, ``(n,)`` errors, ``(n, m)`` costs.

    The error of what broke a limit is NaN: it may not have been evaluated.
    """

    assignments: Sequence[Assignment]
    features: Array
    errors: Array
    costs: Array
    pending: Sequence[Assignment]  #: under evaluation by other workers

    @property
    def evaluated(self) -> "_History":
        """Only what has an error."""
        return self._only(np.flatnonzero(np.isfinite(self.errors)))

    def first(self, n: int) -> "_History":
        """Only the first trials."""
        return self._only(np.arange(n))

    def _only(self, rows: NDArray[np.intp]) -> "_History":
        chosen = [self.assignments[i] for i in rows]
        return _History(
            chosen, self.features[rows], self.errors[rows], self.costs[rows], self.pending
        )


@dataclass(frozen=True)
class _Model:
    """What is expected of candidates."""

    errors: Surrogate
    scaling: "_Scaling"
    costs: Sequence["_Cost"]  #: empty where they are known
    front_errors: Array
    front_costs: Array
    reference: Sequence[float]

    def gains(self, known: _Known) -> Array:
        """Return the expected gain of hypervolume of candidates, ``(n,)``."""
        mean, std = self.errors.predict(self.scaling.inputs(known.features, known.costs))
        improvement = log_normal_improvement(mean, _CURIOSITY * std)
        return expected_improvement(
            known.costs, improvement, self.front_errors, self.front_costs, self.reference
        )


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
        costs: Computes all objectives but the expensive one. Without it they are modelled, too.
        seed: Of everything random.
        search_space: What is searched; default: what all trials of the study have in common.
        active: Returns what of an assignment has an effect; equal results are the same candidate.
        optional: Choices that may have no effect.
        expensive: The number of the expensive objective.
        bound: The best value that it can have; default: 1 or 100 if values are fractions or per
            cent of something maximised, 0 if something positive is minimised.
        n_startup: Trials before the model is asked, spread over the range of costs.
        n_costs: Candidates of a proposal whose costs are computed, where that takes long; those of
            the others are modelled. Default: all.
    """

    def __init__(  # noqa: PLR0913
        self,
        costs: Costs | None = None,
        *,
        seed: int = 0,
        search_space: Mapping[str, BaseDistribution] | None = None,
        active: Callable[[Assignment], Assignment] = dict,
        optional: Sequence[str] = (),
        expensive: int = 0,
        bound: float | None = None,
        n_startup: int = 16,
        n_costs: int | None = None,
    ):
        self._costs, self._seed = costs, seed
        self._search_space, self._active, self._optional = search_space, active, optional
        self._expensive, self._bound = expensive, bound
        self._n_startup, self._n_costs = n_startup, n_costs
        self._common = IntersectionSearchSpace()
        self._independent = RandomSampler(seed=seed)
        self._space: _Space | None = None
        self._all: _Known | None = None
        self._rows: dict[int, tuple[Array, float, Array]] = {}
        self._fitted: dict[tuple[int, ...], Hyperparameters] = {}

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
        """Return the candidate that is expected to gain most."""
        if not search_space:
            return {}
        if self._space is None or self._space.choices.keys() != search_space.keys():
            choices = {name: _options(d) for name, d in search_space.items()}
            self._space = _Space(choices, self._active, Features(choices, self._optional))
            self._all = None
            self._rows.clear()
        rng = random.Random(f"pareto {self._seed} {trial.number}")
        return dict(self._propose(self._space, self._history(self._space, study, trial), rng))

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
    ) -> Any:
        """Return a random value of what is not a choice of all trials."""
        return self._independent.sample_independent(study, trial, name, distribution)

    def _history(self, space: _Space, study: optuna.Study, trial: FrozenTrial) -> _History:
        states = (TrialState.COMPLETE, TrialState.RUNNING)
        rows, assignments, pending = [], [], []
        for other in study.get_trials(deepcopy=False, states=states):
            if other.number == trial.number or not space.choices.keys() <= other.params.keys():
                continue
            params = {name: other.params[name] for name in space.choices}
            if other.state == TrialState.RUNNING:
                pending.append(params)
                continue
            if other.number not in self._rows:
                self._rows[other.number] = self._row(space, study, other)
            rows.append(self._rows[other.number])
            assignments.append(params)
        if not rows:
            return _History([], np.zeros((0, 0)), np.zeros(0), np.zeros((0, 0)), pending)
        features, values, costs = (np.array(column) for column in zip(*rows, strict=True))
        return _History(assignments, features, self._errors(values, study), costs, pending)

    def _row(
        self, space: _Space, study: optuna.Study, trial: FrozenTrial
    ) -> tuple[Array, float, Array]:
        maximised = [direction == StudyDirection.MAXIMIZE for direction in study.directions]
        signed = [-v if m else v for v, m in zip(trial.values, maximised, strict=True)]
        expensive = signed.pop(self._expensive)
        if any(value > 0 for value in trial.constraints.values()):
            expensive = math.nan
        return space.vectors([trial.params])[0], expensive, np.array(signed)

    def _errors(self, values: Array, study: optuna.Study) -> Array:
        """Return how far values, to be minimised, are from the best possible one."""
        maximised = study.directions[self._expensive] == StudyDirection.MAXIMIZE
        known = values[np.isfinite(values)]
        if self._bound is not None:
            best = -self._bound if maximised else self._bound
        elif len(known) == 0:
            best = 0.0
        elif maximised and known.max() <= 0 and known.min() >= -100:
            best = -1.0 if known.min() >= -1 else -100.0
        elif not maximised and known.min() > 0:
            best = 0.0
        else:  # nothing says what the best is
            best = known.min() - max(np.ptp(known), 1e-9)
        return np.maximum(values - best, 1e-9)

    def _propose(self, space: _Space, history: _History, rng: random.Random) -> Assignment:
        taken = {space.key(a) for a in (*history.assignments, *history.pending)}
        evaluated = history.evaluated
        if len(evaluated.errors) < self._n_startup:
            return self._spread(space, history, taken, rng)
        model = self._model(space, history, evaluated)
        if space.size > ENUMERATED or self._n_costs is not None:
            return self._evolved(space, evaluated, taken, model, rng)
        known = self._enumerated(space, model.costs)
        return _best(space, known, model.gains(known), taken) or space.draw(rng)

    def _known(
        self, space: _Space, assignments: Sequence[Assignment], modelled: Sequence["_Cost"] = ()
    ) -> _Known:
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
        return _Known(kept, features[fits], costs[fits])

    def _enumerates(self, space: _Space) -> bool:
        """Whether the costs of all candidates are computed at once."""
        return space.size <= ENUMERATED and self._costs is not None and self._n_costs is None

    def _enumerated(self, space: _Space, modelled: Sequence["_Cost"] = ()) -> _Known:
        """Return all candidates of the space."""
        if self._costs is None:
            return self._known(space, space.all(), modelled)
        if self._all is None:
            self._all = self._known(space, space.all())
        return self._all

    def _spread(
        self,
        space: _Space,
        history: _History,
        taken: Container[Hashable],
        rng: random.Random,
    ) -> Assignment:
        """Return one of the first candidates: each from another part of the range of costs."""
        known = self._enumerated(space) if self._enumerates(space) else self._first(space, rng)
        free = [i for i, a in enumerate(known.assignments) if space.key(a) not in taken]
        if not free:
            return space.draw(rng)
        if known.costs.shape[1] == 0:
            return known.assignments[rng.choice(free)]
        by_cost = np.argsort(known.costs[free, 0], kind="stable")
        number = len(history.errors) + len(history.pending)
        width = max(1, len(free) // self._n_startup)
        # The cheapest, the dearest, and then always the middle of what is widest.
        share = float(number) if number < 2 else _radical_inverse(number - 1)
        start = share * (len(free) - width)
        chosen: int = free[by_cost[round(start) + rng.randrange(width)]]
        return known.assignments[chosen]

    def _first(self, space: _Space, rng: random.Random) -> _Known:
        """Return candidates that fit all limits, before anything was evaluated.

        Random ones; where they don't fit, those between the smallest options and random ones; where
        these don't, what is found by taking smaller and smaller options.
        """
        pool = [space.draw(rng) for _ in range(self._n_costs or _POOL)]
        pool[-1] = {name: options[-1] for name, options in space.choices.items()}
        pool[-2] = smallest = {name: options[0] for name, options in space.choices.items()}
        for share in (0.0, 0.5, 0.75, 0.9, 0.97):
            mixed = [
                {n: smallest[n] if rng.random() < share else option for n, option in a.items()}
                for a in pool
            ]
            known = self._known(space, mixed)
            if 4 * len(known.assignments) >= len(pool):
                break
        return known

    def _model(self, space: _Space, history: _History, evaluated: _History) -> _Model:
        """Fit what is expected to what is known."""
        costs: list[_Cost] = []
        if self._costs is None or self._n_costs is not None:
            chosen = _most_telling(history)
            costs = [
                _Cost(history.features[chosen], values[chosen], self._fit(history, i + 1))
                for i, values in enumerate(history.costs.T)
            ]
        first = evaluated.first(self._n_startup)
        limit = float(np.quantile(first.errors, _REFERENCE))
        scaling = _Scaling(first.costs)
        chosen = _most_telling(evaluated)
        x = scaling.inputs(evaluated.features[chosen], evaluated.costs[chosen])
        y = _told_apart(evaluated.errors[chosen], limit)
        parameters = self._fit(evaluated, 0)
        errors = Surrogate(x, y, parameters)
        points = np.column_stack([evaluated.errors, evaluated.costs])
        if history.pending:
            # What others evaluate counts as if it turned out as expected.
            waiting = self._known(space, history.pending, costs)
            inputs = scaling.inputs(waiting.features, waiting.costs)
            expected = errors.predict(inputs)[0]
            errors = Surrogate(np.vstack([x, inputs]), np.append(y, expected), parameters)
            points = np.vstack([points, np.column_stack([np.exp(expected), waiting.costs])])
        # The range of costs: of all candidates where they are known, else of those evaluated.
        known = self._enumerated(space).costs if self._enumerates(space) else points[:, 1:]
        worst = known.max(axis=0)
        front = points[non_dominated(points, [False] * points.shape[1])]
        reference = (limit, *(worst + 1e-3 * np.abs(worst)))
        return _Model(errors, scaling, costs, front[:, 0], front[:, 1:], reference)

    def _fit(self, history: _History, which: int) -> Hyperparameters:
        """Return hyperparameters fitted to the first trials: again whenever a tenth more are known.

        They are a function of the history alone, whether or not this process saw it grow.

        Args:
            history: Trials.
            which: What is modelled: 0 the error, above the cost of that number.
        """
        n = self._n_startup
        while (more := max(n + 1, n * 11 // 10)) <= len(history.errors):
            n = more
        if (which, n) not in self._fitted:
            first = history.first(n)
            chosen = _most_telling(first)
            x = first.features[chosen]
            if which == 0:
                startup = first.first(self._n_startup)
                x = _Scaling(startup.costs).inputs(x, first.costs[chosen])
                limit = float(np.quantile(startup.errors, _REFERENCE))
                y = _told_apart(first.errors[chosen], limit)
            else:
                y = _logs(first.costs[chosen, which - 1])
            self._fitted[which, n] = fit(x, y)
        return self._fitted[which, n]

    def _evolved(
        self,
        space: _Space,
        history: _History,
        taken: Container[Hashable],
        model: _Model,
        rng: random.Random,
    ) -> Assignment:
        """Return the best of some generations: children of the front, of the best of these, ..."""
        points = np.column_stack([history.errors, history.costs])
        front = non_dominated(points, [False] * points.shape[1])
        parents = [a for a, member in zip(history.assignments, front, strict=True) if member]
        pool: dict[Hashable, Assignment] = {}
        best: list[tuple[float, Hashable]] = []
        for generation in range(_GENERATIONS):
            drawn = [space.child(parents, rng) for _ in range(_POOL)]
            if generation == 0:
                drawn += [space.draw(rng) for _ in range(_POOL // 2)]
            new = {key: a for a in drawn if (key := space.key(a)) not in taken and key not in pool}
            if not new:
                continue
            pool |= new
            known = self._known(space, list(new.values()), model.costs)
            gains = model.gains(known)
            found = [
                (float(g), space.key(a)) for g, a in zip(gains, known.assignments, strict=True)
            ]
            best = sorted([*best, *found], key=lambda pair: -pair[0])[:_PARENTS]
            parents = [pool[key] for _, key in best] or parents
        if not best:
            return space.draw(rng)
        ranked = [pool[key] for _, key in best]
        return self._exact(space, ranked, model) if self._n_costs else ranked[0]

    def _exact(self, space: _Space, ranked: Sequence[Assignment], model: _Model) -> Assignment:
        """Return the best by computed costs, some at a time until one fits all limits."""
        assert self._n_costs is not None
        for start in range(0, len(ranked), self._n_costs):
            known = self._known(space, ranked[start : start + self._n_costs])
            if known.assignments:
                return known.assignments[int(np.argmax(model.gains(known)))]
        return ranked[0]


@final
class _Cost:
    """A cost that is modelled: its logarithm where it is positive."""

    def __init__(self, x: Array, y: Array, parameters: Hyperparameters):
        self._surrogate = Surrogate(x, _logs(y), parameters)
        self._logarithmic = bool((y > 0).all())

    def predict(self, x: Array) -> Array:
        """Return the mean, ``(n,)``."""
        mean = self._surrogate.predict(x)[0]
        return np.exp(mean) if self._logarithmic else mean


@final
class _Scaling:
    """Makes features of costs: what a network costs says something of its accuracy."""

    def __init__(self, costs: Array):
        self._logarithmic = bool((costs > 0).all())
        values = self._logs(costs)
        self._low, self._range = values.min(axis=0), np.maximum(np.ptp(values, axis=0), 1e-9)

    def inputs(self, features: Array, costs: Array) -> Array:
        """Return what the model of the error reads, ``(n, d + m)``."""
        return np.hstack([features, (self._logs(costs) - self._low) / self._range])

    def _logs(self, costs: Array) -> Array:
        return np.log(np.maximum(costs, 1e-300)) if self._logarithmic else costs


def _told_apart(errors: Array, limit: float) -> Array:
    """Return logarithms of errors, those far beyond the limit all alike."""
    return np.minimum(np.log(errors), math.log(limit) + _CLIP)


def _logs(values: Array) -> Array:
    return np.log(values) if (values > 0).all() else values


def _most_telling(history: _History) -> NDArray[np.intp]:
    """Return which observations are kept where there are too many: the best, and some of all."""
    n = len(history.errors)
    if n <= _MOST:
        return np.arange(n)
    best = np.argsort(history.errors, kind="stable")[: _MOST * 3 // 4]  # NaN last
    rest = np.setdiff1d(np.arange(n), best)
    spread = rest[np.linspace(0, len(rest) - 1, _MOST - len(best)).astype(np.intp)]
    return np.sort(np.concatenate([best, spread]))


def _best(
    space: _Space, known: _Known, gains: Array, taken: Container[Hashable]
) -> Assignment | None:
    """Return the candidate that gains most and was not proposed yet."""
    order: list[int] = np.argsort(-gains, kind="stable").tolist()
    for i in order:
        if space.key(known.assignments[i]) not in taken:
            return known.assignments[i]
    return None


def _options(distribution: BaseDistribution) -> list[Any]:
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    assert isinstance(distribution, IntDistribution)
    return list(range(distribution.low, distribution.high + 1, distribution.step))


def _radical_inverse(n: int) -> float:
    """Return the n-th of numbers that fill [0, 1) evenly, whenever they are cut off."""
    value, digit = 0.0, 0.5
    while n:
        value, n, digit = value + digit * (n & 1), n >> 1, digit / 2
    return value
