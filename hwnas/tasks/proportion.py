"""Shares of what there is, such as of right answers, with their intervals."""

import math

import numpy as np
from numpy.typing import NDArray

from hwnas.figure import NORMAL_95, Figure


def proportion(successes: float, n: float) -> Figure:
    """Return ``successes / n`` as a measured figure with its 95 % Wilson score interval.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", 1927,
    https://doi.org/10.1080/01621459.1927.10502953.
    """
    z = NORMAL_95
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Figure(p, "measured", max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half)))


def share_of(flags: NDArray[np.bool_]) -> Figure:
    """Return the share of images that something is true of, as ``proportion`` does."""
    return proportion(int(flags.sum()), len(flags))
