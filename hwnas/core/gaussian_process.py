"""Gaussian process regression over the choices of a search space, for expensive objectives.

The kernel is a Matern 3/2 with one length scale per feature (chosen in ``experiments/sampler``).
If some features summarise a candidate (counts of options, cost, size), a value is the sum of a
linear trend in the summary features, a function of the summary features, and a function of all
features. The first two are learned from few observations; the last one models the effect of single
choices. The trend extrapolates. Length scales are fitted by maximum a posteriori, as maximum
likelihood overfits with tens of observations and tens of features. The prior leaves the overall
smoothness to the data, and penalises length scales that differ between features.

Sources: Rasmussen and Williams, "Gaussian processes for machine learning", 2006, chapter 5; sums of
kernels over few features and many: Duvenaud et al., "Additive Gaussian processes", NeurIPS 2011,
https://arxiv.org/abs/1112.4394; prior mean of length scales that grows with the number of features:
Hvarfner et al., "Vanilla Bayesian optimization performs great in high dimensions", ICML 2024,
https://arxiv.org/abs/2402.02229.
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize

Array = NDArray[np.float64]

_JITTER = 1e-8
# Priors are normal distributions of logarithms.
_NOISE = -4.0  #: prior mean of the noise
# Prior mean of length scales for one feature: of a single kernel, and of a sum of two kernels.
_ONE, _OF_TWO = math.sqrt(2), -0.35
# Prior variance of length scales, common to all and individual: of all features, and of summary
# features.
_SPREAD, _SPREAD_OF_SUMMARY = (2.0, 0.3), (1.0, 0.5)
_SINGLE = 2.0  #: prior variance of the weight of the kernel over all features
#: Prior mean and variance of the linear trend. Much of the accuracy of networks is linear in
#: summary features (``experiments/landscape``).
_TREND = 1.0, 2.0
_MAX_STEPS = 60  #: of the optimiser
_BLOCK = 50_000  #: elements of a kernel computed at once


@dataclass(frozen=True)
class Hyperparameters:
    """Fitted hyperparameters. All but ``n_summary`` are natural logarithms.

    The variances ``noise``, ``single`` and ``trend`` are relative to ``variance``.
    """

    lengths: Array  #: length scales of the features, ``(d,)``
    noise: float  #: variance of the part of a value that no feature explains
    #: variance of the kernel over the summary features, or over all features if there are none
    variance: float
    n_summary: int = 0  #: number of summary features; they are the last ones
    single: float = 0.0  #: variance of the kernel over all features, with summary features only
    trend: float = 0.0  #: variance of the slope of each summary feature


@final
class Surrogate:
    """A Gaussian process conditioned on observations.

    A value is a function of the features plus an amount per candidate that no feature explains
    (``noise``). An observation is the value plus, if ``stds`` are given, an observation error.
    All results are in the unit of the observations.

    Args:
        x: Features, ``(n, d)``.
        y: Observations, ``(n,)``.
        parameters: Hyperparameters from ``fit_hyperparameters``.
        stds: Standard deviations of the observation errors, ``(n,)``; default: no errors.
    """

    def __init__(self, x: Array, y: Array, parameters: Hyperparameters, stds: Array | None = None):
        self._x, self._y, self._parameters = x, y, parameters
        self._parts = _parts(x.shape[1], parameters.n_summary, parameters.single)
        n_summary = parameters.n_summary
        self._summary = slice(x.shape[1] - n_summary, x.shape[1])
        self._slope = math.exp(parameters.trend / 2) if n_summary else 0.0
        self._centre = x[:, self._summary].mean(axis=0)
        self._variance = math.exp(parameters.variance)
        self._errors = np.zeros(len(y)) if stds is None else stds**2 / self._variance
        noise = math.exp(parameters.noise) * _same_candidate(x, self._errors)
        self._prior = self._kernel(x) + noise
        self._prior[np.diag_indices_from(self._prior)] += _JITTER
        self._factor = linalg.cholesky(self._prior + np.diag(self._errors), lower=True)
        ones = linalg.cho_solve((self._factor, True), np.ones(len(y)))
        self._mean = float(ones @ y / ones.sum())
        self._weights = linalg.cho_solve((self._factor, True), y - self._mean)

    @property
    def noise(self) -> float:
        """Standard deviation of the part of a value that no feature explains.

        The standard deviations of :meth:`predict` do not include it.
        """
        return math.sqrt(self._variance) * math.exp(self._parameters.noise / 2)

    def _kernel(self, x: Array) -> Array:
        lengths = self._parameters.lengths
        trend = self._trend(x) @ self._trend(self._x).T
        return np.asarray(
            sum(
                (
                    weight * _kernel(x[:, part], self._x[:, part], lengths[part])
                    for part, weight in self._parts
                ),
                start=trend,
            )
        )

    def _trend(self, x: Array) -> Array:
        """Return the features of the linear trend, ``(n, n_summary)``."""
        return np.asarray(self._slope * (x[:, self._summary] - self._centre))

    def predict(self, x: Array) -> tuple[Array, Array]:
        """Return posterior mean and standard deviation at features ``(m, d)``, each ``(m,)``.

        They exclude the part of a value that no feature explains, see :attr:`noise`.
        """
        kernel = self._kernel(x)
        mean = self._mean + kernel @ self._weights
        n = len(self._y)
        inverse = linalg.solve_triangular(self._factor, np.eye(n), lower=True, check_finite=False)
        solved = kernel @ inverse.T  # much faster than a triangular solver
        prior = sum(weight for _, weight in self._parts) + (self._trend(x) ** 2).sum(axis=1)
        variance = prior - np.einsum("ij,ij->i", solved, solved)
        return mean, np.sqrt(self._variance * np.maximum(variance, 1e-9))

    def observed(self) -> tuple[Array, Array]:
        """Return posterior mean and standard deviation of the values at ``x``, each ``(n,)``.

        They include the part that no feature explains. Without observation errors they are the
        observations and 0.
        """
        mean = self._y - self._errors * self._weights
        n = len(self._y)
        inverse = linalg.solve_triangular(self._factor, np.eye(n), lower=True, check_finite=False)
        variance = self._errors - self._errors**2 * np.einsum("ij,ij->j", inverse, inverse)
        return mean, np.sqrt(self._variance * np.maximum(variance, 0.0))

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Return ``n`` posterior samples of the values at ``x``, ``(n, n_observed)``.

        Matheron's rule corrects a prior sample by the difference between the observations and the
        sample's simulated observations. Source: Wilson et al., "Pathwise conditioning of Gaussian
        processes", JMLR 2021, https://arxiv.org/abs/2011.04026.
        """
        std = math.sqrt(self._variance)
        shape = (len(self._y), n)
        values = linalg.cholesky(self._prior, lower=True) @ rng.normal(0.0, std, shape)
        observed = values + np.sqrt(self._errors)[:, None] * rng.normal(0.0, std, shape)
        residual = (self._y - self._mean)[:, None] - observed
        weights = linalg.cho_solve((self._factor, True), residual)
        return np.asarray((self._mean + values + self._prior @ weights).T)


