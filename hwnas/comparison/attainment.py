"""Attainment surfaces: what a quarter, half and three quarters of a group's runs reach.

Where there are more than two objectives, they are computed for each pair of the quality and one of
the others, as if the rest did not count.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hwnas import pareto
from hwnas.comparison.fronts import Array, Objective, RunFront

PERCENTILES = (25, 50, 75)


@dataclass(frozen=True)
class Surface:
    """What a share of the runs of a group attains, in a quality and a cost."""

    group: str
    n_runs: int
    percentile: int
    quality: Objective
    cost: Objective
    points: Array  #: ``(k, 2)``: cost and quality, from the lowest cost


def surfaces(
    fronts: Sequence[RunFront], quality: Objective, costs: Sequence[Objective]
) -> list[Surface]:
    """Return the surfaces of all groups of two runs or more."""
    names = [*dict.fromkeys(front.group for front in fronts)]
    found = []
    for group in names:
        own = [front for front in fronts if front.group == group]
        if len(own) > 1:
            for cost in costs:
                found += _of_group(group, own, quality, cost)
    return found


def _of_group(
    group: str, fronts: Sequence[RunFront], quality: Objective, cost: Objective
) -> list[Surface]:
    pair = (cost, quality)
    sign = np.array([-1.0 if o.maximise else 1.0 for o in pair])
    points, sets = [], []
    for i, front in enumerate(fronts):
        points += [[p.figures[o.name].value for o in pair] for p in front.points]
        sets += [i] * len(front.points)
    attained = pareto.attained(np.array(points) * sign, np.array(sets), PERCENTILES)
    found = []
    for percentile in PERCENTILES:
        own = attained[attained[:, 2] == percentile, :2] * sign
        own = own[np.argsort(own[:, 0], kind="stable")]
        found.append(Surface(group, len(fronts), percentile, quality, cost, own))
    return found
