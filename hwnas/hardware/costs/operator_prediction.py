"""Predicted latencies of operators, from those that were timed on the same device.

The logarithm of an operator's latency is a Gaussian process over logarithms of its computation and
memory traffic. The operators of 16 networks predict all others with an error of 6 to 8 %, much of
which cancels over a network (experiments/cpu_at_once).
"""

import functools
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from hwnas.core.gaussian_process import Hyperparameters, Surrogate, fit_hyperparameters
from hwnas.models.graph import BASES, OpSpec

Array = NDArray[np.float64]

_LANES = 16  #: channels are padded to whole vectors of this length
_MAX_FITTED = 300  #: maximum number of operators for the fit; more take long and add little
#: Minimum standard deviation of a feature, so that nearly constant ones are not amplified.
_MIN_STD = 0.3


@final
@dataclass(frozen=True)
class OperatorPredictions:
    """Timed operators, and a Gaussian process that predicts the latency of others."""

    known_ms: Mapping[OpSpec, float]  #: latency in ms of each timed operator
    mean: Array  #: mean of each of the d features, ``(d,)``
    std: Array  #: standard deviation of each feature, at least 0.3, ``(d,)``
    fitted: Hyperparameters  #: hyperparameters for the logarithm of the latency

    @classmethod
    def of(cls, known_ms: Mapping[OpSpec, float]) -> "OperatorPredictions":
        """Fit the process to timed operators; hyperparameters to 300 random ones of them at most.

        Args:
            known_ms: Latency of each timed operator in ms.
        """
        known_ms = {op: known_ms[op] for op in sorted(known_ms, key=str)}
        x = _rows(known_ms, with_dtype=_have_dtypes(known_ms))
        mean, std = x.mean(axis=0), np.maximum(x.std(axis=0), _MIN_STD)
        rows = np.random.default_rng(0).permutation(len(x))[:_MAX_FITTED]
        y = np.log([*known_ms.values()])
        return cls(known_ms, mean, std, fit_hyperparameters((x[rows] - mean) / std, y[rows]))

    def predict(
        self, ops: Iterable[OpSpec], without: Collection[OpSpec] = ()
    ) -> dict[OpSpec, tuple[float, float, float]]:
        """Return the predicted latency in ms by operator, and the ends of its 95 % interval.

        Each value is ``(latency, lower end, upper end)``. Timed operators are predicted, too.

        Args:
            ops: The operators to predict.
            without: Timed operators that predictions must not use.
        """
        requested = [*ops]
        if not requested:
            return {}
        process = self._process_without(without) if without else self._process
        mean, std = process.predict(self._scaled_features(requested))
        half_width = 1.96 * np.hypot(std, process.noise)
        ends = (np.exp(mean + sign * half_width) for sign in (0, -1, 1))
        return dict(zip(requested, zip(*(end.tolist() for end in ends), strict=True), strict=True))

    @functools.cached_property
    def _process(self) -> Surrogate:
        return self._process_without(())

    def _process_without(self, without: Collection[OpSpec]) -> Surrogate:
        known = {op: ms for op, ms in self.known_ms.items() if op not in without}
        return Surrogate(self._scaled_features(known), np.log([*known.values()]), self.fitted)

    def _scaled_features(self, ops: Collection[OpSpec]) -> Array:
        return (_rows(ops, with_dtype=_have_dtypes(self.known_ms)) - self.mean) / self.std


def _have_dtypes(ops: Iterable[OpSpec]) -> bool:
    """Return whether operators have several number formats, as if each network chooses its own."""
    return len({op.dtype for op in ops}) > 1


def _rows(ops: Collection[OpSpec], *, with_dtype: bool) -> Array:
    """Return the features of operators, ``(n, d)``, with or without the number format."""
    rows = np.stack([_features(op) for op in ops])
    if not with_dtype:
        return rows
    is_int8 = [2.0 * (op.dtype == "int8") for op in ops]
    return np.column_stack([rows, is_int8])


@functools.lru_cache(maxsize=1 << 14)
def _features(op: OpSpec) -> Array:
    """Return the features of an operator, ``(d,)``."""
    (c_in, *image), (c_out, *pixels) = op.in_shape, op.out_shape
    n_read, n_written = math.prod(image), math.prod(pixels)
    depth = math.prod(op.weight_shape[1:])
    macs = n_written * _padded_channels(c_out) * depth if depth else op.n_macs
    sizes = (
        op.batch * (macs + n_read * _padded_channels(c_in)),
        op.batch * n_read * _padded_channels(c_in),
        op.batch * n_written * _padded_channels(c_out),
        1 + op.n_params,
        *(
            c_in,
            _padded_channels(c_out),
            n_written,
            pixels[1],
            op.kernel,
            op.stride,
            op.groups,
            op.batch,
        ),
    )
    kinds = [op.base == base for base in BASES]
    kinds += [op.depthwise, bool(op.weight_shape) and op.kernel == 1]
    marks = [c_out % _LANES != 0, "add" in op.fused, bool(op.activation)]
    # otherwise all operators of a table have the same number
    on = [math.log(op.threads)] if op.threads else []
    return np.array([*map(math.log, sizes), *(2.0 * kind for kind in kinds), *marks, *on], float)


def _padded_channels(channels: int) -> int:
    return -(-channels // _LANES) * _LANES
