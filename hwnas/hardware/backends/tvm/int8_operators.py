"""Int8 operators as tensor expressions: one TIR function each, with scales as parameters.

The parameters are inputs, constants and output, in the layout of ``int8_layout``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import IRModule, te, tirx

from hwnas.core.errors import CompileError
from hwnas.hardware.backends.tvm.dots import Dot
from hwnas.hardware.backends.tvm.int8_layout import (
    FACTOR,
    LAST,
    MAGIC_BITS,
    N_SCALES,
    OTHER,
    ZERO_IN,
    ZERO_OTHER,
    ZERO_OUT,
    constants,
    edge,
    flat,
    inputs,
    is_curved,
    is_depthwise,
    output,
    shift,
)
from hwnas.hardware.backends.tvm.scalars import activate
from hwnas.hardware.runtimes.interfaces import Buffer
from hwnas.models.graph import OpSpec, Shape

Tensor = Any  # tvm.te.Tensor; TVM has no types


def define(op: OpSpec, lanes: int, dot: Dot) -> IRModule:
    """Return a module whose function ``main`` computes the operator.

    Raises:
        CompileError: the operator is not supported.
    """
    makers: dict[str, Callable[[OpSpec, int, Dot], list[Tensor]]] = {
        "conv2d": _depthwise if is_depthwise(op) else _dense,
        "linear": _dense,
        "add": _add,
        "mul": _mul,
        "mean": _mean,
        "max_pool2d": _max_pool,
    }
    if op.dtype != "int8" or op.base not in makers or (op.depthwise and not is_depthwise(op)):
        raise CompileError(f"No TVM operator for {op}.")
    return _module(makers[op.base](flat(op), lanes, dot))


def define_images(shape: Shape, batch: int, lanes: int, dot: Dot) -> IRModule:
    """Return a module whose function ``main`` quantises float32 images ``(N, H, W, C)``.

    Its output is int8, or uint8 (128 higher) if ``dot`` reads uint8, in ``int8_layout``.
    """
    ((image,), _, rounded), c = edge("images", shape, batch, lanes, dot), shape[0]
    x, q = _placeholder(image, "x"), _scales()

    def value(n: Any, y: Any, i: Any, f: Any) -> Any:
        found = _stored(x[n, y, i, te.min(f, c - 1)] * q[FACTOR] + q[ZERO_OUT], dot)
        return found if rounded.shape[-1] == c else te.if_then_else(f < c, found, _zero(dot))

    return _module([x, q, te.compute(rounded.shape, value, name="out")])


def define_answers(shape: Shape, batch: int, lanes: int, dot: Dot) -> IRModule:
    """Return a module whose function ``main`` converts a network's int8 outputs to float32."""
    (read,), _, _ = edge("answers", shape, batch, lanes, dot)
    x, q = _placeholder(read, "x"), _scales()
    out = te.compute(x.shape, lambda *i: (_float(x(*i)) - q[ZERO_IN]) * q[FACTOR], name="out")
    return _module([x, q, out])


#: Functions that define the conversions, by ``kernels.Edge.kind``.
DEFINE = {"images": define_images, "answers": define_answers}


def _module(arguments: list[Tensor]) -> IRModule:
    function = te.create_prim_func(arguments)
    return IRModule({"main": function.with_attr("global_symbol", "main")})


def _placeholder(found: Buffer, name: str) -> Tensor:
    return te.placeholder(found.shape, found.dtype, name)


def _scales() -> Tensor:
    return te.placeholder((N_SCALES,), "float32", "q")


def _float(x: Any) -> Any:
    return x.astype("int32").astype("float32")


def _zero(dot: Dot) -> Any:
    return tirx.const(0, dot.activation)


def _stored(x: Any, dot: Dot) -> Any:
    """Return the stored integer of a real value to which ``MAGIC`` was added.

    The addition rounded it to an integer, to even as onnxruntime does, in the lowest bits.
    """
    low, high = (tirx.const(MAGIC_BITS + v + shift(dot), "int32") for v in (-128, 127))
    return te.max(te.min(tirx.reinterpret("int32", x), high), low).astype(dot.activation)


def _written(op: OpSpec, value: Any, q: Tensor, dot: Dot) -> Any:
    """Return the stored output of a real value, or of one in units of the output."""
    if is_curved(op):
        value = activate(op.activation, value) * q[LAST]
    return _stored(value + q[ZERO_OUT], dot)


def _pad(x: Tensor, op: OpSpec, value: Callable[[Any], Any], border: Any) -> Tensor:
    """Return a function of the input, with padding."""
    p, (_, h, w) = op.padding, op.in_shape
    return te.compute(
        (x.shape[0], h + 2 * p, w + 2 * p, x.shape[3]),
        lambda n, y, i, c: te.if_then_else(
            te.all(y >= p, y < h + p, i >= p, i < w + p), value(x[n, y - p, i - p, c]), border
        ),
        name="pad",
    )


