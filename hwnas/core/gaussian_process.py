"""A Gaussian process over the choices of a space, for the one objective that is expensive.

Choices become features by ``Features``; the kernel is a Matern 3/2 with a length scale a feature
(chosen in ``experiments/sampler``). Where some features sum up a candidate (how often each option
occurs, what it costs, how large it is), a value is a line in these, a function of these alone, and
another of all features: the first are learned from few observations, and the last says by how much
single choices move it. A line goes on where nothing was observed yet. Length scales are fitted by
maximum a posteriori: with tens of observations and tens of features maximum likelihood alone
overfits. How smooth a function is as a whole is left to the data; that one feature matters much
more than others must be shown by it.

Sources: Rasmussen and Williams, "Gaussian processes for machine learning", 2006, chapter 5; sums of
kernels over few features and many: Duvenaud et al., "Additive Gaussian processes", NeurIPS 2011,
https://arxiv.org/abs/1112.4394; that the mean of the prior of length scales grows with the number
of features: Hvarfner et al., "Vanilla Bayesian optimization performs great in high dimensions",
ICML 2024, https://arxiv.org/abs/2402.02229.
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize

Array = NDArray[np.float64]

_JITTER = 1e-8
_NOISE = -4.0  #: of the logarithm of what features don't explain: the mean of its prior
# Of logarithms of length scales of a kernel over one feature: the mean of the prior. It is lower
# for a sum of two kernels, each of which explains a part.
_ONE, _OF_TWO = math.sqrt(2), -0.35
# Of logarithms of length scales: the variance that all have in common, and that of each by itself;
# then those of features that sum up.
_SPREAD, _SPREAD_OF_SUMMARY = (2.0, 0.3), (1.0, 0.5)
_SINGLE = 2.0  #: of the logarithm of how much single choices move a value: variance of its prior
#: Of the logarithm of how much a line does, in all that sums up: mean and variance of its prior.
#: Much of how well a network answers is one (``experiments/landscape``).
_TREND = 1.0, 2.0
_STEPS = 60  #: of the optimiser, at most
_BLOCK = 50_000  #: elements of a kernel that are worked on at once


@dataclass(frozen=True)
class Hyperparameters:
    """What is fitted, as logarithms."""

    lengths: Array  #: ``(d,)``
    noise: float  #: of the variance that no feature explains over ``variance``
    variance: float  #: of the variance of what the summary explains; where there is none, all do
    n_summary: int = 0  #: features that sum up a candidate: the last ones
    single: float = 0.0  #: of the variance that all features explain, over ``variance``
    trend: float = 0.0  #: of the variance of a slope in a feature that sums up, over ``variance``


@final
class Surrogate:
    """A Gaussian process given its observations.

    A value is a function of the features, and what these do not explain: another amount for each
    candidate, of one variance (``noise``). What is observed is the
    value and, where ``stds`` are given, an error of observation beside it.

    Args:
        x: Features, ``(n, d)``.
        y: Observations, ``(n,)``.
        parameters: As fitted.
        stds: Standard deviations of the errors of observation, ``(n,)``; default: none.
    """

    def __init__(self, x: Array, y: Array, parameters: Hyperparameters, stds: Array | None = None):
        self._x, self._y, self._parameters = x, y, parameters
        self._parts = _parts(x.shape[1], parameters.n_summary, parameters.single)
        n_summed = parameters.n_summary
        self._sloped = slice(x.shape[1] - n_summed, x.shape[1])
        self._slope = math.exp(parameters.trend / 2) if n_summed else 0.0
        self._centre = x[:, self._sloped].mean(axis=0)
        self._variance = math.exp(parameters.variance)
        self._errors = np.zeros(len(y)) if stds is None else stds**2 / self._variance
        own = math.exp(parameters.noise) * _same(x, self._errors)
        self._prior = self._kernel(x) + own
        self._prior[np.diag_indices_from(self._prior)] += _JITTER
        self._factor = linalg.cholesky(self._prior + np.diag(self._errors), lower=True)
        ones = linalg.cho_solve((self._factor, True), np.ones(len(y)))
        self._mean = float(ones @ y / ones.sum())
        self._weights = linalg.cho_solve((self._factor, True), y - self._mean)

    @property
    def noise(self) -> float:
        """The standard deviation that values have beside that of ``predict``."""
        return math.sqrt(self._variance) * math.exp(self._parameters.noise / 2)

    def _kernel(self, x: Array) -> Array:
        lengths = self._parameters.lengths
        line = self._lines(x) @ self._lines(self._x).T
        return np.asarray(
            sum(
                (
                    weight * _kernel(x[:, part], self._x[:, part], lengths[part])
                    for part, weight in self._parts
                ),
                start=line,
            )
        )

    def _lines(self, x: Array) -> Array:
        """Return what lines in what sums up are made of, ``(n, n_summary)``."""
        return np.asarray(self._slope * (x[:, self._sloped] - self._centre))

    def predict(self, x: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of what features explain, each ``(n,)``."""
        kernel = self._kernel(x)
        mean = self._mean + kernel @ self._weights
        n = len(self._y)
        inverse = linalg.solve_triangular(self._factor, np.eye(n), lower=True, check_finite=False)
        solved = kernel @ inverse.T  # in much less time than by a triangular solver
        whole = sum(weight for _, weight in self._parts) + (self._lines(x) ** 2).sum(axis=1)
        left = whole - np.einsum("ij,ij->i", solved, solved)
        return mean, np.sqrt(self._variance * np.maximum(left, 1e-9))

    def observed(self) -> tuple[Array, Array]:
        """Return mean and standard deviation of the observed candidates' values, each ``(n,)``.

        Their own observations count: where these have no error the values are what was observed.
        """
        mean = self._y - self._errors * self._weights
        n = len(self._y)
        inverse = linalg.solve_triangular(self._factor, np.eye(n), lower=True, check_finite=False)
        left = self._errors - self._errors**2 * np.einsum("ij,ij->j", inverse, inverse)
        return mean, np.sqrt(self._variance * np.maximum(left, 0.0))

    def draws(self, n: int, rng: np.random.Generator) -> Array:
        """Return ``n`` draws of all observed candidates' values, ``(n, n_observed)``.

        A draw from the prior is moved by what its own observations would have missed the real ones
        by (Matheron's rule). Source: Wilson et al., "Pathwise conditioning of Gaussian processes",
        JMLR 2021, https://arxiv.org/abs/2011.04026.
        """
        std = math.sqrt(self._variance)
        shape = (len(self._y), n)
        values = linalg.cholesky(self._prior, lower=True) @ rng.normal(0.0, std, shape)
        seen = values + np.sqrt(self._errors)[:, None] * rng.normal(0.0, std, shape)
        missed = linalg.cho_solve((self._factor, True), (self._y - self._mean)[:, None] - seen)
        return np.asarray((self._mean + values + self._prior @ missed).T)