def fit_hyperparameters(
    x: Array, y: Array, stds: Array | None = None, n_summary: int = 0
) -> Hyperparameters:
    """Return the maximum a posteriori hyperparameters for observations ``y`` at ``x``.

    Args:
        x: Features, ``(n, d)``; the last ``n_summary`` summarise a candidate.
        y: Observations, ``(n,)``.
        stds: Standard deviations of the observation errors, ``(n,)``; default: no errors.
        n_summary: Number of summary features. In the result it is 0 if all summary features, or
            all others, are constant.
    """
    n, d = x.shape
    errors = np.zeros(n) if stds is None else stds**2
    # The weak prior of the signal's variance: the variance of observations without that of errors.
    prior = max(float(np.var(y) - errors.mean()), 0.05 * float(np.var(y))) + 1e-12
    used = np.ptp(x, axis=0) > 0  # constant features keep the prior
    z, same = x[:, used], _same_candidate(x, errors)
    n_used = int(used[d - n_summary :].sum()) if used[: d - n_summary].any() else 0
    n_summary = n_summary if n_used else 0
    centre = _centre(d, n_summary)
    summary = z[:, z.shape[1] - n_used :]
    summary = summary - summary.mean(axis=0)
    products = summary @ summary.T  # zero without summary features

    def loss(values: Array) -> tuple[float, Array]:
        lengths, (noise, single, trend, log_variance) = values[:-4], values[-4:]
        variance = math.exp(log_variance)
        parts = []
        for part, weight in _parts(len(lengths), n_used, single):
            scaled = z[:, part] / np.exp(lengths[part])
            explained, slope = _matern(squared_distances(scaled, scaled))
            parts.append((part, scaled, weight * explained, weight * slope))
        line = math.exp(trend) * products
        kernel = sum(explained for _, _, explained, _ in parts) + line + math.exp(noise) * same
        kernel[np.diag_indices_from(kernel)] += _JITTER + errors / variance
        factor = linalg.cholesky(kernel, lower=True, check_finite=False)
        inverse = linalg.cho_solve((factor, True), np.eye(n), check_finite=False)
        ones = inverse.sum(axis=1)
        residual = y - float(ones @ y / ones.sum())
        weights = inverse @ residual
        misfit = 0.5 * float(residual @ weights) + prior
        value = (0.5 * n + 1) * log_variance + float(np.log(np.diag(factor)).sum())
        value += misfit / variance
        # d value / d kernel = (inverse - weights weights' / variance) / 2
        inner = 0.5 * (inverse - np.outer(weights, weights) / variance)
        penalty, gradient = _negative_log_prior(values[:-1], centre[used], n_used)
        for part, scaled, _, slope in parts:
            weighted = inner * slope
            sums = weighted.sum(axis=1)
            # sum_ab w_ab (z_a - z_b)^2, for every feature at once
            spread = 2 * (sums @ scaled**2 - np.einsum("id,id->d", scaled, weighted @ scaled))
            gradient[:-3][part] -= 2 * spread
        gradient[-3] += np.sum(inner * same) * math.exp(noise)
        if n_used:
            gradient[-2] += np.sum(inner * parts[1][2])
            gradient[-1] += np.sum(inner * line)
        variance_gradient = 0.5 * n + 1 - misfit / variance - np.diag(inner) @ errors / variance
        return value + penalty, np.append(gradient, variance_gradient)

    log_variance = math.log(prior)
    mean_trend = _TREND[0] - math.log(max(1, n_used))
    first = np.concatenate([centre[used] - 1.0, [_NOISE, 0.0, mean_trend, log_variance]])
    ends = [(c - 6.0, c + 6.0) for c in centre[used].tolist()]
    bounds = [
        *ends,
        (-14.0, 1.0),
        (-8.0, 8.0),
        (mean_trend - 8.0, mean_trend + 8.0),
        (log_variance - 6, log_variance + 6),
    ]
    optimum = optimize.minimize(
        loss, first, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _MAX_STEPS}
    ).x
    lengths = centre.copy()
    lengths[used] = optimum[:-4]
    noise, single, trend, variance = optimum[-4:].tolist()
    return Hyperparameters(lengths, noise, variance, n_summary, single, trend)


