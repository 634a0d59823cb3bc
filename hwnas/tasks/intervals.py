"""95 % intervals of means, proportions, and metrics of classes."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.core.quantity import NORMAL_95, Quantity

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(32)  # of Gauss-Legendre quadrature
_STEPS = 6  # of Newton's method; five suffice for any degrees of freedom


def mean(errors: NDArray[np.floating]) -> Quantity:
    """Return the mean of errors ``(n,)`` as a measured quantity with its 95 % interval.

    The interval is Student's t interval, cut off at 0; its upper end is infinite for n < 2.

    Source: Student, "The probable error of a mean", Biometrika 1908,
    https://doi.org/10.1093/biomet/6.1.1.
    """
    value = float(errors.mean(dtype=np.float64))
    half = half_width(errors)
    return Quantity(value, "measured", max(0.0, value - half), value + half)


def half_width(values: NDArray[np.floating]) -> float:
    """Return half the width of Student's 95 % interval of the mean; infinite for n < 2."""
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
    """Return the fraction of true values with its 95 % Wilson score interval."""
    return proportion(int(flags.sum()), len(flags))


Counts = NDArray[np.int64]


@dataclass(frozen=True)
class ClassScores:
    """Recall and F1 score of classes, from numbers of images by class, each ``(n_classes,)``."""

    hits: Counts  #: images of the class that are classified correctly
    n_images: Counts  #: images of the class
    n_answers: Counts  #: images that are classified as the class

    @staticmethod
    def of(confusion: Mapping[str, Mapping[str, int]]) -> "ClassScores":
        """Return the scores of a confusion matrix: images by true class and predicted class."""
        names = [*confusion]
        index = {name: i for i, name in enumerate(names)}
        hits = [answers.get(name, 0) for name, answers in confusion.items()]
        n_answers = np.zeros(len(names), np.int64)
        for answers in confusion.values():
            for name, n in answers.items():
                n_answers[index[name]] += n
        n_images = [sum(answers.values()) for answers in confusion.values()]
        return ClassScores(np.array(hits), np.array(n_images), n_answers)

    @property
    def recalls(self) -> list[Quantity | None]:
        """Recall of each class with its Wilson interval; ``None`` for classes without images."""
        pairs = zip(self.hits.tolist(), self.n_images.tolist(), strict=True)
        return [proportion(hits, n) if n else None for hits, n in pairs]

    @property
    def balanced_accuracy(self) -> Quantity:
        """Mean recall of the classes that have images.

        Source: Brodersen et al., "The balanced accuracy and its posterior distribution", ICPR 2010,
        https://doi.org/10.1109/ICPR.2010.764.
        """
        return _mean_of([recall for recall in self.recalls if recall is not None])

    @property
    def macro_f1(self) -> Quantity:
        """Mean F1 score of the classes that have images or answers.

        An F1 score is ``2 J / (1 + J)``, where J is the proportion of hits among the images that
        are of the class or classified as it. Each error counts in two classes, which at most
        doubles the variance of the mean.
        """
        union = self.n_images + self.n_answers - self.hits
        pairs = zip(self.hits.tolist(), union.tolist(), strict=True)
        return _mean_of([_f1(proportion(hits, n)) for hits, n in pairs if n], 2.0)


def _f1(jaccard: Quantity) -> Quantity:
    value, low, high = (2 * j / (1 + j) for j in (jaccard.value, jaccard.lower, jaccard.upper))
    return Quantity(value, "measured", low, high)


def _mean_of(parts: list[Quantity], correlation: float = 1.0) -> Quantity:
    """Return the mean of quantities, with its interval from theirs.

    Args:
        parts: Independent quantities.
        correlation: Factor of the variance of their mean if they are not independent.

    Source: Zou & Donner, "Construction of confidence limits about effect measures: a general
    approach", Statistics in Medicine 27, 2008, https://doi.org/10.1002/sim.3095.
    """
    n, scale = len(parts), math.sqrt(correlation)
    value = sum(part.value for part in parts) / n
    below = scale * math.hypot(*(part.value - part.lower for part in parts)) / n
    above = scale * math.hypot(*(part.upper - part.value for part in parts)) / n
    return Quantity(value, "measured", max(0.0, value - below), min(1.0, value + above))


_MAX_LISTED = 30  # classes in a text


def describe_classes(images: Mapping[str, Mapping[str, int]]) -> str:
    """Return a text such as ``2 classes (train+test images): 'cat' (50+10), 'dog' (40+10).``.

    It lists at most 30 classes.

    Args:
        images: Number of images by split and class.
    """
    by_class = zip(*(counts.values() for counts in images.values()), strict=True)
    names = [*next(iter(images.values()))]
    listed = [
        f"'{name}' ({'+'.join(map(str, counts))})"
        for name, counts in zip(names, by_class, strict=True)
    ]
    more = f", and {len(listed) - _MAX_LISTED} more" * (len(listed) > _MAX_LISTED)
    splits = "+".join(images)
    return f"{len(listed)} classes ({splits} images): {', '.join(listed[:_MAX_LISTED])}{more}."


def largest_probability(logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return the largest softmax probability of each row of ``(N, n_classes)``, ``(N,)``."""
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True).astype(np.float64))
    probabilities: NDArray[np.float64] = 1 / exponents.sum(axis=1)
    return probabilities
