"""A roofline model of network latency with fitted parameters.

Every operator takes the longer of its arithmetic and its traffic, plus a start; or, if that is
slower, the host takes its own time to start each and to load the image. A constant is added.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009, https://doi.org/10.1145/1498765.1498785.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from hwnas.hardware.memory import read_shapes
from hwnas.models.graph import Graph, OpSpec, Shape

Floats = NDArray[np.float64]

#: Classes of operators. ``vector``: it has weights and reads a single pixel.
CLASSES = (
    *("pointwise", "depthwise3", "depthwise5", "depthwise7", "dense"),
    *("vector", "attention", "scale", "elementwise"),
)
#: Index of each class's compute rate (pointwise, depthwise, others), and of the bandwidth of its
#: activations (convolutions, depthwise ones, scaling, elementwise).
RATES = np.array([0, 1, 1, 1, 2, 2, 0, 2, 2])
BANDWIDTHS = np.array([0, 1, 1, 1, 0, 0, 0, 2, 3])


@final
@dataclass(frozen=True)
class OperatorWork:
    """Computation and memory traffic of operators, for one image.

    Networks with fewer operators are padded: ``kind`` is -1 there, and the other fields are 0.

    Shapes:
        All ``(n networks, n operators)``.
    """

    kind: NDArray[np.intp]  #: index in ``CLASSES``, or -1 for padding
    macs: Floats  #: multiply-accumulates
    weights: Floats  #: number of weights and biases, which are read once per inference
    moved: Floats  #: number of activation elements that are read and written
    level: NDArray[np.intp]  #: number of times that the image's resolution was halved

    @classmethod
    def of(cls, table: Floats) -> "OperatorWork":
        """Return the work from an array ``(n networks, n operators, 5)`` as ``table`` has it."""
        kind, macs, weights, moved, level = np.moveaxis(table, 2, 0)
        return cls(kind.astype(np.intp), macs, weights, moved, level.astype(np.intp))

    @property
    def table(self) -> Floats:
        """The five fields in their order in one array, ``(n networks, n operators, 5)``."""
        return np.stack([self.kind, self.macs, self.weights, self.moved, self.level], 2)

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[Sequence[int]]]) -> "OperatorWork":
        """Return the work from lists as the method ``rows`` returns them."""
        return cls.of(_padded_table([np.array(row, float) for row in rows]))

    def rows(self) -> list[list[list[int]]]:
        """Return the five fields as integers, by network and operator, without padding."""
        return [row[row[:, 0] >= 0].astype(int).tolist() for row in self.table]

    def __len__(self) -> int:
        return len(self.kind)

    def __getitem__(self, rows: NDArray[np.intp] | slice) -> "OperatorWork":
        return OperatorWork.of(self.table[rows])


def operator_work(networks: Sequence[Graph]) -> OperatorWork:
    """Return the work of networks, whose graphs are not fused."""
    rows = [[_operator(node.op, net[0].op.in_shape) for node in net] for net in networks]
    return OperatorWork.of(_padded_table([np.array(row) for row in rows]))


def join_work(*works: OperatorWork) -> OperatorWork:
    """Return the work of all networks of several ``works``, one after another."""
    return OperatorWork.of(_padded_table([row for work in works for row in work.table]))


def _padded_table(rows: Sequence[Floats]) -> Floats:
    table = np.zeros((len(rows), max(map(len, rows)), 5))
    table[:, :, 0] = -1
    for padded, row in zip(table, rows, strict=True):
        padded[: len(row)] = row
    return table


@functools.lru_cache(maxsize=1 << 14)  # operators repeat across networks
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


#: Parameters of a device: median and standard deviation of the logarithm. The unit of work is the
#: mean network of a space, that of time the median measured latency.
_PARAMETERS = {
    "rate": (1.5, 1.0),  # pointwise convolutions: networks per unit of time
    "rate_depthwise": (0.4, 0.8),  # in units of that
    "rate_other": (1.0, 0.8),
    "moved": (0.5, 1.2),  # numbers moved in the time of a multiply-accumulate
    "moved_depthwise": (1.0, 0.7),  # in units of that
    "moved_scale": (1.0, 1.5),  # squeeze-excitation; some devices have no operator for it
    "moved_elementwise": (1.0, 0.7),
    "spilled": (8.0, 1.5),  # traffic that does not fit on chip, in addition
    "on_chip": (1.0, 1.5),  # capacity, in units of the mean operator
    "device": (0.05, 1.3),  # start of the operators of a network
    "host": (0.3, 1.0),  # start on the host, in parallel to the device
    "image": (0.1, 1.5),  # loading the image
    "constant": (0.02, 1.3),
}
PARAMETERS = tuple(_PARAMETERS)
_RATE, _HOST, _IMAGE = (PARAMETERS.index(name) for name in ("rate", "host", "image"))

_NOISE = 0.04  #: relative error of a good fit: weighs measurements against priors
_MIN_FOR_ROBUST = 5  #: number of measurements from which the loss is robust


@final
@dataclass(frozen=True)
class RooflinePrior:
    """Normal prior of the natural logarithms of the parameters, in the order of ``PARAMETERS``."""

    mean: Floats  #: means, ``(13,)``
    std: Floats  #: standard deviations, ``(13,)``


EXPECTED = RooflinePrior(*np.array([(np.log(value), std) for value, std in _PARAMETERS.values()]).T)


@final
@dataclass(frozen=True)
class WorkUnit:
    """The mean network of a space, as the unit of work."""

    macs: float  #: multiply-accumulates of the whole batch
    operators: float  #: number of operators
    #: elements (activations and weights) that its mean operator moves for the whole batch
    moved: float
    batch: int  #: images per inference

    @classmethod
    def of(cls, work: OperatorWork, batch: int) -> "WorkUnit":
        """Return the mean of the networks in ``work`` for ``batch`` images per inference."""
        operators = float((work.kind >= 0).sum(1).mean())
        moved = float((work.moved * batch + work.weights).sum(1).mean())
        return cls(float(work.macs.sum(1).mean()) * batch, operators, moved / operators, batch)


@final
@dataclass(frozen=True)
class FittedRoofline:
    """Latencies of networks as a function of a device's parameters.

    Latencies are relative to the median of the measured ones.

    Shapes:
        ``(n networks, n operators)``; starts ``(n networks,)``.
    """

    macs: Floats  #: multiply-accumulates, in units of those of the mean network
    traffic: Floats  #: moved elements, in the same unit
    rate: NDArray[np.intp]  #: index of the operator's compute rate, see ``RATES``
    bandwidth: NDArray[np.intp]  #: index of the operator's bandwidth, see ``BANDWIDTHS``
    starts: Floats  #: number of operators, in units of the mean network
    operator: float  #: traffic of the mean operator

    @classmethod
    def of(cls, work: OperatorWork, scale: WorkUnit) -> "FittedRoofline":
        """Return the function for the networks in ``work``, in units of ``scale``."""
        return cls(
            work.macs * scale.batch / scale.macs,
            (work.moved * scale.batch + work.weights) / scale.macs,
            RATES[work.kind],
            BANDWIDTHS[work.kind],
            (work.kind >= 0).sum(1) / scale.operators,
            scale.moved / scale.macs,
        )

    def __getitem__(self, rows: NDArray[np.intp] | slice) -> "FittedRoofline":
        return FittedRoofline(
            self.macs[rows],
            self.traffic[rows],
            self.rate[rows],
            self.bandwidth[rows],
            self.starts[rows],
            self.operator,
        )

    def __call__(self, logs: Floats) -> tuple[Floats, Floats]:
        """Return relative latencies ``(n,)`` and their gradients with respect to ``logs``.

        ``logs`` are the natural logarithms of the parameters in the order of ``PARAMETERS``,
        ``(13,)``; the gradients are ``(n, 13)``.
        """
        rates, bandwidths = np.exp(np.append(0.0, logs[1:3])), np.exp(np.append(0.0, logs[4:7]))
        rate, moved, (spilled, on_chip) = np.exp(logs[0]), np.exp(logs[3]), np.exp(logs[7:9])
        device, host, image, constant = np.exp(logs[9:])
        compute = self.macs / (rate * rates)[self.rate]
        unit = 1 / (rate * moved * bandwidths)[self.bandwidth]
        inside, limit = self.traffic * unit, on_chip * self.operator
        outside = np.maximum(self.traffic - limit, 0) * unit / spilled
        computes = compute > inside + outside
        moving = ~computes
        by_rate = _sums_by_group(compute * computes, self.rate, len(rates))
        by_bandwidth = _sums_by_group((inside + outside) * moving, self.bandwidth, len(bandwidths))
        busy = sum(by_rate) + sum(by_bandwidth) + device * self.starts
        free = busy > host * self.starts + image
        slopes = [
            *(-sum(by_rate) - sum(by_bandwidth), *(-part for part in by_rate[1:])),
            *(-sum(by_bandwidth), *(-part for part in by_bandwidth[1:])),
            -(outside * moving).sum(1),
            -(limit * unit / spilled * (moving & (outside > 0))).sum(1),
            device * self.starts,
        ]
        by_host = [host * self.starts * ~free, image * ~free, np.full(len(busy), constant)]
        value = np.where(free, busy, host * self.starts + image) + constant
        return value, np.stack([*(slope * free for slope in slopes), *by_host], 1)

    def fit(self, ms: Floats, expected: RooflinePrior) -> Floats:
        """Return the natural logarithms of the parameters, ``(13,)``, that fit latencies.

        The method is least squares of logarithms, from six starting points; with five or more
        networks it is robust against outliers.

        Args:
            ms: Measured latency of each network in ms, ``(n,)``.
            expected: Prior of the parameters.
        """
        target = np.log(ms / np.median(ms))

        def residuals(logs: Floats) -> Floats:
            errors = (np.log(self(logs)[0]) - target) / _NOISE
            return np.append(errors, (logs - expected.mean) / expected.std)

        def slopes(logs: Floats) -> Floats:
            value, gradient = self(logs)
            return np.vstack([gradient / value[:, None] / _NOISE, np.diag(1 / expected.std)])

        loss = "soft_l1" if len(ms) >= _MIN_FOR_ROBUST else "linear"
        fits = [
            optimize.least_squares(residuals, start, jac=slopes, loss=loss, max_nfev=60)
            for start in _starts(expected)
        ]
        best: Floats = min(fits, key=lambda fit: float(fit.cost)).x
        return best


def _sums_by_group(amounts: Floats, group: NDArray[np.intp], n: int) -> list[Floats]:
    """Return the sum of each network's operators by group."""
    return [(amounts * (group == i)).sum(1) for i in range(n)]


def _starts(expected: RooflinePrior) -> list[Floats]:
    """Return the starts: bound by the device, by starts on the host, by the image."""
    starts = []
    for host, image in ((0.05, 0.02), (0.9, 0.02), (0.05, 0.7)):
        for faster in (0.0, 1.0):
            start = expected.mean.copy()
            start[_RATE] += faster
            start[_HOST], start[_IMAGE] = np.log(host), np.log(image)
            starts.append(start)
    return starts
