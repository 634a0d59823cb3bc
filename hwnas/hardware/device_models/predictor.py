"""A Gaussian process over latencies of networks, relative to a fitted roofline.

The kernel is a sum of contributions: latencies on known devices, uncertainty of the roofline's
parameters, work by class of operator (coarse), work by class and resolution (fine), and similarity
in all features (rest). Outliers get a smaller weight, as under Student's t.

Source: Rasmussen and Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, sections
2.3, 5.4 (hyperparameters, leave-one-out errors in closed form) and 9.3 (heavy-tailed errors).
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import numpy as np
from scipy import linalg, optimize, stats

from hwnas.core.gaussian_process import squared_distances
from hwnas.hardware.device_models.features import NetworkFeatures
from hwnas.hardware.device_models.fitted_roofline import EXPECTED, Floats, RooflinePrior

#: The hyperparameters are logarithms of variances, in this order.
HYPERPARAMETERS = ("panel_mean", "panel", "roofline", "coarse", "fine", "rest", "noise")

#: Prior standard deviations of the hyperparameters: a factor of 4.5 for contributions, 12 for
#: noise.
_PRIOR_STD = np.array([1.5, 1.5, 1.5, 1.5, 1.5, 2.0, 2.5])
_NU = 4.0  #: degrees of freedom of the noise
_NOISE_WEIGHT = 3.0  #: weight of the fitted noise against the leave-one-out errors, in measurements
_MIN_TO_FIT = 5  #: minimum number of measurements to fit hyperparameters


@final
@dataclass(frozen=True)
class KernelBlocks:
    """Features of n networks from which kernels are computed, relative to the roofline."""

    mean: Floats  #: relative latency by the roofline, ``(n,)``
    linear: tuple[Floats, ...]  #: features of the five linear kernels, each ``(n, columns)``
    likeness: Floats  #: features of the kernel ``rest``, the similarity, ``(n, columns)``

    @classmethod
    def of(cls, features: NetworkFeatures, parameters: Floats, doubt: Floats) -> "KernelBlocks":
        """Return the kernel features relative to a roofline.

        Args:
            features: Features of the networks.
            parameters: Natural logarithms of the roofline's parameters, ``(13,)``.
            doubt: Prior standard deviation of each logarithm, ``(13,)``.
        """
        mean, slopes = features.roofline(parameters)
        unit = mean[:, None]

        def relative(columns: Floats) -> Floats:
            shares: Floats = (columns - 1) / unit / np.sqrt(max(columns.shape[1], 1))
            return shares

        curves = features.curves
        average = curves.mean(1, keepdims=True) if curves.shape[1] else unit
        panel = (average / unit - 1, relative(1 + curves - average))
        fine = np.hstack([relative(features.fine), features.likeness])
        return cls(
            mean,
            (*panel, slopes / unit * doubt, relative(features.coarse), fine),
            features.likeness,
        )

    def grams(self, other: "KernelBlocks") -> Floats:
        """Return the six kernels between the n networks and the m of ``other``, ``(6, n, m)``.

        They are in the order of ``HYPERPARAMETERS``, without weights.
        """
        linear = [a @ b.T for a, b in zip(self.linear, other.linear, strict=True)]
        squares = squared_distances(self.likeness, other.likeness)
        return np.stack([*linear, np.exp(-0.5 * squares)])

    def variance(self, theta: Floats) -> Floats:
        """Return the prior variance of each network's relative latency without noise, ``(n,)``.

        ``theta`` are the hyperparameters, ``(7,)``, see ``HYPERPARAMETERS``.
        """
        variance = np.full(len(self.likeness), 1.0 + np.exp(theta[5]))
        for block, log in zip(self.linear, theta, strict=False):
            variance += np.exp(log) * (block**2).sum(1)
        return variance


def mixed_kernel(theta: Floats, grams: Floats) -> Floats:
    """Return 1 plus the sum of the kernels ``grams``, ``(6, n, m)``, with variances as weights.

    The result is ``(n, m)``. The variances are ``exp(theta[:6])``. The constant 1 is the prior
    variance of the device's speed.
    """
    kernel: Floats = 1 + np.tensordot(np.exp(theta[:6]), grams, 1)
    return kernel


def negative_log_likelihood(
    theta: Floats, grams: Floats, z: Floats, weights: Floats
) -> tuple[float, Floats]:
    """Return the negative log likelihood, up to a constant, and its gradient, ``(7,)``.

    Args:
        theta: Hyperparameters, ``(7,)``, see ``HYPERPARAMETERS``.
        grams: Kernels of the measured networks, ``(6, n, n)``.
        z: Relative deviations of measured latencies from the roofline, ``(n,)``.
        weights: Weights of the measurements, ``(n,)``: 1, or less for outliers.
    """
    noise = np.exp(theta[6]) / weights
    factor = linalg.cho_factor(
        mixed_kernel(theta, grams) + np.diag(noise), lower=True, check_finite=False
    )
    inverse = linalg.cho_solve(factor, np.eye(len(z)), check_finite=False)
    alpha = inverse @ z
    value = 0.5 * z @ alpha + np.log(np.diag(factor[0])).sum()
    pull = 0.5 * (inverse - np.outer(alpha, alpha))
    by_block = np.exp(theta[:6]) * np.tensordot(grams, pull, 2)
    return float(value), np.append(by_block, (np.diag(pull) * noise).sum())


@final
@dataclass(frozen=True)
class LatencyPosterior:
    """The posterior of relative latencies after some measurements."""

    blocks: KernelBlocks  #: features of the measured networks
    ms: Floats  #: their latencies in ms, ``(n,)``
    theta: Floats  #: hyperparameters, see ``HYPERPARAMETERS``
    weights: Floats = field(repr=False)  #: weights of measurements: 1, or less for outliers

    @cached_property
    def scale(self) -> float:
        """Milliseconds per unit of relative latency, the median over the measured networks."""
        return float(np.median(self.ms / self.blocks.mean))

    @cached_property
    def _inverse(self) -> Floats:
        noise = np.diag(np.exp(self.theta[6]) / self.weights)
        kernel = mixed_kernel(self.theta, self.blocks.grams(self.blocks)) + noise
        inverse: Floats = linalg.inv(kernel, check_finite=False)
        return inverse

    @cached_property
    def _alpha(self) -> Floats:
        alpha: Floats = self._inverse @ (self.ms / self.blocks.mean / self.scale - 1)
        return alpha

    @cached_property
    def _leave_one_out(self) -> tuple[Floats, Floats]:
        """Relative leave-one-out errors, and their variance without noise."""
        spread = 1 / np.diag(self._inverse)
        noise = np.exp(self.theta[6]) / self.weights
        return self._alpha * spread, np.maximum(spread - noise, 0)

    @cached_property
    def noise(self) -> float:
        """Variance of the relative noise of a new measurement, including outliers."""
        error, variance = self._leave_one_out
        rest = float(np.maximum(error**2 - variance, 0).sum())
        return (_NOISE_WEIGHT * float(np.exp(self.theta[6])) + rest) / (_NOISE_WEIGHT + len(error))

    @cached_property
    def leave_one_out(self) -> tuple[Floats, Floats]:
        """Leave-one-out errors and their standard deviations in ms, each ``(n,)``.

        An error is above 0 if the network took longer than predicted. The roofline and the
        hyperparameters are those of all networks.
        """
        error, variance = self._leave_one_out
        unit = self.blocks.mean * self.scale
        return error * unit, np.sqrt(variance + self.noise) * unit

    def covariance(self, blocks: KernelBlocks) -> Floats:
        """Return the posterior covariance of m networks' relative latencies, ``(m, m)``.

        It is without noise. ``blocks`` has the features of the m networks.
        """
        cross = mixed_kernel(self.theta, blocks.grams(self.blocks))
        covariance: Floats = (
            mixed_kernel(self.theta, blocks.grams(blocks)) - cross @ self._inverse @ cross.T
        )
        return covariance

    def predict(self, blocks: KernelBlocks) -> tuple[Floats, Floats]:
        """Return the latencies of m networks and their standard deviations in ms, each ``(m,)``.

        The deviations are those of new measurements: they include noise. A latency is at least 5 %
        of that by the roofline.
        """
        kernel = mixed_kernel(self.theta, blocks.grams(self.blocks))
        ratio = np.maximum(1 + kernel @ self._alpha, 0.05)
        known = np.einsum("ij,ij->i", kernel @ self._inverse, kernel)
        variance = np.maximum(blocks.variance(self.theta) - known, 0)
        unit = blocks.mean * self.scale
        return ratio * unit, np.sqrt(variance + self.noise) * unit


def fit_process(blocks: KernelBlocks, ms: Floats, expected: Floats) -> LatencyPosterior:
    """Return the posterior after measurements.

    From five measurements on, hyperparameters and weights are fitted; otherwise they are
    ``expected`` and 1.

    Args:
        blocks: Kernel features of the n measured networks.
        ms: Measured latency of each in ms, ``(n,)``.
        expected: Prior means of the hyperparameters, ``(7,)``.
    """
    prior = LatencyPosterior(blocks, ms, expected, np.ones(len(ms)))
    if len(ms) < _MIN_TO_FIT:
        return prior
    grams, z = blocks.grams(blocks), ms / blocks.mean / prior.scale - 1
    theta, weights = expected, prior.weights
    for step in range(4):
        if step in (0, 2):
            theta = _fit_hyperparameters(grams, z, weights, expected, theta)
        weights = _weights(grams, z, theta, weights)
    return LatencyPosterior(blocks, ms, theta, weights)


def _fit_hyperparameters(
    grams: Floats, z: Floats, weights: Floats, expected: Floats, start: Floats
) -> Floats:
    def goal(theta: Floats) -> tuple[float, Floats]:
        value, slopes = negative_log_likelihood(theta, grams, z, weights)
        off = (theta - expected) / _PRIOR_STD
        return value + 0.5 * float(off @ off), slopes + off / _PRIOR_STD

    bounds = [(e - 12, e + 12) for e in expected]
    optimum = optimize.minimize(
        goal, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 40}
    )
    best: Floats = optimum.x
    return best


def _weights(grams: Floats, z: Floats, theta: Floats, weights: Floats) -> Floats:
    """Return the weight of each measurement, by its deviation from the others."""
    noise = np.diag(np.exp(theta[6]) / weights)
    inverse = linalg.inv(mixed_kernel(theta, grams) + noise, check_finite=False)
    squared = (inverse @ z) ** 2 / np.diag(inverse)
    updated: Floats = np.minimum(1, (_NU + 1) / (_NU + squared))
    return updated


#: Prior means of the hyperparameters, see ``HYPERPARAMETERS``.
EXPECTED_PROCESS = np.log([0.1, 0.1, 1.0, 0.1, 0.001, 0.001, 0.002])


@final
@dataclass(frozen=True)
class DevicePrior:
    """The prior of a device's latency model."""

    roofline: RooflinePrior = EXPECTED  #: prior of the roofline's parameters
    #: prior means of the Gaussian process's ``HYPERPARAMETERS``
    process: Floats = field(default_factory=lambda: EXPECTED_PROCESS)


