"""Memory layout of activations and constants of int8 operators.

Tensors are NHWC, in the dtype of the dot product's activations; channels are padded to whole
vectors, up to four channels (of images) to four. The zero point of padded channels does not matter:
their weights are zero. Scales are constants, so that operators of one shape are compiled once.

Arguments are the same everywhere: ``lanes`` is the number of float32 values in a vector register,
``dot`` the CPU's instruction for dot products (``dots.Dot``).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.hardware.backends.tvm.dots import Dot
from hwnas.hardware.runtimes.interfaces import Buffer
from hwnas.models.graph import OpSpec, Shape
from hwnas.models.int8.quantised_network import CLIPS, QuantisedOp
from hwnas.models.int8.quantised_network import QuantisationScale as Scale

Array = NDArray[Any]

_FEW = 4  # so few channels are padded to four: a group of a dot product
#: Positions of a function's float32 constants: the zero points of its first and second input and of
#: its output, the factors of both inputs, and the factor of a computed activation's result.
#: ``MAGIC`` is added to the zero point of the output.
ZERO_IN, ZERO_OTHER, ZERO_OUT, FACTOR, OTHER, LAST, N_SCALES = 0, 1, 2, 3, 4, 5, 8

#: Floats near it are integers; its bit pattern is a multiple of 256.
MAGIC = 1.5 * 2.0**23
MAGIC_BITS = 0x4B400000


def padded(channels: int, lanes: int) -> int:
    """Return the number of channels in memory: 4 for up to four, else a multiple of ``lanes``."""
    return _FEW if channels <= _FEW else -(-channels // lanes) * lanes


def buffer(shape: Shape, batch: int, lanes: int, dot: Dot) -> Buffer:
    """Return the buffer of an activation tensor: NHWC, channels padded to ``lanes``."""
    c, h, w = shape
    return Buffer((batch, h, w, padded(c, lanes)), dot.activation)


def inputs(op: OpSpec, lanes: int, dot: Dot) -> list[Buffer]:
    """Return shape and dtype of an operator's one or two input activations, without constants."""
    op = flat(op)
    found = [buffer(op.in_shape, op.batch, lanes, dot)]
    if op.base == "mul":
        found.append(buffer((op.in_shape[0], 1, 1), op.batch, lanes, dot))
    elif op.base == "add" or "add" in op.fused:
        found.append(buffer(op.out_shape, op.batch, lanes, dot))
    return found


def output(op: OpSpec, lanes: int, dot: Dot) -> Buffer:
    """Return the output buffer of an operator."""
    op = flat(op)
    return buffer(op.out_shape, op.batch, lanes, dot)


