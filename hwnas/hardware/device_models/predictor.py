"""A Gaussian process for the ratio of the latencies of a space to a mean.

Its mean is a roofline that was fitted. Its kernel sums what known devices' curves, doubt about the
roofline's parameters, work by class of operator (coarse) and by class and resolution (fine), and
likeness of networks in all of these (rest) may contribute.
Disturbed measurements count less, as Student's t says.

Source: Rasmussen and Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, sections
2.3, 5.4 (hyperparameters, left-out errors in closed form) and 9.3 (errors with long tails).
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import numpy as np
from scipy import linalg, optimize, stats

from hwnas.hardware.device_models.features import NetworkFeatures
from hwnas.hardware.device_models.fitted_roofline import EXPECTED, Floats, RooflinePrior

#: Of which logarithms of variances the hyperparameters are, in this order.
HYPERPARAMETERS = ("panel_mean", "panel", "roofline", "coarse", "fine", "rest", "noise")

#: Logarithms by which a device's hyperparameters may be off what is expected, one standard
#: deviation: by a factor of 4.5 for contributions, by 12 for the noise.
_LOOSE = np.array([1.5, 1.5, 1.5, 1.5, 1.5, 2.0, 2.5])
_NU = 4.0  #: degrees of freedom of the noise
_FEW = 3.0  #: measurements that the fitted noise counts as beside the left-out errors
_ENOUGH = 5  #: measurements from which hyperparameters are fitted


@final
@dataclass(frozen=True)
class KernelBlocks:
    """Networks as the kernel sees them, relative to a mean."""

    mean: Floats  #: what the roofline says
    linear: tuple[Floats, ...]
    likeness: Floats

    @classmethod
    def of(cls, features: NetworkFeatures, parameters: Floats, doubt: Floats) -> "KernelBlocks":
        """Return networks relative to a roofline.

        Args:
            features: Of the networks.
            parameters: Of the roofline.
            doubt: Standard deviation of each, before anything is measured.
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
        """Return the kernel of each contribution, ``(6, n, n of the other)``."""
        linear = [a @ b.T for a, b in zip(self.linear, other.linear, strict=True)]
        a, b = self.likeness, other.likeness
        apart = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
        return np.stack([*linear, np.exp(-0.5 * np.maximum(apart, 0))])

    def variance(self, theta: Floats) -> Floats:
        """Return the prior variance of each network, ``(n,)``."""
        found = np.full(len(self.likeness), 1.0 + np.exp(theta[5]))
        for block, log in zip(self.linear, theta, strict=False):
            found += np.exp(log) * (block**2).sum(1)
        return found


def mixed_kernel(theta: Floats, grams: Floats) -> Floats:
    """Return the kernel; the 1 leaves the device's speed open."""
    kernel: Floats = 1 + np.tensordot(np.exp(theta[:6]), grams, 1)
    return kernel


def negative_log_likelihood(
    theta: Floats, grams: Floats, z: Floats, weights: Floats
) -> tuple[float, Floats]:
    """Return minus the log likelihood of relative latencies, and its slopes by hyperparameters."""
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
    """What is known of relative latencies after some networks were measured."""

    blocks: KernelBlocks  #: of the measured networks
    ms: Floats
    theta: Floats
    weights: Floats = field(repr=False)  #: of measurements: 1, or less where they look disturbed

    @cached_property
    def scale(self) -> float:
        """Milliseconds of what the mean calls 1."""
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
    def _left_out(self) -> tuple[Floats, Floats]:
        """Relative errors, each measurement left out, and their variance without noise."""
        spread = 1 / np.diag(self._inverse)
        noise = np.exp(self.theta[6]) / self.weights
        return self._alpha * spread, np.maximum(spread - noise, 0)

    @cached_property
    def noise(self) -> float:
        """Relative variance of a new measurement, disturbed ones included."""
        error, variance = self._left_out
        rest = float(np.maximum(error**2 - variance, 0).sum())
        return (_FEW * float(np.exp(self.theta[6])) + rest) / (_FEW + len(error))

    @cached_property
    def left_out(self) -> tuple[Floats, Floats]:
        """Errors in ms of measurements, each left out, and their standard deviation."""
        error, variance = self._left_out
        unit = self.blocks.mean * self.scale
        return error * unit, np.sqrt(variance + self.noise) * unit

    def covariance(self, blocks: KernelBlocks) -> Floats:
        """Return the covariance of relative latencies that measurements leave, ``(n, n)``."""
        cross = mixed_kernel(self.theta, blocks.grams(self.blocks))
        left: Floats = (
            mixed_kernel(self.theta, blocks.grams(blocks)) - cross @ self._inverse @ cross.T
        )
        return left

    def predict(self, blocks: KernelBlocks) -> tuple[Floats, Floats]:
        """Return latencies in ms and their standard deviation, those of a new measurement."""
        kernel = mixed_kernel(self.theta, blocks.grams(self.blocks))
        ratio = np.maximum(1 + kernel @ self._alpha, 0.05)
        known = np.einsum("ij,ij->i", kernel @ self._inverse, kernel)
        variance = np.maximum(blocks.variance(self.theta) - known, 0)
        unit = blocks.mean * self.scale
        return ratio * unit, np.sqrt(variance + self.noise) * unit


