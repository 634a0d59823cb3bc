"""A device as a file: what was measured on it, and networks that stand for what is searched."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, NotRequired, TypedDict, final

import numpy as np
from numpy.typing import NDArray

from hwnas.core import files
from hwnas.core.agreement import agreement
from hwnas.core.errors import TableError
from hwnas.core.quantity import Quantity
from hwnas.core.schema import Count, NumberBounds, Positive, Size
from hwnas.core.typed_files import read_json
from hwnas.hardware.device_models import predictor
from hwnas.hardware.device_models.features import FeatureEncoder, NetworkFeatures
from hwnas.hardware.device_models.fitted_roofline import (
    CLASSES,
    Floats,
    OperatorWork,
    join_work,
    operator_work,
)
from hwnas.hardware.device_models.predictor import (
    MIN_NETWORKS,
    DevicePredictor,
    DevicePrior,
    KernelBlocks,
    mixed_kernel,
)
from hwnas.models.graph import Graph

_FORMAT = 1  #: of files that are written; earlier ones call it their version
_Level = Annotated[int, NumberBounds(0, 64)]
_ENOUGH = 7  #: measurements from which one can be told to be wrong
_FAR = 1.5  #: half intervals that it must be off what all others say
_NEAR = 0.15  #: share of its latency by which it must be, too


@final
@dataclass(frozen=True)
class MeasuredDevice:
    """A device, known from networks that were measured there."""

    reference: OperatorWork  #: of networks that stand for what is searched
    measured: OperatorWork
    ms: Floats  #: what those took
    batch: int
    setting: str  #: what else decides latencies: dtype, threads, batch
    spaces: tuple[str, ...]

    @cached_property
    def _encoder(self) -> FeatureEncoder:
        return FeatureEncoder(join_work(self.reference, self.measured), self.batch)

    @cached_property
    def features(self) -> NetworkFeatures:
        """The measured networks as the model sees them."""
        return self._encoder(self.measured)

    @cached_property
    def predictor(self) -> DevicePredictor:
        """What the measurements say."""
        return predictor.fit_device(self.features, self.ms, DevicePrior())

    def encoded(self, networks: Sequence[Graph]) -> NetworkFeatures:
        """Return networks, not fused, as the model sees them."""
        return self._encoder(operator_work(networks))

    def latency(self, graph: Graph) -> Quantity:
        """Return the latency of a network, not fused, in ms with its interval of 95 %."""
        (value,), (std,) = self.predictor.predict(self.encoded([graph]))
        half = self.predictor.reach * std
        return Quantity(
            float(value), "modelled", float(max(value - half, 0.0)), float(value + half)
        )

    @property
    def reach(self) -> float:
        """Median half width of intervals over networks that stand for what is searched, relative.

        Those that were measured are known best.
        """
        values, std = self.predictor.predict(self._encoder(self.reference))
        return float(np.median(self.predictor.reach * std / values))

    def left_out(self) -> dict[str, float]:
        """Return how well each measured network is foretold by a fit to all others.

        The roofline, too, is fitted without it. ``coverage``: the share that lies in its interval.
        """
        values, inside = [], 0
        for i, ms in enumerate(self.ms):
            value, half = self.without(i)
            values.append(value)
            inside += abs(ms - value) <= half
        return agreement(values, self.ms) | {"coverage": inside / len(values)}

    def without(self, index: int) -> tuple[float, float]:
        """Return what all other measurements say of one, in ms, and half its interval."""
        others = np.delete(np.arange(len(self.ms)), index)
        found = predictor.fit_device(self.features[others], self.ms[others], DevicePrior())
        (value,), (std,) = found.predict(self.features[np.array([index])])
        return float(value), float(found.reach * std)

    def stray(self) -> int | None:
        """Return the index of the measurement that all others contradict most, if one is."""
        if len(self.ms) <= _ENOUGH:
            return None
        error, std = self.predictor.posterior.left_out
        suspect = int(np.argmax(np.abs(error) / std))
        value, half = self.without(suspect)
        off = abs(self.ms[suspect] - value)
        return suspect if off > max(_FAR * half, _NEAR * value) else None

    def save(self, path: Path) -> None:
        """Write the file."""
        content = {
            "format": _FORMAT,
            "setting": self.setting,
            "spaces": self.spaces,
            "batch": self.batch,
            "ms": self.ms.tolist(),
            "measured": self.measured.rows(),
            "reference": self.reference.rows(),
        }
        files.write_file(path, json.dumps(content).encode())


#: Class, multiply-accumulates, weights, activations, level: see ``Work``.
_Operator = tuple[Annotated[int, NumberBounds(0, len(CLASSES) - 1)], Count, Count, Count, _Level]
_Network = Annotated[list[_Operator], NumberBounds(1, 10_000)]


class _Saved(TypedDict):
    format: NotRequired[int]
    version: NotRequired[int]  #: 1, of files that say no format
    setting: str
    spaces: list[str]
    batch: Size
    ms: Annotated[list[Positive], NumberBounds(MIN_NETWORKS, 1_000_000)]
    measured: list[_Network]
    reference: Annotated[list[_Network], NumberBounds(1, 1_000_000)]


def load_device_file(path: Path) -> MeasuredDevice:
    """Return the device of a file.

    Raises:
        TableError: it is damaged, or of a newer version.
    """
    try:
        saved = read_json(_Saved, path, TableError, newest=_FORMAT)
    except FileNotFoundError:
        raise TableError(f"{path} is not there.") from None
    if len(saved["ms"]) != len(saved["measured"]):
        raise TableError(f"{path} cannot be read: it has not a latency for each network.")
    works = [OperatorWork.of_rows(rows) for rows in (saved["reference"], saved["measured"])]
    ms, spaces = np.array(saved["ms"], float), tuple(saved["spaces"])
    return MeasuredDevice(works[0], works[1], ms, saved["batch"], saved["setting"], spaces)


# Which networks to measure: greedily, those that leave the least variance where it matters.


def select_first_networks(
    features: NetworkFeatures, n: int, prior: DevicePrior
) -> NDArray[np.intp]:
    """Return the indices of networks to measure on an unknown device, the most telling first.

    Args:
        features: Of the networks to choose from.
        n: How many are chosen.
        prior: What is expected of the device.
    """
    blocks = KernelBlocks.of(features, prior.roofline.mean, prior.roofline.std)
    kernel = mixed_kernel(prior.process, blocks.grams(blocks))
    return _greedy(kernel, float(np.exp(prior.process[-1])), np.ones(len(features)), n)


def select_next_networks(
    features: NetworkFeatures, n: int, predictor: DevicePredictor, weights: Floats
) -> NDArray[np.intp]:
    """Return the indices of networks to measure next on a device that is known in part.

    Args:
        features: Of the networks to choose from.
        n: How many are chosen.
        predictor: What is known of the device.
        weights: What knowing each network is worth.
    """
    blocks = KernelBlocks.of(features, predictor.parameters, predictor.prior.roofline.std)
    posterior = predictor.posterior
    return _greedy(posterior.covariance(blocks), posterior.noise, weights, n)


def _greedy(kernel: Floats, noise: float, weights: Floats, n: int) -> NDArray[np.intp]:
    """Return what leaves the least weighted variance, one update each.

    Source: Krause, Singh and Guestrin, "Near-optimal sensor placements in Gaussian processes",
    JMLR 9, 2008, with average variance (A-optimality) instead of mutual information.
    """
    chosen: list[int] = []
    for _ in range(min(n, len(kernel))):
        gain = (kernel**2) @ weights / (np.diag(kernel) + noise)
        gain[chosen] = -1
        i = int(np.argmax(gain))
        chosen.append(i)
        kernel = kernel - np.outer(kernel[i], kernel[i]) / (kernel[i, i] + noise)
    return np.array(chosen)
