"""Which points are drawn where there are too many to draw all."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_CELLS = 2_000_000  # of points times members that are worked on at once


def thinned(points: Array, front: Array, most: int) -> NDArray[np.intp]:
    """Return the indices of at most ``most`` of the points, ascending.

    Half of them are those nearest to the front, so that its surroundings are whole; the others are
    taken evenly from the rest, so that it is seen where points lie.

    Args:
        points: Objectives to be minimised, ``(n, m)``.
        front: Those of the front, ``(k, m)``.
        most: How many are kept.
    """
    if len(points) <= most:
        return np.arange(len(points))
    order = np.argsort(_distances(points, front), kind="stable")
    n_near = most // 2 if len(front) else 0
    rest = np.sort(order[n_near:])
    even = rest[np.linspace(0, len(rest) - 1, most - n_near).astype(np.intp)]
    return np.sort(np.concatenate([order[:n_near], even]))


def _distances(points: Array, front: Array) -> Array:
    """Return how far each point is from being as good as some member, ``(n,)``.

    It is the additive epsilon: by how much all objectives would have to improve, in shares of their
    ranges.
    """
    scale = np.maximum(np.ptp(points, axis=0), 1e-300)
    points, front = points / scale, front / scale
    nearest = np.full(len(points), np.inf)
    step = max(1, _CELLS // max(1, len(front)))
    for start in range(0, len(points), step):
        part = points[start : start + step]
        worst = np.full((len(part), len(front)), -np.inf)
        for mine, theirs in zip(part.T, front.T, strict=True):
            np.maximum(worst, mine[:, None] - theirs, out=worst)
        nearest[start : start + step] = worst.min(axis=1, initial=np.inf)
    return nearest
