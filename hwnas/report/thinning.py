"""Which candidates are drawn where there are too many to draw all."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hwnas.figure import column
from hwnas.results import Candidate

Array = NDArray[np.float64]

_CELLS = 2_000_000  # of candidates times members that are worked on at once


def thinned(
    candidates: Sequence[Candidate],
    front: Sequence[Candidate],
    objectives: Sequence[str],
    most: int,
) -> Sequence[Candidate]:
    """Return at most ``most`` of the candidates, in their order.

    Half of them are those nearest to the front, so that its surroundings are whole; the others are
    taken evenly from the rest, so that it is seen where candidates lie.
    """
    if len(candidates) <= most:
        return candidates
    order = np.argsort(_distances(candidates, front, objectives), kind="stable")
    n_near = most // 2 if front else 0
    rest = np.sort(order[n_near:])
    even = rest[np.linspace(0, len(rest) - 1, most - n_near).astype(np.intp)]
    return [candidates[i] for i in np.sort(np.concatenate([order[:n_near], even])).tolist()]


def _distances(
    candidates: Sequence[Candidate], front: Sequence[Candidate], objectives: Sequence[str]
) -> Array:
    """Return how far each candidate is from being as good as some member, ``(n,)``.

    It is the additive epsilon: by how much all objectives would have to improve, in shares of their
    ranges.
    """
    points, members = _points(candidates, objectives), _points(front, objectives)
    scale = np.maximum(np.ptp(points, axis=0), 1e-300)
    points, members = points / scale, members / scale
    nearest = np.full(len(points), np.inf)
    step = max(1, _CELLS // max(1, len(members)))
    for start in range(0, len(points), step):
        part = points[start : start + step]
        worst = np.full((len(part), len(members)), -np.inf)
        for mine, theirs in zip(part.T, members.T, strict=True):
            np.maximum(worst, mine[:, None] - theirs, out=worst)
        nearest[start : start + step] = worst.min(axis=1, initial=np.inf)
    return nearest


def _points(candidates: Sequence[Candidate], objectives: Sequence[str]) -> Array:
    """Return the objectives, to be minimised, ``(n, m)``."""
    sign = np.array([-1.0 if column(name).maximise else 1.0 for name in objectives])
    values = [[c.figures[name].value for name in objectives] for c in candidates]
    return np.asarray(np.array(values, np.float64).reshape(-1, len(objectives)) * sign)
