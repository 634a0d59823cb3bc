"""How long operators take that were not timed, from those that were timed on the same device.

The logarithm of an operator's latency is a Gaussian process over the logarithms of what it
computes, reads and writes. From the operators of 16 networks, those of all others are foretold with
an error of 6 to 8 %, of which much cancels over a network (experiments/cpu_at_once).
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

_LANES = 16  #: channels that come together: whole vectors of them are computed
_FITTED = 300  #: operators on which hyperparameters are fitted; more take long and say little
#: Of the standard deviation of a feature, so that one that hardly varies is not blown up.
_LEAST_STD = 0.3


@final
@dataclass(frozen=True)
class OperatorPredictions:
    """Operators that were timed, and what they say of others."""

    known_ms: Mapping[OpSpec, float]
    mean: Array  #: of features, ``(d,)``
    std: Array  #: of features, ``(d,)``
    fitted: Hyperparameters

    @classmethod
    def of(cls, known_ms: Mapping[OpSpec, float]) -> "OperatorPredictions":
        """Return what timed operators say of others.

        Args:
            known_ms: The latency of each, in ms.
        """
        known_ms = {op: known_ms[op] for op in sorted(known_ms, key=str)}
        x = np.stack([_features(op) for op in known_ms])
        mean, std = x.mean(axis=0), np.maximum(x.std(axis=0), _LEAST_STD)
        rows = np.random.default_rng(0).permutation(len(x))[:_FITTED]
        y = np.log([*known_ms.values()])
        return cls(known_ms, mean, std, fit_hyperparameters((x[rows] - mean) / std, y[rows]))

    def foretold(
        self, ops: Iterable[OpSpec], without: Collection[OpSpec] = ()
    ) -> dict[OpSpec, tuple[float, float, float]]:
        """Return the latency of operators in ms, with the ends of its 95 % interval.

        Args:
            ops: Operators.
            without: Timed ones that shall say nothing.
        """
        wanted = [*ops]
        if not wanted:
            return {}
        process = self._but(without) if without else self._all
        mean, std = process.predict(self._scaled(wanted))
        spread = 1.96 * np.hypot(std, process.noise)
        ends = (np.exp(mean + sign * spread) for sign in (0, -1, 1))
        return dict(zip(wanted, zip(*(end.tolist() for end in ends), strict=True), strict=True))

    @functools.cached_property
    def _all(self) -> Surrogate:
        return self._but(())

    def _but(self, without: Collection[OpSpec]) -> Surrogate:
        known = {op: ms for op, ms in self.known_ms.items() if op not in without}
        return Surrogate(self._scaled(known), np.log([*known.values()]), self.fitted)

    def _scaled(self, ops: Iterable[OpSpec]) -> Array:
        return (np.stack([_features(op) for op in ops]) - self.mean) / self.std


@functools.lru_cache(maxsize=1 << 14)
def _features(op: OpSpec) -> Array:
    """Return what an operator is to the model, ``(d,)``."""
    (c_in, *image), (c_out, *pixels) = op.in_shape, op.out_shape
    n_read, n_written = math.prod(image), math.prod(pixels)
    depth = math.prod(op.weight_shape[1:])
    macs = n_written * _whole(c_out) * depth if depth else op.n_macs
    sizes = (
        op.batch * (macs + n_read * _whole(c_in)),
        op.batch * n_read * _whole(c_in),
        op.batch * n_written * _whole(c_out),
        1 + op.n_params,
        *(c_in, _whole(c_out), n_written, pixels[1], op.kernel, op.stride, op.groups, op.batch),
    )
    kinds = [op.base == base for base in BASES]
    kinds += [op.depthwise, bool(op.weight_shape) and op.kernel == 1]
    marks = [c_out % _LANES != 0, "add" in op.fused, bool(op.activation)]
    on = [math.log(op.threads)] if op.threads else []  # else all of a table run on as many
    return np.array([*map(math.log, sizes), *(2.0 * kind for kind in kinds), *marks, *on], float)


def _whole(channels: int) -> int:
    return -(-channels // _LANES) * _LANES