def constants(op: OpSpec, lanes: int, dot: Dot) -> list[Buffer]:
    """Return the buffers of weight, bias, factors by channel, and scales, in this order.

    Only that of the scales, ``(N_SCALES,)``, if the operator has no weights.
    """
    scales = Buffer((N_SCALES,), "float32")
    if not op.weight_shape:
        return [scales]
    c_out = padded(op.out_shape[0], lanes)
    if is_depthwise(op):
        weight = Buffer((op.kernel, op.kernel, c_out), "float32")
    else:
        rows, k = min(lanes, c_out), op.kernel
        groups = -(-op.in_shape[0] // dot.group)
        weight = Buffer((c_out // rows, k, k, groups, rows, dot.group), dot.weight)
    return [weight, Buffer((c_out,), "int32"), Buffer((c_out,), "float32"), scales]


def flat(op: OpSpec) -> OpSpec:
    """Return a pointwise operator with all pixels of the batch in one row; others unchanged."""
    if op.kernel > 1 or op.stride > 1 or op.depthwise or op.base not in ("conv2d", "linear"):
        return op
    c, h, w = op.in_shape
    row = (1, op.batch * h * w)
    return replace(op, in_shape=(c, *row), out_shape=(op.out_shape[0], *row), batch=1)


def edge(
    kind: str, shape: Shape, batch: int, lanes: int, dot: Dot
) -> tuple[list[Buffer], list[Buffer], Buffer]:
    """Return the buffers of the conversion at the start or end of a network.

    ``kind`` is ``images`` (float32 images to int8) or ``answers`` (int8 outputs to float32); the
    buffers are those of the inputs, of the constants, and of the output.
    """
    (c, h, w), whole, scales = (
        shape,
        buffer(shape, batch, lanes, dot),
        Buffer((N_SCALES,), "float32"),
    )
    if kind == "images":
        return [Buffer((batch, h, w, c), "float32")], [scales], whole
    return [whole], [scales], Buffer(whole.shape, "float32")


def pack(op: QuantisedOp, sources: list[Scale], lanes: int, dot: Dot) -> list[Array]:
    """Return the constants of an operator in the layout of ``constants``.

    Args:
        op: The operator with its weights; ``op.node`` has the fused operations.
        sources: Scale and zero point of each of its inputs.
        lanes: Float32 values in a vector register.
        dot: Dot product instruction that reads the weights.
    """
    spec, scales = op.node.op, np.zeros(N_SCALES, np.float32)
    first, above = sources[0], shift(dot)
    scales[ZERO_IN] = first.zero_point + above
    scales[ZERO_OUT] = op.out.zero_point + above + MAGIC
    factor = 1.0 if is_curved(spec) else 1 / op.out.scale
    if len(sources) > 1:
        scales[ZERO_OTHER] = sources[1].zero_point + above
        scales[OTHER] = sources[1].scale * factor
    scales[FACTOR], scales[LAST] = first.scale * factor, 1 / op.out.scale
    if spec.base == "mul":
        scales[FACTOR] *= sources[1].scale
    if spec.base == "mean":
        scales[FACTOR] /= spec.in_shape[1] * spec.in_shape[2]
    if op.weights is None:
        return [scales]
    weight = op.weights.weight.astype(np.int32)
    # The input's zero point is the same for all weights of a channel.
    zero = (
        0
        if is_depthwise(spec)
        else (first.zero_point + above) * weight.reshape(len(weight), -1).sum(1)
    )
    layout, biases, factors, _ = constants(spec, lanes, dot)
    bias, multiplier = np.zeros(biases.shape, np.int32), np.zeros(factors.shape, np.float32)
    bias[: len(weight)] = op.weights.bias - zero
    multiplier[: len(weight)] = op.weights.scales * (first.scale * factor)
    return [_packed(spec, weight, layout, dot), bias, multiplier, scales]


def pack_images(scale: Scale, dot: Dot) -> Array:
    """Return the constants ``(N_SCALES,)`` of the conversion of images to int8."""
    return _edge({FACTOR: 1 / scale.scale, ZERO_OUT: scale.zero_point + shift(dot) + MAGIC})


def pack_answers(scale: Scale, dot: Dot) -> Array:
    """Return the constants ``(N_SCALES,)`` of the conversion of int8 outputs to float32."""
    return _edge({FACTOR: scale.scale, ZERO_IN: scale.zero_point + shift(dot)})


def _edge(values: Mapping[int, float]) -> Array:
    found = np.zeros(N_SCALES, np.float32)
    for place, value in values.items():
        found[place] = value
    return found


def _packed(op: OpSpec, weight: NDArray[np.int32], layout: Buffer, dot: Dot) -> Array:
    found = np.zeros(layout.shape, layout.dtype)
    if is_depthwise(op):
        found[:, :, : len(weight)] = weight[:, 0].transpose(1, 2, 0)
        return found
    n, k, _, groups, rows, group = layout.shape
    whole = np.zeros((n * rows, groups * group, k, k), layout.dtype)
    whole[: len(weight), : op.in_shape[0]] = weight.reshape(len(weight), -1, k, k)
    return np.ascontiguousarray(
        whole.reshape(n, rows, groups, group, k, k).transpose(0, 4, 5, 2, 1, 3)
    )


def is_depthwise(op: OpSpec) -> bool:
    """Return True for a depthwise convolution without a channel multiplier."""
    return op.base == "conv2d" and op.depthwise and op.groups == op.in_shape[0] == op.out_shape[0]


def is_curved(op: OpSpec) -> bool:
    """Return True if an activation is fused that is none of ``CLIPS``, which only clip the sum."""
    return bool(op.activation) and op.activation not in CLIPS


def shift(dot: Dot) -> int:
    """Return what is added to int8 activations in memory: 128 if they are unsigned, else 0."""
    return 128 if dot.activation == "uint8" else 0
