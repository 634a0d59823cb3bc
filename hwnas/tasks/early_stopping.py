"""Reads a split only as far as it takes to tell that a candidate is worse than its incumbent.

Most images are got right by every network, and some by none: they tell nothing. So images are put
in strata by the share of the earlier networks that got them right. What a network does in a stratum
is predicted by a beta-binomial distribution: its prior is what each earlier network did in the
strata that the others make, and what was read of the stratum updates it. More is read of a stratum
the less certain its images are (Neyman's allocation), in random order within it. After each block
the number of right answers on the whole split is predicted (images that were read are known, the
others of a finite number; sums are taken as normal). Reading stops when the probability that it
reaches the incumbent's is at most ``(1 - confidence) / looks``: the looks share what is allowed to
go wrong (Bonferroni), so that a candidate as good as its incumbent is stopped that rarely in all.

Sources: Neyman, 1934, https://doi.org/10.2307/2342192; the beta-binomial as the posterior of a
finite population: Ericson, 1969, https://doi.org/10.1111/j.2517-6161.1969.tb00782.x.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hwnas.core.quantity import Quantity
from hwnas.tasks.base import Incumbent, Score
from hwnas.tasks.intervals import half_width, mean, proportion

Array = NDArray[np.float64]
Bits = NDArray[np.bool_]
Index = NDArray[np.intp]

#: Shares of the images after which is looked whether to stop.
LOOKS = (1 / 16, 1 / 8, 1 / 4, 1 / 2)


@dataclass(frozen=True)
class _Stratum:
    """Images that the earlier networks found about as hard."""

    images: Index  #: in the order of reading
    mean: float  #: of the prior of the share that a network gets right
    strength: float  #: of the prior, in images

    def unread(self, correct: Sequence[bool] | Bits) -> tuple[float, float]:
        """Return mean and variance of the right answers among the images not read yet."""
        left = len(self.images) - len(correct)
        n_correct = int(np.sum(correct))
        a = self.mean * self.strength + n_correct
        b = (1 - self.mean) * self.strength + len(correct) - n_correct
        share = a / (a + b)
        return left * share, left * share * (1 - share) * (a + b + left) / (a + b + 1)


def read_accuracy(
    correct: Callable[[Index], Bits],
    n: int,
    incumbent: Incumbent,
    confidence: float,
    rng: np.random.Generator,
) -> Score:
    """Return what reading ``n`` images says, stopping as soon as the incumbent cannot be reached.

    Args:
        correct: Reads images, and says which of them are classified rightly.
        n: The number of images of the split.
        incumbent: The network to be beaten, with those that were read whole.
        confidence: A candidate that is as accurate as the incumbent is stopped with a probability
            of at most ``1 - confidence``.
        rng: Decides the order within a stratum.
    """
    earlier = np.stack([unpacked_bits(bits, n) for bits in incumbent.earlier])
    strata = _strata(earlier, rng)
    order = _order(strata)
    bits, known = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    to_reach = int(unpacked_bits(incumbent.per_image, n).sum())
    start = 0
    for end in sorted({max(1, round(share * n)) for share in LOOKS} - {n}):  # of few, fewer
        block = order[start:end]
        bits[block], known[block] = correct(block), True
        start = end
        found = [s.unread(bits[s.images[known[s.images]]]) for s in strata]
        mean = int(bits.sum()) + sum(m for m, _ in found)
        variance = sum(v for _, v in found)
        if _reaches(to_reach, mean, variance) <= (1 - confidence) / len(LOOKS):
            return Score(
                _predicted_accuracy(min(mean, to_reach - 1), variance, n), end, stopped=True
            )
    bits[order[start:]] = correct(order[start:])
    return score_of_all_bits(bits)


def score_of_all_bits(correct: Bits) -> Score:
    """Return what reading all images said."""
    figure = proportion(int(correct.sum()), len(correct))
    return Score(figure, len(correct), np.packbits(correct).tobytes())


def unpacked_bits(bits: bytes, n: int) -> Bits:
    """Return packed bits as ``(n,)``."""
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=n).astype(np.bool_)


def _strata(earlier: Bits, rng: np.random.Generator) -> list[_Stratum]:
    """Return the strata that earlier networks ``(m, n)`` make, with their priors."""
    m, n = earlier.shape
    shuffled = rng.permutation(n)
    counts = earlier.sum(axis=0)
    classes = _classes(m)[counts]
    found = []
    inside, n_correct = _left_out(earlier, counts)
    for k in np.unique(classes):
        images = shuffled[classes[shuffled] == k]
        guess = float((counts[images].mean() + 0.5) / (m + 1))
        present = inside[:, k] > 0
        of, hits = inside[present, k], n_correct[present, k]
        mean = float((hits.sum() + guess) / (of.sum() + 1))
        found.append(_Stratum(images, mean, _strength(hits / np.maximum(of, 1), mean)))
    return found


def _left_out(earlier: Bits, counts: NDArray[np.int_]) -> tuple[Array, Array]:
    """Return how many images each network has in the strata of the others, and gets right."""
    m, _ = earlier.shape
    classes = _classes(m - 1)
    width = int(max(classes.max(), _classes(m).max())) + 1
    inside, n_correct = np.zeros((m, width)), np.zeros((m, width))
    for j, bits in enumerate(earlier):
        others = classes[counts - bits]
        inside[j] = np.bincount(others, minlength=width)
        n_correct[j] = np.bincount(others[bits], minlength=width)
    return inside, n_correct


def _classes(m: int) -> NDArray[np.int_]:
    """Return the stratum of images that 0, 1, ... m of m networks get right: by log-odds."""
    correct = np.arange(m + 1)
    odds = np.log((correct + 0.5) / (m - correct + 0.5))
    return np.asarray(np.rint(odds).astype(np.int_) + 10)  # never negative


def _strength(shares: Array, mean: float) -> float:
    """Return how many images the prior is worth: few, if the networks' shares differ much."""
    if len(shares) < 2:
        return 1.0
    # Of one more network, given these.
    spread = float(((shares - mean) ** 2).sum()) / (len(shares) - 1) * (1 + 1 / len(shares))
    return max(1.0, mean * (1 - mean) / (spread + 1e-9) - 1)


