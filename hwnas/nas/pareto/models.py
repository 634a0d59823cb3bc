"""Models of trial time, costs and feasibility, and calibration of intervals."""

import itertools
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import nnls
from scipy.special import ndtr

from hwnas.core.gaussian_process import Hyperparameters, Surrogate, fit_hyperparameters
from hwnas.nas.pareto.features import Assignment, Work

Array = NDArray[np.float64]

_MIN_TRIALS = 5  # for a model of trial time
_MIN_DURATION_RATIO = 0.25  # of the predicted time; a faster trial used the cache


@final
class DurationModel:
    """A linear model of trial time: a constant plus work times non-negative coefficients.

    It is fitted to ended trials by non-negative least squares, with relative errors for long trials
    and absolute errors for short ones. A trial that took far less than predicted found its network
    in the cache and is left out.

    Args:
        work: Returns non-negative features of assignments that trial time is linear in.
        assignments: Assignments of ended trials.
        seconds: Durations of these trials in seconds, ``(n,)``.
    """

    def __init__(self, work: Work, assignments: Sequence[Assignment], seconds: Array):
        self._work = work
        self.usual_s = float(np.median(seconds))  #: median duration of a trial, in seconds
        rows = self._rows(assignments)
        self._scale = np.maximum(rows.max(axis=0), 1e-300)
        rows /= self._scale
        first = rows @ _fit_coefficients(rows, seconds)
        trained = seconds >= _MIN_DURATION_RATIO * first
        self._coefficients = _fit_coefficients(rows[trained], seconds[trained])
        # No extrapolation to shorter times: gain per second would be overestimated.
        self._shortest = max(float((rows @ self._coefficients).min()), 1e-9)

    def __call__(self, assignments: Sequence[Assignment]) -> Array:
        """Return the predicted durations in seconds, ``(n,)``, at least the shortest fitted one."""
        predicted = self._rows(assignments) / self._scale @ self._coefficients
        return np.asarray(np.maximum(predicted, self._shortest))

    def _rows(self, assignments: Sequence[Assignment]) -> Array:
        return np.column_stack([np.ones(len(assignments)), self._work(assignments)])


def _fit_coefficients(rows: Array, seconds: Array) -> Array:
    weights = 1 / np.maximum(seconds, max(float(np.median(seconds)), 1e-9))
    return np.asarray(nnls(weights[:, None] * rows, weights * seconds)[0])


def learned(
    work: Work | None, assignments: Sequence[Assignment], seconds: Array
) -> DurationModel | None:
    """Return the model of trial time, or ``None``.

    ``None`` without ``work``, or with fewer than five durations that are not NaN.
    """
    if work is None or np.isfinite(seconds).sum() < _MIN_TRIALS:
        return None
    known = np.isfinite(seconds)
    return DurationModel(work, list(itertools.compress(assignments, known)), seconds[known])


# Calibration of the sampler's 95 % intervals.
#
# Proposals are selected by their predictions, so that their errors exceed the predictions more
# often than the model's standard deviation suggests. The ends of intervals are therefore quantiles
# of the standardized residuals of earlier proposals, as in conformal prediction, and of a prior.
#
# Source: Papadopoulos et al., "Inductive confidence machines for regression", ECML 2002,
# https://doi.org/10.1007/3-540-36755-1_29; the prior was chosen in ``experiments/sampler``.

_ENDS = (0.025, 0.975)
# The prior: number of residuals, and degrees of freedom of their Student's t distribution.
_N, _FREEDOM = 20, 3


def calibrated(surprises: Array) -> tuple[float, float]:
    """Return the ends of the next 95 % interval, in standard deviations from the mean.

    The lower end is at most 0, the upper end at least 0.

    Args:
        surprises: Standardized residuals of earlier proposals, ``(n,)``.
    """
    prior = stats.t.ppf((np.arange(_N) + 0.5) / _N, _FREEDOM)
    low, high = np.quantile(np.concatenate([prior, surprises]), _ENDS).tolist()
    return min(low, 0.0), max(high, 0.0)


# The lowest error of models: they predict the logarithm, and the logarithm of 0 is undefined.

_LEAST = 1e-9  #: absolute for fractions and percentages, else relative to the median error


def least(errors: NDArray[np.float64], is_share: bool) -> float:
    """Return a small positive error, to which lower ones are raised: 0 has no logarithm.

    Args:
        errors: All known errors, or NaN; the result is relative to the median of the positive ones
            if errors have a unit.
        is_share: Whether errors are fractions or percentages.
    """
    usual = errors[np.isfinite(errors) & (errors > 0)]
    return _LEAST if is_share or len(usual) == 0 else _LEAST * float(np.median(usual))


#: Largest magnitude of an objective; a larger one counts as infinite: products would overflow.
LARGEST = 1e100


# Models of costs that are known only after a trial.


@final
class ModelledCost:
    """A Gaussian process of a cost, or of its logarithm if all observed costs are positive.

    Args:
        x: Features of evaluated candidates, ``(n, d)``.
        y: Their costs, ``(n,)``.
        parameters: Hyperparameters of the process.
    """

    def __init__(self, x: Array, y: Array, parameters: Hyperparameters):
        self._surrogate = Surrogate(x, logs(y), parameters)
        self._logarithmic = bool((y > 0).all())

    def predict(self, x: Array) -> Array:
        """Return the predicted cost of candidates with features ``x`` ``(n, d)``: ``(n,)``."""
        mean = self._surrogate.predict(x)[0]
        return np.exp(mean) if self._logarithmic else mean


def logs(values: Array) -> Array:
    """Return the natural logarithms of values if all are positive, else the values."""
    return np.log(values) if (values > 0).all() else values


# Model of feasibility under constraints that are known only after a trial.

_MAX_CANDIDATES = 400  # for fitting: the last ones


@final
class FeasibilityModel:
    """A Gaussian-process model of the probability of feasibility.

    Gains are multiplied by it. Source: Gardner et al., "Bayesian optimization with inequality
    constraints", ICML 2014.

    Args:
        features: Features of evaluated candidates, ``(n, d)``.
        fitted: Whether each is feasible, ``(n,)``.
        n_summary: Number of summary features, which are the last ones.
    """

    def __init__(self, features: Array, fitted: NDArray[np.bool_], n_summary: int):
        x, y = features[-_MAX_CANDIDATES:], np.where(fitted, 1.0, -1.0)[-_MAX_CANDIDATES:]
        self._surrogate = Surrogate(x, y, fit_hyperparameters(x, y, n_summary=n_summary))

    def __call__(self, features: Array) -> Array:
        """Return the probability of feasibility of each candidate, ``(n,)``."""
        mean, std = self._surrogate.predict(features)
        probability: Array = ndtr(mean / np.hypot(std, self._surrogate.noise))
        return probability
