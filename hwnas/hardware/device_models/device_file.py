"""Device files: measurements of a device, and networks that represent the search space."""

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

_FORMAT = 1  #: format of written files; earlier ones have a version
_Level = Annotated[int, NumberBounds(0, 64)]
_MIN_FOR_OUTLIERS = 7  #: an outlier test needs more measurements than this
_OUTLIER_HALF_WIDTHS = 1.5  #: minimum deviation of an outlier, in half widths of the interval
_OUTLIER_FRACTION = 0.15  #: minimum deviation of an outlier, relative to its latency


@final
@dataclass(frozen=True)
class MeasuredDevice:
    """A device with a latency model fitted to measured networks."""

    reference: OperatorWork  #: networks that represent the search space
    measured: OperatorWork  #: measured networks
    ms: Floats  #: latencies of the measured networks in ms, ``(n measured,)``
    batch: int  #: images per inference
    setting: str  #: dtype, threads and batch size: ``int8-4t-b1``
    spaces: tuple[str, ...]  #: names of the search spaces

    @cached_property
    def _encoder(self) -> FeatureEncoder:
        return FeatureEncoder(join_work(self.reference, self.measured), self.batch)

    @cached_property
    def features(self) -> NetworkFeatures:
        """Features of the measured networks, in their order."""
        return self._encoder(self.measured)

    @cached_property
    def predictor(self) -> DevicePredictor:
        """The latency model, fitted to ``measured`` at the first access."""
        return predictor.fit_device(self.features, self.ms, DevicePrior())

    def encoded(self, networks: Sequence[Graph]) -> NetworkFeatures:
        """Return the features of networks, whose graphs are not fused."""
        return self._encoder(operator_work(networks))

    def latency(self, graph: Graph) -> Quantity:
        """Return the latency in ms, with its 95 % interval, of a graph that is not fused."""
        (value,), (std,) = self.predictor.predict(self.encoded([graph]))
        half = self.predictor.interval_factor * std
        return Quantity(
            float(value), "modelled", float(max(value - half, 0.0)), float(value + half)
        )

    @property
    def interval_half_width(self) -> float:
        """Median of half width / latency of the intervals of the ``reference`` networks.

        0.05 is 5 %. Measured networks have smaller intervals.
        """
        values, std = self.predictor.predict(self._encoder(self.reference))
        return float(np.median(self.predictor.interval_factor * std / values))

    def leave_one_out(self) -> dict[str, float]:
        """Return the errors of predicting each measured network from all others.

        Keys are those of ``core.agreement`` (relative errors as fractions), and ``coverage``, the
        fraction of networks whose latency is in its 95 % interval. The model, with its roofline,
        is fitted again for each network.
        """
        values, inside = [], 0
        for i, ms in enumerate(self.ms):
            value, half = self.predict_without(i)
            values.append(value)
            inside += abs(ms - value) <= half
        return agreement(values, self.ms) | {"coverage": inside / len(values)}

    def predict_without(self, index: int) -> tuple[float, float]:
        """Return the latency in ms that all other measured networks predict for one of them.

        The second value is half the width of its 95 % interval, in ms. ``index`` is the network's
        index in ``measured``.
        """
        others = np.delete(np.arange(len(self.ms)), index)
        model = predictor.fit_device(self.features[others], self.ms[others], DevicePrior())
        (value,), (std,) = model.predict(self.features[np.array([index])])
        return float(value), float(model.interval_factor * std)

    def outlier(self) -> int | None:
        """Return the index in ``measured`` of the network that deviates most, if it is an outlier.

        An outlier differs from the prediction of all others by more than 1.5 half widths of its
        interval and more than 15 %. ``None`` if it is none, or if at most seven are measured.
        """
        if len(self.ms) <= _MIN_FOR_OUTLIERS:
            return None
        error, std = self.predictor.posterior.leave_one_out
        candidate = int(np.argmax(np.abs(error) / std))
        value, half = self.predict_without(candidate)
        off = abs(self.ms[candidate] - value)
        return (
            candidate if off > max(_OUTLIER_HALF_WIDTHS * half, _OUTLIER_FRACTION * value) else None
        )

    def save(self, path: Path) -> None:
        """Write the device file (JSON); an existing one is replaced."""
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


