"""Tensors of an ONNX graph without their numbers: where each element comes from.

Exporters reshape, transpose and split tensors between images, tokens and heads in many ways. Here
a tensor holds the places of its elements in what an operator computed: moving elements is what it
is on any array, and what an operator reads can be checked element by element. Functions of single
elements (activations) are known by their values at ``samples()``, however they are written.
"""

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.op import Shape

Places = NDArray[np.int64]
Curve = NDArray[np.float32]
Shape4 = tuple[int, int, int, int]  #: (N, C, H, W)
MOST_VALUES = 1 << 26  #: of a tensor
_TOLERANCE = 1e-6  # of float32 arithmetic, relative to the argument; tanh's GELU is off by 5e-4


@dataclass(frozen=True)
class Value:
    """A tensor: elements of one operator's output, each after the same function."""

    source: str  #: the operator
    shape: Shape4  #: of its output
    places: Places  #: of the elements in that output, flattened
    curve: Curve | None = None  #: the function at ``samples()``; none if elements are as they were
    by: str = ""  #: the ONNX node that applied the function

    @property
    def image(self) -> Shape:
        """Shape ``(C, H, W)`` of the operator's output."""
        return self.shape[1:]

    @property
    def n_pixels(self) -> int:
        """Pixels, or tokens, of one image."""
        return self.shape[2] * self.shape[3]

    @property
    def whole(self) -> bool:
        """Whether these are all elements, in any order."""
        return self.places.size == math.prod(self.shape)

    @property
    def in_order(self) -> bool:
        """Whether these are all elements, in their order."""
        return self.whole and np.array_equal(self.places.ravel(), np.arange(self.places.size))

    @property
    def channels(self) -> Places:
        """The number of each element's channel, counted on from image to image."""
        return self.places // self.n_pixels

    def read_from(self, source: str) -> "Value":
        """Return the same elements of another operator's output, as they are there."""
        return replace(self, source=source, curve=None, by="")

    def as_image(self) -> "Value | None":
        """Return the value as an operator of the tensor's own shape, if it is an image."""
        shape = self.places.shape
        if len(shape) != 4 or shape[:2] != self.shape[:2] or not self.in_order:
            return None
        return replace(self, shape=shape)

    def same_places(self, other: "Value") -> bool:
        """Return whether elements come from the same places of outputs of one layout."""
        return (self.shape[1], self.n_pixels) == (other.shape[1], other.n_pixels) and (
            np.array_equal(self.places, other.places)
        )

    def pixels(self) -> Places | None:
        """Return the first place of each row if rows are the channels of pixels, else nothing."""
        c = self.shape[1]
        if not self.whole or not self.places.ndim or self.places.shape[-1] != c:
            return None
        rows = self.places.reshape(-1, c)
        if not np.array_equal(rows, rows[:, :1] + np.arange(c) * self.n_pixels):
            return None
        return rows[:, 0]

    def per_channel(self, constant: NDArray[Any]) -> NDArray[np.float64] | None:
        """Return a constant as it meets each channel, if it is the same for all its pixels."""
        channels, full = self.channels % self.shape[1], _broadcast(constant, self.places.shape)
        if full is None:
            return None
        found = np.zeros(self.shape[1])
        found[channels] = full
        return found if np.array_equal(found[channels], full) else None

    def gated_by(self, gate: "Value") -> bool:
        """Return whether each element meets the one element of ``gate`` that is its channel's."""
        if gate.n_pixels > 1 or gate.shape[1] != self.shape[1] or not (gate.whole and self.whole):
            return False
        met = _broadcast(gate.places, self.places.shape)
        return met is not None and np.array_equal(met, self.channels)


@dataclass(frozen=True)
class Scores:
    """Products of queries and keys, on the way to attention."""

    sources: set[str]  #: operators that compute them
    queries: Places  #: ``(N, heads, tokens, d)``
    keys: Places
    scale: float


def check_size(shape: Iterable[int]) -> None:
    """Refuse tensors that are empty or too large, before they are made.

    Raises:
        ValueError: this one is.
    """
    if not 0 < (size := math.prod(map(int, shape))) <= MOST_VALUES:
        raise ValueError(f"a tensor of {size:g} values; allowed: 1 to {MOST_VALUES}")


