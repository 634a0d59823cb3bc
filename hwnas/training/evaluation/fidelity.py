"""Prediction of a long training from a short one, learned from networks with both.

The logarithm of the error after the long training is a line in that after the short one, with a
slope near one and normal residuals. Sources: Domhan et al., "Speeding up automatic hyperparameter
optimization of deep neural networks by extrapolation of learning curves", IJCAI 2015 (early
stopping); Li et al., "A system for massively parallel hyperparameter tuning", MLSys 2020,
https://arxiv.org/abs/1810.05934 (asynchronous successive fidelities); Bishop, "Pattern recognition
and machine learning", 2006, section 3.3 (Bayesian linear regression).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from hwnas.core.quantity import Quantity
from hwnas.tasks.metrics import metric_of

_SLOPE = (1.0, 0.25)  # prior: mean and standard deviation
_SHIFT = 1.0  # prior: standard deviation of the mean change of the log error
_RESIDUAL, _N_PRIOR = 0.08, 4  # prior: residual standard deviation, worth this many networks
# Lower bounds of errors, for finite logarithms: of error rates, and of errors in any unit.
_MIN_RATE, _MIN_ERROR = 1e-4, 1e-45
_NORMAL_95 = 1.96


@dataclass(frozen=True)
class FidelityForecast:
    """Normal distribution of the log error (see ``log_error``) after the long training."""

    metric: str  #: name of the metric, such as ``accuracy``
    mean: float  #: of the log error
    std: float  #: of the log error

    def reaches(self, value: float) -> float:
        """Return the probability that the metric is as good as ``value`` or better."""
        return float(ndtr((log_error(self.metric, value) - self.mean) / self.std))

    def widened(self, std: float) -> "FidelityForecast":
        """Return the forecast with an additional, independent error of the log error."""
        return FidelityForecast(self.metric, self.mean, math.hypot(self.std, std))

    @property
    def figure(self) -> Quantity:
        """Median of the metric with its 95 % interval, in the metric's unit, at least 0."""
        metric = metric_of(self.metric)
        assert metric.perfect is not None
        sign = -1 if metric.maximise else 1
        value, low, high = (
            max(0.0, metric.perfect + sign * math.exp(self.mean + sign * z * self.std))
            for z in (0.0, -_NORMAL_95, _NORMAL_95)
        )
        return Quantity(value, "modelled", low, high)


def forecast(metric: str, value: float, known: Sequence[tuple[float, float]]) -> FidelityForecast:
    """Return the forecast of a network after the long training.

    Args:
        metric: Name of the metric.
        value: Metric of the network after the short training.
        known: Metric of other networks after the short and after the long training.
    """
    at = log_error(metric, value)
    x = np.array([[1.0, log_error(metric, short) - at] for short, _ in known]).reshape(-1, 2)
    # Change of the log error, relative to a slope of one: the prior mean of both weights is 0.
    y = np.array([log_error(metric, b) - log_error(metric, a) for a, b in known])
    precision = np.diag([1 / _SHIFT**2, 1 / _SLOPE[1] ** 2])
    variance = _RESIDUAL**2
    for _ in range(3):  # residual variance and line depend on each other
        covariance = np.linalg.inv(precision + x.T @ x / variance)
        weights = covariance @ x.T @ y / variance
        squares = float(((y - x @ weights) ** 2).sum())
        variance = (squares + _N_PRIOR * _RESIDUAL**2) / (len(y) + _N_PRIOR)
    # At the network itself the second column is zero.
    return FidelityForecast(
        metric, at + float(weights[0]), math.sqrt(variance + float(covariance[0, 0]))
    )


def log_std(metric: str, figure: Quantity) -> float:
    """Return the standard deviation of the log error, given the metric's interval."""
    return figure.std / _error(metric, figure.value)


def log_error(metric: str, value: float) -> float:
    """Return the natural logarithm of the error, the difference from the perfect value.

    For example, the accuracy 0.9 gives ``log(0.1)``. The error is at least 1e-4 for metrics that
    are maximised, and 1e-45 for others.
    """
    return math.log(_error(metric, value))


def _error(metric: str, value: float) -> float:
    of = metric_of(metric)
    assert of.perfect is not None
    return (
        max(of.perfect - value, _MIN_RATE) if of.maximise else max(value - of.perfect, _MIN_ERROR)
    )
