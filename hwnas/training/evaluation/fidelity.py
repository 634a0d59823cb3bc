"""What a short training says of a longer one: learned from networks that had both.

The logarithm of the error (how far the metric is from perfect) after the longer training is
modelled as a line in that after the short one, whose slope is near one; what is left is normal, and
known the better the more networks had both. Sources: Domhan et al., "Speeding up automatic
hyperparameter optimization of deep neural networks by extrapolation of learning curves", IJCAI 2015
(stop what will hardly reach the best); Li et al., "A system for massively parallel hyperparameter
tuning", MLSys 2020, https://arxiv.org/abs/1810.05934 (successive fidelities, none waits for
others); Bishop, "Pattern recognition and machine learning", 2006, section 3.3 (the line).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from hwnas.core.quantity import Quantity
from hwnas.tasks.metrics import column

_SLOPE = (1.0, 0.25)  # prior: mean and standard deviation
_SHIFT = 1.0  # prior standard deviation of the logarithm of what the longer training gains
_RESIDUAL, _WORTH = 0.08, 4  # prior of what is left, and how many networks it is worth
# Of no error, so that logarithms are finite: of shares, and of errors in any unit, where float32,
# in which networks answer, has none that is less.
_LEAST_SHARE, _LEAST = 1e-4, 1e-45
_NORMAL_95 = 1.96


@dataclass(frozen=True)
class FidelityForecast:
    """What the longer training is expected to come to: the logarithm of the error is normal."""

    metric: str  #: column
    mean: float
    std: float

    def reaches(self, value: float) -> float:
        """Return the probability that the metric is at least this good."""
        return float(ndtr((log_error(self.metric, value) - self.mean) / self.std))

    def widened(self, std: float) -> "FidelityForecast":
        """Return it with one more source of error."""
        return FidelityForecast(self.metric, self.mean, math.hypot(self.std, std))

    @property
    def figure(self) -> Quantity:
        """The median of the metric with its 95 % interval; none is below 0."""
        of = column(self.metric)
        assert of.perfect is not None
        sign = -1 if of.maximise else 1
        value, low, high = (
            max(0.0, of.perfect + sign * math.exp(self.mean + sign * z * self.std))
            for z in (0.0, -_NORMAL_95, _NORMAL_95)
        )
        return Quantity(value, "modelled", low, high)


def outlook(metric: str, value: float, known: Sequence[tuple[float, float]]) -> FidelityForecast:
    """Return what is expected of a network after a longer training.

    Args:
        metric: Column.
        value: Of the metric after the short one.
        known: Values of other networks after the short and after the longer training.
    """
    at = log_error(metric, value)
    x = np.array([[1.0, log_error(metric, short) - at] for short, _ in known]).reshape(-1, 2)
    # How far errors fell, beside a slope of one: both parameters are zero on the mean.
    y = np.array([log_error(metric, b) - log_error(metric, a) for a, b in known])
    precision = np.diag([1 / _SHIFT**2, 1 / _SLOPE[1] ** 2])
    variance = _RESIDUAL**2
    for _ in range(3):  # the residual decides the line a little, and the other way round
        covariance = np.linalg.inv(precision + x.T @ x / variance)
        weights = covariance @ x.T @ y / variance
        left = float(((y - x @ weights) ** 2).sum())
        variance = (left + _WORTH * _RESIDUAL**2) / (len(y) + _WORTH)
    # At the network itself the second column is zero.
    return FidelityForecast(
        metric, at + float(weights[0]), math.sqrt(variance + float(covariance[0, 0]))
    )


def log_std(metric: str, figure: Quantity) -> float:
    """Return the standard deviation of the logarithm of the error that a figure's interval says."""
    return figure.std / _error(metric, figure.value)


def log_error(metric: str, value: float) -> float:
    """Return the logarithm of the error: of the share of wrong answers, or of the mean error."""
    return math.log(_error(metric, value))


def _error(metric: str, value: float) -> float:
    of = column(metric)
    assert of.perfect is not None
    return max(of.perfect - value, _LEAST_SHARE) if of.maximise else max(value - of.perfect, _LEAST)
