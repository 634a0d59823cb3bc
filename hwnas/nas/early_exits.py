"""Early exits: an image leaves a network at the first exit with sufficient confidence.

Thresholds are not searched: they are swept for each verified network over its exits' predictions.
As for cascades, one half of the validation split chooses them, the other half predicts accuracy
and costs, and the test split verifies them.

Source: Teerapittayanon et al., "BranchyNet: Fast Inference via Early Exiting from Deep Neural
Networks", ICPR 2016, https://arxiv.org/abs/1709.01686; by the largest probability: Kaya et al.,
"Shallow-Deep Networks", ICML 2019, https://arxiv.org/abs/1810.07052.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import final

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import ConfigError
from hwnas.core.pareto import non_dominated
from hwnas.core.quantity import Quantities, Quantity
from hwnas.core.run_folder import Row
from hwnas.nas.cascades import ENERGY, EXPECTED, LATENCY, LEAST, MAXIMISE, expected_cost, half
from hwnas.tasks.intervals import fraction
from hwnas.tasks.predictions import NEVER, Predictions, exit_indices

POINTS = 0.3  #: maximum loss of accuracy by early exits, in percentage points
_MAX_COMBINATIONS = 1600  # of thresholds of a network
_PREDICTING = slice(1, None, 2)  # the half of the validation split for predictions
_ALL = slice(None)


@dataclass(frozen=True)
class ExitNetworkResults:
    """A network with exits: costs and predictions."""

    id: str  #: id of the genotype
    costs: Quantities  #: costs of an image through all segments, and memory, by name
    segments: Sequence[Quantities]  #: costs by name of each segment, the part between two exits
    #: predictions of each exit, then of the final classifier, by split
    predictions: Mapping[str, Sequence[Predictions]]

    def accuracy(self, split: str, part: slice = _ALL) -> float:
        """Return the accuracy of the final classifier on images of a split, in [0, 1].

        Args:
            split: ``validation`` or ``test``.
            part: Indices of the images; default: all.
        """
        return float(self.predictions[split][-1].correct[part].mean())


@dataclass(frozen=True)
class ExitStatistics:
    """The results of thresholds on the images of a split."""

    left: tuple[Quantity, ...]  #: fraction of images that leave at each exit before the end
    accuracy: Quantity  #: fraction of correct predictions
    costs: Quantities  #: mean costs per image by name: ``expected_latency_ms``, ...


@final
@dataclass(frozen=True)
class EarlyExits:
    """A network with exits and thresholds of confidence."""

    network: ExitNetworkResults
    thresholds: tuple[float, ...]  #: minimum confidence for leaving at each exit
    #: whether it is non-dominated among all networks and thresholds, by accuracy and expected
    #: latency on the test split (see ``with_on_front``)
    on_front: bool = False

    @property
    def chosen(self) -> ExitStatistics:
        """The results on the half of the validation split that chooses thresholds."""
        return self._statistics("validation", slice(None, None, 2))

    @property
    def predicted(self) -> ExitStatistics:
        """The results on the half of the validation split that does not choose thresholds."""
        return self._statistics("validation", _PREDICTING)

    @property
    def verified(self) -> ExitStatistics:
        """The results on the test split."""
        return self._statistics("test", _ALL)

    def at_proof(self, n_images: int) -> Quantities:
        """Return the costs of ``predicted``, with upper ends for ``n_images`` other images.

        Each upper end bounds the result on the other images with a probability of 97.5 %. It
        includes the sampling error of both sets of images and the interval of the result.
        """
        exits = self._exit_indices("validation", _PREDICTING)
        ratio = math.sqrt(len(exits) / n_images)

        def widened(share: Quantity) -> Quantity:
            here = share.upper - share.value
            high = share.value + math.hypot(here, here * ratio) + here * ratio
            return replace(share, high=min(1.0, high))

        return self._costs([widened(share) for share in self._reached_fractions(exits)])

    def with_segments(self, segments: Sequence[Quantities]) -> "EarlyExits":
        """Return the same thresholds with other costs of each segment."""
        return replace(self, network=replace(self.network, segments=segments))

    @property
    def share_of_worst(self) -> float:
        """The expected latency on the test split as a fraction of that through all segments."""
        return self.verified.costs[EXPECTED].value / self.network.costs[LATENCY].value

    @property
    def lost(self) -> float:
        """Loss of accuracy by early exits on the test split, in percentage points.

        It is negative if accuracy is higher with early exits.
        """
        return 100 * (self.network.accuracy("test") - self.verified.accuracy.value)

    @property
    def deviation(self) -> float:
        """Expected latency on the test split divided by the predicted one, minus 1."""
        return self.verified.costs[EXPECTED].value / self.predicted.costs[EXPECTED].value - 1

    def row(self, metric: str) -> Row:
        """Return the network and its thresholds as a row, by column.

        ``left_0`` is the fraction of images that leave at the first exit. Results on the test split
        have the prefix ``verified_``, others are those of ``predicted``.

        Args:
            metric: Column of the accuracy.
        """
        text = " ".join(f"{threshold:.6g}" for threshold in self.thresholds)
        row: Row = {"id": self.network.id, "thresholds": text}
        for prefix, statistics in (("", self.predicted), ("verified_", self.verified)):
            for i, share in enumerate(statistics.left):
                row |= share.columns(f"{prefix}left_{i}")
            row |= statistics.accuracy.columns(f"{prefix}{metric}")
            for name, figure in statistics.costs.items():
                row |= figure.columns(f"{prefix}{name}")
        row[f"verified_{metric}_at_end"] = self.network.accuracy("test")
        for name in (LATENCY, ENERGY):
            if name in self.network.costs:
                row |= self.network.costs[name].columns(name)
        return row | {"verified_on_front": self.on_front}

    def _statistics(self, split: str, part: slice) -> ExitStatistics:
        exits = self._exit_indices(split, part)
        right = np.stack(
            [predictions.correct[part] for predictions in self.network.predictions[split]]
        )
        fractions = tuple(fraction(exits == i) for i in range(len(self.network.segments) - 1))
        accuracy = fraction(right[exits, np.arange(len(exits))])
        return ExitStatistics(fractions, accuracy, self._costs(self._reached_fractions(exits)))

    def _exit_indices(self, split: str, part: slice) -> NDArray[np.intp]:
        """Return the index of the exit of each image, ``(n_images,)``."""
        exits = [
            predictions.confidence[part] for predictions in self.network.predictions[split][:-1]
        ]
        return exit_indices(np.stack(exits), self.thresholds)

    def _reached_fractions(self, exits: NDArray[np.intp]) -> list[Quantity]:
        """Return the fraction of images that reach each segment."""
        return [fraction(exits >= i) for i in range(len(self.network.segments))]

    def _costs(self, reached: Sequence[Quantity]) -> Quantities:
        segments = self.network.segments
        return {
            f"expected_{name}": expected_cost([segment[name] for segment in segments], reached)
            for name in (LATENCY, ENERGY)
            if all(name in segment for segment in segments)
        }


def swept(network: ExitNetworkResults) -> list[EarlyExits]:
    """Return the non-dominated thresholds of a network, fastest first.

    Accuracy and expected latency are those on the half of the validation split that chooses
    thresholds. The list is empty if there are fewer than ``2 * LEAST`` validation images.
    """
    if len(network.predictions["validation"][-1].correct) < 2 * LEAST:
        return []
    tried = [EarlyExits(network, thresholds) for thresholds in _grid(network)]
    points = np.array([_point(setting.chosen) for setting in tried])
    stays = non_dominated(points, MAXIMISE)
    non_dominated_settings = [
        (points[i, 1], setting) for i, setting in enumerate(tried) if stays[i]
    ]
    return [setting for _, setting in sorted(non_dominated_settings, key=lambda pair: pair[0])]


def expected(
    costs: Quantities,
    segments: Sequence[Quantities],
    predictions: Mapping[str, Sequence[Predictions]],
) -> Quantities:
    """Return the mean costs of an image with early exits, by name: ``expected_latency_ms``, ...

    One half of the validation split chooses the fastest thresholds that lose at most 0.3 percentage
    points of accuracy. The costs are those on the test split if available, else on the other half.
    Without exits, or with fewer than 100 validation images, they are those through all segments.

    Args:
        costs: Costs of an image through all segments.
        segments: Costs of each segment.
        predictions: Predictions of each exit, then of the final classifier, by split.

    Raises:
        ConfigError: the costs of segments are unknown.
    """
    if len(predictions["validation"]) < 2:
        return costs_without_exits(costs)
    if not segments:
        raise ConfigError(
            "expected_latency_ms and expected_energy_mj need the costs of each segment between "
            "exits, which the cost model of this target does not give. Remove them from objectives "
            "and budget, or use a target whose costs are measured or estimated by a compiler."
        )
    early = within(swept(ExitNetworkResults("", costs, segments, predictions)), POINTS)
    if early is None:  # too few images
        return costs_without_exits(costs)
    return (early.verified if "test" in predictions else early.predicted).costs


def costs_without_exits(costs: Quantities) -> Quantities:
    """Return the expected costs if no image leaves early, by name: ``expected_latency_ms``, ..."""
    return {f"expected_{name}": costs[name] for name in (LATENCY, ENERGY) if name in costs}


def with_on_front(settings: Sequence[EarlyExits]) -> list[EarlyExits]:
    """Return the thresholds with ``on_front`` set by the results on the test split.

    They are compared with each other and with their networks without early exits.
    """
    if not settings:
        return []
    networks = {setting.network.id: setting.network for setting in settings}
    ends = [(n.accuracy("test"), n.costs[LATENCY].value) for n in networks.values()]
    points = np.array([*ends, *(_point(setting.verified) for setting in settings)])
    stays = non_dominated(points, MAXIMISE)[len(ends) :]
    return [replace(e, on_front=bool(is_on)) for e, is_on in zip(settings, stays, strict=True)]


def within(settings: Sequence[EarlyExits], points: float) -> EarlyExits | None:
    """Return the fastest thresholds that lose at most ``points``; ``None`` if there are none.

    Loss and latency are those on the half of the validation split that chooses thresholds.

    Args:
        settings: Thresholds of one network.
        points: Maximum loss of accuracy, in percentage points.
    """
    allowed = []
    for setting in settings:
        statistics = setting.chosen
        end = float(half(setting.network.predictions["validation"][-1].correct).mean())
        if 100 * (end - statistics.accuracy.value) <= points:
            allowed.append((statistics.costs[EXPECTED].value, setting))
    return min(allowed, key=lambda pair: pair[0])[1] if allowed else None


def _grid(network: ExitNetworkResults) -> Iterator[tuple[float, ...]]:
    """Yield thresholds of all exits: quantiles of confidence, and ``NEVER``."""
    *exits, _ = network.predictions["validation"]
    n_each = max(3, int(_MAX_COMBINATIONS ** (1 / len(exits))))
    of_each = []
    for predictions in exits:
        ordered = np.sort(half(predictions.confidence))
        places = (np.arange(n_each - 1) / (n_each - 1) * len(ordered)).astype(np.intp)
        of_each.append([*np.unique(ordered[places]).tolist(), NEVER])
    yield from product(*of_each)


def _point(statistics: ExitStatistics) -> tuple[float, float]:
    return statistics.accuracy.value, statistics.costs[EXPECTED].value
