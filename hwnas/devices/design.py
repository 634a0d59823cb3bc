"""Which networks to measure: greedily, those that leave the least variance where it matters."""

import numpy as np
from numpy.typing import NDArray

from hwnas.devices.features import Features
from hwnas.devices.predictor import Predictor
from hwnas.devices.prior import Prior
from hwnas.devices.process import Blocks, mixed
from hwnas.devices.work import Floats


def most_telling(features: Features, n: int, prior: Prior) -> NDArray[np.intp]:
    """Return the indices of networks to measure on an unknown device, the most telling first.

    Args:
        features: Of the networks to choose from.
        n: How many are chosen.
        prior: What is expected of the device.
    """
    blocks = Blocks.of(features, prior.roofline.mean, prior.roofline.std)
    kernel = mixed(prior.process, blocks.grams(blocks))
    return _greedy(kernel, float(np.exp(prior.process[-1])), np.ones(len(features)), n)


def next_telling(
    features: Features, n: int, predictor: Predictor, weights: Floats
) -> NDArray[np.intp]:
    """Return the indices of networks to measure next on a device that is known in part.

    Args:
        features: Of the networks to choose from.
        n: How many are chosen.
        predictor: What is known of the device.
        weights: What knowing each network is worth.
    """
    blocks = Blocks.of(features, predictor.parameters, predictor.prior.roofline.std)
    posterior = predictor.posterior
    return _greedy(posterior.covariance(blocks), posterior.noise, weights, n)


def _greedy(kernel: Floats, noise: float, weights: Floats, n: int) -> NDArray[np.intp]:
    """Return what leaves the least weighted variance, one update each.

    Source: Krause, Singh and Guestrin, "Near-optimal sensor placements in Gaussian processes",
    JMLR 9, 2008, with average variance (A-optimality) instead of mutual information.
    """
    chosen: list[int] = []
    for _ in range(min(n, len(kernel))):
        gain = (kernel**2) @ weights / (np.diag(kernel) + noise)
        gain[chosen] = -1
        i = int(np.argmax(gain))
        chosen.append(i)
        kernel = kernel - np.outer(kernel[i], kernel[i]) / (kernel[i, i] + noise)
    return np.array(chosen)
