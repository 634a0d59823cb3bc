"""Quality indicators of fronts, attainment surfaces and costs at equal quality.

Objectives are normalised by a frame and minimised: 0 at the ideal, 1 at the reference point.
Exceptions: ``hypervolume`` is in the product of the units, the multiplicative epsilon is of the
original values.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from hwnas.analysis.fronts import Array, Objective, ReferenceFrame, RunFront
from hwnas.core import pareto


@dataclass(frozen=True)
class Indicator:
    """A quality indicator of fronts."""

    name: str  #: column of CSV files
    title: str  #: name in tables
    higher_is_better: bool
    meaning: str  #: definition in one phrase
    is_relative: bool  #: whether it depends on the reference set


INDICATORS = (
    Indicator(
        "hypervolume", "hypervolume", True, "volume dominated up to the reference point", False,
    ),
    Indicator(
        "hypervolume_share", "hypervolume share", True,
        "hypervolume as a fraction of the box from the ideal to the reference point", False,
    ),
    Indicator(
        "igd_plus", "IGD+", False,
        "mean distance of the reference set to the region that the front dominates", True,
    ),
    Indicator(
        "epsilon_additive", "additive epsilon", False,
        "smallest shift of the normalised front that makes it dominate the reference set", True,
    ),
    Indicator(
        "epsilon_multiplicative", "multiplicative epsilon", False,
        "smallest factor on all objectives that makes the front dominate the reference set",
        True,
    ),
    Indicator(
        "r2", "R2", False,
        "mean weighted Tchebycheff distance of the front to the ideal, over all weights", False,
    ),
)  # fmt: skip
BY_NAME = {indicator.name: indicator for indicator in INDICATORS}
_DIVISIONS = {3: 44, 4: 17}  # of weights, by the number of objectives: about 1,000 weights
_BLOCK = 64  # points whose distances fit into the cache


@dataclass(frozen=True)
class Yardstick:
    """Frame and reference set of all indicators."""

    frame: ReferenceFrame
    target: Array  #: the reference set, in the units of the objectives ``(k, objectives)``
    is_given: bool  #: whether the reference set is a true front, not the union of the compared ones

    def share(self, values: Array) -> float:
        """Return the hypervolume share of a front ``(n, objectives)``.

        It is in [0, 1], and above 1 only with points better than the ideal.
        """
        points = self.frame.normalised(values)
        return pareto.hypervolume(points, [1.0] * points.shape[1], [False] * points.shape[1])

    def indicators(self, values: Array) -> dict[str, float]:
        """Return the value of each indicator of a front ``(n, objectives)``, by name.

        Names and directions are those of ``INDICATORS``. ``epsilon_multiplicative`` is NaN if a
        value of the front or the reference set is not positive.
        """
        share, points = self.share(values), self.frame.normalised(values)
        target = self.frame.normalised(self.target)
        positive = bool((values > 0).all() and (self.target > 0).all())
        return {
            "hypervolume": share * self.frame.volume,
            "hypervolume_share": share,
            "igd_plus": pareto.igd_plus(points, target),
            "epsilon_additive": pareto.epsilon_additive(points, target),
            "epsilon_multiplicative": pareto.epsilon_multiplicative(
                values, self.target, self.frame.maximise
            )
            if positive
            else math.nan,
            "r2": r2(points),
        }


def r2(points: Array) -> float:
    """Return the R2 indicator of normalised points ``(n, objectives)``; lower is better.

    Exact for two objectives; for three and four with about 1,000 weights. Values better than the
    ideal count as 0.
    """
    clipped = np.maximum(points, 0.0)
    if points.shape[1] == 2:
        return pareto.r2(clipped)
    return r2_by_weights(clipped, weights(points.shape[1], _DIVISIONS[points.shape[1]]))


def r2_by_weights(points: Array, vectors: Array) -> float:
    """Return the mean over weights of the smallest weighted Tchebycheff distance to 0.

    Lower is better. Points ``(n, objectives)`` must not be negative; ``vectors`` are weights
    ``(k, objectives)``.
    Source: Brockhoff et al., "On the properties of the R2
    indicator", 2012, https://doi.org/10.1145/2330163.2330230.
    """
    nearest = np.full(len(vectors), np.inf)
    for start in range(0, len(points), _BLOCK):
        part = points[start : start + _BLOCK]
        distances = np.zeros((len(vectors), len(part)))
        for weight, value in zip(vectors.T, part.T, strict=True):
            np.maximum(distances, np.multiply.outer(weight, value), out=distances)
        nearest = np.minimum(nearest, distances.min(axis=1))
    return float(nearest.mean())


@cache
def weights(n: int, divisions: int) -> Array:
    """Return uniformly distributed weights of ``n`` objectives ``(k, n)``; rows add up to 1.

    The lattice of Das and Dennis with multiples of ``1 / divisions``, shrunk towards the centre:
    its corners have too much influence on means otherwise. The array is cached and read-only.

    Source: Das and Dennis, "Normal-boundary intersection", 1998,
    https://doi.org/10.1137/S1052623496307510.
    """
    bars = itertools.combinations(range(divisions + n - 1), n - 1)
    edges = np.array([(-1, *cut, divisions + n - 1) for cut in bars])
    lattice: Array = (np.diff(edges, axis=1) - 1 + 1 / n) / (divisions + 1)
    lattice.flags.writeable = False  # cached
    return lattice


def coverage(first: Array, second: Array, maximise: Sequence[bool]) -> float:
    """Return C(first, second): the fraction of the second front that the first weakly dominates.

    In [0, 1]. Fronts are arrays ``(points, objectives)``; ``maximise`` has a flag per objective.
    Source: Zitzler and Thiele, "Multiobjective evolutionary algorithms", 1999,
    https://doi.org/10.1109/4235.797969.
    """
    sign = np.where(np.asarray(maximise), -1.0, 1.0)
    a, b = first * sign, second * sign
    return float(np.mean([(a <= point).all(axis=1).any() for point in b]))


# Attainment surfaces of groups of runs: quartiles of the fronts.
#
# With more than two objectives: for the quality and each of the others.

PERCENTILES = (25, 50, 75)


@dataclass(frozen=True)
class AttainmentSurface:
    """The best points that a percentage of the runs of a group attains."""

    group: str  #: name of the group
    n_runs: int  #: number of runs of the group
    percentile: int  #: 25, 50 or 75 % of the runs
    quality: Objective
    cost: Objective
    points: Array  #: cost and quality ``(k, 2)``, from the lowest cost


def surfaces(
    fronts: Sequence[RunFront], quality: Objective, costs: Sequence[Objective]
) -> list[AttainmentSurface]:
    """Return three attainment surfaces (25, 50, 75 %) per cost and group of two or more runs.

    In this order: by group, cost and percentile. Groups of one run have none.
    """
    names = [*dict.fromkeys(front.group for front in fronts)]
    result = []
    for group in names:
        group_fronts = [front for front in fronts if front.group == group]
        if len(group_fronts) > 1:
            for cost in costs:
                result += _of_group(group, group_fronts, quality, cost)
    return result


def _of_group(
    group: str, fronts: Sequence[RunFront], quality: Objective, cost: Objective
) -> list[AttainmentSurface]:
    pair = (cost, quality)
    sign = np.array([-1.0 if o.maximise else 1.0 for o in pair])
    points, sets = [], []
    for i, front in enumerate(fronts):
        points += [[p.figures[o.name].value for o in pair] for p in front.points]
        sets += [i] * len(front.points)
    attained = pareto.attainment_surfaces(np.array(points) * sign, np.array(sets), PERCENTILES)
    result = []
    for percentile in PERCENTILES:
        curve = attained[attained[:, 2] == percentile, :2] * sign
        curve = curve[np.argsort(curve[:, 0], kind="stable")]
        result.append(AttainmentSurface(group, len(fronts), percentile, quality, cost, curve))
    return result


# Costs at equal quality. Fronts are rows of quality (maximised) and cost (minimised, above zero).

QUALITY, COST = 0, 1  #: columns


def prices(values: Array, levels: Array) -> Array:
    """Return the lowest cost at which a front reaches each quality level ``(levels,)``.

    Infinite where it does not. ``values`` are quality and cost ``(n, 2)``.
    """
    good = values[None, :, QUALITY] >= levels[:, None]
    lowest: Array = np.where(good, values[None, :, COST], np.inf).min(axis=1, initial=np.inf)
    return lowest


def reached(values: Array, costs: Array) -> Array:
    """Return the highest quality of a front at no more than each cost ``(costs,)``.

    -inf where all networks cost more. ``values`` are quality and cost ``(n, 2)``.
    """
    cheap = values[None, :, COST] <= costs[:, None]
    highest: Array = np.where(cheap, values[None, :, QUALITY], -np.inf).max(axis=1, initial=-np.inf)
    return highest


def common_levels(front: Array, baseline: Array) -> Array:
    """Return the quality levels of both fronts at which their costs are compared, ascending.

    They range from the quality of the baseline's cheapest network to the highest that both fronts
    reach. Fronts are quality and cost ``(n, 2)``; the array is empty if there is no such level.
    """
    if not (len(front) and len(baseline)):
        return np.zeros(0)
    cheapest = baseline[baseline[:, COST] == baseline[:, COST].min()]
    low = cheapest[:, QUALITY].max()
    high = min(front[:, QUALITY].max(), baseline[:, QUALITY].max())
    levels = np.unique(np.concatenate([front[:, QUALITY], baseline[:, QUALITY]]))
    common: Array = levels[(levels >= low) & (levels <= high)]
    return common


def extremes(front: Array, baseline: Array) -> tuple[float, float, float]:
    """Return lowest, highest and geometric mean cost ratio over the common quality levels.

    A ratio is the cost of the baseline over that of the front, above 1 if the front is cheaper. In
    the mean its weight is the difference of its level to the level below. All are 0 without a
    common level. Fronts are quality and cost ``(n, 2)``.
    """
    levels = common_levels(front, baseline)
    if not len(levels):
        return 0.0, 0.0, 0.0
    cost_ratios = prices(baseline, levels) / prices(front, levels)
    widths = np.diff(levels)  # each level applies down to the level below
    logs = np.log(cost_ratios)
    mean = np.average(logs[1:], weights=widths) if len(widths) else logs[0]
    return float(cost_ratios.min()), float(cost_ratios.max()), float(np.exp(mean))


def ratios(front: Array, baseline: Array, levels: Array) -> Array:
    """Return the cost of the baseline over that of the front at each level ``(levels,)``.

    0 where the front does not reach the level, infinite where only the front does. Fronts are
    quality and cost ``(n, 2)``, ``levels`` qualities.
    """
    mine, theirs = prices(front, levels), prices(baseline, levels)
    return np.where(np.isinf(mine), 0.0, theirs / np.where(np.isinf(mine), 1.0, mine))


def gains(front: Array, baseline: Array, costs: Array) -> Array:
    """Return the best quality of the front minus that of the baseline, within each cost.

    -inf where all networks of the front cost more; the front's quality where only those of the
    baseline do. Fronts are quality and cost ``(n, 2)``; the result is ``(costs,)``.
    """
    front_best, base_best = reached(front, costs), reached(baseline, costs)
    known = np.isfinite(front_best) & np.isfinite(base_best)
    gain: Array = np.where(known, front_best - np.where(known, base_best, 0.0), front_best)
    return gain
