"""Reference results of operators and networks by torch, in double precision."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hwnas.hardware.backends.onnx_files import random_weights
from hwnas.models.graph import INPUT, Graph, Node, OpSpec, Shape
from hwnas.models.int8.quantised_network import Weights

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x,
    "relu": F.relu,
    "relu6": F.relu6,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
}


def operator(op: OpSpec, inputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> Tensor:
    """Return the output ``(N, C, H, W)`` of an operator, given its weight and bias if any."""
    x = inputs[0]
    weight, bias = parameters or (x, x)  # not read if there are none
    match op.base:
        case "conv2d":
            out = F.conv2d(x, weight, bias, op.stride, op.padding, groups=op.groups)
        case "linear":
            out = F.linear(x.movedim(1, -1), weight, bias).movedim(-1, 1)
        case "add":
            out = x + inputs[1]
        case "mul":
            out = x * inputs[1]
        case "mean":
            out = x.mean((2, 3), keepdim=True)
        case "max_pool2d":
            out = F.max_pool2d(x, op.kernel, op.stride, op.padding)
        case "layernorm":
            out = F.layer_norm(x.movedim(1, -1), x.shape[1:2], weight, bias).movedim(-1, 1)
        case "attention":
            rows = x.reshape(len(x), 3, op.groups, -1, x.shape[2] * x.shape[3])
            queries, keys, values = rows.transpose(-1, -2).unbind(1)
            out = F.scaled_dot_product_attention(queries, keys, values)
            out = out.transpose(-1, -2).reshape(-1, *op.out_shape)
    if "add" in op.fused:
        out = out + inputs[1]
    return _ACTIVATIONS[op.activation](out)


def network(lowered: Graph, weights: Weights, images: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the outputs ``(N, C, H, W)`` of a network."""
    values = {INPUT: torch.from_numpy(images).double()}
    for node in lowered:
        inputs = [values[name] for name in node.inputs]
        parameters = [torch.from_numpy(array).double() for array in weights.get(node.name, ())]
        values[node.name] = operator(node.op, inputs, parameters)
    outputs: NDArray[np.float64] = values[lowered[-1].name].numpy()
    return outputs


def shapes(op: OpSpec) -> list[Shape]:
    """Return the input shapes of an operator."""
    results = [op.in_shape]
    if op.base == "mul":
        results.append((op.in_shape[0], 1, 1))
    elif op.base == "add" or "add" in op.fused:
        results.append(op.out_shape)
    return results


def example(op: OpSpec) -> tuple[list[Tensor], list[Tensor]]:
    """Return random inputs of an operator, and its weight and bias if it has any."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(op.batch, *shape, generator=generator) for shape in shapes(op)]
    weights = random_weights(Graph.of((Node("operator", op, ()),)), seed=0).get("operator", ())
    return inputs, [torch.from_numpy(array) for array in weights]


def relative_error(found: NDArray[np.float32], expected: NDArray[np.float64]) -> float:
    """Return the largest error relative to the largest value; NaN stays NaN."""
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-6))
