"""Conversion of ONNX nodes to operators.

Each function appends an operator to the network and returns its output.

Raises:
    CompileError: if ``OpSpec`` has no equal operator; the message names the ONNX node.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.models.graph import OpSpec, Shape
from hwnas.models.onnx import import_graph
from hwnas.models.onnx.import_graph import AttentionScores, ImportedTensor, OnnxNode, Positions
from hwnas.models.onnx.import_network import AFFINE, BATCH_NORM, ArrayPair, ImportedNetwork

_SCORES, _SOFTMAX = "scores", "softmax"  # parts of attention, no operators
_EPSILON = 1e-5  # of layer normalisation in all runtimes
_OPTIONS = {"is_causal": 0, "qk_matmul_output_mode": 0, "softcap": 0.0}


def attention(network: ImportedNetwork, node: OnnxNode) -> ImportedTensor:
    """Append an ``Attention`` node with inputs of three or four axes; return its output."""
    options = {name: node.attributes.get(name, value) for name, value in _OPTIONS.items()}
    if options != _OPTIONS or any(node.inputs[3:]):
        raise node.refused(
            f"has {options} and {len(node.inputs)} inputs; allowed: {_OPTIONS} and 3 inputs"
        )
    queries, keys, mixed = (network.value(node, i) for i in range(3))
    shape = queries.positions.shape
    heads = shape[1] if len(shape) == 4 else node.attributes.get("q_num_heads", 1)
    same = heads == node.attributes.get("kv_num_heads", heads)
    same = same and (len(shape) == 4 or not shape[-1] % heads)
    if not same or not shape == keys.positions.shape == mixed.positions.shape:
        raise node.refused("queries, keys and values have several shapes; allowed: one shape")
    if len(shape) == 4:  # heads are an axis
        split = [value.positions for value in (queries, keys, mixed)]
    else:
        split = [
            value.positions.reshape(*shape[:2], heads, -1).swapaxes(1, 2)
            for value in (queries, keys, mixed)
        ]
    scale = node.attributes.get("scale", split[0].shape[-1] ** -0.5)
    sources = {queries.source, keys.source}
    out = _append_attention(
        network, node, AttentionScores(sources, split[0], split[1], scale), mixed, split[2]
    )
    return (
        out
        if len(shape) == 4
        else replace(out, positions=out.positions.swapaxes(1, 2).reshape(shape))
    )


def product(network: ImportedNetwork, node: OnnxNode) -> ImportedTensor:
    """Append the product of queries and keys, or of their softmax and values; return it."""
    a, b = (network.values[name] for name in node.inputs)
    scores = _scores_of(network, a, _SOFTMAX)
    if scores is not None and a.curve is None:
        mixed = network.value(node, 1)
        if mixed.positions.shape[:-1] != a.positions.shape[:-1]:
            raise node.refused(
                f"values of shape {mixed.positions.shape} do not fit the product of queries and "
                f"keys, {a.positions.shape}; allowed: values of the shape of queries and keys"
            )
        positions = mixed.positions.reshape(*scores.queries.shape[:3], -1)
        out = _append_attention(network, node, scores, mixed, positions)
        return replace(out, positions=out.positions.reshape(mixed.positions.shape))
    lines = (import_graph.line(a.curve), import_graph.line(b.curve))
    scale = math.prod(line[0] if line and not line[1] else 0.0 for line in lines)
    (n, *_), shape = a.shape, a.positions.shape
    if not scale or len(shape) < 3 or b.positions.swapaxes(-1, -2).shape != shape or shape[0] % n:
        raise node.refused(
            f"is a product of {shape} and {b.positions.shape}. Allowed: a product with a constant "
            "weight, or of queries and keys of all heads as in attention"
        )
    queries, keys = (
        positions.reshape(n, -1, *shape[-2:])
        for positions in (a.positions, b.positions.swapaxes(-1, -2))
    )
    scores = AttentionScores({a.source, b.source}, queries, keys, scale)
    return _part(network, node, _SCORES, scores, shape[:-1])


def softmax(network: ImportedNetwork, node: OnnxNode) -> ImportedTensor:
    """Append the softmax of products of queries and keys; return its output."""
    x = network.values[node.inputs[0]]
    axis = node.attributes.get("axis", -1 if node.opset >= 13 else 1)
    scores, line = _scores_of(network, x, _SCORES), import_graph.line(x.curve)
    if scores is None or not line or line[1] or axis not in (-1, x.positions.ndim - 1):
        raise node.refused(
            "a softmax is only supported over the last axis of products of queries and keys, "
            "without a mask. Leave out a softmax after the classifier"
        )
    scaled = replace(scores, scale=scores.scale * line[0])
    return _part(network, node, _SOFTMAX, scaled, x.positions.shape[:-1])


def _part(
    network: ImportedNetwork,
    node: OnnxNode,
    kind: str,
    scores: AttentionScores,
    rows: tuple[int, ...],
) -> ImportedTensor:
    """Append a part of attention; it is removed once the attention is complete."""
    n, heads, tokens, _ = scores.queries.shape
    shape = (heads, tokens, tokens)
    name = network.append(node, OpSpec(kind, shape, shape), tuple(sorted(scores.sources)))
    network.scores[name] = scores
    out = import_graph.output_of(name, (n, *shape))
    return replace(out, positions=out.positions.reshape(*rows, tokens))


def _scores_of(
    network: ImportedNetwork, value: ImportedTensor, kind: str
) -> AttentionScores | None:
    """Return the scores of a value if it is such a part of attention, else ``None``."""
    tokens = value.shape[2:]
    if network.kinds[value.source] != kind or value.positions.shape[-2:] != tokens:
        return None
    return network.scores[value.source] if value.in_order else None


def _append_attention(
    network: ImportedNetwork,
    node: OnnxNode,
    scores: AttentionScores,
    mixed: ImportedTensor,
    positions: Positions,
) -> ImportedTensor:
    """Append attention; its output is ``(N, heads, tokens, d)``."""
    parts = (scores.queries, scores.keys, positions)
    ordered = all(import_graph.in_heads(mixed, i, part) for i, part in enumerate(parts))
    n, heads, tokens, d = positions.shape
    scaled = math.isclose(scores.scale, d**-0.5, rel_tol=1e-5)
    if scores.sources != {mixed.source} or not ordered or not scaled:
        raise node.refused(
            f"reads queries, keys and values {positions.shape} of "
            f"{', '.join(sorted(scores.sources))} and {mixed.source}, scaled by "
            f"{scores.scale:g}. Allowed: all three computed by one layer, in this order and head "
            "by head, scaled by d ** -0.5"
        )
    _, c, h, w = mixed.shape
    op = OpSpec("attention", mixed.image, (c // 3, h, w), groups=heads)
    name = network.append(node, op, (mixed.source,))
    moved = np.arange(positions.size).reshape(n, heads, d, tokens).swapaxes(2, 3)
    return ImportedTensor(name, (n, c // 3, h, w), moved)


def convolution(network: ImportedNetwork, node: OnnxNode) -> ImportedTensor:
    """Append a convolution; return its output."""
    x, weight = network.image(node), network.constant(node, 1)
    assert weight is not None  # guaranteed by ONNX's checker
    kernel = [int(k) for k in weight.shape[2:]]
    groups = int(node.attributes.get("group", 1))
    op = _window_operator(node, "conv2d", x.image, len(weight), kernel, groups)
    bias = _bias(network, node, 2, len(weight))
    name = network.append(node, op, (x.source,), (weight, bias))
    return import_graph.output_of(name, (x.shape[0], *op.out_shape))


def max_pool(network: ImportedNetwork, node: OnnxNode) -> ImportedTensor:
    """Append a maximum over windows; return its output."""
    x = network.image(node)
    op = _window_operator(node, "max_pool2d", x.image, x.shape[1], node.attributes["kernel_shape"])
    if node.attributes.get("ceil_mode", 0):
        size = math.ceil((x.shape[2] + 2 * op.padding - op.kernel) / op.stride) + 1
        wide = math.ceil((x.shape[3] + 2 * op.padding - op.kernel) / op.stride) + 1
        if op.out_shape[1:] != (size, wide):
            raise node.refused(
                "has ceil_mode=1, which adds windows that reach out of the image; allowed: 0"
            )
    return import_graph.output_of(
        network.append(node, op, (x.source,)), (x.shape[0], *op.out_shape)
    )


def _window_operator(
    node: OnnxNode, kind: str, shape: Shape, c_out: int, kernel: list[int], groups: int = 1
) -> OpSpec:
    """Return a convolution or pooling, if ``OpSpec`` can express it."""
    strides = list(node.attributes.get("strides", [1] * len(kernel)))
    dilations = list(node.attributes.get("dilations", [1] * len(kernel)))
    pads = _pads(node, shape, kernel, strides)
    op = OpSpec(kind, shape, shape, kernel[0], strides[0], groups)
    square = len(kernel) == 2 and kernel == [op.kernel] * 2 and strides == [op.stride] * 2
    size = [(n + 2 * op.padding - op.kernel) // op.stride + 1 for n in shape[1:]]
    if not square or dilations != [1, 1] or pads != [op.padding] * 4 or min(size) < 1:
        raise node.refused(
            f"has kernel {kernel}, strides {strides}, dilations {dilations} and pads {pads} on an "
            f"input of shape {shape}. Allowed: square windows without dilation; padding of half "
            "the kernel on all sides, or none where the stride equals the kernel"
        )
    return OpSpec(kind, shape, (c_out, size[0], size[1]), op.kernel, op.stride, groups)


def _pads(node: OnnxNode, shape: Shape, kernel: list[int], strides: list[int]) -> list[int]:
    """Return the padding before and after each axis in ONNX's order."""
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


