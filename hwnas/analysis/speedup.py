"""How much less a front costs than a baseline at equal accuracy, or how much more.

What an accuracy costs on a front is what its cheapest member costs that is at least as accurate: a
staircase. The ratio of two such costs (the baseline's over the front's, above 1 where the front is
cheaper) is found at every accuracy at which either staircase steps, so that its lowest and highest
value are those over the whole range: from the accuracy of the baseline's cheapest member to the
highest that both reach. The geometric mean weighs every accuracy of the range alike, however many
members are near it.

Intervals are plain percentiles over drawn fronts (see ``bootstrap``). Members that are not on their
front are not drawn: a maximum over more noisy points is a better front. Noise makes both fronts
look better, and more so the one with more members.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hwnas.analysis import bootstrap, indicators
from hwnas.analysis.bootstrap import DRAWS, BootstrapDraws, BootstrapInterval
from hwnas.analysis.fronts import Array, ComparedRun, FrontStage, Objective, RunFront, front
from hwnas.analysis.indicators import COST, QUALITY
from hwnas.analysis.tables import parts
from hwnas.core.pareto import non_dominated
from hwnas.core.run_folder import Row
from hwnas.tasks.metrics import quality_names


@dataclass(frozen=True)
class CostRatio:
    """A ratio of costs, the baseline's over the front's, with its 95 % interval where known."""

    value: float
    interval: BootstrapInterval | None = None


@dataclass(frozen=True)
class CostAtAccuracy:
    """An accuracy, and what it costs on both sides."""

    quality: float
    baseline: float
    front: float

    @property
    def ratio(self) -> float:
        """The baseline's cost over the front's."""
        return self.baseline / self.front


@dataclass(frozen=True)
class AccuracyRange:
    """The accuracies that both reach, and how the costs compare over them."""

    places: Sequence[CostAtAccuracy]  #: all at which a staircase steps, from the lowest accuracy
    lowest: CostRatio
    highest: CostRatio
    mean: CostRatio  #: geometric, all accuracies weighed alike

    @property
    def worst(self) -> CostAtAccuracy:
        """Where the front compares worst."""
        return min(self.places, key=lambda place: place.ratio)


@dataclass(frozen=True)
class AccuracyLevel:
    """A level of accuracy in the table; ``None`` where the front does not reach it."""

    quality: float
    baseline_id: str
    baseline_cost: float
    front_id: str | None
    front_cost: float | None
    ratio: CostRatio | None
    #: What the front reaches at no more than ``baseline_cost``, and how much more than the baseline
    #: reaches there; ``None`` where it has no member so cheap.
    quality_at_cost: float | None
    gain: float | None
    gain_interval: tuple[float | None, float | None] | None


@dataclass(frozen=True)
class Speedup:
    """A front against a baseline, in the quality and one cost.

    Every quality is one that is maximised: ``said`` returns it as it was read.
    """

    quality: Objective
    cost: Objective
    front: Array  #: ``(k, 2)``: accuracy and cost of its members, cheapest first
    baseline: Array  #: ``(m, 2)``
    range: AccuracyRange | None  #: ``None`` where the front reaches no accuracy of the baseline
    steps: Sequence[
        AccuracyLevel
    ]  #: a row for each member of the baseline, and for where the front ends

    def said(self, value: float) -> float:
        """Return a quality, or a difference of qualities, as it was read."""
        return value if self.quality.maximise else -value

    def rows(self) -> list[Row]:
        """Return the table as rows of a CSV file."""
        return [self._row(step) for step in self.steps]

    def _row(self, step: AccuracyLevel) -> Row:
        quality, cost = self.quality.name, self.cost.name
        low, high = (step.ratio and step.ratio.interval) or (None, None)
        gain_low, gain_high = self.gains(step)
        reached, gain = (
            None if value is None else self.said(value)
            for value in (step.quality_at_cost, step.gain)
        )
        return {
            quality: self.said(step.quality),
            "baseline_id": step.baseline_id,
            f"baseline_{cost}": step.baseline_cost,
            "front_id": step.front_id,
            f"front_{cost}": step.front_cost,
            "ratio": step.ratio and step.ratio.value,
            "ratio_low": low,
            "ratio_high": high,
            f"front_{quality}_at_equal_cost": reached,
            f"{quality}_gain": gain,
            f"{quality}_gain_low": gain_low,
            f"{quality}_gain_high": gain_high,
        }

    def gains(self, step: AccuracyLevel) -> tuple[float | None, float | None]:
        """Return the interval of a difference as it was read, where it is known."""
        low, high = step.gain_interval or (None, None)
        if self.quality.maximise:
            return low, high
        return (None if high is None else -high), (None if low is None else -low)

    def to_json(self) -> dict[str, Any]:
        """Return what ``front.json`` and the manifest hold."""
        content: dict[str, Any] = {
            "quality": self.quality.name,
            "cost": self.cost.name,
            "n_front": len(self.front),
            "n_baseline": len(self.baseline),
            "range": None,
        }
        if (found := self.range) is not None:
            worst = found.worst
            content |= {
                "range": [self.said(found.places[i].quality) for i in (0, -1)],
                "lowest_ratio": _json(found.lowest),
                "lowest_at": {
                    self.quality.name: self.said(worst.quality),
                    f"baseline_{self.cost.name}": worst.baseline,
                    f"front_{self.cost.name}": worst.front,
                },
                "highest_ratio": _json(found.highest),
                "geometric_mean_ratio": _json(found.mean),
            }
        return content | {"levels": self.rows()}


def speedup(
    own: RunFront,
    base: RunFront,
    quality: Objective,
    cost: Objective,
    draws: BootstrapDraws = DRAWS,
) -> Speedup:
    """Compare a front with a baseline.

    Args:
        own: What ``in_plane`` returns of the front; may be empty.
        base: Of the baseline.
        quality: To be maximised; what is minimised is compared with its sign turned.
        cost: To be minimised; above zero.
        draws: For the intervals.
    """
    if not quality.maximise:
        own, base = _turned(own), _turned(base)
    own, base = _members(own), _members(base)
    levels = _levels(own, base)
    found = _range(own.values, base.values)
    samples = None
    if draws.n and found and bootstrap.has_intervals([own, base]):
        samples = _sampled(own, base, levels, draws)
    steps = [_step(own, base, level, i, samples) for i, level in enumerate(levels)]
    whole = found and _with_intervals(found, samples)
    return Speedup(quality, cost, own.values, base.values, whole, steps)


def in_plane(run: ComparedRun, quality: Objective, cost: Objective, kind: FrontStage) -> RunFront:
    """Return what is compared of a run in accuracy and one cost; empty where nothing fits."""
    points = run.scored if kind == "searched" else run.verified
    if points:
        return front(run, (quality, cost), kind)
    none = np.zeros((0, 2))
    return RunFront(run, [], none, none, none, none.astype(bool), np.zeros(0, np.bool_))


def of_two(
    runs: Sequence[ComparedRun],
    objectives: Sequence[Objective],
    kinds: Sequence[FrontStage],
    draws: BootstrapDraws,
) -> Speedup | None:
    """Hold the first of two runs against the second, in the quality and the first cost.

    ``None`` where that says nothing: of one run or several, where the quality is no metric and not
    maximised, or the cost not minimised, or where a cost is not above zero.
    """
    quality, costs = parts(objectives)
    is_cost = not quality.maximise and quality.name not in quality_names()
    if len(runs) != 2 or not costs or is_cost or costs[0].maximise:
        return None
    own, base = (
        in_plane(run, quality, costs[0], kind) for run, kind in zip(runs, kinds, strict=True)
    )
    if min(own.values[:, COST].min(), base.values[:, COST].min()) <= 0:
        return None
    return speedup(own, base, quality, costs[0], draws)


def _turned(own: RunFront) -> RunFront:
    """Return a front whose quality is to be maximised, where it was to be minimised."""
    sign = np.array([-1.0, 1.0])
    low, high = own.low.copy(), own.high.copy()
    low[:, QUALITY], high[:, QUALITY] = -own.high[:, QUALITY], -own.low[:, QUALITY]
    return replace(own, values=own.values * sign, low=low, high=high)


@dataclass(frozen=True)
class _Level:
    """A row of the table: the accuracy of a member of the baseline, or of the front."""

    member: int
    of_front: bool = False


@dataclass(frozen=True)
class _Samples:
    """What was drawn, a row for each draw."""

    whole: Array  #: ``(draws, 3)``: lowest, highest and mean ratio
    ratios: Array  #: ``(draws, levels)``; 0 where the front does not reach the level
    gains: Array  #: ``(draws, levels)``; -inf where the front has nothing so cheap


def _members(own: RunFront) -> RunFront:
    """Return a front without what is dominated in quality and cost, the cheapest first."""
    order = np.lexsort((-own.values[:, QUALITY], own.values[:, COST]))
    kept = order[non_dominated(own.values[order], [True, False])] if len(order) else order
    return replace(
        own,
        points=[own.points[i] for i in kept],
        values=own.values[kept],
        low=own.low[kept],
        high=own.high[kept],
        is_random=own.is_random[kept],
        mask=np.ones(len(kept), np.bool_),
    )


def _levels(own: RunFront, base: RunFront) -> list[_Level]:
    """Return all members of the baseline, and the front's last one where it ends among them."""
    levels = [_Level(i) for i in range(len(base.values))]
    if not (len(own.values) and levels):
        return levels
    top, qualities = own.values[-1, QUALITY], base.values[:, QUALITY]
    if qualities[0] < top < qualities[-1] and top not in qualities:
        place = int(np.searchsorted(qualities, top))
        levels.insert(place, _Level(len(own.values) - 1, of_front=True))
    return levels


