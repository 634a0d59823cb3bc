"""How likely candidates are to keep limits that only tell once one was tried, and to be taken."""

from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from hwnas.gaussian_process import Surrogate, fit

Array = NDArray[np.float64]

_MOST = 400  # candidates that the process is given: the last ones


@final
class Odds:
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
        self._surrogate = Surrogate(x, y, fit(x, y, n_summary=n_summary))

    def __call__(self, features: Array) -> Array:
        """Return the probability of each, ``(n,)``."""
        mean, std = self._surrogate.predict(features)
        found: Array = ndtr(mean / np.hypot(std, self._surrogate.noise))
        return found