def gemm(network: ImportedNetwork, node: OnnxNode) -> ImportedTensor:
    """Append a linear layer; return its output."""
    weight = network.constant(node, 1)
    assert weight is not None
    alpha, beta = (node.attributes.get(name, 1.0) for name in ("alpha", "beta"))
    if node.attributes.get("transA", 0):
        raise node.refused("has transA=1; allowed: 0")
    matrix = alpha * (weight if node.attributes.get("transB", 0) else weight.T)
    return _linear(network, node, matrix, beta * _bias(network, node, 2, len(matrix)))


def matmul(network: ImportedNetwork, node: OnnxNode) -> ImportedTensor:
    """Append a linear layer without a bias, or a part of attention; return its output."""
    if all(name in network.values for name in node.inputs):
        return product(network, node)
    weight = network.constant(node, 1)
    assert weight is not None
    if weight.ndim != 2:
        raise node.refused(f"has a weight of shape {weight.shape}; allowed: two axes")
    return _linear(network, node, weight.T, np.zeros(weight.shape[1]))


def _linear(
    network: ImportedNetwork, node: OnnxNode, weight: NDArray[Any], bias: NDArray[Any]
) -> ImportedTensor:
    c_out, c_in = weight.shape
    x = network.value(node)
    n, c, h, w = x.shape
    flat = x.in_order and x.positions.shape == (n, c * h * w)
    if flat and h == w > 1 and c_in == c * h * w:  # a flattened image: a kernel of its size
        op = OpSpec("conv2d", x.image, (c_out, 1, 1), h, h)
        name = network.append(node, op, (x.source,), (weight.reshape(c_out, c, h, w), bias))
        return ImportedTensor(name, (n, c_out, 1, 1), np.arange(n * c_out).reshape(n, c_out))
    x = network.rows(node)
    op = OpSpec("linear", x.image, (c_out, h, w))
    name = network.append(node, op, (x.source,), (weight, bias))
    return import_graph.of_pixels(name, x, c_out)


