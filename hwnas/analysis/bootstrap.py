"""Parametric bootstrap: intervals of indicators from the intervals of points.

All values are sampled many times from their 95 % intervals, and indicators are computed for each
sample. A measurement that several runs share is sampled once for all of them. Other values are
sampled independently; if their errors are correlated (same test split, same latency table), the
intervals of differences between fronts are too wide.

Hypervolume and R2 are of one front. A front is a maximum over noisy points, so that noise makes it
look better than it is: sampled fronts are better than the observed front, which is better than the
true one by about the same amount. Basic (reverse percentile) intervals ``[2 v - q97.5, 2 v -
q2.5]`` correct this shift; percentiles would double it. An interval may therefore end below the
indicator. IGD+ and the epsilons compare a front with the reference set, which is sampled, too, so
that most of the shift cancels; their intervals are percentiles, which stay in the valid range.

Not included: intervals of modelled figures, which are errors of the model common to all networks
(for example energies of memory accesses); the selection of members by noisy figures (verification
on the test split reduces it); training noise (several seeds show it).

Source: Davison and Hinkley, "Bootstrap methods and their application", 1997, chapter 5.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hwnas.analysis.fronts import Array, RunFront
from hwnas.analysis.indicators import BY_NAME, Yardstick
from hwnas.core import pareto

_Z = 1.959963984540054  # of 95 %
_MIN_FRACTION = 1e-6  # of a positive value: lower bound of its samples

BootstrapInterval = tuple[float, float]


@dataclass(frozen=True)
class BootstrapDraws:
    """Number and seed of bootstrap samples."""

    n: int = 1000  #: number of samples; 0: no intervals are computed
    seed: int = 0  #: equal seeds give equal samples


DRAWS = BootstrapDraws()


@dataclass(frozen=True)
class FrontUncertainty:
    """Uncertainty of fronts by bootstrap; each field has one entry per front."""

    intervals: Sequence[Mapping[str, BootstrapInterval]]  #: 95 % interval by name of the indicator
    #: probability of each point of a run to be non-dominated among the run's points ``(points,)``
    on_own: Sequence[Array]
    #: probability of each point to be non-dominated among the points of all runs ``(points,)``
    on_all: Sequence[Array]


def has_intervals(fronts: Sequence[RunFront]) -> bool:
    """Return True if a value of a front has an interval, and its source is not ``modelled``.

    Without such a value, all samples are equal.
    """
    return any(bool((f.is_random & (f.low < f.high)).any()) for f in fronts)


def uncertainty(
    fronts: Sequence[RunFront],
    yardstick: Yardstick,
    indicators: Sequence[Mapping[str, float]],
    draws: BootstrapDraws,
) -> FrontUncertainty:
    """Return 95 % intervals of indicators, and probabilities that points are on fronts.

    Args:
        fronts: The compared fronts.
        yardstick: Frame and reference set. A reference set that is the union of the fronts is
            computed for each sample.
        indicators: Observed indicators of each front, by name.
        draws: Number of samples (1 or more) and seed.
    """
    maximise = yardstick.frame.maximise
    samples: list[list[dict[str, float]]] = [[] for _ in fronts]
    own_counts = [np.zeros(len(front.points)) for front in fronts]
    joint_counts = np.zeros(sum(len(front.points) for front in fronts))
    for values_of in sampled(fronts, draws):
        points = np.concatenate(values_of)
        best = pareto.non_dominated(points, maximise, keep_equal=True)
        joint_counts += best
        if not yardstick.is_given:
            yardstick = replace(yardstick, target=np.unique(points[best], axis=0))
        for i, values in enumerate(values_of):
            samples[i].append(yardstick.indicators(values))
            own_counts[i] += pareto.non_dominated(values, maximise, keep_equal=True)
    ends = np.cumsum([len(front.points) for front in fronts])[:-1]
    return FrontUncertainty(
        [_intervals(f, s) for f, s in zip(indicators, samples, strict=True)],
        [counts / draws.n for counts in own_counts],
        np.split(joint_counts / draws.n, ends),
    )


def sampled(fronts: Sequence[RunFront], draws: BootstrapDraws) -> Iterator[list[Array]]:
    """Yield ``draws.n`` samples, each with an array ``(points, objectives)`` per front.

    Values have split normal distributions: the median is the value, the 2.5 % and 97.5 % quantiles
    are the ends of its interval. Modelled values do not vary. A measurement that several fronts
    share is sampled once for all of them. Samples of positive values stay above 0.
    """
    rows: dict[tuple[object, ...], int] = {}
    indices = [_noise_indices(front, rows) for front in fronts]
    below = [(front.values - front.low) / _Z * front.is_random for front in fronts]
    above = [(front.high - front.values) / _Z * front.is_random for front in fronts]
    floors = [np.where(f.values > 0, f.values * _MIN_FRACTION, -np.inf) for f in fronts]
    rng = np.random.default_rng(draws.seed)
    for _ in range(draws.n):
        noise = rng.standard_normal(len(rows))
        values_of = []
        for i, front in enumerate(fronts):
            z = noise[indices[i]]
            values = front.values + z * np.where(z < 0, below[i], above[i])
            values_of.append(np.maximum(values, floors[i]))
        yield values_of


def _noise_indices(front: RunFront, rows: dict[tuple[object, ...], int]) -> NDArray[np.intp]:
    """Return the index of the random number of each value ``(n, objectives)``.

    Args:
        front: A front of ``n`` points.
        rows: Index by measurement, so that fronts share it; extended.
    """
    scope = "" if front.run.candidates else front.name  # ids in CSV files are not unique
    numbers = []
    for i, point in enumerate(front.points):
        ends = zip(front.values[i], front.low[i], front.high[i], strict=True)
        keys = [(scope, point.id, j, *map(float, figure)) for j, figure in enumerate(ends)]
        numbers.append([rows.setdefault(key, len(rows)) for key in keys])
    return np.array(numbers)


def _intervals(
    indicators: Mapping[str, float], samples: Sequence[Mapping[str, float]]
) -> dict[str, BootstrapInterval]:
    intervals = {}
    for name, value in indicators.items():
        low, high = np.quantile([sample[name] for sample in samples], [0.025, 0.975]).tolist()
        if not BY_NAME[name].is_relative:
            low, high = max(2 * value - high, 0.0), max(2 * value - low, 0.0)
        intervals[name] = (low, high)
    return intervals