def fit_hyperparameters(
    x: Array, y: Array, stds: Array | None = None, n_summary: int = 0
) -> Hyperparameters:
    """Return the most probable hyperparameters for observations ``y (n,)`` at ``x (n, d)``.

    ``stds`` are those of errors of observation, ``(n,)``, as ``Surrogate`` takes them. The last
    ``n_summary`` features sum up a candidate; 0: nothing does.
    """
    n, d = x.shape
    errors = np.zeros(n) if stds is None else stds**2
    # Weakly expected of the signal's variance: that of observations, less what is error in it.
    prior = max(float(np.var(y) - errors.mean()), 0.05 * float(np.var(y))) + 1e-12
    used = np.ptp(x, axis=0) > 0  # the others are not told by anything; they keep the prior
    z, same = x[:, used], _same(x, errors)
    n_told = int(used[d - n_summary :].sum()) if used[: d - n_summary].any() else 0
    n_summary = n_summary if n_told else 0
    centre = _centre(d, n_summary)
    summed = z[:, z.shape[1] - n_told :]
    summed = summed - summed.mean(axis=0)
    lines = summed @ summed.T  # zero where nothing sums up

    def loss(values: Array) -> tuple[float, Array]:
        lengths, (noise, single, trend, at) = values[:-4], values[-4:]
        variance = math.exp(at)
        parts = []
        for part, weight in _parts(len(lengths), n_told, single):
            scaled = z[:, part] / np.exp(lengths[part])
            explained, slope = _matern(_squares(scaled, scaled))
            parts.append((part, scaled, weight * explained, weight * slope))
        line = math.exp(trend) * lines
        kernel = sum(explained for _, _, explained, _ in parts) + line + math.exp(noise) * same
        kernel[np.diag_indices_from(kernel)] += _JITTER + errors / variance
        factor = linalg.cholesky(kernel, lower=True, check_finite=False)
        inverse = linalg.cho_solve((factor, True), np.eye(n), check_finite=False)
        ones = inverse.sum(axis=1)
        residual = y - float(ones @ y / ones.sum())
        weights = inverse @ residual
        misfit = 0.5 * float(residual @ weights) + prior
        value = (0.5 * n + 1) * at + float(np.log(np.diag(factor)).sum())
        value += misfit / variance
        # d value / d kernel = (inverse - weights weights' / variance) / 2
        inner = 0.5 * (inverse - np.outer(weights, weights) / variance)
        implausible, gradient = _implausibility(values[:-1], centre[used], n_told)
        for part, scaled, _, slope in parts:
            weighted = inner * slope
            sums = weighted.sum(axis=1)
            # sum_ab w_ab (z_a - z_b)^2, for every feature at once
            spread = 2 * (sums @ scaled**2 - np.einsum("id,id->d", scaled, weighted @ scaled))
            gradient[:-3][part] -= 2 * spread
        gradient[-3] += np.sum(inner * same) * math.exp(noise)
        if n_told:
            gradient[-2] += np.sum(inner * parts[1][2])
            gradient[-1] += np.sum(inner * line)
        of_variance = 0.5 * n + 1 - misfit / variance - np.diag(inner) @ errors / variance
        return value + implausible, np.append(gradient, of_variance)

    at = math.log(prior)
    even = _TREND[0] - math.log(max(1, n_told))
    first = np.concatenate([centre[used] - 1.0, [_NOISE, 0.0, even, at]])
    ends = [(c - 6.0, c + 6.0) for c in centre[used].tolist()]
    bounds = [*ends, (-14.0, 1.0), (-8.0, 8.0), (even - 8.0, even + 8.0), (at - 6, at + 6)]
    found = optimize.minimize(
        loss, first, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS}
    ).x
    lengths = centre.copy()
    lengths[used] = found[:-4]
    noise, single, trend, variance = found[-4:].tolist()
    return Hyperparameters(lengths, noise, variance, n_summary, single, trend)


