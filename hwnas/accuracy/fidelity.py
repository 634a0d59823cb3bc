"""What a short training says of a longer one: learned from networks that had both.

The logarithm of the error after the longer training is modelled as a line in that after the short
one, whose slope is near one; what is left is normal, and known the better the more networks had
both. Sources: Domhan et al., "Speeding up automatic hyperparameter optimization of deep neural
networks by extrapolation of learning curves", IJCAI 2015 (stop what will hardly reach the best);
Li et al., "A system for massively parallel hyperparameter tuning", MLSys 2020,
https://arxiv.org/abs/1810.05934 (successive fidelities, none waits for others); Bishop, "Pattern
recognition and machine learning", 2006, section 3.3 (the line).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from hwnas.figure import Figure

_SLOPE = (1.0, 0.25)  # prior: mean and standard deviation
_SHIFT = 1.0  # prior standard deviation of the logarithm of what the longer training gains
_RESIDUAL, _WORTH = 0.08, 4  # prior of what is left, and how many networks it is worth
_LEAST_ERROR = 1e-4  # of no image wrong: the logarithm must be finite
_NORMAL_95 = 1.96


@dataclass(frozen=True)
class Outlook:
    """What the longer training is expected to come to: the logarithm of the error is normal."""

    mean: float
    std: float

    def reaches(self, accuracy: float) -> float:
        """Return the probability of at least this accuracy."""
        return float(ndtr((log_error(accuracy) - self.mean) / self.std))

    def widened(self, std: float) -> "Outlook":
        """Return it with one more source of error."""
        return Outlook(self.mean, math.hypot(self.std, std))

    @property
    def figure(self) -> Figure:
        """The median accuracy with its 95 % interval."""
        value, low, high = (
            1 - math.exp(self.mean + z * self.std) for z in (0.0, _NORMAL_95, -_NORMAL_95)
        )
        return Figure(max(0.0, value), "modelled", max(0.0, low), high)


def outlook(accuracy: float, known: Sequence[tuple[float, float]]) -> Outlook:
    """Return what is expected of a network after a longer training.

    Args:
        accuracy: After the short one.
        known: Accuracies of other networks after the short and after the longer training.
    """
    at = log_error(accuracy)
    x = np.array([[1.0, log_error(short) - at] for short, _ in known]).reshape(-1, 2)
    # How far errors fell, beside a slope of one: both parameters are zero on the mean.
    y = np.array([log_error(longer) - log_error(short) for short, longer in known])
    precision = np.diag([1 / _SHIFT**2, 1 / _SLOPE[1] ** 2])
    variance = _RESIDUAL**2
    for _ in range(3):  # the residual decides the line a little, and the other way round
        covariance = np.linalg.inv(precision + x.T @ x / variance)
        weights = covariance @ x.T @ y / variance
        left = float(((y - x @ weights) ** 2).sum())
        variance = (left + _WORTH * _RESIDUAL**2) / (len(y) + _WORTH)
    # At the network itself the second column is zero.
    return Outlook(at + float(weights[0]), math.sqrt(variance + float(covariance[0, 0])))


def log_std(figure: Figure) -> float:
    """Return the standard deviation of the logarithm of the error that a figure's interval says."""
    return figure.std / max(1 - figure.value, _LEAST_ERROR)


def log_error(accuracy: float) -> float:
    """Return the logarithm of the share of wrong answers."""
    return math.log(max(1 - accuracy, _LEAST_ERROR))