def _range(own: Array, base: Array) -> AccuracyRange | None:
    levels = indicators.common_levels(own, base)
    if not len(levels):
        return None
    columns = (levels, indicators.prices(base, levels), indicators.prices(own, levels))
    places = [CostAtAccuracy(*row) for row in np.stack(columns, axis=1).tolist()]
    return AccuracyRange(places, *map(CostRatio, indicators.extremes(own, base)))


def _sampled(
    own: RunFront, base: RunFront, levels: Sequence[_Level], draws: BootstrapDraws
) -> _Samples:
    whole, ratios, gains = [], [], []
    for values, others in bootstrap.drawn([own, base], draws):
        whole.append(indicators.extremes(values, others))
        at = np.array([(values if x.of_front else others)[x.member] for x in levels])
        ratios.append(indicators.ratios(values, others, at[:, QUALITY]))
        gains.append(indicators.gains(values, others, at[:, COST]))
    return _Samples(np.array(whole), np.array(ratios), np.array(gains))


def _step(
    own: RunFront, base: RunFront, level: _Level, i: int, samples: _Samples | None
) -> AccuracyLevel:
    quality = float((own if level.of_front else base).values[level.member, QUALITY])
    theirs = _cheapest(base, quality)
    assert theirs is not None  # the front's last member is below the baseline's
    cost = float(base.values[theirs, COST])
    mine = _cheapest(own, quality)
    ratio, paid = None, None
    if mine is not None:
        paid = float(own.values[mine, COST])
        ratio = CostRatio(cost / paid, None if samples is None else _ends(samples.ratios[:, i]))
    reached, gain, interval = None, None, None
    affordable = np.flatnonzero(own.values[:, COST] <= cost)
    if len(affordable) and not level.of_front:
        reached = float(own.values[affordable[-1], QUALITY])
        gain = reached - quality
        if samples is not None:
            low, high = _ends(samples.gains[:, i])
            interval = (low if np.isfinite(low) else None, high if np.isfinite(high) else None)
    return AccuracyLevel(
        quality, base.points[theirs].id, cost, None if mine is None else own.points[mine].id,
        paid, ratio, reached, gain, interval,
    )  # fmt: skip


def _cheapest(members: RunFront, quality: float) -> int | None:
    """Return the cheapest member that is at least as accurate."""
    good = np.flatnonzero(members.values[:, QUALITY] >= quality)
    return int(good[0]) if len(good) else None


def _with_intervals(found: AccuracyRange, samples: _Samples | None) -> AccuracyRange:
    if samples is None:
        return found
    lowest, highest, mean = (_ends(column) for column in samples.whole.T)
    return AccuracyRange(
        found.places,
        CostRatio(found.lowest.value, lowest),
        CostRatio(found.highest.value, highest),
        CostRatio(found.mean.value, mean),
    )


def _ends(samples: Array) -> BootstrapInterval:
    """Return the 2.5 % and the 97.5 % quantile: values that were drawn, some may be infinite."""
    ordered = np.sort(samples)
    last = len(ordered) - 1
    low, high = int(np.floor(0.025 * last)), int(np.ceil(0.975 * last))
    return float(ordered[low]), float(ordered[high])


def _json(ratio: CostRatio) -> list[float | None]:
    """Return value and ends; ``None`` for an end that is not known or infinite."""
    low, high = ratio.interval or (None, None)
    finite = high if high is None or np.isfinite(high) else None
    return [ratio.value, low, finite]
