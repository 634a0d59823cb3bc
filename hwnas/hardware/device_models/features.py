"""Features of networks for latency models: work by class of operator and by resolution."""

from dataclasses import dataclass, fields
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from hwnas.hardware.device_models.fitted_roofline import (
    CLASSES,
    FittedRoofline,
    Floats,
    OperatorWork,
    WorkUnit,
)


@final
@dataclass(frozen=True)
class NetworkFeatures:
    """Features of networks; columns have similar scales.

    Shapes:
        Each ``(n networks, its columns)``.
    """

    coarse: Floats  #: work by class of operator, relative to its mean in the space
    fine: Floats  #: work by class and resolution, relative to its mean in the space
    likeness: Floats  #: the fine features standardised, with a squared length of about 1
    #: latencies on other devices, each relative to its mean; no columns if there are none
    curves: Floats
    roofline: FittedRoofline  #: returns latencies from the parameters of a device

    def __len__(self) -> int:
        return len(self.fine)

    def __getitem__(self, rows: NDArray[np.intp] | slice) -> "NetworkFeatures":
        return NetworkFeatures(*(getattr(self, item.name)[rows] for item in fields(self)))


@final
class FeatureEncoder:
    """Returns features of networks, in units of the mean of networks that represent a space."""

    def __init__(self, work: OperatorWork, batch: int, curves: Floats | None = None):
        """Create an encoder.

        Args:
            work: Work of the n networks that represent the space.
            batch: Images per inference.
            curves: Latencies of these networks on other devices, ``(n, devices)``, each device in
                any unit; ``None``: there are none.
        """
        self._coarse = _Scaled.of(_coarse_features(work))
        self._fine = _Scaled.of(_fine_features(work))
        self._spread = self._fine(_fine_features(work)).std(0)
        curves = np.empty((len(work), 0)) if curves is None else curves
        self._level = curves.mean(0)
        self._scale = WorkUnit.of(work, batch)

    def __call__(self, work: OperatorWork, curves: Floats | None = None) -> NetworkFeatures:
        """Return the features of networks from their work.

        ``curves`` are their latencies on the devices of the constructor, in the same units.
        """
        fine = self._fine(_fine_features(work))
        standard = (fine - 1) / self._spread
        known = np.empty((len(work), 0)) if curves is None else curves
        return NetworkFeatures(
            self._coarse(_coarse_features(work)),
            fine,
            standard / np.sqrt(max(standard.shape[1], 1)),
            known / self._level,
            FittedRoofline.of(work, self._scale),
        )


@final
@dataclass(frozen=True)
class _Scaled:
    """Non-constant columns, in units of their means."""

    varied: NDArray[np.bool_]
    means: Floats

    @classmethod
    def of(cls, columns: Floats) -> Self:
        varied = np.ptp(columns, axis=0) > 0
        return cls(varied, columns[:, varied].mean(0))

    def __call__(self, columns: Floats) -> Floats:
        scaled: Floats = columns[:, self.varied] / self.means
        return scaled


_LEVELS = 8  #: levels of resolution


def _coarse_features(work: OperatorWork) -> Floats:
    """Return all weights, and multiply-accumulates, traffic and operators by class."""
    amounts = (work.macs, work.moved, np.ones_like(work.macs))
    sums = [_sums(work, amount, work.kind, len(CLASSES)) for amount in amounts]
    return np.hstack([work.weights.sum(1, keepdims=True), *sums])


def _fine_features(work: OperatorWork) -> Floats:
    """Return multiply-accumulates, weights, traffic and operators by class and resolution."""
    amounts = (work.macs, work.weights, work.moved, np.ones_like(work.macs))
    group: NDArray[np.intp] = work.kind * _LEVELS + np.clip(work.level, 0, _LEVELS - 1)
    return np.hstack([_sums(work, amount, group, len(CLASSES) * _LEVELS) for amount in amounts])


def _sums(work: OperatorWork, amounts: Floats, group: NDArray[np.intp], n: int) -> Floats:
    """Return the sums of each network's operators by group, ``(n networks, n)``."""
    present = work.kind >= 0
    cells = (np.arange(len(work))[:, None] * n + group)[present]
    sums = np.bincount(cells, amounts[present], len(work) * n)
    return sums.astype(float).reshape(len(work), n)