def _parts(d: int, n_summary: int, single: float) -> list[tuple[slice, float]]:
    """Return the features and the weight of each kernel of the sum."""
    if not n_summary:
        return [(slice(0, d), 1.0)]
    return [(slice(d - n_summary, d), 1.0), (slice(0, d), math.exp(single))]


def _centre(d: int, n_summary: int) -> Array:
    """Return the prior mean of log length scales, ``(d,)``."""
    if not n_summary:
        return np.full(d, _ONE + 0.5 * math.log(d))
    sizes = np.repeat([d, n_summary], [d - n_summary, n_summary])
    return np.asarray(_OF_TWO + 0.5 * np.log(sizes))


def _negative_log_prior(values: Array, centre: Array, n_summary: int) -> tuple[float, Array]:
    """Return the negative log prior and its gradient.

    Args:
        values: Logarithms of the length scales, noise, weight of all features and trend.
        centre: Prior mean of the log length scales, ``(d,)``.
        n_summary: Number of summary features.
    """
    *lengths, noise, single, trend = values.tolist()
    deviation = np.asarray(lengths) - centre
    trend += math.log(max(1, n_summary)) - _TREND[0]
    value = 0.5 * ((noise - _NOISE) ** 2 / 4.0 + single**2 / _SINGLE + trend**2 / _TREND[1])
    groups = []
    for part, (common, individual) in zip(
        np.split(deviation, [len(deviation) - n_summary]),
        (_SPREAD, _SPREAD_OF_SUMMARY),
        strict=True,
    ):
        shared = common / (individual + len(part) * common) * part.sum()
        groups.append((part - shared) / individual)  # the inverse covariance times the deviation
        value += 0.5 * float(part @ groups[-1])
    others = [(noise - _NOISE) / 4.0, single / _SINGLE, trend / _TREND[1]]
    return value, np.concatenate([*groups, others])


def _same_candidate(x: Array, errors: Array) -> Array:
    """Return 1 for pairs of rows of the same candidate, and 0 for others, ``(n, n)``.

    Rows without an observation error are treated as different candidates: their noise may be an
    observation error.
    """
    index = np.unique(x, axis=0, return_inverse=True)[1]
    same = (index[:, None] == index[None]) & (errors > 0) & (errors[:, None] > 0)
    np.fill_diagonal(same, val=True)
    return np.asarray(same, np.float64)


def _kernel(a: Array, b: Array, lengths: Array) -> Array:
    """Return the kernel between rows, ``(n, m)``.

    It equals ``_matern`` of ``squared_distances``, but works in place and in blocks of rows: for
    all candidates of a space, allocating memory would take most of the time.
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


def squared_distances(a: Array, b: Array) -> Array:
    """Return squared Euclidean distances of the rows of ``(n, d)`` and ``(m, d)``: ``(n, m)``."""
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2 * a @ b.T
    return np.asarray(np.maximum(squares, 0.0))


def _matern(squares: Array) -> tuple[Array, Array]:
    """Return the kernel and its derivative with respect to the squared distance."""
    r = np.sqrt(3 * squares)
    decay = np.exp(-r)
    return np.asarray((1 + r) * decay), -1.5 * decay
