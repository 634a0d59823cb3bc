"""Which networks to measure: greedily, those that leave the least variance on average."""

import numpy as np
from numpy.typing import NDArray

from hwnas.devices.features import Features
from hwnas.devices.prior import Prior
from hwnas.devices.process import Blocks, mixed


def most_telling(features: Features, n: int, prior: Prior) -> NDArray[np.intp]:
    """Return the indices of networks to measure, the most telling first.

    Source: Krause, Singh and Guestrin, "Near-optimal sensor placements in Gaussian processes",
    JMLR 9, 2008; average variance (A-optimal) instead of mutual information, in one update each.

    Args:
        features: Of the networks to choose from.
        n: How many are chosen.
        prior: What is expected of the device.
    """
    blocks = Blocks.of(features, prior.roofline.mean, prior.roofline.std)
    kernel = mixed(prior.process, blocks.grams(blocks))
    noise = np.exp(prior.process[6])
    chosen: list[int] = []
    for _ in range(n):
        gain = (kernel**2).mean(1) / (np.diag(kernel) + noise)
        gain[chosen] = -1
        i = int(np.argmax(gain))
        chosen.append(i)
        kernel = kernel - np.outer(kernel[i], kernel[i]) / (kernel[i, i] + noise)
    return np.array(chosen)
