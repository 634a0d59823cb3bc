"""What each quality costs on two fronts, as numbers: rows of a quality and a cost.

The quality is maximised, the cost is minimised and above zero.
"""

import numpy as np

from hwnas.comparison.fronts import Array

QUALITY, COST = 0, 1  #: columns


def prices(values: Array, levels: Array) -> Array:
    """Return what each level of the quality costs at least; infinite where it is not reached."""
    good = values[None, :, QUALITY] >= levels[:, None]
    lowest: Array = np.where(good, values[None, :, COST], np.inf).min(axis=1, initial=np.inf)
    return lowest


def reached(values: Array, costs: Array) -> Array:
    """Return the highest quality at no more than each cost; -inf where there is none so cheap."""
    cheap = values[None, :, COST] <= costs[:, None]
    highest: Array = np.where(cheap, values[None, :, QUALITY], -np.inf).max(axis=1, initial=-np.inf)
    return highest


def common_levels(own: Array, base: Array) -> Array:
    """Return all levels of the range that both reach at which a staircase steps, ascending."""
    if not (len(own) and len(base)):
        return np.zeros(0)
    cheapest = base[base[:, COST] == base[:, COST].min()]
    low = cheapest[:, QUALITY].max()
    high = min(own[:, QUALITY].max(), base[:, QUALITY].max())
    levels = np.unique(np.concatenate([own[:, QUALITY], base[:, QUALITY]]))
    common: Array = levels[(levels >= low) & (levels <= high)]
    return common


def extremes(own: Array, base: Array) -> tuple[float, float, float]:
    """Return lowest, highest and mean ratio; zeros where the front reaches nothing."""
    levels = common_levels(own, base)
    if not len(levels):
        return 0.0, 0.0, 0.0
    found = prices(base, levels) / prices(own, levels)
    widths = np.diff(levels)  # below each level but the first, where its costs hold
    logs = np.log(found)
    mean = np.average(logs[1:], weights=widths) if len(widths) else logs[0]
    return float(found.min()), float(found.max()), float(np.exp(mean))


def ratios(own: Array, base: Array, levels: Array) -> Array:
    """Return ratios: 0 where the front does not reach a level, infinite where it alone does."""
    mine, theirs = prices(own, levels), prices(base, levels)
    return np.where(np.isinf(mine), 0.0, theirs / np.where(np.isinf(mine), 1.0, mine))


def gains(own: Array, base: Array, costs: Array) -> Array:
    """Return how much more quality the front has at each cost; -inf if nothing is so cheap."""
    mine, theirs = reached(own, costs), reached(base, costs)
    known = np.isfinite(mine) & np.isfinite(theirs)
    found: Array = np.where(known, mine - np.where(known, theirs, 0.0), mine)
    return found
