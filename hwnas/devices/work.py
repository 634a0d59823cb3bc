"""What networks compute and move, operator by operator, whatever device runs them."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from hwnas.graph import Graph
from hwnas.memory import read_shapes
from hwnas.op import OpSpec, Shape

Floats = NDArray[np.float64]

#: What an operator is to a device. ``vector`` has weights and reads one pixel alone.
CLASSES = (
    *("pointwise", "depthwise3", "depthwise5", "depthwise7", "dense"),
    *("vector", "attention", "scale", "elementwise"),
)
#: Which rate each class is computed at (pointwise, depthwise, others), and at which bandwidth it
#: moves what it reads and writes (convolutions, depthwise ones, scaling, elementwise).
RATES = np.array([0, 1, 1, 1, 2, 2, 0, 2, 2])
BANDWIDTHS = np.array([0, 1, 1, 1, 0, 0, 0, 2, 3])


@final
@dataclass(frozen=True)
class Work:
    """What the operators of networks compute and move, for one image; rows are padded with -1.

    Shapes:
        All ``(n networks, n operators)``.
    """

    kind: NDArray[np.intp]  #: index in ``CLASSES``, or -1
    macs: Floats
    weights: Floats  #: numbers that are read whatever the batch is
    moved: Floats  #: numbers of activations that are read and written
    level: NDArray[np.intp]  #: how many times resolution was halved

    @classmethod
    def of(cls, table: Floats) -> "Work":
        """Return the work that a table says, ``(n networks, n operators, 5)``."""
        kind, macs, weights, moved, level = np.moveaxis(table, 2, 0)
        return cls(kind.astype(np.intp), macs, weights, moved, level.astype(np.intp))

    @property
    def table(self) -> Floats:
        """All as one table."""
        return np.stack([self.kind, self.macs, self.weights, self.moved, self.level], 2)

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[Sequence[int]]]) -> "Work":
        """Return the work of networks as ``rows`` returned it."""
        return cls.of(_padded([np.array(row, float) for row in rows]))

    def rows(self) -> list[list[list[int]]]:
        """Return five numbers for each operator of each network, without padding."""
        return [row[row[:, 0] >= 0].astype(int).tolist() for row in self.table]

    def __len__(self) -> int:
        return len(self.kind)

    def __getitem__(self, rows: NDArray[np.intp] | slice) -> "Work":
        return Work.of(self.table[rows])


def work(networks: Sequence[Graph]) -> Work:
    """Return what networks compute and move; not fused, as families lower them."""
    rows = [[_operator(node.op, net[0].op.in_shape) for node in net] for net in networks]
    return Work.of(_padded([np.array(row) for row in rows]))


def joined(*works: Work) -> Work:
    """Return the networks of all."""
    return Work.of(_padded([row for each in works for row in each.table]))


def _padded(rows: Sequence[Floats]) -> Floats:
    table = np.zeros((len(rows), max(map(len, rows)), 5))
    table[:, :, 0] = -1
    for padded, row in zip(table, rows, strict=True):
        padded[: len(row)] = row
    return table


@functools.lru_cache(maxsize=1 << 14)  # operators repeat from network to network
def _operator(op: OpSpec, image: Shape) -> tuple[float, ...]:
    moved = sum(map(math.prod, (*read_shapes(op), op.out_shape)))
    halved = round(math.log2(image[1] / max(op.out_shape[1], 1)))
    return CLASSES.index(_class(op)), op.n_macs, op.n_params, moved, halved


def _class(op: OpSpec) -> str:
    if op.base == "attention":
        return "attention"
    if not op.weight_shape:
        return "scale" if op.base == "mul" else "elementwise"
    if op.in_shape[1:] == (1, 1):
        return "vector"
    if op.kernel == 1:
        return "pointwise"
    if op.groups == 1:
        return "dense"
    return "depthwise3" if op.kernel <= 3 else "depthwise5" if op.kernel <= 5 else "depthwise7"
