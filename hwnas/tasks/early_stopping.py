"""Early stopping of evaluations of candidates that are worse than their incumbent.

Accuracy: images are stratified by the fraction of earlier networks that classify them correctly,
as most images are classified correctly by all networks, and some by none. The result of a stratum
is predicted by a beta-binomial distribution. Its prior are the results of each earlier network in
the strata of the others; evaluated images update it. More images are drawn from uncertain strata
(Neyman allocation), in random order. After each block the number of correct images of the whole
split is predicted (evaluated images are known, sums are taken as normal).

Error: the difference of the two networks' errors on the same image varies less than the errors.
Images are drawn in random order. After each block the mean difference on the whole split is
estimated as that of a sample without replacement from a finite population, with Student's t.
Bounds for any distribution (Bardenet & Maillard, "Concentration inequalities for sampling without
replacement", Bernoulli 2015, https://arxiv.org/abs/1309.4029) need a largest error, which
regression does not have.

Evaluation stops when the candidate reaches the incumbent with a probability of at most
``(1 - confidence) / looks`` (Bonferroni): a candidate as good as its incumbent is stopped with a
probability of at most ``1 - confidence`` in all.

Sources: Neyman, 1934, https://doi.org/10.2307/2342192; the beta-binomial as the posterior of a
finite population: Ericson, 1969, https://doi.org/10.1111/j.2517-6161.1969.tb00782.x; Cochran,
"Sampling Techniques", 1977, sections 2.6 and 2.8 (finite populations, Student's t) and 7.3
(estimation by differences).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hwnas.core.quantity import Quantity
from hwnas.tasks.base import Incumbent, Index, Score
from hwnas.tasks.intervals import half_width, mean, proportion

Array = NDArray[np.float64]
Bits = NDArray[np.bool_]
Errors = NDArray[np.float32]

LOOK_FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 1 / 2)  #: evaluated fractions at which to decide
#: minimum number of images before evaluation of errors stops: they are not normally distributed
MIN_IMAGES = 30


@dataclass(frozen=True)
class _Stratum:
    """Images of similar difficulty for the earlier networks."""

    images: Index  #: in the order of evaluation
    mean: float  #: prior mean of the accuracy of a network
    strength: float  #: of the prior, in images

    def predict_rest(self, correct: Sequence[bool] | Bits) -> tuple[float, float]:
        """Return mean and variance of the number of correct images among the remaining ones."""
        n = len(self.images) - len(correct)
        n_correct = int(np.sum(correct))
        a = self.mean * self.strength + n_correct
        b = (1 - self.mean) * self.strength + len(correct) - n_correct
        p = a / (a + b)
        return n * p, n * p * (1 - p) * (a + b + n) / (a + b + 1)


def read_accuracy(
    correct: Callable[[Index], Bits],
    n: int,
    incumbent: Incumbent,
    confidence: float,
    rng: np.random.Generator,
) -> Score:
    """Return the accuracy, or a predicted accuracy once it is very likely below the incumbent's.

    Args:
        correct: Classifies the images at the given indices; returns for each whether it is
            correct.
        n: Number of images of the split.
        incumbent: The network to beat, with results of earlier networks.
        confidence: A candidate as good as the incumbent is stopped with a probability of at most
            ``1 - confidence``.
        rng: Determines the order within a stratum.
    """
    earlier = np.stack([unpacked_bits(bits, n) for bits in incumbent.earlier])
    strata = _strata(earlier, rng)
    order = _order(strata)
    bits, known = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    to_reach = int(unpacked_bits(incumbent.per_image, n).sum())
    start = 0
    for end in sorted(
        {max(1, round(share * n)) for share in LOOK_FRACTIONS} - {n}
    ):  # fewer looks for few images
        block = order[start:end]
        bits[block], known[block] = correct(block), True
        start = end
        rest = [s.predict_rest(bits[s.images[known[s.images]]]) for s in strata]
        mean = int(bits.sum()) + sum(m for m, _ in rest)
        variance = sum(v for _, v in rest)
        if _reaches(to_reach, mean, variance) <= (1 - confidence) / len(LOOK_FRACTIONS):
            return Score(
                _predicted_accuracy(min(mean, to_reach - 1), variance, n), end, stopped=True
            )
    bits[order[start:]] = correct(order[start:])
    return score_of_all_bits(bits)


def score_of_all_bits(correct: Bits) -> Score:
    """Return the score of a network: its accuracy on all images, ``(n,)``, and packed results."""
    figure = proportion(int(correct.sum()), len(correct))
    return Score(figure, len(correct), np.packbits(correct).tobytes())


def unpacked_bits(bits: bytes, n: int) -> Bits:
    """Return the correctness of ``n`` images, ``(n,)``, from ``Score.per_image``."""
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=n).astype(np.bool_)


def _strata(earlier: Bits, rng: np.random.Generator) -> list[_Stratum]:
    """Return the strata by results of earlier networks ``(m, n)``, with their priors."""
    m, n = earlier.shape
    shuffled = rng.permutation(n)
    counts = earlier.sum(axis=0)
    classes = _classes(m)[counts]
    strata = []
    inside, n_correct = _leave_one_out(earlier, counts)
    for k in np.unique(classes):
        images = shuffled[classes[shuffled] == k]
        guess = float((counts[images].mean() + 0.5) / (m + 1))
        present = inside[:, k] > 0
        totals, hits = inside[present, k], n_correct[present, k]
        mean = float((hits.sum() + guess) / (totals.sum() + 1))
        strata.append(_Stratum(images, mean, _strength(hits / np.maximum(totals, 1), mean)))
    return strata


def _leave_one_out(earlier: Bits, counts: NDArray[np.int_]) -> tuple[Array, Array]:
    """Return numbers of images and of correct ones of each network in the others' strata."""
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
    """Return the strata, by log-odds, of images that 0, 1, ... m networks classify correctly."""
    correct = np.arange(m + 1)
    odds = np.log((correct + 0.5) / (m - correct + 0.5))
    return np.asarray(np.rint(odds).astype(np.int_) + 10)  # never negative