def layer_norm(network: ImportedNetwork, node: OnnxNode) -> ImportedTensor:
    """Append a layer normalisation over channels; return its output."""
    x = network.rows(node)
    axis = node.attributes.get("axis", -1)
    epsilon = node.attributes.get("epsilon", _EPSILON)
    if axis not in (-1, x.positions.ndim - 1) or not math.isclose(epsilon, _EPSILON, rel_tol=1e-5):
        raise node.refused(
            f"has axis={axis} and epsilon={epsilon:g}; allowed: the last axis and {_EPSILON:g}"
        )
    scale = network.constant(node, 1)
    assert scale is not None
    c = x.shape[1]
    weights = (np.broadcast_to(scale, (c,)), _bias(network, node, 2, c))
    return network.map(node, "layernorm", x, weights)


def batch_norm(network: ImportedNetwork, node: OnnxNode) -> ImportedTensor:
    """Append a batch norm as scale and shift of each channel; return its output."""
    x = network.value(node)
    if node.attributes.get("training_mode", 0):
        raise node.refused("has training_mode=1; allowed: 0. Export the model in eval mode")
    constants = [network.constant(node, i) for i in range(1, 5)]
    gamma, beta, mean, variance = (np.asarray(array, np.float64) for array in constants)
    scale = gamma / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    axes = (1, -1, *[1] * (x.positions.ndim - 2))
    weights = [x.per_channel(a.reshape(axes)) for a in (scale, beta - mean * scale)]
    if not x.whole or weights[0] is None or weights[1] is None:
        raise node.refused(f"reads a tensor {x.positions.shape} whose second axis is not channels")
    return network.map(node, BATCH_NORM, x, (weights[0], weights[1]))


