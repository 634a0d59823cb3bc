"""Expected hypervolume improvement with one uncertain objective and known costs.

Everything is minimised here. With the costs of a candidate known, the volume that it adds is a sum
over the cells between the costs of the front: a cell's size times how far the candidate's error
lies below the lowest error that the front has for these costs. Only the error is random, so that
the expectation is a sum of expected improvements in one dimension: exact, and cheap.

Source of the criterion: Emmerich et al., "Single- and multiobjective evolutionary optimization
assisted by Gaussian random field metamodels", IEEE Transactions on Evolutionary Computation, 2006.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

Array = NDArray[np.float64]
#: Maps levels ``(k,)`` to the expected improvement of each candidate below them, ``(n, k)``.
Improvement = Callable[[Array], Array]

_CELLS = 4_000_000  # maximum product of candidates and cells that are processed at once


def log_normal_improvement(mean: Array, std: Array) -> Improvement:
    """Return a function from levels to the expected improvement of log-normal errors below them.

    Args:
        mean: Mean of each candidate's log error, ``(n,)``.
        std: Standard deviation of each candidate's log error, ``(n,)``.
    """
    mean, std = mean[:, None], std[:, None]

    def improvement(levels: Array) -> Array:
        logs = np.log(np.maximum(levels, 1e-300))[None]
        d = (logs - mean) / std
        # In logarithms: for a large standard deviation, the former factor alone is infinite.
        below = levels[None] * ndtr(d) - np.exp(mean + std**2 / 2 + log_ndtr(d - std))
        return np.asarray(np.maximum(below, 0.0))

    return improvement


def expected_improvement(
    costs: Array,
    improvement: Improvement,
    front_errors: Array,
    front_costs: Array,
    reference: Sequence[float],
) -> Array:
    """Return the expected increase of the hypervolume by each candidate, ``(n,)``.

    Args:
        costs: Costs of the candidates, ``(n, m)`` with ``m`` 1 or 2.
        improvement: Returns the expected improvement of the candidates' errors below levels.
        front_errors: Errors of the front, ``(f,)``.
        front_costs: Costs of the front, ``(f, m)``.
        reference: Reference point of the hypervolume: error and costs, ``m + 1`` numbers.
    """
    limit, bounds = reference[0], np.asarray(reference[1:], np.float64)
    inside = (front_errors < limit) & (front_costs < bounds).all(axis=1)
    errors, known = front_errors[inside], front_costs[inside]
    edges = [np.unique(np.append(known[:, i], bounds[i])) for i in range(len(bounds))]
    levels = np.unique(np.append(errors, limit))
    gains = improvement(levels)
    # Of each candidate, the length of every cell along each cost: from the candidate's own cost on.
    widths = [_widths(costs[:, i], edges[i]) for i in range(len(edges))]
    which = np.searchsorted(levels, _lowest_errors(errors, known, edges, limit))
    if len(edges) == 1:
        return np.asarray(np.einsum("nk,nk->n", widths[0], gains[:, which]))
    increases = np.zeros(len(costs))
    step = max(1, _CELLS // which.size)
    for start in range(0, len(costs), step):
        part = slice(start, start + step)
        cells = gains[part][:, which]  # (n, k, l)
        increases[part] = np.einsum("nk,nl,nkl->n", widths[0][part], widths[1][part], cells)
    return increases


def _widths(costs: Array, edges: Array) -> Array:
    """Return ``(n, k)`` lengths; the first cell lies below all of the front."""
    lower = np.append(-np.inf, edges[:-1])
    return np.asarray(np.maximum(edges[None] - np.maximum(costs[:, None], lower[None]), 0.0))


def _lowest_errors(errors: Array, known: Array, edges: Sequence[Array], limit: float) -> Array:
    """Return the lowest error of the front in each cell, by the cell's lower corner."""
    shape = tuple(len(edge) for edge in edges)
    lowest = np.full(shape, limit)
    for error, cost in zip(errors, known, strict=True):
        corner = [
            int(np.searchsorted(edge, value)) + 1 for edge, value in zip(edges, cost, strict=True)
        ]
        region = tuple(slice(index, None) for index in corner)
        lowest[region] = np.minimum(lowest[region], error)
    return lowest
