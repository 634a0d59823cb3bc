"""Memory layout of tensors and weights of float32 operators.

Tensors are NHWC. Channels are padded to whole vectors, so that odd widths run at full speed; the
padded channels of weights and biases are zero. ``lanes`` is the number of float32 values in a
vector register. Convolutions and linear layers read weights packed
as ``(O / lanes, K, K, I, lanes)``, depthwise ones as ``(K, K, C)``.
"""

import numpy as np
from numpy.typing import NDArray

from hwnas.models.graph import OpSpec, Shape

_FEW = 4  #: at most so many channels (of images) are not padded


def padded(channels: int, lanes: int) -> int:
    """Return the number of channels in memory: a multiple of ``lanes``; up to four unchanged."""
    return channels if channels <= _FEW else -(-channels // lanes) * lanes


def buffer_shape(shape: Shape, batch: int, lanes: int) -> tuple[int, ...]:
    """Return the shape of a tensor in memory, NHWC."""
    c, h, w = shape
    return (batch, h, w, padded(c, lanes))


def weight_shapes(op: OpSpec, lanes: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the packed weight and bias; empty if there are none."""
    c_out = padded(op.out_shape[0], lanes)
    if op.base == "layernorm":
        return ((c_out,), (c_out,))
    if not op.weight_shape:
        return ()
    if op.base == "conv2d" and op.depthwise:
        return ((op.kernel, op.kernel, c_out), (c_out,))
    vector = min(c_out, lanes)
    return ((c_out // vector, op.kernel, op.kernel, op.in_shape[0], vector), (c_out,))


def input_shapes(op: OpSpec, lanes: int) -> list[tuple[int, ...]]:
    """Return the shapes of an operator's input tensors, without its weights."""
    shapes = [buffer_shape(op.in_shape, op.batch, lanes)]
    if op.base == "mul":
        shapes.append(buffer_shape((op.in_shape[0], 1, 1), op.batch, lanes))
    elif op.base == "add" or "add" in op.fused:
        shapes.append(buffer_shape(op.out_shape, op.batch, lanes))
    return shapes


def pack(
    op: OpSpec, weight: NDArray[np.float32], bias: NDArray[np.float32], lanes: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return packed weight and bias, in the shapes of ``weight_shapes``.

    ``weight`` and ``bias`` are in torch's layout.
    """
    packed_shape, (c_out,) = weight_shapes(op, lanes)
    if op.base == "layernorm":
        full = np.zeros(c_out, np.float32)
        full[: len(weight)] = weight
        packed = full
    elif op.base == "conv2d" and op.depthwise:
        packed = np.zeros(packed_shape, np.float32)
        packed[:, :, : len(weight)] = weight[:, 0].transpose(1, 2, 0)
    else:
        n, k, _, c_in, vector = packed_shape
        rows = np.zeros((n * vector, c_in, k, k), np.float32)
        rows[: len(weight)] = weight.reshape(len(weight), c_in, k, k)
        packed = rows.reshape(n, vector, c_in, k, k).transpose(0, 3, 4, 2, 1)
    biases = np.zeros(c_out, np.float32)
    biases[: len(bias)] = bias
    return np.ascontiguousarray(packed), biases