def mean(network: ImportedNetwork, node: OnnxNode) -> ImportedTensor:
    """Append a mean over all pixels of each channel; return its output."""
    x, keep = network.value(node), True
    axes = tuple(range(2, x.positions.ndim))
    if node.kind == "ReduceMean":
        given = network.constant(node, 1) if len(node.inputs) > 1 else None
        listed = node.attributes.get("axes", []) if given is None else given.ravel()
        axes = tuple(int(axis) for axis in listed)
        keep = bool(node.attributes.get("keepdims", 1))
    elif node.kind == "AveragePool" and not _covers_all(node, x):
        axes = ()
    output = import_graph.mean_over("", x, axes, keep) if axes else None
    if output is None:
        raise node.refused(
            f"is a mean over a part of {x.image}. Allowed: over all pixels of each channel. If it "
            "is a part of layer normalisation, export with opset 17 or more"
        )
    op = OpSpec("mean", x.image, (x.shape[1], 1, 1))
    return output.read_from(network.append(node, op, (x.source,)))


def _covers_all(node: OnnxNode, x: ImportedTensor) -> bool:
    kernel = tuple(node.attributes["kernel_shape"])
    unpadded = not any(node.attributes.get("pads", ())) and (
        node.attributes.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    )
    dilated = any(d != 1 for d in node.attributes.get("dilations", ()))
    return kernel == x.positions.shape[2:] and unpadded and not dilated


def arithmetic(network: ImportedNetwork, node: OnnxNode) -> ImportedTensor:
    """Append a sum, a gate, or a scale or shift by a constant; return its output."""
    if any(name in network.constants for name in node.inputs):
        return _affine(network, node)
    a, b = network.value(node, 0), network.value(node, 1)
    if node.kind == "Add" and a.whole and a.same_positions(b):
        op = OpSpec("add", a.image, a.image)
        return a.read_from(network.append(node, op, network.in_order(a, b)))
    for x, gate in ((a, b), (b, a)):
        if node.kind == "Mul" and x.gated_by(gate):
            op = OpSpec("mul", x.image, x.image)
            return x.read_from(network.append(node, op, (x.source, gate.source)))
    raise node.refused(
        f"reads {a.positions.shape} of '{a.source}' and {b.positions.shape} of '{b.source}'. "
        "Allowed: the sum of two tensors of one shape and order, or a product with a gate "
        "(N, C, 1, 1)"
    )


def _affine(network: ImportedNetwork, node: OnnxNode) -> ImportedTensor:
    first = node.inputs[0] in network.values
    x = network.value(node, 0 if first else 1)
    constant = network.constant(node, 1 if first else 0)
    assert constant is not None
    vector = x.per_channel(constant) if x.whole else None
    if vector is None or (node.kind == "Div" and not first):
        raise node.refused(
            f"reads a tensor {x.positions.shape} and a constant {constant.shape}. Allowed: one "
            "number for each channel; not a number for each pixel or token, nor a division by a "
            "tensor"
        )
    ones, zeros = np.ones_like(vector), np.zeros_like(vector)
    weights: dict[str, ArrayPair] = {
        "Add": (ones, vector),
        "Sub": (ones, -vector) if first else (-ones, vector),
        "Mul": (vector, zeros),
    }
    return network.map(
        node, AFFINE, x, weights[node.kind] if node.kind != "Div" else (1 / vector, zeros)
    )


def _bias(network: ImportedNetwork, node: OnnxNode, index: int, size: int) -> NDArray[Any]:
    """Return the bias by channel; zeros if omitted."""
    bias = network.constant(node, index)
    if bias is None:
        return np.zeros(size)
    if bias.size not in (1, size) or bias.shape[-1:] not in ((), (1,), (size,)):
        raise node.refused(f"has a bias of shape {bias.shape}; allowed: ({size},)")
    return np.broadcast_to(bias.ravel(), (size,))


#: Conversions by ONNX operator type, except elementwise functions.
OPERATORS: dict[str, Callable[[ImportedNetwork, OnnxNode], ImportedTensor]] = {
    "Add": arithmetic,
    "Attention": attention,
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
    "Softmax": softmax,
    "Sub": arithmetic,
}
