"""Cost ratio of a baseline and a front at equal accuracy.

The cost of an accuracy is that of the cheapest member that is at least as accurate: a step
function. The ratio of two such costs (baseline over front, above 1 where the front is cheaper) is
computed at every accuracy at which either function steps, so that its minimum and maximum are those
of the whole range: from the accuracy of the baseline's cheapest member to the highest that both
reach. The geometric mean is over the accuracies of the range, uniformly.

Intervals are percentiles over bootstrap samples of both fronts (see ``bootstrap``). Dominated
members are not sampled: a maximum over more noisy points is a better front. Noise makes both fronts
look better, and the one with more members more so.
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
    """Cost of the baseline divided by that of the front."""

    value: float  #: above 1: the front is cheaper
    interval: BootstrapInterval | None = None  #: 95 % interval; ``None``: unknown


@dataclass(frozen=True)
class CostAtAccuracy:
    """An accuracy, and the lowest costs at which both fronts reach it."""

    quality: float  #: the accuracy
    baseline: float  #: lowest cost in the baseline
    front: float  #: lowest cost in the front

    @property
    def ratio(self) -> float:
        """Cost of the baseline divided by that of the front, above 1 if the front is cheaper."""
        return self.baseline / self.front


@dataclass(frozen=True)
class AccuracyRange:
    """The accuracies that both fronts reach, with the cost ratios over them."""

    levels: Sequence[CostAtAccuracy]  #: accuracies of members of both fronts, ascending
    lowest: CostRatio  #: lowest ratio at any accuracy of the range
    highest: CostRatio  #: highest ratio at any accuracy of the range
    mean: CostRatio  #: geometric mean over the range of accuracies
    #: 95 % interval of the front's highest quality minus the baseline's; ``None``: unknown
    gain_interval: BootstrapInterval | None = None

    @property
    def worst(self) -> CostAtAccuracy:
        """The level with the lowest ``ratio``, at which the front saves least."""
        return min(self.levels, key=lambda level: level.ratio)


@dataclass(frozen=True)
class AccuracyLevel:
    """An accuracy, and the cheapest network of each front that reaches it.

    Fields of the front are ``None`` if it does not reach the accuracy.
    """

    quality: float  #: the accuracy, see ``Speedup``
    baseline_id: str  #: id of the baseline's network
    baseline_cost: float  #: its cost
    front_id: str | None  #: id of the front's network
    front_cost: float | None  #: its cost
    ratio: CostRatio | None  #: ``baseline_cost / front_cost``
    #: highest quality of the front at no more than ``baseline_cost``; ``None``: all cost more, or
    #: the accuracy is that of the front
    quality_at_cost: float | None
    gain: float | None  #: ``quality_at_cost - quality``
    #: 95 % interval of ``gain``; ``None``: unknown
    gain_interval: tuple[float | None, float | None] | None


@dataclass(frozen=True)
class Speedup:
    """Costs of a front and a baseline at equal quality.

    Qualities are stored to be maximised: those to be minimised are negated; ``signed`` undoes it.
    """

    quality: Objective
    cost: Objective
    front: Array  #: quality and cost of its members ``(k, 2)``, cheapest first
    baseline: Array  #: quality and cost of its members ``(m, 2)``, cheapest first
    range: AccuracyRange | None  #: ``None`` if they have no accuracy in common
    #: one per member of the baseline, and the front's best if it is between them
    levels: Sequence[AccuracyLevel]

    def signed(self, value: float) -> float:
        """Return a stored quality, or a difference of two, in the original direction."""
        return value if self.quality.maximise else -value

    def rows(self) -> list[Row]:
        """Return a row per entry of ``levels``, by column, for CSV files.

        Qualities and their gains are in the original direction.
        """
        return [self._row(level) for level in self.levels]

    def _row(self, level: AccuracyLevel) -> Row:
        quality, cost = self.quality.name, self.cost.name
        low, high = (level.ratio and level.ratio.interval) or (None, None)
        gain_low, gain_high = self.gains(level)
        reached, gain = (
            None if value is None else self.signed(value)
            for value in (level.quality_at_cost, level.gain)
        )
        return {
            quality: self.signed(level.quality),
            "baseline_id": level.baseline_id,
            f"baseline_{cost}": level.baseline_cost,
            "front_id": level.front_id,
            f"front_{cost}": level.front_cost,
            "ratio": level.ratio and level.ratio.value,
            "ratio_low": low,
            "ratio_high": high,
            f"front_{quality}_at_equal_cost": reached,
            f"{quality}_gain": gain,
            f"{quality}_gain_low": gain_low,
            f"{quality}_gain_high": gain_high,
        }

    def gains(self, level: AccuracyLevel) -> tuple[float | None, float | None]:
        """Return lower and upper end of the 95 % interval of ``level.gain``.

        They are in the original direction (see ``signed``). An end is ``None`` if unknown.
        """
        low, high = level.gain_interval or (None, None)
        if self.quality.maximise:
            return low, high
        return (None if high is None else -high), (None if low is None else -low)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as a JSON object for ``front.json``.

        Ratios are ``[value, low, high]``, and in rows of ``levels`` the columns ``ratio``,
        ``ratio_low`` and ``ratio_high``; an end is ``None`` if unknown or infinite. ``range`` is
        ``None`` if front and baseline have no accuracy in common.
        """
        content: dict[str, Any] = {
            "quality": self.quality.name,
            "cost": self.cost.name,
            "n_front": len(self.front),
            "n_baseline": len(self.baseline),
            "range": None,
        }
        if (accuracy_range := self.range) is not None:
            worst = accuracy_range.worst
            content |= {
                "range": [self.signed(accuracy_range.levels[i].quality) for i in (0, -1)],
                "lowest_ratio": _json(accuracy_range.lowest),
                "lowest_at": {
                    self.quality.name: self.signed(worst.quality),
                    f"baseline_{self.cost.name}": worst.baseline,
                    f"front_{self.cost.name}": worst.front,
                },
                "highest_ratio": _json(accuracy_range.highest),
                "geometric_mean_ratio": _json(accuracy_range.mean),
            }
        return content | {"levels": self.rows()}