@dataclass(frozen=True)
class _Weighed:
    """Inputs and constants of an operator with weights."""

    x: Tensor
    residual: list[Tensor]
    weight: Tensor
    bias: Tensor
    factor: Tensor
    q: Tensor

    @staticmethod
    def of(op: OpSpec, lanes: int, dot: Dot) -> "_Weighed":
        """Return its placeholders."""
        x, *residual = (_placeholder(b, f"x{i}") for i, b in enumerate(inputs(op, lanes, dot)))
        fixed = (_placeholder(b, f"w{i}") for i, b in enumerate(constants(op, lanes, dot)))
        return _Weighed(x, residual, *fixed)

    def arguments(self, op: OpSpec, acc: Tensor, dot: Dot) -> list[Tensor]:
        """Return all arguments of a function from its sums: bias, add and activation follow."""

        def value(n: Any, y: Any, i: Any, f: Any) -> Any:
            total = acc[n, y, i, f] + self.bias[f].astype(acc.dtype)
            total = total.astype("float32") * self.factor[f]
            for term in self.residual:
                other = _float(term[n, y, i, f]) - self.q[ZERO_OTHER]
                total = total + other * self.q[OTHER]
            return _written(op, total, self.q, dot)

        out = te.compute(acc.shape, value, name="out")
        return [self.x, *self.residual, self.weight, self.bias, self.factor, self.q, out]


def _dense(op: OpSpec, lanes: int, dot: Dot) -> list[Tensor]:
    read, s = _Weighed.of(op, lanes, dot), op.stride
    border = read.q[ZERO_IN].astype("int32").astype(dot.activation)
    source = _pad(read.x, op, lambda v: v, border) if op.padding else read.x
    weight, (_, _, _, groups, rows, group) = read.weight, constants(op, lanes, dot)[0].shape
    ry, rx = (te.reduce_axis((0, op.kernel), name=name) for name in ("ry", "rx"))
    rc = te.reduce_axis((0, groups * group), name="rc")
    acc = te.compute(
        output(op, lanes, dot).shape,
        lambda n, y, i, f: te.sum(
            source[n, y * s + ry, i * s + rx, rc].astype("int32")
            * weight[f // rows, ry, rx, rc // group, f % rows, rc % group].astype("int32"),
            axis=[ry, rx, rc],
        ),
        name="acc",
    )
    return read.arguments(op, acc, dot)


def _depthwise(op: OpSpec, lanes: int, dot: Dot) -> list[Tensor]:
    """Return a depthwise convolution, whose sums are exact in float32."""
    read, s = _Weighed.of(op, lanes, dot), op.stride
    x, weight, zero = read.x, read.weight, read.q[ZERO_IN]

    def real(value: Any) -> Any:
        return _float(value) - zero

    bordered = _pad(x, op, real, tirx.const(0.0, "float32")) if op.padding else None
    ry, rx = (te.reduce_axis((0, op.kernel), name=name) for name in ("ry", "rx"))

    def term(n: Any, y: Any, i: Any, f: Any) -> Any:
        place = (n, y * s + ry, i * s + rx, f)
        value = real(x(*place)) if bordered is None else bordered(*place)
        return te.sum(value * weight[ry, rx, f], axis=[ry, rx])

    acc = te.compute(output(op, lanes, dot).shape, term, name="acc")
    return read.arguments(op, acc, dot)


def _add(op: OpSpec, lanes: int, dot: Dot) -> list[Tensor]:
    (x, other), q = (
        (_placeholder(b, f"x{i}") for i, b in enumerate(inputs(op, lanes, dot))),
        _scales(),
    )

    def value(*i: Any) -> Any:
        first = (_float(x(*i)) - q[ZERO_IN]) * q[FACTOR]
        return _written(op, first + (_float(other(*i)) - q[ZERO_OTHER]) * q[OTHER], q, dot)

    return [x, other, q, te.compute(x.shape, value, name="out")]


def _mul(op: OpSpec, lanes: int, dot: Dot) -> list[Tensor]:
    (x, gate), q = (
        (_placeholder(b, f"x{i}") for i, b in enumerate(inputs(op, lanes, dot))),
        _scales(),
    )

    def value(n: Any, y: Any, i: Any, c: Any) -> Any:
        by = (_float(gate[n, 0, 0, c]) - q[ZERO_OTHER]) * q[FACTOR]
        return _written(op, (_float(x[n, y, i, c]) - q[ZERO_IN]) * by, q, dot)

    return [x, gate, q, te.compute(x.shape, value, name="out")]


def _mean(op: OpSpec, lanes: int, dot: Dot) -> list[Tensor]:
    x, q, (_, h, w) = _placeholder(inputs(op, lanes, dot)[0], "x"), _scales(), op.in_shape
    ry, rx = te.reduce_axis((0, h), name="ry"), te.reduce_axis((0, w), name="rx")
    shape = output(op, lanes, dot).shape
    acc = te.compute(
        shape, lambda n, y, i, c: te.sum(x[n, ry, rx, c].astype("int32"), axis=[ry, rx]), name="acc"
    )

    def value(*i: Any) -> Any:
        total = acc(*i).astype("float32") - q[ZERO_IN] * tirx.const(float(h * w), "float32")
        return _written(op, total * q[FACTOR], q, dot)

    return [x, q, te.compute(shape, value, name="out")]


def _max_pool(op: OpSpec, lanes: int, dot: Dot) -> list[Tensor]:
    """Return the maximum of each window, in the scale of the input."""
    x, q, s = _placeholder(inputs(op, lanes, dot)[0], "x"), _scales(), op.stride
    lowest = tirx.const(-128 + shift(dot), dot.activation)
    source = _pad(x, op, lambda v: v, lowest) if op.padding else x
    ry, rx = (te.reduce_axis((0, op.kernel), name=name) for name in ("ry", "rx"))
    acc = te.compute(
        output(op, lanes, dot).shape,
        lambda n, y, i, f: te.max(source[n, y * s + ry, i * s + rx, f], axis=[ry, rx]),
        name="acc",
    )
    return [x, q, te.compute(acc.shape, lambda *i: acc(*i), name="out")]
