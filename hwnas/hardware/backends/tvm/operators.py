"""Float32 operators as tensor expressions, with fused epilogues and packed weights."""

from collections.abc import Callable
from typing import Any

from tvm import IRModule, te

from hwnas.core.errors import CompileError
from hwnas.hardware.backends.tvm.layout import buffer_shape, weight_shapes
from hwnas.hardware.backends.tvm.scalars import activate, exp, f32
from hwnas.models.graph import ACTIVATIONS, OpSpec

Tensor = Any  # tvm.te.Tensor; TVM has no types
ATTENTION_ROWS = 4  #: rows of queries that attention computes at once
#: Operations that can be fused into an operator.
_EPILOGUES = {
    "conv2d": ("bn", "add", *ACTIVATIONS),
    "linear": ("bn", "add", *ACTIVATIONS),
    "add": ACTIVATIONS,
    "mul": ACTIVATIONS,
}


def define(op: OpSpec, lanes: int) -> IRModule:
    """Return a module whose function ``main`` computes the operator.

    Its parameters are the inputs, then weight and bias if there are any, then the output.

    Raises:
        CompileError: the operator is not supported.
    """
    if op.dtype != "float32":
        raise CompileError(f"TVM compiles float32 here, not {op}; try target.runtime=onnxruntime.")
    makers: dict[str, Callable[[OpSpec, int], list[Tensor]]] = {
        "conv2d": _depthwise if op.depthwise else _dense,
        "linear": _dense,
        "add": _add,
        "mul": _mul,
        "mean": _mean,
        "max_pool2d": _max_pool,
        "layernorm": _layernorm,
        "attention": _attention,
    }
    if op.base not in makers or (op.depthwise and op.base == "conv2d" and _is_grouped(op)):
        raise CompileError(f"No TVM operator for {op}.")
    takes = _EPILOGUES.get(op.base, ())
    if refused := [name for name in op.fused if name not in takes]:
        raise CompileError(f"{', '.join(refused)} cannot be fused into {op.base}: {op}.")
    function = te.create_prim_func(makers[op.base](op, lanes))
    return IRModule({"main": function.with_attr("global_symbol", "main")})


def _is_grouped(op: OpSpec) -> bool:
    return not op.groups == op.in_shape[0] == op.out_shape[0]


def _input(op: OpSpec, lanes: int, name: str = "x") -> Tensor:
    return te.placeholder(buffer_shape(op.in_shape, op.batch, lanes), name=name)


def _pad(x: Tensor, op: OpSpec, value: float = 0.0) -> Tensor:
    """Return the padded input, or the input itself without padding."""
    p, (_, h, w) = op.padding, op.in_shape
    if not p:
        return x
    shape = (x.shape[0], h + 2 * p, w + 2 * p, x.shape[3])
    return te.compute(
        shape,
        lambda n, y, i, c: te.if_then_else(
            te.all(y >= p, y < h + p, i >= p, i < w + p), x[n, y - p, i - p, c], f32(value)
        ),
        name="pad",
    )