def speedup(
    own: RunFront,
    base: RunFront,
    quality: Objective,
    cost: Objective,
    draws: BootstrapDraws = DRAWS,
) -> Speedup:
    """Return the costs of a front and a baseline at equal quality.

    Args:
        own: The front, from ``in_plane``; may be empty.
        base: The baseline, from ``in_plane``; may be empty.
        quality: The quality.
        cost: The cost, to be minimised and above zero.
        draws: Bootstrap samples for the intervals.
    """
    if not quality.maximise:
        own, base = _with_negated_quality(own), _with_negated_quality(base)
    own, base = _members(own), _members(base)
    levels = _levels(own, base)
    common_range = _range(own.values, base.values)
    samples = None
    if draws.n and common_range and bootstrap.has_intervals([own, base]):
        samples = _samples(own, base, levels, draws)
    rows = [_level(own, base, level, i, samples) for i, level in enumerate(levels)]
    accuracy_range = common_range and _with_intervals(common_range, samples)
    return Speedup(quality, cost, own.values, base.values, accuracy_range, rows)


def in_plane(run: ComparedRun, quality: Objective, cost: Objective, kind: FrontStage) -> RunFront:
    """Return the front of a run in the quality and one cost.

    It has no points if the run has no searched (or verified) networks.

    Raises:
        RunError: a figure is missing or not finite.
    """
    points = run.scored if kind == "searched" else run.verified
    if points:
        return front(run, (quality, cost), kind)
    none = np.zeros((0, 2))
    return RunFront(run, [], none, none, none, none.astype(bool), np.zeros(0, np.bool_))


def speedup_of_two(
    runs: Sequence[ComparedRun],
    objectives: Sequence[Objective],
    kinds: Sequence[FrontStage],
    draws: BootstrapDraws,
) -> Speedup | None:
    """Return the costs of the first run (the front) and the second (the baseline) at equal quality.

    The quality is the metric or an objective to be maximised, the cost the first other objective.
    ``None`` for another number of runs, without such a quality, or without a cost that is minimised
    and above zero.

    Args:
        runs: The compared runs.
        objectives: Their objectives.
        kinds: For each run, whether its searched or its verified front is compared.
        draws: Bootstrap samples for the intervals.

    Raises:
        RunError: a figure of a network is missing or not finite.
    """
    quality, costs = parts(objectives)
    is_cost = not quality.maximise and quality.name not in quality_names()
    if len(runs) != 2 or not costs or is_cost or costs[0].maximise:
        return None
    compared, baseline = (
        in_plane(run, quality, costs[0], kind) for run, kind in zip(runs, kinds, strict=True)
    )
    if min(compared.values[:, COST].min(), baseline.values[:, COST].min()) <= 0:
        return None
    return speedup(compared, baseline, quality, costs[0], draws)


