"""Pareto dominance, fronts and quality indicators."""

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
    """The non-dominated items of all items added, in order of addition.

    Of items with equal points, only the first is a member.

    Args:
        maximise: For each objective, True to maximise it and False to minimise it.
    """

    def __init__(self, maximise: Sequence[bool]):
        self._maximise = list(maximise)
        self.members: list[Item] = []
        #: objective values of the members, ``(n, objectives)``
        self.points: Array = np.zeros((0, len(self._maximise)))

    def add(self, items: Sequence[Item], points: Points) -> list[Item]:
        """Add items; return the former members that are now dominated.

        Args:
            items: New items.
            points: Their objective values, ``(len(items), objectives)``.
        """
        together, n_before = [*self.members, *items], len(self.members)
        values = np.vstack([self.points, np.reshape(points, (len(items), len(self._maximise)))])
        mask = non_dominated(values, self._maximise)
        self.members = [item for item, stays in zip(together, mask, strict=True) if stays]
        self.points = values[mask]
        return [together[i] for i in np.flatnonzero(~mask[:n_before])]

    def dominates(self, points: Points) -> NDArray[np.bool_]:
        """Return a mask of the points ``(n, objectives)`` that a member dominates or equals."""
        others = np.reshape(points, (len(points), 1, len(self._maximise)))
        return np.asarray(no_worse(self.points, others, self._maximise).any(axis=1))


def no_worse(first: Array, second: Array, maximise: Sequence[bool]) -> NDArray[np.bool_]:
    """Return a mask of the points in ``first`` that dominate or equal those in ``second``.

    Both have the shape ``(..., objectives)`` and are broadcast; the mask has the shape ``(...)``.
    """
    sign = np.where(maximise, -1.0, 1.0)
    return np.asarray((first * sign <= second * sign).all(axis=-1))


def non_dominated(
    points: Array, maximise: Sequence[bool], *, keep_equal: bool = False
) -> NDArray[np.bool_]:
    """Return a mask of the non-dominated rows of ``points`` ``(n, objectives)``.

    Of equal rows the first is kept, or all of them with ``keep_equal``.
    """
    if len(points) == 0:
        return np.zeros(0, np.bool_)
    mask: NDArray[np.bool_] = moocore.is_nondominated(
        points, maximise=list(maximise), keep_weakly=keep_equal
    )
    return mask


def hypervolume(points: Array, reference: Sequence[float], maximise: Sequence[bool]) -> float:
    """Return the volume that ``points`` ``(n, objectives)`` dominate up to ``reference``.

    Higher is better. Its unit is the product of the objectives' units. Points that do not dominate
    the reference point add nothing.
    """
    sign = np.where(np.asarray(maximise), -1.0, 1.0)
    return float(moocore.hypervolume(points * sign, ref=np.asarray(reference) * sign))


def igd_plus(points: Array, target: Array) -> float:
    """Return IGD+: how far ``points`` are from dominating the points of ``target``, on average.

    Lower is better, and 0 means that every point of ``target`` is dominated or equalled. Both are
    ``(n, objectives)``, minimised. Source: Ishibuchi et al., "Modified distance
    calculation in generational distance and inverted generational distance", 2015,
    https://doi.org/10.1007/978-3-319-15892-1_8.
    """
    return float(moocore.igd_plus(points, ref=target))


def epsilon_additive(points: Array, target: Array) -> float:
    """Return by how much all ``points`` must decrease to equal or dominate those of ``target``.

    This additive epsilon indicator is better if lower, and at most 0 if no decrease is needed. Both
    are ``(n, objectives)``, minimised. Source: Zitzler et al., "Performance assessment of
    multiobjective optimizers", 2003, https://doi.org/10.1109/TEVC.2003.810758.
    """
    return float(moocore.epsilon_additive(points, ref=target))


def epsilon_multiplicative(points: Array, target: Array, maximise: Sequence[bool]) -> float:
    """Return the factor by which ``points`` must improve to equal or dominate ``target``.

    This multiplicative epsilon indicator is better if lower, and at most 1 if no improvement is
    needed. Both are positive, ``(n, objectives)``. Source: see ``epsilon_additive``.
    """
    return float(moocore.epsilon_mult(points, ref=target, maximise=list(maximise)))


def r2(points: Array) -> float:
    """Return the R2 indicator of ``points`` of two non-negative objectives, both minimised.

    It is the smallest weighted Tchebycheff distance of a point from (0, 0), averaged over all
    weights ``(w, 1 - w)``; lower is better. Source: Schäpermeier and Kerschke, "R2 v2", 2025,
    https://arxiv.org/abs/2407.01504.
    """
    return float(moocore.r2_exact(points, ref=np.zeros(2)))


def attainment_surfaces(points: Array, sets: Array, percentiles: Sequence[float]) -> Array:
    """Return the points of attainment surfaces (minimised), ``(m, 3 or 4)``.

    The columns are the objectives and the percentile of the surface. At least a quarter of the sets
    equal or dominate each point of the 25 % surface.

    Args:
        points: Points of all sets, ``(n, 2 or 3)``.
        sets: Index of the set of each point, ``(n,)``.
        percentiles: Percentiles of the surfaces, in [0, 100].

    Source: Fonseca et al., "On the computation of the empirical attainment function", 2011,
    https://doi.org/10.1007/978-3-642-19893-9_8.
    """
    surfaces: Array = moocore.eaf(points, sets, percentiles=list(percentiles))
    return surfaces