MIN_NETWORKS = 3  #: minimum number of measured networks of a device file
COVERAGE = 0.95  #: probability that an interval contains the latency


@final
@dataclass(frozen=True)
class DevicePredictor:
    """The latency model of a device after some measurements."""

    prior: DevicePrior  #: the prior that was used for the fit
    parameters: Floats  #: natural logarithms of ``fitted_roofline.PARAMETERS``, ``(13,)``
    posterior: LatencyPosterior  #: Gaussian process relative to the fitted roofline

    def predict(self, features: NetworkFeatures) -> tuple[Floats, Floats]:
        """Return the latencies of m networks and their standard deviations in ms, each ``(m,)``.

        The deviations are those of new measurements: they include noise.
        """
        blocks = KernelBlocks.of(features, self.parameters, self.prior.roofline.std)
        return self.posterior.predict(blocks)

    @property
    def interval_factor(self) -> float:
        """Half width of 95 % intervals, divided by the standard deviation.

        It is a quantile of Student's t with n / 2 degrees of freedom, at least two, for n
        measurements.
        """
        degrees = max(2.0, len(self.posterior.ms) / 2)
        return float(stats.t.ppf((1 + COVERAGE) / 2, degrees))


def fit_device(features: NetworkFeatures, ms: Floats, prior: DevicePrior) -> DevicePredictor:
    """Return the latency model of a device, fitted to measurements.

    Args:
        features: Features of the n measured networks; at least three.
        ms: Measured latency of each in ms, ``(n,)``.
        prior: Prior of the device.
    """
    parameters = features.roofline.fit(ms, prior.roofline)
    blocks = KernelBlocks.of(features, parameters, prior.roofline.std)
    return DevicePredictor(prior, parameters, fit_process(blocks, ms, prior.process))