def _order(strata: Sequence[_Stratum]) -> Index:
    """Return all images so that every part from the start takes of each stratum what it should."""
    images = np.concatenate([s.images for s in strata])
    turns = [
        (np.arange(len(s.images)) + 0.5) / (len(s.images) * math.sqrt(s.mean * (1 - s.mean)))
        for s in strata
    ]
    return images[np.argsort(np.concatenate(turns), kind="stable")]


def _reaches(count: int, mean: float, variance: float) -> float:
    """Return the probability that a number of this mean and variance is ``count`` or more."""
    return 0.5 * math.erfc((count - 0.5 - mean) / math.sqrt(2 * variance + 1e-9))


def _predicted_accuracy(n_correct: float, variance: float, n: int) -> Quantity:
    """Return the accuracy on all images, its Wilson interval widened by the prediction's error."""
    p = n_correct / n
    exact = max(p * (1 - p), 0.25 / n)
    worth = n * exact / (exact + variance / n)
    return replace(proportion(p * worth, worth), source="modelled")


# Reads a split only as far as it takes to tell that a candidate's error is above its incumbent's.
#
# What counts is the difference of the two networks' errors on the same image: images that are hard
# for one are hard for the other, so that differences vary less than errors. Images come in random
# order. After each block the mean difference on the whole split is estimated: of images that were
# read it is known, of the others it is that of a sample without replacement from a finite
# population, with Student's t on the sample's standard deviation. Reading stops when the error is
# above the incumbent's with a probability of ``1 - (1 - confidence) / looks``: the looks share what
# is allowed to go wrong (Bonferroni), so that a candidate as good as its incumbent is stopped that
# rarely in all.
#
# Sources: Cochran, "Sampling Techniques", 1977, sections 2.6 and 2.8 (finite populations, Student's
# t) and 7.3 (estimation by differences). Bounds that hold for any distribution (Bardenet &
# Maillard,
# "Concentration inequalities for sampling without replacement", Bernoulli 2015,
# https://arxiv.org/abs/1309.4029) need the largest error there can be, which regression has not.

Errors = NDArray[np.float32]

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


def read_error(
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
    beaten = unpacked_errors(incumbent.per_image)
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
            return Score(_predicted_error(difference, beaten), end, stopped=True)
    found[order[start:]] = errors(order[start:])
    return score_of_all_errors(found)


def score_of_all_errors(errors: Errors) -> Score:
    """Return what reading all images said."""
    return Score(mean(errors), len(errors), errors.astype(np.float32).tobytes())


def unpacked_errors(content: bytes) -> Errors:
    """Return the errors ``(n,)`` that ``whole`` packed."""
    return np.frombuffer(content, np.float32)


def _estimated(differences: NDArray[np.float64], n: int) -> _Difference:
    """Return the mean over ``n`` images, of which these were read."""
    k = len(differences)
    deviation = float(differences.std(ddof=1))
    return _Difference(float(differences.mean()), deviation * math.sqrt((1 - k / n) / k), k - 1)


def _predicted_error(difference: _Difference, beaten: Errors) -> Quantity:
    """Return the error on all images; its interval is that of the mean, wider by the estimate's."""
    value = max(mean(beaten).value + difference.mean, 0.0)
    half = math.hypot(difference.quantile(0.975) - difference.mean, half_width(beaten))
    return Quantity(value, "modelled", max(0.0, value - half), value + half)