#: Class, multiply-accumulates, weights, activations, level: see ``OperatorWork``.
_Operator = tuple[Annotated[int, NumberBounds(0, len(CLASSES) - 1)], Count, Count, Count, _Level]
_Network = Annotated[list[_Operator], NumberBounds(1, 10_000)]


class _Saved(TypedDict):
    format: NotRequired[int]
    version: NotRequired[int]  #: 1, in files without a format
    setting: str
    spaces: list[str]
    batch: Size
    ms: Annotated[list[Positive], NumberBounds(MIN_NETWORKS, 1_000_000)]
    measured: list[_Network]
    reference: Annotated[list[_Network], NumberBounds(1, 1_000_000)]


def load_device_file(path: Path) -> MeasuredDevice:
    """Return the measured device of a device file.

    Raises:
        TableError: the file is missing or damaged, has a newer format, or has fewer than three
            networks.
    """
    try:
        saved = read_json(_Saved, path, TableError, newest=_FORMAT)
    except FileNotFoundError:
        raise TableError(
            f"{path} does not exist. hwnas profile measured=CSV writes it from measurements."
        ) from None
    if len(saved["ms"]) != len(saved["measured"]):
        raise TableError(
            f"{path} cannot be read: it has {len(saved['ms'])} latencies of "
            f"{len(saved['measured'])} networks. Write it again with hwnas profile measured=CSV."
        )
    works = [OperatorWork.of_rows(rows) for rows in (saved["reference"], saved["measured"])]
    ms, spaces = np.array(saved["ms"], float), tuple(saved["spaces"])
    return MeasuredDevice(works[0], works[1], ms, saved["batch"], saved["setting"], spaces)


def select_first_networks(
    features: NetworkFeatures, n: int, prior: DevicePrior
) -> NDArray[np.intp]:
    """Return the indices of the networks to measure first on a device, most informative first.

    Args:
        features: Features of the candidate networks.
        n: Number of networks; all are returned if there are fewer.
        prior: Prior of the device's latency model.
    """
    blocks = KernelBlocks.of(features, prior.roofline.mean, prior.roofline.std)
    kernel = mixed_kernel(prior.process, blocks.grams(blocks))
    return _greedy(kernel, float(np.exp(prior.process[-1])), np.ones(len(features)), n)


def select_next_networks(
    features: NetworkFeatures, n: int, predictor: DevicePredictor, weights: Floats
) -> NDArray[np.intp]:
    """Return the indices of the networks to measure next on a device, most informative first.

    Args:
        features: Features of the candidate networks.
        n: Number of networks; all are returned if there are fewer.
        predictor: Latency model of the device, fitted to earlier measurements.
        weights: Importance of each candidate, ``(n candidates,)``: the selection minimises the sum
            of predicted variances with these weights.
    """
    blocks = KernelBlocks.of(features, predictor.parameters, predictor.prior.roofline.std)
    posterior = predictor.posterior
    return _greedy(posterior.covariance(blocks), posterior.noise, weights, n)


def _greedy(kernel: Floats, noise: float, weights: Floats, n: int) -> NDArray[np.intp]:
    """Return the networks that minimise the weighted variance, selected greedily.

    Source: Krause, Singh and Guestrin, "Near-optimal sensor placements in Gaussian processes", JMLR
    9, 2008, with average variance (A-optimality) instead of mutual information.
    """
    selected: list[int] = []
    for _ in range(min(n, len(kernel))):
        gain = (kernel**2) @ weights / (np.diag(kernel) + noise)
        gain[selected] = -1
        i = int(np.argmax(gain))
        selected.append(i)
        kernel = kernel - np.outer(kernel[i], kernel[i]) / (kernel[i, i] + noise)
    return np.array(selected)