def fit_process(blocks: KernelBlocks, ms: Floats, expected: Floats) -> LatencyPosterior:
    """Return what measured networks say; hyperparameters are fitted where there are enough.

    Args:
        blocks: The measured networks.
        ms: What each took.
        expected: Hyperparameters that are expected.
    """
    found = LatencyPosterior(blocks, ms, expected, np.ones(len(ms)))
    if len(ms) < _ENOUGH:
        return found
    grams, z = blocks.grams(blocks), ms / blocks.mean / found.scale - 1
    theta, weights = expected, found.weights
    for step in range(4):
        if step in (0, 2):
            theta = _likeliest(grams, z, weights, expected, theta)
        weights = _weights(grams, z, theta, weights)
    return LatencyPosterior(blocks, ms, theta, weights)


def _likeliest(
    grams: Floats, z: Floats, weights: Floats, expected: Floats, start: Floats
) -> Floats:
    def goal(theta: Floats) -> tuple[float, Floats]:
        value, slopes = negative_log_likelihood(theta, grams, z, weights)
        off = (theta - expected) / _LOOSE
        return value + 0.5 * float(off @ off), slopes + off / _LOOSE

    bounds = [(e - 12, e + 12) for e in expected]
    found = optimize.minimize(
        goal, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 40}
    )
    best: Floats = found.x
    return best


def _weights(grams: Floats, z: Floats, theta: Floats, weights: Floats) -> Floats:
    """Return what each measurement counts, by how far it is off what the others say."""
    noise = np.diag(np.exp(theta[6]) / weights)
    inverse = linalg.inv(mixed_kernel(theta, grams) + noise, check_finite=False)
    squared = (inverse @ z) ** 2 / np.diag(inverse)
    found: Floats = np.minimum(1, (_NU + 1) / (_NU + squared))
    return found


# What known devices teach of one that is not known yet.

#: Hyperparameters: variances of contributions, and of the noise; see ``process.HYPERPARAMETERS``.
EXPECTED_PROCESS = np.log([0.1, 0.1, 1.0, 0.1, 0.001, 0.001, 0.002])


@final
@dataclass(frozen=True)
class DevicePrior:
    """What is expected of a device."""

    roofline: RooflinePrior = EXPECTED
    process: Floats = field(default_factory=lambda: EXPECTED_PROCESS)


# The latency of every network on a device, from few measured ones, with intervals.

MIN_NETWORKS = 3  #: measured networks that anything can be said from
COVERAGE = 0.95  #: of intervals


@final
@dataclass(frozen=True)
class DevicePredictor:
    """What is known of a device after some networks were measured there."""

    prior: DevicePrior
    parameters: Floats  #: of the roofline, see ``roofline.PARAMETERS``
    posterior: LatencyPosterior

    def predict(self, features: NetworkFeatures) -> tuple[Floats, Floats]:
        """Return latencies in ms and their standard deviation, those of a new measurement."""
        blocks = KernelBlocks.of(features, self.parameters, self.prior.roofline.std)
        return self.posterior.predict(blocks)

    @property
    def reach(self) -> float:
        """Standard deviations that an interval reaches: Student's t, half a degree a network."""
        degrees = max(2.0, len(self.posterior.ms) / 2)
        return float(stats.t.ppf((1 + COVERAGE) / 2, degrees))


def fit_device(features: NetworkFeatures, ms: Floats, prior: DevicePrior) -> DevicePredictor:
    """Return what measured networks say of a device.

    Args:
        features: Of the measured networks, three at least.
        ms: What each took.
        prior: What is expected of the device.
    """
    parameters = features.roofline.fit(ms, prior.roofline)
    blocks = KernelBlocks.of(features, parameters, prior.roofline.std)
    return DevicePredictor(prior, parameters, fit_process(blocks, ms, prior.process))
