"""Operators in int8 as tensor expressions: one TIR function each, scales as its parameters.

Tensors are NHWC, of the dtype that the dot product wants activations in; channels are padded to
whole vectors, and few ones (of images, say) to four. The zero point of padded channels does not
matter: what weighs them is zero. A function takes what it reads, then its constants, then what it
writes; scales are constants, so that operators of one shape are compiled once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import IRModule, te, tirx

from hwnas.backends.tvm.buffers import Buffer
from hwnas.backends.tvm.dots import Dot
from hwnas.backends.tvm.operators import _activate
from hwnas.errors import CompileError
from hwnas.int8.network import CLIPS, QuantisedOp, Scale
from hwnas.op import OpSpec, Shape

Tensor = Any  # tvm.te.Tensor; TVM has no types
Array = NDArray[Any]


_FEW = 4  # so few channels are padded to four: a group of a dot product
#: Where a function finds, in float32, the zero points of what it reads first and second and writes,
#: what multiplies the former two, and, of an activation that is computed, its result.
#: To the zero point of what is written ``_MAGIC`` is added.
_ZERO_IN, _ZERO_OTHER, _ZERO_OUT, _FACTOR, _OTHER, _LAST, _SIZE = 0, 1, 2, 3, 4, 5, 8

#: Floats near it are integers; as bits, it is a multiple of 256.
_MAGIC = 1.5 * 2.0**23
_MAGIC_BITS = 0x4B400000


def padded(channels: int, lanes: int) -> int:
    """Return the channels that a tensor has in memory."""
    return _FEW if channels <= _FEW else -(-channels // lanes) * lanes


def buffer(shape: Shape, batch: int, lanes: int, dot: Dot) -> Buffer:
    """Return how a tensor of activations lies in memory, NHWC."""
    c, h, w = shape
    return Buffer((batch, h, w, padded(c, lanes)), dot.activation)


def inputs(op: OpSpec, lanes: int, dot: Dot) -> list[Buffer]:
    """Return what an operator reads, without its constants."""
    op = flat(op)
    found = [buffer(op.in_shape, op.batch, lanes, dot)]
    if op.base == "mul":
        found.append(buffer((op.in_shape[0], 1, 1), op.batch, lanes, dot))
    elif op.base == "add" or "add" in op.fused:
        found.append(buffer(op.out_shape, op.batch, lanes, dot))
    return found


def output(op: OpSpec, lanes: int, dot: Dot) -> Buffer:
    """Return what an operator writes."""
    op = flat(op)
    return buffer(op.out_shape, op.batch, lanes, dot)


def constants(op: OpSpec, lanes: int, dot: Dot) -> list[Buffer]:
    """Return the weight, the bias and the scales that an operator reads, or the scales alone."""
    scales = Buffer((_SIZE,), "float32")
    if not op.weight_shape:
        return [scales]
    c_out = padded(op.out_shape[0], lanes)
    if _is_depthwise(op):
        weight = Buffer((op.kernel, op.kernel, c_out), "float32")
    else:
        rows, k = min(lanes, c_out), op.kernel
        groups = -(-op.in_shape[0] // dot.group)
        weight = Buffer((c_out // rows, k, k, groups, rows, dot.group), dot.weight)
    return [weight, Buffer((c_out,), "int32"), Buffer((c_out,), "float32"), scales]


def flat(op: OpSpec) -> OpSpec:
    """Return an operator to which rows and images make no difference as one on a single row."""
    if op.kernel > 1 or op.stride > 1 or op.depthwise or op.base not in ("conv2d", "linear"):
        return op
    c, h, w = op.in_shape
    row = (1, op.batch * h * w)
    return replace(op, in_shape=(c, *row), out_shape=(op.out_shape[0], *row), batch=1)


def define(op: OpSpec, lanes: int, dot: Dot) -> IRModule:
    """Return a module whose function ``main`` computes the operator.

    Raises:
        CompileError: there is no such operator.
    """
    makers: dict[str, Callable[[OpSpec, int, Dot], list[Tensor]]] = {
        "conv2d": _depthwise if _is_depthwise(op) else _dense,
        "linear": _dense,
        "add": _add,
        "mul": _mul,
        "mean": _mean,
        "max_pool2d": _max_pool,
    }
    if op.dtype != "int8" or op.base not in makers or (op.depthwise and not _is_depthwise(op)):
        raise CompileError(f"No TVM operator for {op}.")
    return _module(makers[op.base](flat(op), lanes, dot))


def define_images(shape: Shape, batch: int, lanes: int, dot: Dot) -> IRModule:
    """Return a module that rounds float32 images ``(N, H, W, C)``."""
    ((image,), _, rounded), c = edge("images", shape, batch, lanes, dot), shape[0]
    x, q = _placeholder(image, "x"), _scales()

    def value(n: Any, y: Any, i: Any, f: Any) -> Any:
        found = _stored(x[n, y, i, te.min(f, c - 1)] * q[_FACTOR] + q[_ZERO_OUT], dot)
        return found if rounded.shape[-1] == c else te.if_then_else(f < c, found, _zero(dot))

    return _module([x, q, te.compute(rounded.shape, value, name="out")])


def define_answers(shape: Shape, batch: int, lanes: int, dot: Dot) -> IRModule:
    """Return a module that gives the real values of what a network answers."""
    (read,), _, _ = edge("answers", shape, batch, lanes, dot)
    x, q = _placeholder(read, "x"), _scales()
    out = te.compute(x.shape, lambda *i: (_float(x(*i)) - q[_ZERO_IN]) * q[_FACTOR], name="out")
    return _module([x, q, out])


DEFINE = {"images": define_images, "answers": define_answers}  #: edges of a network


def edge(
    kind: str, shape: Shape, batch: int, lanes: int, dot: Dot
) -> tuple[list[Buffer], list[Buffer], Buffer]:
    """Return what an edge of a network reads, its constants, and what it writes."""
    (c, h, w), whole, scales = shape, buffer(shape, batch, lanes, dot), Buffer((_SIZE,), "float32")
    if kind == "images":
        return [Buffer((batch, h, w, c), "float32")], [scales], whole
    return [whole], [scales], Buffer(whole.shape, "float32")


def pack(op: QuantisedOp, sources: list[Scale], lanes: int, dot: Dot) -> list[Array]:
    """Return the constants of an operator, as ``constants`` lays them out.

    Args:
        op: With its weights, if it has any; what is fused into it is in its node.
        sources: The scales of what it reads.
        lanes: Lanes of a vector.
        dot: What the weights are multiplied by.
    """
    spec, scales = op.node.op, np.zeros(_SIZE, np.float32)
    first, shift = sources[0], _shift(dot)
    scales[_ZERO_IN] = first.zero_point + shift
    scales[_ZERO_OUT] = op.out.zero_point + shift + _MAGIC
    factor = 1.0 if _is_curved(spec) else 1 / op.out.scale
    if len(sources) > 1:
        scales[_ZERO_OTHER] = sources[1].zero_point + shift
        scales[_OTHER] = sources[1].scale * factor
    scales[_FACTOR], scales[_LAST] = first.scale * factor, 1 / op.out.scale
    if spec.base == "mul":
        scales[_FACTOR] *= sources[1].scale
    if spec.base == "mean":
        scales[_FACTOR] /= spec.in_shape[1] * spec.in_shape[2]
    if op.weights is None:
        return [scales]
    weight = op.weights.weight.astype(np.int32)
    # The zero point of what is read is the same for all weights of a channel.
    zero = (
        0
        if _is_depthwise(spec)
        else (first.zero_point + shift) * weight.reshape(len(weight), -1).sum(1)
    )
    layout, biases, factors, _ = constants(spec, lanes, dot)
    bias, multiplier = np.zeros(biases.shape, np.int32), np.zeros(factors.shape, np.float32)
    bias[: len(weight)] = op.weights.bias - zero
    multiplier[: len(weight)] = op.weights.scales * (first.scale * factor)
    return [_packed(spec, weight, layout, dot), bias, multiplier, scales]


def pack_images(scale: Scale, dot: Dot) -> Array:
    """Return the constants that images are rounded by."""
    return _edge({_FACTOR: 1 / scale.scale, _ZERO_OUT: scale.zero_point + _shift(dot) + _MAGIC})


def pack_answers(scale: Scale, dot: Dot) -> Array:
    """Return the constants by which answers become real values."""
    return _edge({_FACTOR: scale.scale, _ZERO_IN: scale.zero_point + _shift(dot)})


def _edge(values: Mapping[int, float]) -> Array:
    found = np.zeros(_SIZE, np.float32)
    for place, value in values.items():
        found[place] = value
    return found


def _packed(op: OpSpec, weight: NDArray[np.int32], layout: Buffer, dot: Dot) -> Array:
    found = np.zeros(layout.shape, layout.dtype)
    if _is_depthwise(op):
        found[:, :, : len(weight)] = weight[:, 0].transpose(1, 2, 0)
        return found
    n, k, _, groups, rows, group = layout.shape
    whole = np.zeros((n * rows, groups * group, k, k), layout.dtype)
    whole[: len(weight), : op.in_shape[0]] = weight.reshape(len(weight), -1, k, k)
    return np.ascontiguousarray(
        whole.reshape(n, rows, groups, group, k, k).transpose(0, 4, 5, 2, 1, 3)
    )


def _is_depthwise(op: OpSpec) -> bool:
    return op.base == "conv2d" and op.depthwise and op.groups == op.in_shape[0] == op.out_shape[0]


def _is_curved(op: OpSpec) -> bool:
    """Whether an activation is computed, not a limit of what is written."""
    return bool(op.activation) and op.activation not in CLIPS


def _shift(dot: Dot) -> int:
    """Return by how much activations in memory differ from int8."""
    return 128 if dot.activation == "uint8" else 0


def _module(arguments: list[Tensor]) -> IRModule:
    function = te.create_prim_func(arguments)
    return IRModule({"main": function.with_attr("global_symbol", "main")})


def _placeholder(found: Buffer, name: str) -> Tensor:
    return te.placeholder(found.shape, found.dtype, name)


def _scales() -> Tensor:
    return te.placeholder((_SIZE,), "float32", "q")


def _float(x: Any) -> Any:
    return x.astype("int32").astype("float32")


def _zero(dot: Dot) -> Any:
    return tirx.const(0, dot.activation)


def _stored(x: Any, dot: Dot) -> Any:
    """Return what is written of a real value to which ``_MAGIC`` was added.

    That rounded it to an integer, to even as onnxruntime does, which is in the lowest bits now.
    """
    low, high = (tirx.const(_MAGIC_BITS + v + _shift(dot), "int32") for v in (-128, 127))
    return te.max(te.min(tirx.reinterpret("int32", x), high), low).astype(dot.activation)


def _written(op: OpSpec, value: Any, q: Tensor, dot: Dot) -> Any:
    """Return what is written of a real value, or of one in units of what is written."""
    if _is_curved(op):
        value = _activate(op.activation, value) * q[_LAST]
    return _stored(value + q[_ZERO_OUT], dot)


def _pad(x: Tensor, op: OpSpec, value: Callable[[Any], Any], border: Any) -> Tensor:
    """Return what is computed of the input, with a border."""
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
    """What an operator with weights reads."""

    x: Tensor
    residual: list[Tensor]
    weight: Tensor
    bias: Tensor
    factor: Tensor
    q: Tensor

    @staticmethod
    def of(op: OpSpec, lanes: int, dot: Dot) -> "_Weighed":
        """Return placeholders of it."""
        x, *residual = (_placeholder(b, f"x{i}") for i, b in enumerate(inputs(op, lanes, dot)))
        fixed = (_placeholder(b, f"w{i}") for i, b in enumerate(constants(op, lanes, dot)))
        return _Weighed(x, residual, *fixed)

    def arguments(self, op: OpSpec, acc: Tensor, dot: Dot) -> list[Tensor]:
        """Return all that a function takes, given its sums: bias, sum and activation follow."""

        def value(n: Any, y: Any, i: Any, f: Any) -> Any:
            total = acc[n, y, i, f] + self.bias[f].astype(acc.dtype)
            total = total.astype("float32") * self.factor[f]
            for term in self.residual:
                other = _float(term[n, y, i, f]) - self.q[_ZERO_OTHER]
                total = total + other * self.q[_OTHER]
            return _written(op, total, self.q, dot)

        out = te.compute(acc.shape, value, name="out")
        return [self.x, *self.residual, self.weight, self.bias, self.factor, self.q, out]


def _dense(op: OpSpec, lanes: int, dot: Dot) -> list[Tensor]:
    read, s = _Weighed.of(op, lanes, dot), op.stride
    border = read.q[_ZERO_IN].astype("int32").astype(dot.activation)
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
    """Return a convolution of each channel alone, whose sums float32 holds exactly."""
    read, s = _Weighed.of(op, lanes, dot), op.stride
    x, weight, zero = read.x, read.weight, read.q[_ZERO_IN]

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
        first = (_float(x(*i)) - q[_ZERO_IN]) * q[_FACTOR]
        return _written(op, first + (_float(other(*i)) - q[_ZERO_OTHER]) * q[_OTHER], q, dot)

    return [x, other, q, te.compute(x.shape, value, name="out")]


def _mul(op: OpSpec, lanes: int, dot: Dot) -> list[Tensor]:
    (x, gate), q = (
        (_placeholder(b, f"x{i}") for i, b in enumerate(inputs(op, lanes, dot))),
        _scales(),
    )

    def value(n: Any, y: Any, i: Any, c: Any) -> Any:
        by = (_float(gate[n, 0, 0, c]) - q[_ZERO_OTHER]) * q[_FACTOR]
        return _written(op, (_float(x[n, y, i, c]) - q[_ZERO_IN]) * by, q, dot)

    return [x, gate, q, te.compute(x.shape, value, name="out")]


def _mean(op: OpSpec, lanes: int, dot: Dot) -> list[Tensor]:
    x, q, (_, h, w) = _placeholder(inputs(op, lanes, dot)[0], "x"), _scales(), op.in_shape
    ry, rx = te.reduce_axis((0, h), name="ry"), te.reduce_axis((0, w), name="rx")
    shape = output(op, lanes, dot).shape
    acc = te.compute(
        shape, lambda n, y, i, c: te.sum(x[n, ry, rx, c].astype("int32"), axis=[ry, rx]), name="acc"
    )

    def value(*i: Any) -> Any:
        total = acc(*i).astype("float32") - q[_ZERO_IN] * tirx.const(float(h * w), "float32")
        return _written(op, total * q[_FACTOR], q, dot)

    return [x, q, te.compute(shape, value, name="out")]


def _max_pool(op: OpSpec, lanes: int, dot: Dot) -> list[Tensor]:
    """Return the largest of each window, whose scale is that of what is read."""
    x, q, s = _placeholder(inputs(op, lanes, dot)[0], "x"), _scales(), op.stride
    lowest = tirx.const(-128 + _shift(dot), dot.activation)
    source = _pad(x, op, lambda v: v, lowest) if op.padding else x
    ry, rx = (te.reduce_axis((0, op.kernel), name=name) for name in ("ry", "rx"))
    acc = te.compute(
        output(op, lanes, dot).shape,
        lambda n, y, i, f: te.max(source[n, y * s + ry, i * s + rx, f], axis=[ry, rx]),
        name="acc",
    )
    return [x, q, te.compute(acc.shape, lambda *i: acc(*i), name="out")]
