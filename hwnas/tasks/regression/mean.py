"""A mean of errors, with its interval."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from hwnas.figure import Figure


def mean(errors: NDArray[np.floating]) -> Figure:
    """Return the mean as a measured figure with its 95 % interval by Student's t.

    Source: Student, "The probable error of a mean", Biometrika 1908,
    https://doi.org/10.1093/biomet/6.1.1.
    """
    value = float(errors.mean(dtype=np.float64))
    half = half_width(errors)
    return Figure(value, "measured", max(0.0, value - half), value + half)


def half_width(values: NDArray[np.floating]) -> float:
    """Return half of the 95 % interval of a mean; without end for a single value."""
    n = len(values)
    if n < 2:
        return math.inf
    deviation = float(values.std(ddof=1, dtype=np.float64))
    return float(stats.t.ppf(0.975, n - 1)) * deviation / math.sqrt(n)
