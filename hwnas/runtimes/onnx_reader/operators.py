"""ONNX nodes as operators; each function appends one node to the network and returns its output."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.op import OpSpec, Shape
from hwnas.runtimes.onnx_reader import attention, values
from hwnas.runtimes.onnx_reader.folding import AFFINE, BATCH_NORM, Parameters
from hwnas.runtimes.onnx_reader.graph import OnnxNode
from hwnas.runtimes.onnx_reader.network import Network
from hwnas.runtimes.onnx_reader.values import Value

_EPSILON = 1e-5  # of layer normalisation in every runtime


def convolution(network: Network, node: OnnxNode) -> Value:
    """Append a convolution."""
    x, weight = network.image(node), network.constant(node, 1)
    assert weight is not None  # ONNX's checker has seen it
    kernel = [int(k) for k in weight.shape[2:]]
    groups = int(node.attributes.get("group", 1))
    op = _windowed(node, "conv2d", x.image, len(weight), kernel, groups)
    bias = _bias(network, node, 2, len(weight))
    name = network.append(node, op, (x.source,), (weight, bias))
    return values.computed(name, (x.shape[0], *op.out_shape))


def max_pool(network: Network, node: OnnxNode) -> Value:
    """Append a maximum over windows."""
    x = network.image(node)
    op = _windowed(node, "max_pool2d", x.image, x.shape[1], node.attributes["kernel_shape"])
    if node.attributes.get("ceil_mode", 0):
        size = math.ceil((x.shape[2] + 2 * op.padding - op.kernel) / op.stride) + 1
        wide = math.ceil((x.shape[3] + 2 * op.padding - op.kernel) / op.stride) + 1
        if op.out_shape[1:] != (size, wide):
            raise node.refused("ceil_mode=1 adds windows that reach out of the image")
    return values.computed(network.append(node, op, (x.source,)), (x.shape[0], *op.out_shape))


def _windowed(
    node: OnnxNode, kind: str, shape: Shape, c_out: int, kernel: list[int], groups: int = 1
) -> OpSpec:
    """Return an operator that works on windows, if ``OpSpec`` can say it."""
    strides = list(node.attributes.get("strides", [1] * len(kernel)))
    dilations = list(node.attributes.get("dilations", [1] * len(kernel)))
    pads = _pads(node, shape, kernel, strides)
    op = OpSpec(kind, shape, shape, kernel[0], strides[0], groups)
    square = len(kernel) == 2 and kernel == [op.kernel] * 2 and strides == [op.stride] * 2
    size = [(n + 2 * op.padding - op.kernel) // op.stride + 1 for n in shape[1:]]
    if not square or dilations != [1, 1] or pads != [op.padding] * 4 or min(size) < 1:
        raise node.refused(
            f"kernel {kernel}, strides {strides}, dilations {dilations}, pads {pads} of "
            f"{shape}. Allowed: square windows, not dilated, and zeros on all sides, half the "
            "kernel wide, or none where the stride is the kernel"
        )
    return OpSpec(kind, shape, (c_out, size[0], size[1]), op.kernel, op.stride, groups)


def _pads(node: OnnxNode, shape: Shape, kernel: list[int], strides: list[int]) -> list[int]:
    """Return the zeros before and after each axis, as ONNX has them."""
    auto = node.attributes.get("auto_pad", "NOTSET")
    if auto == "NOTSET":
        return list(node.attributes.get("pads", [0] * 2 * len(kernel)))
    if auto == "VALID":
        return [0] * 2 * len(kernel)
    total = [
        max(0, (-(-n // s) - 1) * s + k - n)
        for n, k, s in zip(shape[1:], kernel, strides, strict=True)
    ]
    fewer, more = [n // 2 for n in total], [n - n // 2 for n in total]
    return fewer + more if auto == "SAME_UPPER" else more + fewer


def gemm(network: Network, node: OnnxNode) -> Value:
    """Append a linear layer, of a vector or of each row."""
    weight = network.constant(node, 1)
    assert weight is not None
    alpha, beta = (node.attributes.get(name, 1.0) for name in ("alpha", "beta"))
    if node.attributes.get("transA", 0):
        raise node.refused("transA=1; allowed: 0")
    matrix = alpha * (weight if node.attributes.get("transB", 0) else weight.T)
    return _linear(network, node, matrix, beta * _bias(network, node, 2, len(matrix)))


def matmul(network: Network, node: OnnxNode) -> Value:
    """Append a linear layer without a bias, or a part of attention."""
    if all(name in network.values for name in node.inputs):
        return attention.product(network, node)
    weight = network.constant(node, 1)
    assert weight is not None
    if weight.ndim != 2:
        raise node.refused(f"a weight of shape {weight.shape}; allowed: two axes")
    return _linear(network, node, weight.T, np.zeros(weight.shape[1]))


def _linear(network: Network, node: OnnxNode, weight: NDArray[Any], bias: NDArray[Any]) -> Value:
    c_out, c_in = weight.shape
    x = network.value(node)
    n, c, h, w = x.shape
    flat = x.in_order and x.places.shape == (n, c * h * w)
    if flat and h == w > 1 and c_in == c * h * w:  # a flattened image: a window over all of it
        op = OpSpec("conv2d", x.image, (c_out, 1, 1), h, h)
        name = network.append(node, op, (x.source,), (weight.reshape(c_out, c, h, w), bias))
        return Value(name, (n, c_out, 1, 1), np.arange(n * c_out).reshape(n, c_out))
    x = network.rows(node)
    op = OpSpec("linear", x.image, (c_out, h, w))
    name = network.append(node, op, (x.source,), (weight, bias))
    return values.of_pixels(name, x, c_out)


def layer_norm(network: Network, node: OnnxNode) -> Value:
    """Append a layer normalisation over channels."""
    x = network.rows(node)
    axis = node.attributes.get("axis", -1)
    epsilon = node.attributes.get("epsilon", _EPSILON)
    if axis not in (-1, x.places.ndim - 1) or not math.isclose(epsilon, _EPSILON, rel_tol=1e-5):
        raise node.refused(f"axis={axis}, epsilon={epsilon:g}; allowed: the last, {_EPSILON:g}")
    scale = network.constant(node, 1)
    assert scale is not None
    c = x.shape[1]
    weights = (np.broadcast_to(scale, (c,)), _bias(network, node, 2, c))
    return network.map(node, "layernorm", x, weights)


def batch_norm(network: Network, node: OnnxNode) -> Value:
    """Append a batch normalisation by known statistics."""
    x = network.value(node)
    if node.attributes.get("training_mode", 0):
        raise node.refused("training_mode=1; allowed: 0 (export the model in eval mode)")
    found = [network.constant(node, i) for i in range(1, 5)]
    gamma, beta, mean, variance = (np.asarray(array, np.float64) for array in found)
    scale = gamma / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    axes = (1, -1, *[1] * (x.places.ndim - 2))
    weights = [x.per_channel(a.reshape(axes)) for a in (scale, beta - mean * scale)]
    if not x.whole or weights[0] is None or weights[1] is None:
        raise node.refused(f"reads a tensor {x.places.shape} whose second axis is not channels")
    return network.map(node, BATCH_NORM, x, (weights[0], weights[1]))


def mean(network: Network, node: OnnxNode) -> Value:
    """Append a mean over all pixels."""
    x, keep = network.value(node), True
    axes = tuple(range(2, x.places.ndim))
    if node.kind == "ReduceMean":
        given = network.constant(node, 1) if len(node.inputs) > 1 else None
        listed = node.attributes.get("axes", []) if given is None else given.ravel()
        axes = tuple(int(axis) for axis in listed)
        keep = bool(node.attributes.get("keepdims", 1))
    elif node.kind == "AveragePool" and not _covers_all(node, x):
        axes = ()
    found = values.pooled("", x, axes, keep) if axes else None
    if found is None:
        raise node.refused(
            f"a mean of part of {x.image}. Allowed: over all pixels of each channel (a "
            "LayerNormalization of its own needs opset 17 or more)"
        )
    op = OpSpec("mean", x.image, (x.shape[1], 1, 1))
    return found.read_from(network.append(node, op, (x.source,)))


def _covers_all(node: OnnxNode, x: Value) -> bool:
    kernel = tuple(node.attributes["kernel_shape"])
    unpadded = not any(node.attributes.get("pads", ())) and (
        node.attributes.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    )
    dilated = any(d != 1 for d in node.attributes.get("dilations", ()))
    return kernel == x.places.shape[2:] and unpadded and not dilated


def arithmetic(network: Network, node: OnnxNode) -> Value:
    """Append a sum, a gate, or a scale or shift by a constant."""
    if any(name in network.constants for name in node.inputs):
        return _affine(network, node)
    a, b = network.value(node, 0), network.value(node, 1)
    if node.kind == "Add" and a.whole and a.same_places(b):
        op = OpSpec("add", a.image, a.image)
        return a.read_from(network.append(node, op, network.in_order(a, b)))
    for x, gate in ((a, b), (b, a)):
        if node.kind == "Mul" and x.gated_by(gate):
            op = OpSpec("mul", x.image, x.image)
            return x.read_from(network.append(node, op, (x.source, gate.source)))
    raise node.refused(
        f"of {a.places.shape} and {b.places.shape} of '{a.source}' and '{b.source}'. Allowed: the "
        "sum of two tensors of one shape and order, or a product with a gate (N, C, 1, 1)"
    )


def _affine(network: Network, node: OnnxNode) -> Value:
    first = node.inputs[0] in network.values
    x = network.value(node, 0 if first else 1)
    constant = network.constant(node, 1 if first else 0)
    assert constant is not None
    vector = x.per_channel(constant) if x.whole else None
    if vector is None or (node.kind == "Div" and not first):
        raise node.refused(
            f"of {x.places.shape} and a constant {constant.shape}. Allowed: one number for each "
            "channel; not a number for each pixel or token, nor a division by a tensor"
        )
    one, zero = np.ones_like(vector), np.zeros_like(vector)
    weights: dict[str, Parameters] = {
        "Add": (one, vector),
        "Sub": (one, -vector) if first else (-one, vector),
        "Mul": (vector, zero),
    }
    return network.map(
        node, AFFINE, x, weights[node.kind] if node.kind != "Div" else (1 / vector, zero)
    )


def _bias(network: Network, node: OnnxNode, index: int, size: int) -> NDArray[Any]:
    """Return a constant of one number for each channel, zeros where it is left out."""
    found = network.constant(node, index)
    if found is None:
        return np.zeros(size)
    if found.size not in (1, size) or found.shape[-1:] not in ((), (1,), (size,)):
        raise node.refused(f"a bias of shape {found.shape}; allowed: ({size},)")
    return np.broadcast_to(found.ravel(), (size,))


#: What each kind of ONNX node is, where it is more than a function of single elements.
OPERATORS: dict[str, Callable[[Network, OnnxNode], Value]] = {
    "Add": arithmetic,
    "Attention": attention.attention,
    "AveragePool": mean,
    "BatchNormalization": batch_norm,
    "Conv": convolution,
    "Div": arithmetic,
    "Gemm": gemm,
    "GlobalAveragePool": mean,
    "LayerNormalization": layer_norm,
    "MatMul": matmul,
    "MaxPool": max_pool,
    "Mul": arithmetic,
    "ReduceMean": mean,
    "Softmax": attention.softmax,
    "Sub": arithmetic,
}