def _strength(shares: Array, mean: float) -> float:
    """Return the strength of the prior in images: low if the networks' accuracies vary."""
    if len(shares) < 2:
        return 1.0
    # Predictive variance for one more network.
    variance = float(((shares - mean) ** 2).sum()) / (len(shares) - 1) * (1 + 1 / len(shares))
    return max(1.0, mean * (1 - mean) / (variance + 1e-9) - 1)


def _order(strata: Sequence[_Stratum]) -> Index:
    """Return all images in an order whose every prefix has the Neyman allocation."""
    images = np.concatenate([s.images for s in strata])
    turns = [
        (np.arange(len(s.images)) + 0.5) / (len(s.images) * math.sqrt(s.mean * (1 - s.mean)))
        for s in strata
    ]
    return images[np.argsort(np.concatenate(turns), kind="stable")]


def _reaches(count: int, mean: float, variance: float) -> float:
    """Return the probability that a number with this mean and variance is at least ``count``."""
    return 0.5 * math.erfc((count - 0.5 - mean) / math.sqrt(2 * variance + 1e-9))


def _predicted_accuracy(n_correct: float, variance: float, n: int) -> Quantity:
    """Return the predicted accuracy; its Wilson interval includes the prediction error."""
    p = n_correct / n
    exact = max(p * (1 - p), 0.25 / n)
    worth = n * exact / (exact + variance / n)
    return replace(proportion(p * worth, worth), source="modelled")


@dataclass(frozen=True)
class _Difference:
    """An estimate of the mean difference of errors on the whole split."""

    mean: float
    std: float  #: of the estimate
    freedom: int

    def quantile(self, p: float) -> float:
        """Return a quantile of the mean difference."""
        from scipy import stats  # slow to import, and not needed by ``verify``

        return self.mean + self.std * float(stats.t.ppf(p, self.freedom))


def read_error(
    errors: Callable[[Index], Errors],
    n: int,
    incumbent: Incumbent,
    confidence: float,
    rng: np.random.Generator,
) -> Score:
    """Return the mean error, or a predicted error once it is very likely above the incumbent's.

    Evaluation does not stop before 30 images.

    Args:
        errors: Evaluates the images at the given indices; returns their errors.
        n: Number of images of the split.
        incumbent: The network to beat.
        confidence: A candidate as good as the incumbent is stopped with a probability of at most
            ``1 - confidence``.
        rng: Determines the order of evaluation.
    """
    reference = unpacked_errors(incumbent.per_image)
    order, values, start = rng.permutation(n), np.zeros(n, np.float32), 0
    for end in [round(fraction * n) for fraction in LOOK_FRACTIONS]:
        if end < MIN_IMAGES:
            continue
        block = order[start:end]
        values[block] = errors(block)
        start = end
        known = order[:end]
        difference = _estimate((values[known] - reference[known]).astype(np.float64), n)
        if difference.quantile((1 - confidence) / len(LOOK_FRACTIONS)) > 0:
            return Score(_predicted_error(difference, reference), end, stopped=True)
    values[order[start:]] = errors(order[start:])
    return score_of_all_errors(values)


def score_of_all_errors(errors: Errors) -> Score:
    """Return the score of a network: its mean error on all images, ``(n,)``, and all errors."""
    return Score(mean(errors), len(errors), errors.astype(np.float32).tobytes())


def unpacked_errors(content: bytes) -> Errors:
    """Return the errors of all images, ``(n,)``, from ``Score.per_image``."""
    return np.frombuffer(content, np.float32)


def _estimate(differences: NDArray[np.float64], n: int) -> _Difference:
    """Return the mean over ``n`` images from the differences of a sample."""
    k = len(differences)
    deviation = float(differences.std(ddof=1))
    return _Difference(float(differences.mean()), deviation * math.sqrt((1 - k / n) / k), k - 1)


def _predicted_error(difference: _Difference, reference: Errors) -> Quantity:
    """Return the predicted error; its interval includes that of the estimate."""
    value = max(mean(reference).value + difference.mean, 0.0)
    half = math.hypot(difference.quantile(0.975) - difference.mean, half_width(reference))
    return Quantity(value, "modelled", max(0.0, value - half), value + half)
