"""Which points are on the Pareto front, and how much they dominate."""

from collections.abc import Sequence
from typing import Generic, TypeVar, final

import moocore
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Points = Array | Sequence[Sequence[float]]
Item = TypeVar("Item")


@final
class ParetoFront(Generic[Item]):
    """What no other dominates of all that was added, in the order in which it came.

    Of equals, the one that came first is a member.

    Args:
        maximise: Which objectives are to be maximised; the others are to be minimised.
    """

    def __init__(self, maximise: Sequence[bool]):
        self._maximise = list(maximise)
        self.members: list[Item] = []
        self.points: Array = np.zeros((0, len(self._maximise)))  #: theirs, ``(n, objectives)``

    def add(self, items: Sequence[Item], points: Points) -> list[Item]:
        """Take items in; return the members that leave.

        Args:
            items: What becomes a member unless it is dominated.
            points: Their objectives ``(len(items), objectives)``.
        """
        together, n_before = [*self.members, *items], len(self.members)
        values = np.vstack([self.points, np.reshape(points, (len(items), len(self._maximise)))])
        mask = non_dominated(values, self._maximise)
        self.members = [item for item, stays in zip(together, mask, strict=True) if stays]
        self.points = values[mask]
        return [together[i] for i in np.flatnonzero(~mask[:n_before])]

    def dominates(self, points: Points) -> NDArray[np.bool_]:
        """Return which points ``(n, objectives)`` would be no members: one is nowhere worse."""
        asked = np.reshape(points, (len(points), 1, len(self._maximise)))
        return np.asarray(no_worse(self.points, asked, self._maximise).any(axis=1))


def no_worse(first: Array, second: Array, maximise: Sequence[bool]) -> NDArray[np.bool_]:
    """Return which points ``(..., objectives)`` are in no objective worse than others: broadcast.

    Such a point dominates the other one, or equals it.
    """
    sign = np.where(maximise, -1.0, 1.0)
    return np.asarray((first * sign <= second * sign).all(axis=-1))


def non_dominated(
    points: Array, maximise: Sequence[bool], *, keep_equal: bool = False
) -> NDArray[np.bool_]:
    """Return which rows of ``points`` ``(n, objectives)`` no other row dominates.

    Of equal rows the first is kept, or all of them with ``keep_equal``.
    """
    if len(points) == 0:
        return np.zeros(0, np.bool_)
    mask: NDArray[np.bool_] = moocore.is_nondominated(
        points, maximise=list(maximise), keep_weakly=keep_equal
    )
    return mask


def hypervolume(points: Array, reference: Sequence[float], maximise: Sequence[bool]) -> float:
    """Return the volume that ``points`` dominate up to ``reference``."""
    sign = np.where(np.asarray(maximise), -1.0, 1.0)
    return float(moocore.hypervolume(points * sign, ref=np.asarray(reference) * sign))


def igd_plus(points: Array, target: Array) -> float:
    """Return IGD+: how far, on the mean, a target set is from being weakly dominated by ``points``.

    Both are to be minimised. Source: Ishibuchi et al., "Modified distance calculation in
    generational distance and inverted generational distance", 2015,
    https://doi.org/10.1007/978-3-319-15892-1_8.
    """
    return float(moocore.igd_plus(points, ref=target))


def epsilon_additive(points: Array, target: Array) -> float:
    """Return how far ``points``, to be minimised, must be moved to weakly dominate a target set.

    Source: Zitzler et al., "Performance assessment of multiobjective optimizers", 2003,
    https://doi.org/10.1109/TEVC.2003.810758.
    """
    return float(moocore.epsilon_additive(points, ref=target))


def epsilon_multiplicative(points: Array, target: Array, maximise: Sequence[bool]) -> float:
    """Return by which factor positive ``points`` must be better to weakly dominate a target set.

    Source: as ``epsilon_additive``.
    """
    return float(moocore.epsilon_mult(points, ref=target, maximise=list(maximise)))


def r2(points: Array) -> float:
    """Return R2 of ``points`` of two non-negative objectives, to be minimised towards 0.

    The weighted Tchebycheff distance to 0 of the nearest point, on the mean over all weights
    ``(w, 1 - w)``. Source: Schäpermeier and Kerschke, "R2 v2", 2025,
    https://arxiv.org/abs/2407.01504.
    """
    return float(moocore.r2_exact(points, ref=np.zeros(2)))


def attained(points: Array, sets: Array, percentiles: Sequence[float]) -> Array:
    """Return the points of attainment surfaces, to be minimised, with the percentile of each.

    A point of the 25 % surface was reached or dominated by a quarter of the sets, or a little more.

    Args:
        points: Of all sets, ``(n, 2 or 3)``.
        sets: The number of the set of each point.
        percentiles: Which surfaces.

    Source: Fonseca et al., "On the computation of the empirical attainment function", 2011,
    https://doi.org/10.1007/978-3-642-19893-9_8.
    """
    surfaces: Array = moocore.eaf(points, sets, percentiles=list(percentiles))
    return surfaces
