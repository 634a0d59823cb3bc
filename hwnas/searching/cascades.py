"""Cascades: a network answers, and images that it is not sure of go on to a slower one.

Thresholds are chosen on one half of the validation split, and what they come to is predicted from
the other half; the test split, which chose nothing, says what became of it. Both networks are on
the device and run one after the other, or the second one is on another target, behind a link.

Source: Viola and Jones, "Rapid object detection using a boosted cascade of simple features", 2001,
https://doi.org/10.1109/CVPR.2001.990517; by the largest probability: Wang et al., "IDK cascades",
2017, https://arxiv.org/abs/1706.00885.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import final

import numpy as np
from numpy.typing import NDArray

from hwnas.answers import Heard
from hwnas.budget import Budget
from hwnas.figure import Figure, Figures
from hwnas.metrics import column, costs
from hwnas.pareto import non_dominated
from hwnas.results import Row
from hwnas.tasks.proportion import share_of

LATENCY, ENERGY = "latency_ms", "energy_mj"
_WAITED = (LATENCY, "latency_p99_ms")  # for an answer, wherever it comes from
EXPECTED = f"expected_{LATENCY}"
_PRICE = "cost_usd_per_m"
_SHARES = np.arange(1, 40) / 40  # of images that may go on
LEAST = 50  #: images of a half: fewer say next to nothing
_OF_ONE = ("sram_kib", "power_w")  # at any moment: only one network runs
MAXIMISE = (True, False)  #: accuracy, expected latency
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Stage:
    """A verified network, with what its artefact answered."""

    id: str
    costs: Figures
    heard: Mapping[str, Heard]  #: by split

    @property
    def latency_ms(self) -> float:
        """The latency of an image."""
        return self.costs[LATENCY].value


@dataclass(frozen=True)
class Seen:
    """What a cascade came to on some images."""

    share: Figure  #: of images that went on
    accuracy: Figure
    costs: Figures  #: of an image, on the average: ``expected_latency_ms``, ...


@dataclass(frozen=True)
class Way:
    """What it takes to reach the second network on another target."""

    target: str  #: that it is on
    latency_ms: float  #: there and back
    usd_per_m: float  #: of a million images that go on, without what the target itself takes


@final
@dataclass(frozen=True)
class Cascade:
    """Two networks and a threshold."""

    first: Stage
    second: Stage
    threshold: float  #: what is less sure goes on
    way: Way | None = None  #: ``None``: both are on the device
    #: of single networks of the device and cascades, by expected latency on the test split
    on_front: bool = False

    @property
    def worst(self) -> dict[str, Figure]:
        """What an image costs the device that goes on, and what the networks on it hold."""
        a, b = self.first.costs, self.second.costs
        both = [n for n in costs() if n in a and n in b and not column(n).mean_of]
        if self.way is None:
            return {n: _together(n, a[n], b[n]) for n in both}
        # Of what happens elsewhere, the device waits for the answer.
        own = {n: figure for n, figure in a.items() if n not in _WAITED}
        return own | {n: _together(n, a[n], self._later(n)) for n in both if n in _WAITED}

    @property
    def predicted(self) -> Seen:
        """What the half of the validation split says that chose no threshold."""
        return self._seen("validation", slice(1, None, 2))

    @property
    def verified(self) -> Seen:
        """What the test split says."""
        return self._seen("test", slice(None))

    @property
    def later_ms(self) -> float:
        """The latency that an image has in addition that goes on."""
        return self._later(LATENCY).value

    def row(self, metric: str) -> Row:
        """Return the cascade as a row; its share of right answers is a value of the metric."""
        row: Row = {"first": self.first.id, "second": self.second.id, "threshold": self.threshold}
        row |= {} if self.way is None else {"second_target": self.way.target}
        for prefix, seen in (("", self.predicted), ("verified_", self.verified)):
            row |= seen.share.columns(f"{prefix}share")
            row |= seen.accuracy.columns(f"{prefix}{metric}")
            for name, figure in seen.costs.items():
                row |= figure.columns(f"{prefix}{name}")
        for name, figure in self.worst.items():
            row |= figure.columns(name)
        return row | {"verified_on_front": self.on_front}

    def _seen(self, split: str, part: slice) -> Seen:
        first, second = self.first.heard[split], self.second.heard[split]
        on = first.confidence[part] < self.threshold
        right = np.where(on, second.correct[part], first.correct[part])
        share = share_of(on)
        names = [LATENCY] if self.way is not None else [LATENCY, ENERGY]
        known = [n for n in names if n in self.first.costs and n in self.second.costs]
        expected = {
            f"expected_{name}": _expected(self.first.costs[name], self._later(name), share)
            for name in known
        }
        if self.way is not None:
            own = self.second.costs.get(_PRICE, Figure(0.0, "modelled"))
            price = _together(_PRICE, own, Figure(self.way.usd_per_m, "modelled"))
            expected["expected_usd_per_m"] = _expected(Figure(0.0, "modelled"), price, share)
        return Seen(share, share_of(right), expected)

    def _later(self, name: str) -> Figure:
        """Return what the second network takes, and reaching it."""
        figure = self.second.costs[name]
        if name not in _WAITED or self.way is None:
            return figure
        more = self.way.latency_ms
        low, high = (None if end is None else end + more for end in (figure.low, figure.high))
        return Figure(figure.value + more, figure.source, low, high)


def found(
    stages: Sequence[Stage],
    budget: Budget,
    others: Sequence[Stage] = (),
    way: Way | None = None,
) -> list[Cascade]:
    """Return the cascades on the front of those and single networks, the fastest first.

    The front is that of accuracy and expected latency, on the half that thresholds are chosen on.
    A cascade fits the budget if an image that goes on does.

    Args:
        stages: Networks that each fit the budget, with answers to the same images.
        budget: Of the device that they are on.
        others: Networks on another target that images may go on to, too.
        way: To it.
    """
    sizes = {len(stage.heard["validation"].correct) for stage in (*stages, *others)}
    if len(sizes) != 1 or min(sizes) < 2 * LEAST:
        return []
    tried = [found for pair in _pairs(stages, budget, others, way) for found in _swept(pair)]
    alone = [(half(s.heard["validation"].correct).mean(), s.latency_ms) for s in stages]
    points = np.array([*alone, *(point for _, point in tried)])
    stays = non_dominated(points, MAXIMISE)[len(alone) :]
    chosen = [c for (c, _), is_on in zip(tried, stays, strict=True) if is_on]
    return _judged(stages, sorted(chosen, key=lambda c: c.predicted.costs[EXPECTED].value))


def speedups(stages: Sequence[Stage], cascades: Sequence[Cascade]) -> list[float]:
    """Return how much faster cascades on the front are than the fastest network as accurate.

    By expected latency on the test split; those that no network equals in accuracy are left out.
    """
    ratios = []
    for cascade in cascades:
        seen = cascade.verified
        equal = [s.latency_ms for s in stages if _accuracy(s) >= seen.accuracy.value]
        if cascade.on_front and equal:
            ratios.append(min(equal) / seen.costs[EXPECTED].value)
    return sorted(ratios)


def _accuracy(stage: Stage) -> float:
    return float(stage.heard["test"].correct.mean())


def _judged(stages: Sequence[Stage], cascades: Sequence[Cascade]) -> list[Cascade]:
    """Mark the cascades that nothing dominates on the test split."""
    seen = [cascade.verified for cascade in cascades]
    points = [(_accuracy(s), s.latency_ms) for s in stages]
    points += [(s.accuracy.value, s.costs[EXPECTED].value) for s in seen]
    stays = non_dominated(np.array(points), MAXIMISE)[len(stages) :]
    return [replace(c, on_front=bool(is_on)) for c, is_on in zip(cascades, stays, strict=True)]


def _pairs(
    stages: Sequence[Stage], budget: Budget, others: Sequence[Stage], way: Way | None
) -> Iterator[Cascade]:
    """Yield pairs that fit the budget when both networks run; they have no threshold yet."""
    here = (p for p in permutations(stages, 2) if p[0].latency_ms < p[1].latency_ms)
    pairs = [Cascade(*pair, 0.0) for pair in here]
    pairs += [Cascade(*pair, 0.0, way) for pair in product(stages, others)]
    for pair in pairs:
        if budget.limits.keys() <= pair.worst.keys() and not budget.exceeded(pair.worst):
            yield pair


def _swept(pair: Cascade) -> Iterator[tuple[Cascade, tuple[float, float]]]:
    """Yield cascades of a pair, with accuracy and expected latency on the half that chooses."""
    first, second = (stage.heard["validation"] for stage in (pair.first, pair.second))
    confidence, right, later = map(half, (first.confidence, first.correct, second.correct))
    ordered = np.sort(confidence)
    for threshold in np.unique(ordered[(_SHARES * len(ordered)).astype(np.intp)]).tolist():
        on = confidence < threshold
        if on.any():
            latency = pair.first.latency_ms + float(on.mean()) * pair.later_ms
            point = float(np.where(on, later, right).mean()), latency
            yield replace(pair, threshold=threshold), point


def half(values: NDArray[np.generic]) -> Array:
    """Return every second value: the half that thresholds are chosen on."""
    return values[::2].astype(np.float64)


def _together(name: str, a: Figure, b: Figure) -> Figure:
    """Return what two networks cost that both run, one after the other."""
    source = a.source if a.source == b.source else "modelled"
    value = _combined(name, a.value, b.value)
    if a.std == b.std == 0:
        return Figure(value, source)
    return Figure(
        value, source, _combined(name, a.lower, b.lower), _combined(name, a.upper, b.upper)
    )


def _combined(name: str, a: float, b: float) -> float:
    if column(name).maximise:  # rates, as images a second
        return a * b / (a + b) if a + b else 0.0
    return max(a, b) if name in _OF_ONE else a + b


def _expected(a: Figure, b: Figure, share: Figure) -> Figure:
    """Return what an image costs on the average, where a share of images goes on."""
    source = a.source if a.source == b.source else "modelled"
    return Figure(
        a.value + share.value * b.value,
        source,
        a.lower + share.lower * b.lower,
        a.upper + share.upper * b.upper,
    )
