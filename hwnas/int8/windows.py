"""Windows without the weights that only ever read the border around an image.

Of the nine weights of a 3x3 convolution that reads a single pixel eight are multiplied by zero.
Compilers store and compute them all the same; without them the result is the same, bit for bit.
"""

from dataclasses import replace

from hwnas.int8.network import QuantisedOp
from hwnas.op import OpSpec, padding


def trimmed(quantised: QuantisedOp) -> QuantisedOp:
    """Return an operator that computes the same by the smallest window that does."""
    op, weights = quantised.node.op, quantised.weights
    if op.base != "conv2d" or weights is None:
        return quantised
    kernel, stride = _least(op)
    if kernel == op.kernel:
        return quantised
    first = op.padding - padding(kernel, stride)
    kept = slice(first, first + kernel)
    return replace(
        quantised,
        node=replace(quantised.node, op=replace(op, kernel=kernel, stride=stride)),
        weights=replace(weights, weight=weights.weight[:, :, kept, kept]),
    )


def _least(op: OpSpec) -> tuple[int, int]:
    """Return kernel and stride of the smallest window, which is square as all are."""
    (_, height, width), side = op.in_shape, max(op.in_shape[1:])
    if not op.padding or op.kernel % 2 == 0:
        return op.kernel, op.stride
    if side == 1:
        return 1, 1
    if op.stride == 1:
        return min(op.kernel, 2 * side - 1), 1
    if height == width == op.stride == 2:
        return 2, 2  # there is but one window, which begins at the first pixel
    return op.kernel, op.stride
