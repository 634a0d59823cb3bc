"""What the latencies of networks can follow: their work by class of operator, and by resolution."""

from dataclasses import dataclass
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from hwnas.devices.roofline import Roofline, Scale
from hwnas.devices.work import CLASSES, Floats, Work


@final
@dataclass(frozen=True)
class Features:
    """What says how networks differ; columns are of about the same size.

    Shapes:
        Each ``(n networks, its columns)``.
    """

    coarse: Floats  #: shares of work by class of operator, about 1 each
    fine: Floats  #: likewise by class and resolution
    likeness: Floats  #: the fine ones standardised, their squared length about 1
    curves: Floats  #: latencies on devices that are known, in units of their means; may be none
    roofline: Roofline  #: what they take on a device of given parameters

    def __len__(self) -> int:
        return len(self.fine)

    def __getitem__(self, rows: NDArray[np.intp] | slice) -> "Features":
        return Features(
            self.coarse[rows],
            self.fine[rows],
            self.likeness[rows],
            self.curves[rows],
            self.roofline[rows],
        )


@final
class Encoder:
    """Turns networks of a space into features, in units of networks that stand for the space."""

    def __init__(self, work: Work, batch: int, curves: Floats | None = None):
        """Use networks that stand for the space.

        Args:
            work: What they compute and move.
            batch: Images of an inference.
            curves: ``(n, devices)``, their latency on known devices, in any unit.
        """
        self._coarse = _Scaled.of(_coarse(work))
        self._fine = _Scaled.of(_fine(work))
        self._spread = self._fine(_fine(work)).std(0)
        curves = np.empty((len(work), 0)) if curves is None else curves
        self._level = curves.mean(0)
        self._scale = Scale.of(work, batch)

    def __call__(self, work: Work, curves: Floats | None = None) -> Features:
        """Return the features of networks, given as for the constructor."""
        fine = self._fine(_fine(work))
        standard = (fine - 1) / self._spread
        known = np.empty((len(work), 0)) if curves is None else curves
        return Features(
            self._coarse(_coarse(work)),
            fine,
            standard / np.sqrt(max(standard.shape[1], 1)),
            known / self._level,
            Roofline.of(work, self._scale),
        )


@final
@dataclass(frozen=True)
class _Scaled:
    """Columns that vary, in units of their means."""

    varied: NDArray[np.bool_]
    means: Floats

    @classmethod
    def of(cls, columns: Floats) -> Self:
        varied = np.ptp(columns, axis=0) > 0
        return cls(varied, columns[:, varied].mean(0))

    def __call__(self, columns: Floats) -> Floats:
        scaled: Floats = columns[:, self.varied] / self.means
        return scaled


def _coarse(work: Work) -> Floats:
    columns = [work.weights.sum(1)]
    for kind in range(len(CLASSES)):
        where = work.kind == kind
        columns += [_sum(work.macs, where), _sum(work.moved, where), where.sum(1)]
    return np.stack(columns, 1).astype(float)


_LEVELS = 8  #: of resolution that are told apart


def _fine(work: Work) -> Floats:
    columns = []
    for kind in range(len(CLASSES)):
        for level in range(_LEVELS):
            where = (work.kind == kind) & (work.level == level)
            sums = [_sum(each, where) for each in (work.macs, work.weights, work.moved)]
            columns += [*sums, where.sum(1).astype(float)]
    return np.stack(columns, 1)


def _sum(amounts: Floats, where: NDArray[np.bool_]) -> Floats:
    total: Floats = (amounts * where).sum(1)
    return total
