"""What the intervals of points mean for indicators: a parametric bootstrap.

Every value is drawn anew from its 95 % interval, many times, and indicators are computed of what
was drawn. A figure of one network that is the same in several runs is drawn once for all of them:
what was measured once does not differ between them. Different figures are drawn independently;
where their errors go together (one test split, one latency table), differences between fronts are
surer than is said here.

Hypervolume and R2 judge a front by itself. A front is a maximum over noisy points, so that noise
makes it look better than it is: drawn fronts are better than the one that was found, which in its
turn is better than the true one, by about as much. Basic (reverse percentile) intervals
``[2 v - q97.5, 2 v - q2.5]`` turn that shift around; the plain percentiles would count it twice. An
interval may therefore end below the indicator itself. IGD+ and the epsilons compare a front with
the best of all, which is drawn anew with it, so that the shift cancels for the most part; their
intervals are plain percentiles, which stay within what is possible.

What is not in it: intervals of modelled figures, which are those of the model and move all networks
together (energies of memory accesses, for example); that members were selected among many
candidates by the same noisy figures (which verification on the test split undoes); and the noise of
training, which only seeds show.

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
_TINY = 1e-6  # of a positive value, below which it is not drawn

BootstrapInterval = tuple[float, float]


@dataclass(frozen=True)
class BootstrapDraws:
    """How often values are drawn, and the seed from which everything drawn follows."""

    n: int = 1000  #: 0: no intervals
    seed: int = 0


DRAWS = BootstrapDraws()


@dataclass(frozen=True)
class FrontUncertainty:
    """What is uncertain about each front, in their order."""

    intervals: Sequence[Mapping[str, BootstrapInterval]]  #: 95 %, by indicator
    on_own: Sequence[Array]  #: each point's probability of being on its own front
    on_all: Sequence[Array]  #: and on the front of all points


def has_intervals(fronts: Sequence[RunFront]) -> bool:
    """Return whether any point has an interval that is drawn from."""
    return any(bool((f.is_random & (f.low < f.high)).any()) for f in fronts)


def uncertainty(
    fronts: Sequence[RunFront],
    yardstick: Yardstick,
    found: Sequence[Mapping[str, float]],
    draws: BootstrapDraws,
) -> FrontUncertainty:
    """Return what drawn comparisons say.

    Args:
        fronts: What is compared.
        yardstick: The frame, which stays as it is, as does a reference set that is given.
        found: The indicators of the fronts as they are.
        draws: How many of them.
    """
    maximise = yardstick.frame.maximise
    samples: list[list[dict[str, float]]] = [[] for _ in fronts]
    own = [np.zeros(len(front.points)) for front in fronts]
    every = np.zeros(sum(len(front.points) for front in fronts))
    for values_of in drawn(fronts, draws):
        points = np.concatenate(values_of)
        best = pareto.non_dominated(points, maximise, keep_equal=True)
        every += best
        if not yardstick.is_given:
            yardstick = replace(yardstick, target=np.unique(points[best], axis=0))
        for i, values in enumerate(values_of):
            samples[i].append(yardstick.indicators(values))
            own[i] += pareto.non_dominated(values, maximise)
    ends = np.cumsum([len(front.points) for front in fronts])[:-1]
    return FrontUncertainty(
        [_intervals(f, s) for f, s in zip(found, samples, strict=True)],
        [counts / draws.n for counts in own],
        np.split(every / draws.n, ends),
    )


def drawn(fronts: Sequence[RunFront], draws: BootstrapDraws) -> Iterator[list[Array]]:
    """Yield the values of all fronts, as often as is said.

    Below and above a value half a normal distribution each: its median is the value, and its 2.5 %
    and 97.5 % quantiles are the ends of the interval.
    """
    rows: dict[tuple[object, ...], int] = {}
    places = [_places(front, rows) for front in fronts]
    below = [(front.values - front.low) / _Z * front.is_random for front in fronts]
    above = [(front.high - front.values) / _Z * front.is_random for front in fronts]
    floors = [np.where(f.values > 0, f.values * _TINY, -np.inf) for f in fronts]
    rng = np.random.default_rng(draws.seed)
    for _ in range(draws.n):
        noise = rng.standard_normal(len(rows))
        values_of = []
        for i, front in enumerate(fronts):
            z = noise[places[i]]
            values = front.values + z * np.where(z < 0, below[i], above[i])
            values_of.append(np.maximum(values, floors[i]))
        yield values_of


def _places(front: RunFront, rows: dict[tuple[object, ...], int]) -> NDArray[np.intp]:
    """Return which random number each value takes: the same for one measurement of one network.

    Args:
        front: Of ``n`` points.
        rows: Numbers that are taken, by what was measured; grows.
    """
    own = "" if front.run.candidates else front.name  # ids of other tools may mean anything
    numbers = []
    for i, point in enumerate(front.points):
        ends = zip(front.values[i], front.low[i], front.high[i], strict=True)
        keys = [(own, point.id, j, *map(float, figure)) for j, figure in enumerate(ends)]
        numbers.append([rows.setdefault(key, len(rows)) for key in keys])
    return np.array(numbers)


def _intervals(
    found: Mapping[str, float], samples: Sequence[Mapping[str, float]]
) -> dict[str, BootstrapInterval]:
    intervals = {}
    for name, value in found.items():
        low, high = np.quantile([sample[name] for sample in samples], [0.025, 0.975]).tolist()
        if not BY_NAME[name].is_relative:
            low, high = max(2 * value - high, 0.0), max(2 * value - low, 0.0)
        intervals[name] = (low, high)
    return intervals
