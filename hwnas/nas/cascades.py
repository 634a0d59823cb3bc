"""Cascades: a fast network predicts, and images with low confidence go on to a slower one.

Thresholds are chosen on one half of the validation split; the other half predicts accuracy and
costs, and the test split verifies them. Both networks run one after another on the device, or the
second one runs on another target across a link.

Source: Viola and Jones, "Rapid object detection using a boosted cascade of simple features", 2001,
https://doi.org/10.1109/CVPR.2001.990517; by the largest probability: Wang et al., "IDK cascades",
2017, https://arxiv.org/abs/1706.00885.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import final

import numpy as np
from numpy.typing import NDArray

from hwnas.core.pareto import non_dominated
from hwnas.core.quantity import Quantities, Quantity, sum_of
from hwnas.core.run_folder import Row
from hwnas.tasks.intervals import fraction
from hwnas.tasks.metrics import cost_names, metric_of
from hwnas.tasks.metrics.budget import Budget
from hwnas.tasks.metrics.metric import divide, scale
from hwnas.tasks.predictions import Predictions

LATENCY, ENERGY = "latency_ms", "energy_mj"
_WAITED = (LATENCY, "latency_p99_ms")  # time until a prediction, from either network
EXPECTED = f"expected_{LATENCY}"
_PRICE = "cost_usd_per_m"
_SHARES = np.arange(1, 40) / 40  # candidate fractions of escalated images
_ALL = Quantity(1.0, "measured")  #: fraction of images that the first network sees
LEAST = 50  #: minimum number of images of each half of the validation split
_OF_ONE = ("sram_kib", "power_w")  # only one network runs at a time
MAXIMISE = (True, False)  #: accuracy, expected latency
Array = NDArray[np.float64]


@dataclass(frozen=True)
class CascadeStage:
    """A network with the costs and the predictions of its compiled file."""

    id: str  #: id of the genotype
    costs: Quantities  #: by name, such as ``latency_ms``
    predictions: Mapping[str, Predictions]  #: by split: ``validation`` and ``test``

    @property
    def latency_ms(self) -> float:
        """Latency of one inference, in milliseconds."""
        return self.costs[LATENCY].value


@dataclass(frozen=True)
class CascadeStatistics:
    """The results of a cascade on the images of a split."""

    share: Quantity  #: fraction of images that the second network predicts, too
    accuracy: Quantity  #: fraction of correct predictions
    #: mean costs per image: ``expected_latency_ms``; without a link also ``expected_energy_mj``, if
    #: it is known; with a link also ``expected_usd_per_m``
    costs: Quantities


@dataclass(frozen=True)
class CascadeLink:
    """The link to the second network on another target."""

    target: str  #: name of the other target
    latency_ms: float  #: time of a round trip, in milliseconds
    usd_per_m: float  #: USD per million escalated images, without the price of the target


@final
@dataclass(frozen=True)
class Cascade:
    """Two networks and a threshold of confidence.

    Escalated images are those that the second network predicts after the first one.
    """

    first: CascadeStage
    second: CascadeStage
    threshold: float  #: images with a lower confidence of the first network are escalated
    link: CascadeLink | None = None  #: ``None``: both are on the device
    #: whether no single network and no cascade dominates it, by accuracy and expected latency on
    #: the test split
    on_front: bool = False

    @property
    def worst(self) -> dict[str, Quantity]:
        """The costs of an escalated image, including memory, by name.

        Without a link: of both networks, one after the other; memory and power are the larger of
        both. With a link: latencies include the second network and the link, and all other costs
        are those of the first network.
        """
        a, b = self.first.costs, self.second.costs
        both = [n for n in cost_names() if n in a and n in b and not metric_of(n).mean_of]
        if self.link is None:
            return {n: _cost_of_both(n, a[n], b[n]) for n in both}
        # The device waits for the prediction of the other target.
        first_only = {n: a[n] for n in cost_names() if n in a and n not in _WAITED}
        return first_only | {
            n: _cost_of_both(n, a[n], self._cost_of_second(n)) for n in both if n in _WAITED
        }

    @property
    def predicted(self) -> CascadeStatistics:
        """The results on the half of the validation split that does not choose the threshold."""
        return self._statistics("validation", slice(1, None, 2))

    @property
    def verified(self) -> CascadeStatistics:
        """The results on the test split."""
        return self._statistics("test", slice(None))

    @property
    def later_ms(self) -> float:
        """Latency of the second network and the link, in milliseconds."""
        return self._cost_of_second(LATENCY).value

    def row(self, metric: str) -> Row:
        """Return the cascade as a row, by column.

        Results on the test split have the prefix ``verified_``. Costs without a prefix are those
        of ``worst``, or mean costs with the prefix ``expected_``.

        Args:
            metric: Column of the accuracy.
        """
        row: Row = {"first": self.first.id, "second": self.second.id, "threshold": self.threshold}
        row |= {} if self.link is None else {"second_target": self.link.target}
        for prefix, statistics in (("", self.predicted), ("verified_", self.verified)):
            row |= statistics.share.columns(f"{prefix}share")
            row |= statistics.accuracy.columns(f"{prefix}{metric}")
            for name, figure in statistics.costs.items():
                row |= figure.columns(f"{prefix}{name}")
        for name, figure in self.worst.items():
            row |= figure.columns(name)
        return row | {"verified_on_front": self.on_front}

    def _statistics(self, split: str, part: slice) -> CascadeStatistics:
        first, second = self.first.predictions[split], self.second.predictions[split]
        on = first.confidence[part] < self.threshold
        right = np.where(on, second.correct[part], first.correct[part])
        share = fraction(on)
        names = [LATENCY] if self.link is not None else [LATENCY, ENERGY]
        known = [n for n in names if n in self.first.costs and n in self.second.costs]
        expected = {
            f"expected_{name}": expected_cost(
                [self.first.costs[name], self._cost_of_second(name)], [_ALL, share]
            )
            for name in known
        }
        if self.link is not None:
            second_price = self.second.costs.get(_PRICE, Quantity(0.0, "modelled"))
            price = _cost_of_both(_PRICE, second_price, Quantity(self.link.usd_per_m, "modelled"))
            expected["expected_usd_per_m"] = expected_cost(
                [Quantity(0.0, "modelled"), price], [_ALL, share]
            )
        return CascadeStatistics(share, fraction(right), expected)

    def _cost_of_second(self, name: str) -> Quantity:
        """Return the cost of the second network, including the link."""
        figure = self.second.costs[name]
        if name not in _WAITED or self.link is None:
            return figure
        more = self.link.latency_ms
        low, high = (None if end is None else end + more for end in (figure.low, figure.high))
        return Quantity(figure.value + more, figure.source, low, high)


def find_cascades(
    stages: Sequence[CascadeStage],
    budget: Budget,
    others: Sequence[CascadeStage] = (),
    link: CascadeLink | None = None,
) -> list[Cascade]:
    """Return the cascades on the joint front with single networks, fastest first (``predicted``).

    The front is in accuracy and expected latency, on the half of the validation split that chooses
    thresholds; ``on_front`` is by the test split. A cascade meets the budget if an escalated image
    does. The result is empty if there are fewer than ``2 * LEAST`` validation images, or if their
    number differs between networks.

    Args:
        stages: Networks within the budget, with predictions for the same images.
        budget: Limits of the device of ``stages``.
        others: Networks on another target for escalated images, with predictions for these images.
        link: The link to the other target, if there are ``others``.
    """
    sizes = {len(stage.predictions["validation"].correct) for stage in (*stages, *others)}
    if len(sizes) != 1 or min(sizes) < 2 * LEAST:
        return []
    tried = [
        cascade
        for pair in _pairs(stages, budget, others, link)
        for cascade in _with_thresholds(pair)
    ]
    alone = [(half(s.predictions["validation"].correct).mean(), s.latency_ms) for s in stages]
    points = np.array([*alone, *(point for _, point in tried)])
    stays = non_dominated(points, MAXIMISE)[len(alone) :]
    chosen = [c for (c, _), is_on in zip(tried, stays, strict=True) if is_on]
    return _with_front_flags(
        stages, sorted(chosen, key=lambda c: c.predicted.costs[EXPECTED].value)
    )


def speedups(stages: Sequence[CascadeStage], cascades: Sequence[Cascade]) -> list[float]:
    """Return the speedups of cascades over the fastest network of at least equal accuracy.

    A speedup is the network's latency divided by the cascade's expected latency, on the test split.
    Cascades off the front, or more accurate than all networks, are left out. Ascending order.
    """
    ratios = []
    for cascade in cascades:
        verified = cascade.verified
        equal = [s.latency_ms for s in stages if _accuracy(s) >= verified.accuracy.value]
        if cascade.on_front and equal:
            ratios.append(min(equal) / verified.costs[EXPECTED].value)
    return sorted(ratios)


def _accuracy(stage: CascadeStage) -> float:
    return float(stage.predictions["test"].correct.mean())


def _with_front_flags(stages: Sequence[CascadeStage], cascades: Sequence[Cascade]) -> list[Cascade]:
    """Mark the non-dominated cascades on the test split."""
    verified = [cascade.verified for cascade in cascades]
    points = [(_accuracy(s), s.latency_ms) for s in stages]
    points += [(s.accuracy.value, s.costs[EXPECTED].value) for s in verified]
    stays = non_dominated(np.array(points), MAXIMISE)[len(stages) :]
    return [replace(c, on_front=bool(is_on)) for c, is_on in zip(cascades, stays, strict=True)]


def _pairs(
    stages: Sequence[CascadeStage],
    budget: Budget,
    others: Sequence[CascadeStage],
    link: CascadeLink | None,
) -> Iterator[Cascade]:
    """Yield pairs within the budget, without threshold."""
    here = (p for p in permutations(stages, 2) if p[0].latency_ms < p[1].latency_ms)
    pairs = [Cascade(*pair, 0.0) for pair in here]
    pairs += [Cascade(*pair, 0.0, link) for pair in product(stages, others)]
    for pair in pairs:
        if budget.limits.keys() <= pair.worst.keys() and not budget.exceeded(pair.worst):
            yield pair


def _with_thresholds(pair: Cascade) -> Iterator[tuple[Cascade, tuple[float, float]]]:
    """Yield cascades of a pair, with accuracy and latency on the half for thresholds."""
    first, second = (stage.predictions["validation"] for stage in (pair.first, pair.second))
    confidence, right, later = map(half, (first.confidence, first.correct, second.correct))
    ordered = np.sort(confidence)
    for threshold in np.unique(ordered[(_SHARES * len(ordered)).astype(np.intp)]).tolist():
        on = confidence < threshold
        if on.any():
            latency = pair.first.latency_ms + float(on.mean()) * pair.later_ms
            point = float(np.where(on, later, right).mean()), latency
            yield replace(pair, threshold=threshold), point


def half(values: NDArray[np.generic]) -> Array:
    """Return the values of the images 0, 2, 4, ..., the half that chooses thresholds."""
    return values[::2].astype(np.float64)


def _cost_of_both(name: str, a: Quantity, b: Quantity) -> Quantity:
    """Return the cost of two networks that run one after another."""
    if name in _OF_ONE:
        source = a.source if a.source == b.source else "modelled"
        ends = (max(a.lower, b.lower), max(a.upper, b.upper))
        known = (None, None) if a.std == b.std == 0 else ends
        return Quantity(max(a.value, b.value), source, *known)
    if not metric_of(name).maximise:
        return sum_of([a, b])
    if not (a.value and b.value):  # rates, as images a second
        return Quantity(0.0, "modelled")
    return divide(1.0, sum_of([divide(1.0, a), divide(1.0, b)]))


def expected_cost(figures: Sequence[Quantity], reached: Sequence[Quantity]) -> Quantity:
    """Return the mean cost of an image over networks or segments that run one after another.

    The lower end of its interval is at least 0. The errors of costs and of the fractions of images
    are independent. An image that reaches a part reached all parts before it: two fractions p >= q
    of the same images have the correlation ``sqrt(q (1 - p) / (p (1 - q)))``.

    Args:
        figures: Cost of each network or segment.
        reached: Fraction of images that reach each of them, in this order; the first one is 1.
    """
    cost = sum_of([scale(f, share.value) for f, share in zip(figures, reached, strict=True)])
    later = [*zip(figures, reached, strict=True)][1:]
    below = _spread(later, [share.value - share.lower for _, share in later])
    above = _spread(later, [share.upper - share.value for _, share in later])
    low = cost.value - math.hypot(cost.value - cost.lower, below)
    return replace(
        cost, low=max(0.0, low), high=cost.value + math.hypot(cost.upper - cost.value, above)
    )


def _spread(parts: Sequence[tuple[Quantity, Quantity]], widths: Sequence[float]) -> float:
    """Return the half-width of the sum of costs times fractions, from those of the fractions."""
    terms = [f.value * width for (f, _), width in zip(parts, widths, strict=True)]
    shares = [share.value for _, share in parts]
    return math.sqrt(
        sum(
            a * b * _correlation(max(shares[i], shares[j]), min(shares[i], shares[j]))
            for (i, a), (j, b) in product(enumerate(terms), repeat=2)
        )
    )


def _correlation(p: float, q: float) -> float:
    """Return the correlation of two fractions of the same images, p >= q."""
    if p == q:
        return 1.0
    return math.sqrt(q * (1 - p) / (p * (1 - q)))
