"""95 % intervals of means and proportions."""

import functools
import math

import numpy as np
from numpy.typing import NDArray

from hwnas.core.quantity import NORMAL_95, Quantity

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)  # of Gauss-Legendre quadrature
_STEPS = 6  # of Newton's method; five suffice for any degrees of freedom


def mean(errors: NDArray[np.floating]) -> Quantity:
    """Return the mean as a measured quantity with its 95 % interval by Student's t.

    Source: Student, "The probable error of a mean", Biometrika 1908,
    https://doi.org/10.1093/biomet/6.1.1.
    """
    value = float(errors.mean(dtype=np.float64))
    half = half_width(errors)
    return Quantity(value, "measured", max(0.0, value - half), value + half)


def half_width(values: NDArray[np.floating]) -> float:
    """Return half the width of the 95 % interval of a mean; infinite for a single value."""
    n = len(values)
    if n < 2:
        return math.inf
    deviation = float(values.std(ddof=1, dtype=np.float64))
    return _quantile(n - 1) * deviation / math.sqrt(n)


@functools.cache
def _quantile(df: int) -> float:
    """Return the two-sided 95 % quantile of Student's t distribution.

    With t = ``sqrt(df) tan(a)``, the density of ``a`` is proportional to ``cos(a)^(df - 1)``.
    Newton's method starts from the normal quantile. It agrees with scipy, which ``verify`` does not
    load, to 1e-10 up to 10,000 degrees of freedom.
    """
    density = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi)
    a = math.atan(1.96 / math.sqrt(df))
    for _ in range(_STEPS):
        inside = a / 2 * float(_WEIGHTS @ np.cos(a / 2 * (1 + _NODES)) ** (df - 1))
        a += (0.95 / (2 * density) - inside) / math.cos(a) ** (df - 1)
    return math.sqrt(df) * math.tan(a)


def proportion(successes: float, n: float) -> Quantity:
    """Return ``successes / n`` as a measured quantity with its 95 % Wilson score interval.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", 1927,
    https://doi.org/10.1080/01621459.1927.10502953.
    """
    z = NORMAL_95
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Quantity(p, "measured", max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half)))


def fraction(flags: NDArray[np.bool_]) -> Quantity:
    """Return the fraction of true values, as ``proportion`` does."""
    return proportion(int(flags.sum()), len(flags))
