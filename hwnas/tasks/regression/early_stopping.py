"""Reads a split only as far as it takes to tell that a candidate's error is above its incumbent's.

What counts is the difference of the two networks' errors on the same image: images that are hard
for one are hard for the other, so that differences vary less than errors. Images come in random
order. After each block the mean difference on the whole split is estimated: of images that were
read it is known, of the others it is that of a sample without replacement from a finite
population, with Student's t on the sample's standard deviation. Reading stops when the error is
above the incumbent's with a probability of ``1 - (1 - confidence) / looks``: the looks share what
is allowed to go wrong (Bonferroni), so that a candidate as good as its incumbent is stopped that
rarely in all.

Sources: Cochran, "Sampling Techniques", 1977, sections 2.6 and 2.8 (finite populations, Student's
t) and 7.3 (estimation by differences). Bounds that hold for any distribution (Bardenet & Maillard,
"Concentration inequalities for sampling without replacement", Bernoulli 2015,
https://arxiv.org/abs/1309.4029) need the largest error there can be, which regression has not.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwnas.figure import Figure
from hwnas.tasks.regression.mean import half_width, mean
from hwnas.tasks.score import Incumbent, Score

Errors = NDArray[np.float32]
Index = NDArray[np.intp]

#: Shares of the images after which is looked whether to stop.
LOOKS = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
LEAST = 30  #: images read, before Student's t is trusted with errors that are not normal


@dataclass(frozen=True)
class _Difference:
    """The mean difference of errors on the whole split, by what was read of it."""

    mean: float
    std: float  #: of the estimate
    freedom: int

    def quantile(self, share: float) -> float:
        """Return the value below which the mean lies with this probability."""
        from scipy import stats  # which `verify` of other tasks does without

        return self.mean + self.std * float(stats.t.ppf(share, self.freedom))


def read(
    errors: Callable[[Index], Errors],
    n: int,
    incumbent: Incumbent,
    confidence: float,
    rng: np.random.Generator,
) -> Score:
    """Return what reading ``n`` images says, stopping as soon as the incumbent cannot be reached.

    Args:
        errors: Reads images, and says how far each answer is off.
        n: The number of images of the split.
        incumbent: The network to be beaten.
        confidence: A candidate that is as good as the incumbent is stopped with a probability of at
            most ``1 - confidence``.
        rng: Decides the order.
    """
    beaten = unpacked(incumbent.per_image)
    order, found, start = rng.permutation(n), np.zeros(n, np.float32), 0
    for end in [round(share * n) for share in LOOKS]:
        if end < LEAST:
            continue
        block = order[start:end]
        found[block] = errors(block)
        start = end
        seen = order[:end]
        difference = _estimated((found[seen] - beaten[seen]).astype(np.float64), n)
        if difference.quantile((1 - confidence) / len(LOOKS)) > 0:
            return Score(_predicted(difference, beaten), end, stopped=True)
    found[order[start:]] = errors(order[start:])
    return whole(found)


def whole(errors: Errors) -> Score:
    """Return what reading all images said."""
    return Score(mean(errors), len(errors), errors.astype(np.float32).tobytes())


def unpacked(content: bytes) -> Errors:
    """Return the errors ``(n,)`` that ``whole`` packed."""
    return np.frombuffer(content, np.float32)


def _estimated(differences: NDArray[np.float64], n: int) -> _Difference:
    """Return the mean over ``n`` images, of which these were read."""
    k = len(differences)
    deviation = float(differences.std(ddof=1))
    return _Difference(float(differences.mean()), deviation * math.sqrt((1 - k / n) / k), k - 1)


def _predicted(difference: _Difference, beaten: Errors) -> Figure:
    """Return the error on all images; its interval is that of the mean, wider by the estimate's."""
    value = max(mean(beaten).value + difference.mean, 0.0)
    half = math.hypot(difference.quantile(0.975) - difference.mean, half_width(beaten))
    return Figure(value, "modelled", max(0.0, value - half), value + half)