def _with_negated_quality(own: RunFront) -> RunFront:
    """Return a front with its quality negated."""
    sign = np.array([-1.0, 1.0])
    low, high = own.low.copy(), own.high.copy()
    low[:, QUALITY], high[:, QUALITY] = -own.high[:, QUALITY], -own.low[:, QUALITY]
    return replace(own, values=own.values * sign, low=low, high=high)


@dataclass(frozen=True)
class _Level:
    """The accuracy of a row of the table: that of a member of the baseline, or of the front."""

    member: int
    of_front: bool = False


@dataclass(frozen=True)
class _Samples:
    """Bootstrap samples, a row each."""

    whole: Array  #: ``(draws, 4)``: lowest, highest and mean ratio; gain in the highest quality
    ratios: Array  #: ``(draws, levels)``; 0 where the front does not reach the level
    gains: Array  #: ``(draws, levels)``; -inf if all of the front cost more


def _members(own: RunFront) -> RunFront:
    """Return the non-dominated members in quality and cost, the cheapest first."""
    order = np.lexsort((-own.values[:, QUALITY], own.values[:, COST]))
    members = order[non_dominated(own.values[order], [True, False])] if len(order) else order
    return replace(
        own,
        points=[own.points[i] for i in members],
        values=own.values[members],
        low=own.low[members],
        high=own.high[members],
        is_random=own.is_random[members],
        mask=np.ones(len(members), np.bool_),
    )


def _levels(own: RunFront, base: RunFront) -> list[_Level]:
    """Return all members of the baseline, and the front's best if it is between them."""
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
    costs = [CostAtAccuracy(*row) for row in np.stack(columns, axis=1).tolist()]
    lowest, highest, mean = map(CostRatio, indicators.extremes(own, base))
    return AccuracyRange(costs, lowest, highest, mean)


def _samples(
    own: RunFront, base: RunFront, levels: Sequence[_Level], draws: BootstrapDraws
) -> _Samples:
    extremes, ratios, gains = [], [], []
    for values, others in bootstrap.sampled([own, base], draws):
        gain = values[:, QUALITY].max() - others[:, QUALITY].max()
        extremes.append((*indicators.extremes(values, others), gain))
        members = np.array([(values if x.of_front else others)[x.member] for x in levels])
        ratios.append(indicators.ratios(values, others, members[:, QUALITY]))
        gains.append(indicators.gains(values, others, members[:, COST]))
    return _Samples(np.array(extremes), np.array(ratios), np.array(gains))


def _level(
    own: RunFront, base: RunFront, level: _Level, i: int, samples: _Samples | None
) -> AccuracyLevel:
    quality = float((own if level.of_front else base).values[level.member, QUALITY])
    theirs = _cheapest_member(base, quality)
    assert theirs is not None  # the front's last member is below the baseline's
    cost = float(base.values[theirs, COST])
    mine = _cheapest_member(own, quality)
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


def _cheapest_member(members: RunFront, quality: float) -> int | None:
    """Return the cheapest member that is at least as accurate."""
    good = np.flatnonzero(members.values[:, QUALITY] >= quality)
    return int(good[0]) if len(good) else None


def _with_intervals(accuracy_range: AccuracyRange, samples: _Samples | None) -> AccuracyRange:
    if samples is None:
        return accuracy_range
    lowest, highest, mean, gain = (_ends(column) for column in samples.whole.T)
    return AccuracyRange(
        accuracy_range.levels,
        _extreme_ratio(accuracy_range.lowest.value, lowest),
        _extreme_ratio(accuracy_range.highest.value, highest),
        CostRatio(accuracy_range.mean.value, mean),
        gain,
    )


def _extreme_ratio(value: float, interval: BootstrapInterval) -> CostRatio:
    """Return a minimum or maximum with its interval.

    Noise makes minima of samples smaller and maxima larger: all samples may lie on one side of the
    value. The interval is extended to the value then.
    """
    low, high = interval
    return CostRatio(value, (min(low, value), max(high, value)))


def _ends(samples: Array) -> BootstrapInterval:
    """Return the 2.5 % and 97.5 % quantiles without interpolation: samples may be infinite."""
    ordered = np.sort(samples)
    last = len(ordered) - 1
    low, high = int(np.floor(0.025 * last)), int(np.ceil(0.975 * last))
    return float(ordered[low]), float(ordered[high])


def _json(ratio: CostRatio) -> list[float | None]:
    """Return value, low and high; ``None`` for an unknown or infinite end."""
    low, high = ratio.interval or (None, None)
    finite = high if high is None or np.isfinite(high) else None
    return [ratio.value, low, finite]
