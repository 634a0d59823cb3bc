"""Weights of networks: in float32, or int8 networks as data for the TFLite and ONNX writers.

Source of the scheme: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", CVPR 2018, https://arxiv.org/abs/1712.05877; symmetric weights
per output channel (per tensor in linear layers), asymmetric activations per tensor.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hwnas.models.graph import INPUT, NATIVE_BITS, Graph, Node, OpSpec, Shape, max_integer

#: Activations that limit the range, which quantisation does. ``hardsigmoid(x)`` is
#: ``x / 6 + 1 / 2`` limited to 0 and 1; the linear part is folded into weight and bias.
CLIPS = {"relu": (0.0, math.inf), "relu6": (0.0, 6.0), "hardsigmoid": (0.0, 1.0)}


@dataclass(frozen=True)
class QuantisationScale:
    """Mapping from int8 to real values: ``real = scale * (int8 - zero_point)``."""

    scale: float  #: above 0
    zero_point: int  #: -128 to 127

    @staticmethod
    def of_range(low: float, high: float) -> "QuantisationScale":
        """Return the scale that covers ``low`` to ``high``, with zero exactly representable."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = max((high - low) / 255.0, 1e-9)
        return QuantisationScale(scale, int(np.clip(round(-128 - low / scale), -128, 127)))


@dataclass(frozen=True)
class QuantisedWeights:
    """Quantised weight and bias of an operator; real weights are integers times scales."""

    weight: NDArray[np.int8]  #: in torch's layout
    scales: NDArray[np.float32]  #: ``(C_out,)`` by output channel, or ``(1,)`` for all
    bias: NDArray[np.int32]  #: ``(C_out,)``; its scale is that of weight times that of the input


#: Weight and bias of an operator, of the shapes that torch has.
Real = tuple[NDArray[np.float32], NDArray[np.float32]]


@dataclass(frozen=True)
class QuantisedOp:
    """An operator with its weights and the scale of its output."""

    node: Node
    weights: QuantisedWeights | None  #: ``None`` without weights, or in float32
    out: QuantisationScale  #: of the output
    #: of the input of the activation function; ``None`` for functions that only limit the range
    inner: QuantisationScale | None = None
    real: Real | None = None  #: float32 weights of operators that compute in float32


@dataclass(frozen=True)
class QuantisedNetwork:
    """An int8 network. Scales of tensors that are float32 only are not used."""

    input_shape: Shape  #: of one image
    input: QuantisationScale  #: of the normalised image
    ops: tuple[QuantisedOp, ...]  #: in order of execution
    outputs: tuple[str, ...] = ()  #: names of the output operators; empty: the last

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the output operators, in order of execution; at least one."""
        return self.outputs or (self.ops[-1].node.name,)

    def subnetwork(self, graph: Graph) -> "QuantisedNetwork":
        """Return the network of the operators of ``graph``, a part of this network's graph."""
        known = {op.node.name: op for op in self.ops}
        source = known[graph[0].name].node.inputs[0]
        scale = known[source].out if source in known else self.input
        ops = tuple(replace(known[node.name], node=node) for node in graph)
        return QuantisedNetwork(graph[0].op.in_shape, scale, ops, graph.outputs)


#: Weight and bias by node name; batch norm folded.
Weights = Mapping[str, Real]
#: The weights of a network: in float32, or quantised with all scales.
Parameters = Weights | QuantisedNetwork


def int8_tensors(graph: Iterable[Node]) -> frozenset[str]:
    """Return the names of the tensors that an operator writes or reads in int8."""
    nodes = [node for node in graph if not node.in_float]
    return frozenset(name for node in nodes for name in (node.name, *node.inputs))


def needs_inner(op: OpSpec) -> bool:
    """Return True if an operator has an activation function that reads int8 values.

    Functions that only limit the range, such as relu, are part of the quantisation.
    """
    return bool(op.activation) and op.activation not in CLIPS


def is_identity_mean(op: OpSpec) -> bool:
    """Return True for the mean of a single pixel, which does nothing."""
    return op.base == "mean" and op.in_shape[1:] == (1, 1)


def fixed_scale(node: Node, scales: Mapping[str, QuantisationScale]) -> QuantisationScale | None:
    """Return the scale that an operator's output must have; ``None`` if it can have any.

    A max pooling has the scale of its input, and a hard sigmoid covers [0, 1]. ``scales`` are those
    of the image (``INPUT``) and of the operators before it, by name.
    """
    if node.op.base == "max_pool2d" or is_identity_mean(node.op):
        return scales[node.inputs[0]]
    return (
        QuantisationScale.of_range(*CLIPS["hardsigmoid"])
        if node.op.activation == "hardsigmoid"
        else None
    )


# The compressibility of weights changes latency and flash by some percent. Normally distributed
# weights compress like trained ones (experiments/fashion_mnist_npu/README.md); finalists are
# compiled with their trained weights.
_POOL_SIZE = 1 << 16


def _to_integers(draw: NDArray[np.float32], node: Node) -> NDArray[np.float32]:
    """Return rows of weights quantised to integers."""
    bits = node.weight_bits
    if bits == NATIVE_BITS and not node.is_sparse:
        peaks = np.abs(draw).max(axis=1, keepdims=True)
        return np.asarray(np.round(draw * (max_integer(bits) / peaks)))
    import torch  # not needed for 8-bit weights

    from hwnas.models.int8 import weight_grids

    weight = torch.from_numpy(draw)
    if node.is_sparse:
        weight = weight_grids.two_of_four(weight.view(node.op.weight_shape)).view_as(weight)
    steps = weight_grids.steps(weight, bits, by_channel=True)
    return np.asarray(weight_grids.integers(weight, steps, bits))


def random_int8_network(graph: Graph) -> QuantisedNetwork:
    """Return an int8 network with random weights (always the same) and arbitrary scales.

    It costs the same on a device as a trained network, but for the compression of the weights.
    """
    pool = np.random.default_rng(0).normal(size=_POOL_SIZE).astype(np.float32)
    scales = {INPUT: QuantisationScale(0.05, 0)}
    ops, used = [], 0
    for node in graph:
        weights = real = None
        if node.op.base == "layernorm":
            n_channels = node.op.out_shape[0]
            real = (np.ones(n_channels, np.float32), np.zeros(n_channels, np.float32))
        elif shape := node.op.weight_shape:
            n, c_out = math.prod(shape), shape[0]
            n_scales = 1 if node.op.base == "linear" else c_out
            draw = np.take(pool, np.arange(used, used + n), mode="wrap").reshape(n_scales, -1)
            weight = _to_integers(draw, node).astype(np.int8).reshape(shape)
            steps = np.full(n_scales, 0.01, np.float32)
            weights = QuantisedWeights(weight, steps, np.zeros(c_out, np.int32))
            if node.in_float:
                real, weights = (weight * np.float32(0.01), np.zeros(c_out, np.float32)), None
            used += n
        # Runtimes fuse relu and relu6 only if the output has no negative range.
        free = (
            QuantisationScale.of_range(0.0, 6.0)
            if node.op.activation in CLIPS
            else QuantisationScale(0.05, 0)
        )
        scales[node.name] = fixed_scale(node, scales) or free
        inner = QuantisationScale(0.05, 0) if needs_inner(node.op) else None
        ops.append(QuantisedOp(node, weights, scales[node.name], inner, real))
    return QuantisedNetwork(graph[0].op.in_shape, scales[INPUT], tuple(ops), graph.outputs)