def _epilogue(op: OpSpec, acc: Tensor, bias: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the residual input, if any, and the output: bias, sum and activation."""
    residual = [te.placeholder(acc.shape, name="residual")] if "add" in op.fused else []

    def value(n: Any, y: Any, x: Any, f: Any) -> Any:
        out = acc[n, y, x, f] + bias[f]
        for term in residual:
            out = out + term[n, y, x, f]
        return activate(op.activation, out)

    return residual, te.compute(acc.shape, value, name="out")


def _dense(op: OpSpec, lanes: int) -> list[Tensor]:
    x, s = _input(op, lanes), op.stride
    weights, biases = weight_shapes(op, lanes)
    weight, bias = te.placeholder(weights, name="weight"), te.placeholder(biases, name="bias")
    source, vector = _pad(x, op), weights[-1]
    ry, rx = (te.reduce_axis((0, op.kernel), name=name) for name in ("ry", "rx"))
    rc = te.reduce_axis((0, op.in_shape[0]), name="rc")
    acc = te.compute(
        buffer_shape(op.out_shape, op.batch, lanes),
        lambda n, y, i, f: te.sum(
            source[n, y * s + ry, i * s + rx, rc] * weight[f // vector, ry, rx, rc, f % vector],
            axis=[ry, rx, rc],
        ),
        name="acc",
    )
    residual, out = _epilogue(op, acc, bias)
    return [x, *residual, weight, bias, out]


def _depthwise(op: OpSpec, lanes: int) -> list[Tensor]:
    x, s = _input(op, lanes), op.stride
    weights, biases = weight_shapes(op, lanes)
    weight, bias = te.placeholder(weights, name="weight"), te.placeholder(biases, name="bias")
    source = _pad(x, op)
    ry, rx = (te.reduce_axis((0, op.kernel), name=name) for name in ("ry", "rx"))
    acc = te.compute(
        buffer_shape(op.out_shape, op.batch, lanes),
        lambda n, y, i, f: te.sum(
            source[n, y * s + ry, i * s + rx, f] * weight[ry, rx, f], axis=[ry, rx]
        ),
        name="acc",
    )
    residual, out = _epilogue(op, acc, bias)
    return [x, *residual, weight, bias, out]


def _add(op: OpSpec, lanes: int) -> list[Tensor]:
    x, other = _input(op, lanes), _input(op, lanes, "other")
    out = te.compute(x.shape, lambda *i: activate(op.activation, x(*i) + other(*i)), name="out")
    return [x, other, out]


def _mul(op: OpSpec, lanes: int) -> list[Tensor]:
    x = _input(op, lanes)
    gate = te.placeholder(buffer_shape((op.in_shape[0], 1, 1), op.batch, lanes), name="gate")
    out = te.compute(
        x.shape,
        lambda n, y, i, c: activate(op.activation, x[n, y, i, c] * gate[n, 0, 0, c]),
        name="out",
    )
    return [x, gate, out]


def _mean(op: OpSpec, lanes: int) -> list[Tensor]:
    x, (_, h, w) = _input(op, lanes), op.in_shape
    ry, rx = te.reduce_axis((0, h), name="ry"), te.reduce_axis((0, w), name="rx")
    shape = buffer_shape(op.out_shape, op.batch, lanes)
    acc = te.compute(shape, lambda n, y, i, c: te.sum(x[n, ry, rx, c], axis=[ry, rx]), name="acc")
    scale = f32(1.0 / (h * w))
    return [x, te.compute(shape, lambda *i: acc(*i) * scale, name="out")]


def _max_pool(op: OpSpec, lanes: int) -> list[Tensor]:
    x, s = _input(op, lanes), op.stride
    source = _pad(x, op, -3.4e38)
    ry, rx = (te.reduce_axis((0, op.kernel), name=name) for name in ("ry", "rx"))
    acc = te.compute(
        buffer_shape(op.out_shape, op.batch, lanes),
        lambda n, y, i, f: te.max(source[n, y * s + ry, i * s + rx, f], axis=[ry, rx]),
        name="acc",
    )
    return [x, te.compute(acc.shape, lambda *i: acc(*i), name="out")]


def _layernorm(op: OpSpec, lanes: int) -> list[Tensor]:
    x, c_in = _input(op, lanes), op.in_shape[0]
    (size,), _ = weight_shapes(op, lanes)
    scale, shift = te.placeholder((size,), name="weight"), te.placeholder((size,), name="bias")
    rows, vector = tuple(x.shape)[:3], min(size, lanes)
    partial, inverse = (*rows, vector), f32(1.0 / c_in)

    def sums(term: Callable[..., Any], name: str) -> Tensor:
        """Sum over channels, vector by vector, then within the last vector."""
        r = te.reduce_axis((0, size // vector), name="r")

        def part_of(n: Any, y: Any, i: Any, v: Any) -> Any:
            c = r * vector + v
            found = term(n, y, i, c)
            # Padded channels add nothing, even if an activation made them non-zero.
            return te.sum(
                found if size == c_in else te.if_then_else(c < c_in, found, f32(0.0)), axis=r
            )

        part = te.compute(partial, part_of, name=f"{name}_part")
        v = te.reduce_axis((0, vector), name="v")
        return te.compute(rows, lambda n, y, i: te.sum(part[n, y, i, v], axis=v), name=name)

    def centred(n: Any, y: Any, i: Any, c: Any) -> Any:
        return x[n, y, i, c] - total[n, y, i] * inverse

    total = sums(lambda *i: x(*i), "total")
    # In two passes: the mean of squares minus the square of the mean loses digits.
    squares = sums(lambda *i: centred(*i) * centred(*i), "squares")

    def value(n: Any, y: Any, i: Any, c: Any) -> Any:
        variance = squares[n, y, i] * inverse
        return centred(n, y, i, c) * te.rsqrt(variance + 1e-5) * scale[c] + shift[c]

    return [x, scale, shift, te.compute(x.shape, value, name="out")]


def _attention(op: OpSpec, lanes: int) -> list[Tensor]:
    """Softmax attention. Rows of queries are padded to whole tiles, columns to whole vectors."""
    x, heads = _input(op, lanes), op.groups
    c, h, w = op.out_shape
    t = h * w
    d, wide, high = c // heads, -(-t // lanes) * lanes, -(-t // ATTENTION_ROWS) * ATTENTION_ROWS
    scale, zero = f32(float(d) ** -0.5), f32(0.0)

    def token(n: Any, i: Any, channel: Any) -> Any:
        return x[n, i // w, i % w, channel]

    def reduced(term: Tensor, combine: Callable[..., Any], name: str) -> Tensor:
        """Reduce the rows of a tensor, vector by vector, then within the last vector."""
        r = te.reduce_axis((0, wide // lanes), name="r")
        part = te.compute(
            (op.batch, heads, high, lanes),
            lambda n, h, i, v: combine(term[n, h, i, r * lanes + v], axis=r),
            name=f"{name}_part",
        )
        v = te.reduce_axis((0, lanes), name="v")
        return te.compute(
            (op.batch, heads, high), lambda n, h, i: combine(part[n, h, i, v], axis=v), name=name
        )

    keys = te.compute(
        (op.batch, heads, d, wide),
        lambda n, h, e, j: token(n, te.min(j, t - 1), c + h * d + e),
        name="keys",
    )
    e = te.reduce_axis((0, d), name="e")
    scores = te.compute(
        (op.batch, heads, high, wide),
        lambda n, h, i, j: te.sum(token(n, te.min(i, t - 1), h * d + e) * keys[n, h, e, j], axis=e),
        name="scores",
    )
    peak = reduced(scores, te.max, "peak")  # padded columns repeat the last one
    weights = te.compute(
        scores.shape,
        lambda n, h, i, j: te.if_then_else(
            j < t, exp((scores[n, h, i, j] - peak[n, h, i]) * scale), zero
        ),
        name="weights",
    )
    total = reduced(weights, te.sum, "total")
    j = te.reduce_axis((0, t), name="j")
    acc = te.compute(
        (op.batch, heads, high, d),
        lambda n, h, i, e: te.sum(weights[n, h, i, j] * token(n, j, 2 * c + h * d + e), axis=j),
        name="acc",
    )
    mixed = te.compute(acc.shape, lambda n, h, i, e: acc[n, h, i, e] / total[n, h, i], name="mixed")
    shape = buffer_shape(op.out_shape, op.batch, lanes)

    def output(n: Any, y: Any, i: Any, f: Any) -> Any:
        if shape[-1] == c:
            return mixed[n, f // d, y * w + i, f % d]
        g = te.min(f, c - 1)
        return te.if_then_else(f < c, mixed[n, g // d, y * w + i, g % d], zero)

    return [x, te.compute(shape, output, name="out")]
