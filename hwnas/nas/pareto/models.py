"""Models of trial time, costs and feasibility, and calibration of intervals."""

import itertools
from collections.abc import Callable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import nnls
from scipy.special import ndtr

from hwnas.core.gaussian_process import Hyperparameters, Surrogate, fit_hyperparameters
from hwnas.nas.pareto.features import Assignment

Array = NDArray[np.float64]
#: Assignments to what the time of their trials grows with ``(n, k)``, none of it below 0.
Work = Callable[[Sequence[Assignment]], Array]

_ENOUGH = 5  # trials, before anything is said of others
_FOUND = 0.25  # of the seconds expected, below which nothing was trained


@final
class DurationModel:
    """A linear model of trial time: a constant plus work times non-negative coefficients.

    It is fitted to ended trials by non-negative least squares, with relative errors for long trials
    and absolute errors for short ones. A trial that took far less than predicted found its network
    in the cache and is left out.

    Args:
        work: Computes what is known of trials before they begin.
        assignments: Of trials that ended.
        seconds: That these took ``(n,)``.
    """

    def __init__(self, work: Work, assignments: Sequence[Assignment], seconds: Array):
        self._work = work
        self.usual_s = float(np.median(seconds))  #: that a trial took
        rows = self._rows(assignments)
        self._scale = np.maximum(rows.max(axis=0), 1e-300)
        rows /= self._scale
        first = rows @ _fitted(rows, seconds)
        trained = seconds >= _FOUND * first
        self._coefficients = _fitted(rows[trained], seconds[trained])
        # Nothing is expected to be faster than all before: it would gain by that alone.
        self._shortest = max(float((rows @ self._coefficients).min()), 1e-9)

    def __call__(self, assignments: Sequence[Assignment]) -> Array:
        """Return the seconds that trials are expected to take, ``(n,)``."""
        found = self._rows(assignments) / self._scale @ self._coefficients
        return np.asarray(np.maximum(found, self._shortest))

    def _rows(self, assignments: Sequence[Assignment]) -> Array:
        return np.column_stack([np.ones(len(assignments)), self._work(assignments)])


def _fitted(rows: Array, seconds: Array) -> Array:
    weights = 1 / np.maximum(seconds, max(float(np.median(seconds)), 1e-9))
    return np.asarray(nnls(weights[:, None] * rows, weights * seconds)[0])


def learned(
    work: Work | None, assignments: Sequence[Assignment], seconds: Array
) -> DurationModel | None:
    """Return the model of trial time, if requested and if enough trials ended."""
    if work is None or np.isfinite(seconds).sum() < _ENOUGH:
        return None
    known = np.isfinite(seconds)
    return DurationModel(work, list(itertools.compress(assignments, known)), seconds[known])


# How wide the sampler's 95 % intervals must be to hold for 95 % of what it proposes.
#
# What is proposed was chosen for what the model expects of it, so that it falls short of the
# expectation more often, and further, than the model's standard deviation says. How far earlier
# proposals did is known: the ends of an interval are quantiles of that, as in conformal prediction.
# Before there are many, a prior stands in for them.
#
# Source: Papadopoulos et al., "Inductive confidence machines for regression", ECML 2002,
# https://doi.org/10.1007/3-540-36755-1_29; the prior was chosen in ``experiments/sampler``.

_ENDS = (0.025, 0.975)
# The prior: so many surprises, of Student's t distribution with so many degrees of freedom.
_N, _FREEDOM = 20, 3


def calibrated(surprises: Array) -> tuple[float, float]:
    """Return the ends of the next interval of 95 %, in standard deviations from the mean.

    Args:
        surprises: How far values lay from what was expected of them, in the standard deviations
            that the model said, ``(n,)``.
    """
    prior = stats.t.ppf((np.arange(_N) + 0.5) / _N, _FREEDOM)
    low, high = np.quantile(np.concatenate([prior, surprises]), _ENDS).tolist()
    return min(low, 0.0), max(high, 0.0)


# The lowest error that models see: what they model is its logarithm, and no error has none.

_LEAST = 1e-9  #: of shares; of errors in a unit, in errors of the usual size


def least(errors: NDArray[np.float64], is_share: bool) -> float:
    """Return the lowest error.

    Args:
        errors: All that are known, which say what is little where they have a unit.
        is_share: Whether they are shares of answers.
    """
    usual = errors[np.isfinite(errors) & (errors > 0)]
    return _LEAST if is_share or len(usual) == 0 else _LEAST * float(np.median(usual))


# Costs that are known only after a trial.


@final
class ModelledCost:
    """A cost that is modelled: its logarithm where it is positive."""

    def __init__(self, x: Array, y: Array, parameters: Hyperparameters):
        self._surrogate = Surrogate(x, logs(y), parameters)
        self._logarithmic = bool((y > 0).all())

    def predict(self, x: Array) -> Array:
        """Return the mean, ``(n,)``."""
        mean = self._surrogate.predict(x)[0]
        return np.exp(mean) if self._logarithmic else mean


def logs(values: Array) -> Array:
    """Return logarithms of values that are all positive, else these."""
    return np.log(values) if (values > 0).all() else values


# Feasibility under constraints that are known only after a trial.

_MOST = 400  # candidates that the process is given: the last ones


@final
class FeasibilityModel:
    """The probability that candidates fit, by those that did and those that did not.

    Gains are multiplied by it. Source: Gardner et al., "Bayesian optimization with inequality
    constraints", ICML 2014.

    Args:
        features: Of candidates that were tried, ``(n, d)``.
        fitted: Whether each did, ``(n,)``.
        n_summary: Features that sum up a candidate: the last ones.
    """

    def __init__(self, features: Array, fitted: NDArray[np.bool_], n_summary: int):
        x, y = features[-_MOST:], np.where(fitted, 1.0, -1.0)[-_MOST:]
        self._surrogate = Surrogate(x, y, fit_hyperparameters(x, y, n_summary=n_summary))

    def __call__(self, features: Array) -> Array:
        """Return the probability of each, ``(n,)``."""
        mean, std = self._surrogate.predict(features)
        found: Array = ndtr(mean / np.hypot(std, self._surrogate.noise))
        return found
