"""Models of errors and costs of candidates, and their expected gain of hypervolume."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from hwnas.core.gaussian_process import Hyperparameters, Surrogate, fit_hyperparameters
from hwnas.core.pareto import hypervolume, non_dominated
from hwnas.nas.pareto.acquisition import expected_improvement, log_normal_improvement
from hwnas.nas.pareto.features import Assignment
from hwnas.nas.pareto.models import DurationModel, FeasibilityModel, ModelledCost, calibrated, logs

Array = NDArray[np.float64]
#: Maps assignments to additional features, ``(n, k)``.
Knowledge = Callable[[Sequence[Assignment]], Array]

_MAX_OBSERVATIONS = 400  # of a Gaussian process, to limit its training time
REFERENCE = 0.85  # quantile of the startup errors: the reference point of the hypervolume
# Errors are clipped at this distance above the reference, in logarithms: networks at chance level
# would dominate the fit.
CLIP = 0.5

# Exploration factors of the standard deviation, used alternately: proposals with a large factor
# reveal an overconfident model.
_CURIOSITIES = (0.5, 1.0, 2.0)
# Limits of scaled inputs, relative to the startup range: no extrapolation towards zero cost.
_WITHIN = -2.0, 3.0
_WIDE = 20.0  # ratio of costs beyond which the hypervolume neglects cheap candidates
_BELOW = 0.5  # lowest cost with a logarithm of its own, relative to the cheapest useful candidate


@dataclass(frozen=True)
class CostedCandidates:
    """Candidates with features and costs, before evaluation."""

    assignments: Sequence[Assignment]
    features: Array  #: ``(n, d)``
    costs: Array  #: to be minimised, ``(n, m)``


@dataclass(frozen=True)
class History:
    """The trials: features ``(n, d)``, costs ``(n, m)``, and errors ``(n,)``.

    The error of an infeasible candidate is NaN: it may not have been evaluated.
    """

    numbers: Sequence[int]  #: numbers of the trials
    assignments: Sequence[Assignment]
    features: Array
    errors: Array
    costs: Array
    stds: Array  #: standard errors of log errors, ``(n,)``; 0: exact or unknown
    #: Standardized residuals of log errors: (observed - predicted) / predicted standard deviation.
    #: ``(n,)``; NaN without a prediction.
    surprises: Array
    seconds: Array  #: durations of trials in seconds, ``(n,)``; NaN if unknown
    pending: Sequence[Assignment]  #: candidates under evaluation by other workers
    n_ahead: int = 0  #: earlier trials whose workers are choosing a candidate concurrently
    refused: Sequence[Array] = ()  #: features ``(d,)`` of each candidate without finite objectives

    @property
    def tried(self) -> tuple[Sequence[Array], NDArray[np.bool_]]:
        """The features ``(d,)`` of finished candidates, and whether each is feasible, ``(n,)``.

        Candidates of ``refused`` are the last ones.
        """
        fitted = np.append(np.isfinite(self.errors), np.zeros(len(self.refused), np.bool_))
        return [*self.features, *self.refused], fitted

    @property
    def evaluated(self) -> "History":
        """The trials with an error."""
        return self.only(np.flatnonzero(np.isfinite(self.errors)))

    def first(self, n: int) -> "History":
        """Return the first ``n`` trials; pending and refused candidates stay."""
        return self.only(np.arange(n))

    def only(self, rows: NDArray[np.intp]) -> "History":
        """Return the trials at the given indices; pending and refused candidates stay."""
        return History(
            [self.numbers[i] for i in rows],
            [self.assignments[i] for i in rows],
            self.features[rows],
            self.errors[rows],
            self.costs[rows],
            self.stds[rows],
            self.surprises[rows],
            self.seconds[rows],
            self.pending,
            self.n_ahead,
            self.refused,
        )


@dataclass(frozen=True)
class Expectation:
    """The models of errors and costs, with the front for expected gains."""

    errors: Surrogate  #: Gaussian process of log errors
    inputs: "Inputs"  #: returns the inputs of ``errors``
    costs: Sequence[ModelledCost]  #: one model per cost; empty if costs are computed
    front_errors: Array  #: errors of the front members, ``(f,)``
    front_costs: Array  #: costs of the front members, ``(f, m)``
    reference: Sequence[float]  #: reference point: error and costs
    highest: float  #: highest useful error: that of the reference point with log costs
    reading: float  #: median standard error of measured log errors
    within: tuple[float, float]  #: ends of 95 % intervals, in standard deviations from the mean
    curiosity: float  #: exploration factor of the standard deviation
    pace: DurationModel | None = None  #: model of trial time, if gains count per second
    odds: FeasibilityModel | None = None  #: model of feasibility, if some trials were infeasible

    def merits(self, known: CostedCandidates) -> Array:
        """Return the expected gains of candidates times their probability of feasibility, ``(n,)``.

        With a model of trial time, gains are per second.
        """
        merits = self.gains(known)
        if self.pace is not None:
            merits = merits / self.pace(known.assignments)
        return merits if self.odds is None else merits * self.odds(known.features)

    def gains(self, known: CostedCandidates) -> Array:
        """Return the expected gain of candidates as a fraction of the hypervolume, ``(n,)``.

        If the front's hypervolume is 0, the gain itself. The standard deviation of log errors is
        multiplied by ``curiosity``. If ``by_ratio``, it is the mean of the gains with costs and
        with log costs: the plain hypervolume neglects cheap candidates. With log costs, the
        reference error is ``highest``; otherwise candidates of intermediate cost would have no
        gain. Costs below half of the cheapest useful one are raised to that half: degenerate
        networks that cost almost nothing would otherwise have most of the hypervolume.
        """
        mean, std = self._predict(known)
        improvement = log_normal_improvement(mean, self.curiosity * std)
        scales: list[tuple[Callable[[Array], Array], float]] = [(np.asarray, self.reference[0])]
        if self.by_ratio:
            scales.append((self._log, self.highest))
        shares = []
        for scaled, error in scales:
            front, limits = scaled(self.front_costs), scaled(np.array(self.reference[1:]))
            reference = (error, *limits.tolist())
            gains = expected_improvement(
                scaled(known.costs), improvement, self.front_errors, front, reference
            )
            shares.append(gains / (_volume(self.front_errors, front, reference) or 1.0))
        return np.asarray(np.mean(shares, axis=0))

    def intervals(self, known: CostedCandidates) -> Array:
        """Return, per candidate, the median error, the ends of its 95 % interval, and ``std``.

        The shape is ``(n, 4)``. Intervals are those of the observed error: they include the usual
        observation noise. ``std`` is the standard deviation of the log error.
        """
        mean, std = self._predict(known)
        std = np.sqrt(std**2 + self.errors.noise**2 + self.reading**2)
        low, high = self.within
        return np.column_stack(
            [np.exp(mean), np.exp(mean + low * std), np.exp(mean + high * std), std]
        )

    @property
    def volume(self) -> float:
        """The hypervolume of the front up to the reference point."""
        return _volume(self.front_errors, self.front_costs, self.reference)

    @property
    def by_ratio(self) -> bool:
        """Whether gains also count log costs.

        They do if costs are positive, and one of the reference point is more than 20 times the
        lowest of useful front members.
        """
        low, high = self._lowest_useful_costs, np.array(self.reference[1:])
        return bool((low > 0).all() and (high > _WIDE * low).any())

    @property
    def _lowest_useful_costs(self) -> Array:
        """The lowest costs of useful front members, ``(m,)``."""
        useful = self.front_costs[self.front_errors <= self.highest]
        return np.asarray(np.vstack([useful, self.reference[1:]]).min(axis=0))

    def _log(self, costs: Array) -> Array:
        """Return the logarithms of costs; the cheapest useful ones limit how low."""
        return _log(np.maximum(costs, _BELOW * self._lowest_useful_costs))

    def _predict(self, known: CostedCandidates) -> tuple[Array, Array]:
        return self.errors.predict(self.inputs(known))


@final
class Inputs:
    """The inputs of the error model: ``d`` features of choices, ``m`` costs, ``k`` additional ones.

    Args:
        first: Candidates that determine the scaling of costs and additional features, and whether
            costs are logarithmic: if all of theirs are positive.
        knowledge: Returns additional features of assignments, ``(n, k)``, such as zero-cost scores;
            ``None``: ``k`` is 0.
        n_shares: Number of summary features, the last ones of ``d``: ``ChoiceFeatures.n_shares``.
    """

    def __init__(
        self, first: CostedCandidates | History, knowledge: Knowledge | None, n_shares: int
    ):
        self._logarithmic = bool((first.costs > 0).all())
        self._knowledge = knowledge
        values = self._values(first)
        self._low, spread = values.min(axis=0), np.ptp(values, axis=0)
        self._range = np.where(spread > 1e-9, spread, 1.0)  # constant: no scaling
        #: Number of summary inputs, the last ones: ``n_shares + m + k``.
        self.n_summary = n_shares + values.shape[1]

    def __call__(self, known: CostedCandidates | History) -> Array:
        """Return the inputs of candidates, ``(n, d + m + k)``; the last ``m + k`` are scaled."""
        scaled = (self._values(known) - self._low) / self._range
        return np.hstack([known.features, scaled.clip(*_WITHIN)])

    def _values(self, known: CostedCandidates | History) -> Array:
        costs = _log(known.costs) if self._logarithmic else known.costs
        if self._knowledge is None or not known.assignments:
            return costs
        return np.hstack([costs, np.asarray(self._knowledge(known.assignments), np.float64)])


@final
class Learner:
    """Fits models to trials; the result depends only on the trials.

    Args:
        n_startup: Number of trials before the first model; they determine its scales.
        n_shares: Number of summary features, the last features: see ``ChoiceFeatures.n_shares``.
    """

    def __init__(self, n_startup: int, n_shares: int):
        self._n_startup, self._n_shares = n_startup, n_shares
        self._fitted: dict[tuple[int, int, bytes], Hyperparameters] = {}

    def costs(self, history: History) -> list[ModelledCost]:
        """Return a Gaussian process for each cost, in the order of the costs."""
        rows = _observation_indices(history)
        features = history.features[rows]
        models = []
        for number, costs in enumerate(history.costs.T, 1):
            first = history.first(self._n_known(history))
            first_rows = _observation_indices(first)
            values = logs(costs[: len(first.errors)])[first_rows]
            observed = (first.features[first_rows], values, np.zeros(len(values)))
            parameters = self._fit(number, *observed, self._n_shares)
            models.append(ModelledCost(features, costs[rows], parameters))
        return models

    def expectation(
        self,
        evaluated: History,
        costs: Sequence[ModelledCost],
        pending: CostedCandidates | None,
        everything: Array | None,
        knowledge: Knowledge | None = None,
        pace: DurationModel | None = None,
    ) -> Expectation:
        """Return the models of errors and costs, and the front.

        Args:
            evaluated: At least ``n_startup`` trials with an error.
            costs: Models of costs that are known only after a trial.
            pending: Candidates under evaluation: they count with their predicted errors.
            everything: Costs of all feasible candidates ``(n, m)``; the highest are the reference
                point. ``None`` or empty: those of ``evaluated`` and ``pending``.
            knowledge: Returns additional features of assignments, ``(n, k)``.
            pace: Model of trial time, if gains count per second.
        """
        startup = evaluated.first(self._n_startup)
        limit = float(np.quantile(startup.errors, REFERENCE))
        inputs = Inputs(startup, knowledge, self._n_shares)

        def observed(history: History) -> tuple[Array, Array, Array]:
            used = history.only(_observation_indices(history))
            log_errors = np.minimum(np.log(used.errors), math.log(limit) + CLIP)
            return inputs(used), log_errors, used.stds

        known = observed(evaluated.first(self._n_known(evaluated)))
        parameters = self._fit(0, *known, inputs.n_summary)
        x, y, stds = observed(evaluated)
        errors = Surrogate(x, y, parameters, stds)
        points = np.column_stack([_denoised_errors(evaluated, y, errors), evaluated.costs])
        if pending is not None:
            expected = errors.predict(inputs(pending))[0]
            both = np.vstack([x, inputs(pending)])
            all_stds = np.append(stds, np.zeros(len(expected)))
            errors = Surrogate(both, np.append(y, expected), parameters, all_stds)
            points = np.vstack([points, np.column_stack([np.exp(expected), pending.costs])])
        if everything is None or len(everything) == 0:
            everything = points[:, 1:]
        worst = everything.max(axis=0)
        first = np.column_stack([startup.errors, startup.costs])
        best = startup.errors[non_dominated(first, [False] * first.shape[1])]
        # Clipped errors are those of useless networks.
        highest = float(best[best < limit * math.exp(CLIP)].max(initial=limit))
        front = points[non_dominated(points, [False] * points.shape[1])]
        reference = (limit, *(worst + 1e-3 * np.abs(worst)))
        reading = float(np.median(evaluated.stds))
        within = calibrated(evaluated.surprises[np.isfinite(evaluated.surprises)])
        n_seen = len(evaluated.errors) + len(evaluated.pending)
        curiosity = _CURIOSITIES[n_seen % len(_CURIOSITIES)]
        return Expectation(
            errors, inputs, costs, front[:, 0], front[:, 1:], reference, highest, reading, within,
            curiosity, pace,
        )  # fmt: skip

    def _n_known(self, history: History) -> int:
        """Return the number of trials for fitting hyperparameters: it grows in steps of 10 %."""
        n = self._n_startup
        while (more := max(n + 1, n * 11 // 10)) <= len(history.errors):
            n = more
        return min(n, len(history.errors))

    def _fit(self, number: int, x: Array, y: Array, stds: Array, n_summary: int) -> Hyperparameters:
        key = (number, x.shape[1], y.tobytes() + stds.tobytes())
        if key not in self._fitted:
            self._fitted[key] = fit_hyperparameters(x, y, stds, n_summary)
        return self._fitted[key]


def _denoised_errors(evaluated: History, log_errors: Array, errors: Surrogate) -> Array:
    """Return posterior errors of noisy measurements.

    The best of many noisy measurements is biased; a front of raw measurements would be too
    optimistic. Exact measurements stay unchanged.

    Args:
        evaluated: Trials with an error.
        log_errors: Clipped log errors that the model was fitted to, ``(n_observations,)``.
        errors: The model.
    """
    if not evaluated.stds.any():
        return evaluated.errors
    rows = _observation_indices(evaluated)
    denoised = evaluated.errors.copy()
    # A clipped error keeps the part above the limit.
    denoised[rows] *= np.exp(errors.observed()[0] - log_errors)
    return denoised


def _volume(errors: Array, costs: Array, reference: Sequence[float]) -> float:
    """Return the hypervolume of a front up to a reference point, error first."""
    points = np.column_stack([errors, costs])
    inside = (points < np.asarray(reference)).all(axis=1)
    if not inside.any():
        return 0.0
    return hypervolume(points[inside], reference, [False] * points.shape[1])


def _log(costs: Array) -> Array:
    return np.asarray(np.log(np.maximum(costs, 1e-300)))


def _observation_indices(history: History) -> NDArray[np.intp]:
    """Return the indices of the observations to use: the best, and evenly spaced others."""
    n = len(history.errors)
    if n <= _MAX_OBSERVATIONS:
        return np.arange(n)
    best = np.argsort(history.errors, kind="stable")[: _MAX_OBSERVATIONS * 3 // 4]  # NaN last
    rest = np.setdiff1d(np.arange(n), best)
    spread = rest[np.linspace(0, len(rest) - 1, _MAX_OBSERVATIONS - len(best)).astype(np.intp)]
    return np.sort(np.concatenate([best, spread]))
