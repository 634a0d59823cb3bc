"""Activations of scalar expressions of TVM, by functions that can be vectorised."""

from collections.abc import Callable
from typing import Any

from tvm import te, tirx


def activate(name: str, x: Any) -> Any:
    """Return the expression of an activation function of ``x``; ``""`` is the identity."""
    zero, six = f32(0.0), f32(6.0)

    def clip(value: Any) -> Any:
        return te.max(te.min(value, six), zero)

    activations: dict[str, Callable[[Any], Any]] = {
        "": lambda v: v,
        "relu": lambda v: te.max(v, zero),
        "relu6": clip,
        "hardsigmoid": lambda v: clip(v + 3.0) * f32(1 / 6),
        "hardswish": lambda v: v * (clip(v + 3.0) * f32(1 / 6)),
        "sigmoid": lambda v: 1.0 / (1.0 + exp(-v)),
        "silu": lambda v: v / (1.0 + exp(-v)),
        "gelu": lambda v: v * 0.5 * (1.0 + _erf(v * f32(0.5**0.5))),
    }
    return activations[name](x)


def f32(value: float) -> Any:
    """Return a constant expression in float32."""
    return tirx.const(value, "float32")


def exp(x: Any) -> Any:
    """Return the expression ``e ** x`` by the polynomial of Cephes, which can be vectorised."""
    x = te.max(te.min(x, f32(88.0)), f32(-87.0))
    n = te.floor(x * f32(1.44269504088896341) + f32(0.5))
    r = x - n * f32(0.693359375) - n * f32(-2.12194440e-4)
    y = f32(1.9875691500e-4)
    for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        y = y * r + f32(c)
    y = y * r * r + r + f32(1.0)
    power = tirx.reinterpret("float32", (n.astype("int32") + 127) << 23)
    return y * power


def _erf(x: Any) -> Any:
    """Return the error function as a rational function (Eigen's); error below 4e-7."""
    x = te.max(te.min(x, f32(3.832506856900711)), f32(-3.832506856900711))
    square = x * x
    top = f32(-2.72614225801306e-10)
    for c in (
        2.77068142495902e-08,
        -2.10102402082508e-06,
        -5.69250639462346e-05,
        -7.34990630326855e-04,
        -2.95459980854025e-03,
        -1.60960333262415e-02,
    ):
        top = top * square + f32(c)
    bottom = f32(-1.45660718464996e-05)
    for c in (
        -2.13374055278905e-04,
        -1.68282697438203e-03,
        -7.37332916720468e-03,
        -1.42647390514189e-02,
    ):
        bottom = bottom * square + f32(c)
    return x * top / bottom
