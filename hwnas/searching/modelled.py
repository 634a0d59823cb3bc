"""Costs that are only told, as a model of them."""

from typing import final

import numpy as np
from numpy.typing import NDArray

from hwnas.gaussian_process import Hyperparameters, Surrogate

Array = NDArray[np.float64]


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