def computed(source: str, shape: Shape4) -> Value:
    """Return the output of an operator, as an image.

    Raises:
        ValueError: it is empty, or larger than any image.
    """
    check_size(shape)
    return Value(source, shape, np.arange(math.prod(shape)).reshape(shape))


def of_pixels(source: str, read: Value, n_channels: int) -> Value:
    """Return the output of an operator that computes ``n_channels`` of each pixel it reads.

    ``read`` has rows of channels (``Value.pixels``); so has the output, in the same order.
    """
    first = read.pixels()
    assert first is not None
    n, c, h, w = read.shape
    check_size((n, n_channels, h, w))
    images, pixels = np.divmod(first, c * h * w)
    rows = (images * n_channels * h * w + pixels)[:, None] + np.arange(n_channels) * h * w
    places = rows.reshape(*read.places.shape[:-1], n_channels)
    return Value(source, (n, n_channels, h, w), places)


def pooled(source: str, read: Value, axes: tuple[int, ...], keep: bool) -> Value | None:
    """Return the mean over axes, or nothing unless it is the mean of all pixels of each channel."""
    n, c = read.shape[:2]
    low, high = (f(read.channels, axis=axes, keepdims=keep) for f in (np.min, np.max))
    if not read.whole or low.size != n * c or not np.array_equal(low, high):
        return None
    return Value(source, (n, c, 1, 1), np.asarray(low))


def in_heads(value: Value, part: int, places: Places) -> bool:
    """Return whether places ``(N, heads, tokens, d)`` are queries (part 0), keys or values.

    As ``op.OpSpec`` has it, ``value`` is ``(3 C, H, W)``: queries, keys and values, each of them
    head by head.
    """
    n, c, h, w = value.shape
    images, heads, tokens, d = places.shape
    if (images, tokens, 3 * heads * d) != (n, h * w, c):
        return False
    whole = np.arange(n * c * h * w).reshape(n, 3, heads, d, tokens)
    return np.array_equal(places, whole[:, part].swapaxes(2, 3))


def _broadcast(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any] | None:
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        return None


@functools.cache
def samples() -> Curve:
    """Return the arguments at which functions are compared; 0 and 1 are among them."""
    few = [20.0, 100.0, 1e4, 1e30]
    return np.array([*np.linspace(-12, 12, 769), *few, *(-x for x in few)], np.float32)


def activation(curve: Curve) -> str | None:
    """Return the activation of ``op.ACTIVATIONS`` that a function is, or nothing."""
    allowed = _TOLERANCE * (1 + np.abs(samples().astype(np.float64)))
    for name, known in _activations().items():
        if np.all(np.abs(curve - known) <= allowed):
            return name
    return None


def line(curve: Curve | None) -> tuple[float, float] | None:
    """Return factor and constant of a function that is a straight line, else nothing."""
    if curve is None:
        return (1.0, 0.0)
    x, y = samples().astype(np.float64), curve.astype(np.float64)
    constant = float(y[x == 0][0])
    factor = float(y[x == 1][0]) - constant
    if not math.isfinite(factor) or not factor:
        return None
    allowed = _TOLERANCE * (np.abs(factor * x) + abs(constant))
    straight = np.all(np.abs(factor * x + constant - y) <= allowed)
    return (factor, constant) if straight else None


@functools.cache
def _activations() -> dict[str, NDArray[np.float64]]:
    x = samples().astype(np.float64)
    sigmoid = np.where(x < -500, 0, 1 / (1 + np.exp(-np.maximum(x, -500))))
    erf: Callable[[Any], Any] = np.vectorize(math.erf, otypes=[np.float64])
    return {
        "relu": np.maximum(x, 0),
        "relu6": np.clip(x, 0, 6),
        "hardswish": x * np.clip(x / 6 + 0.5, 0, 1),
        "hardsigmoid": np.clip(x / 6 + 0.5, 0, 1),
        "sigmoid": sigmoid,
        "silu": x * sigmoid,
        "gelu": x * 0.5 * (1 + erf(x / math.sqrt(2))),
    }