def _parts(d: int, n_summary: int, single: float) -> list[tuple[slice, float]]:
    """Return what features the kernels of a sum read, and how much each of these counts."""
    if not n_summary:
        return [(slice(0, d), 1.0)]
    return [(slice(d - n_summary, d), 1.0), (slice(0, d), math.exp(single))]


def _centre(d: int, n_summary: int) -> Array:
    """Return the mean of the prior of logarithms of length scales, ``(d,)``."""
    if not n_summary:
        return np.full(d, _ONE + 0.5 * math.log(d))
    sizes = np.repeat([d, n_summary], [d - n_summary, n_summary])
    return np.asarray(_OF_TWO + 0.5 * np.log(sizes))


def _implausibility(values: Array, centre: Array, n_summary: int) -> tuple[float, Array]:
    """Return the prior's negative logarithm and its gradient.

    Args:
        values: Logarithms of length scales, of noise, and of how much single choices and lines
            count.
        centre: The mean of those of length scales, ``(d,)``.
        n_summary: Features that sum up a candidate.
    """
    *lengths, noise, single, trend = values.tolist()
    away = np.asarray(lengths) - centre
    trend += math.log(max(1, n_summary)) - _TREND[0]
    value = 0.5 * ((noise - _NOISE) ** 2 / 4.0 + single**2 / _SINGLE + trend**2 / _TREND[1])
    groups = []
    for own, (together, alone) in zip(
        np.split(away, [len(away) - n_summary]), (_SPREAD, _SPREAD_OF_SUMMARY), strict=True
    ):
        shared = together / (alone + len(own) * together) * own.sum()
        groups.append((own - shared) / alone)  # the inverse of their covariance times them
        value += 0.5 * float(own @ groups[-1])
    of_rest = [(noise - _NOISE) / 4.0, single / _SINGLE, trend / _TREND[1]]
    return value, np.concatenate([*groups, of_rest])


def _same(x: Array, errors: Array) -> Array:
    """Return 1 where rows are of the same candidate, and 0 elsewhere, ``(n, n)``.

    Where no error of observation is known, what no feature explains may be one: it is another one
    in each row.
    """
    which = np.unique(x, axis=0, return_inverse=True)[1]
    same = (which[:, None] == which[None]) & (errors > 0) & (errors[:, None] > 0)
    np.fill_diagonal(same, val=True)
    return np.asarray(same, np.float64)


def _kernel(a: Array, b: Array, lengths: Array) -> Array:
    """Return the kernel between rows, ``(n, m)``.

    It is what ``_matern`` gives of ``_squares``, in place and some rows at a time: with all of a
    space as ``a``, memory is what takes time.
    """
    a, b = a / np.exp(lengths), b / np.exp(lengths)
    kernel = 2 * a @ b.T
    of_a, of_b = (a**2).sum(axis=1)[:, None], (b**2).sum(axis=1)[None]
    step = max(1, _BLOCK // max(1, len(b)))
    for start in range(0, len(a), step):
        block = kernel[start : start + step]
        np.subtract(of_a[start : start + step] + of_b, block, out=block)
        np.maximum(block, 0.0, out=block)
        block *= 3
        np.sqrt(block, out=block)
        decay = np.exp(-block)
        block += 1
        block *= decay
    return kernel


def _squares(a: Array, b: Array) -> Array:
    """Return squared distances between rows."""
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2 * a @ b.T
    return np.asarray(np.maximum(squares, 0.0))


def _matern(squares: Array) -> tuple[Array, Array]:
    """Return the kernel, and its derivative by the squared distance."""
    r = np.sqrt(3 * squares)
    decay = np.exp(-r)
    return np.asarray((1 + r) * decay), -1.5 * decay
