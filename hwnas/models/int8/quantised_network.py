"""An int8 network as data: what the TFLite writer writes and every int8 runtime computes.

Source of the scheme: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", CVPR 2018, https://arxiv.org/abs/1712.05877; symmetric weights
per output channel (per tensor in linear layers), asymmetric activations per tensor.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hwnas.models.graph import INPUT, NATIVE_BITS, Graph, Node, OpSpec, Shape, largest

#: Activations that are a limit of the range, and so part of quantising to it. ``hardsigmoid(x)`` is
#: ``x / 6 + 1 / 2`` limited to 0 and 1: weight and bias of what it is fused into hold the former.
CLIPS = {"relu": (0.0, math.inf), "relu6": (0.0, 6.0), "hardsigmoid": (0.0, 1.0)}


@dataclass(frozen=True)
class QuantisationScale:
    """``real = scale * (int8 - zero_point)``."""

    scale: float
    zero_point: int

    @staticmethod
    def of_range(low: float, high: float) -> "QuantisationScale":
        """Return the scale that covers ``low`` to ``high``, with zero exactly representable."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = max((high - low) / 255.0, 1e-9)
        return QuantisationScale(scale, int(np.clip(round(-128 - low / scale), -128, 127)))


@dataclass(frozen=True)
class QuantisedWeights:
    """Weight in torch's layout, one scale an output channel (or one), bias in int32."""

    weight: NDArray[np.int8]
    scales: NDArray[np.float32]
    bias: NDArray[np.int32]


#: Weight and bias in torch's layout.
Real = tuple[NDArray[np.float32], NDArray[np.float32]]


@dataclass(frozen=True)
class QuantisedOp:
    """An operator with its weights, if it has any, and the scale of its output.

    An activation that is no clip is computed from int8: ``inner`` is the scale of what it reads.
    An operator that computes in float32 has weight and bias as ``real``.
    """

    node: Node
    weights: QuantisedWeights | None
    out: QuantisationScale
    inner: QuantisationScale | None = None
    real: Real | None = None


@dataclass(frozen=True)
class QuantisedNetwork:
    """A whole int8 network; ``input`` is the scale of the normalised image.

    Scales of tensors that no operator writes or reads in int8 are not used.
    """

    input_shape: Shape
    input: QuantisationScale
    ops: tuple[QuantisedOp, ...]
    outputs: tuple[str, ...] = ()  #: the operators that are answered; empty: the last

    @property
    def answered(self) -> tuple[str, ...]:
        """The operators that are answered, in order of execution."""
        return self.outputs or (self.ops[-1].node.name,)

    def part(self, lowered: Graph) -> "QuantisedNetwork":
        """Return some of the operators, the first of which may read what another one computes."""
        known = {op.node.name: op for op in self.ops}
        read = known[lowered[0].name].node.inputs[0]
        scale = known[read].out if read in known else self.input
        ops = tuple(replace(known[node.name], node=node) for node in lowered)
        return QuantisedNetwork(lowered[0].op.in_shape, scale, ops, lowered.outputs)


def through_int8(lowered: Iterable[Node]) -> frozenset[str]:
    """Return the names of the tensors that an operator writes or reads in int8."""
    whole = [node for node in lowered if not node.in_float]
    return frozenset(name for node in whole for name in (node.name, *node.inputs))


def needs_inner(op: OpSpec) -> bool:
    """Return whether an operator computes an activation from int8."""
    return bool(op.activation) and op.activation not in CLIPS


def is_of_one_pixel(op: OpSpec) -> bool:
    """Return whether an operator is the mean of what it reads, and so computes nothing."""
    return op.base == "mean" and op.in_shape[1:] == (1, 1)


def fixed_scale(node: Node, scales: Mapping[str, QuantisationScale]) -> QuantisationScale | None:
    """Return the scale that an operator's output must have; ``None`` if it is free."""
    if node.op.base == "max_pool2d" or is_of_one_pixel(node.op):
        return scales[node.inputs[0]]
    return (
        QuantisationScale.of_range(*CLIPS["hardsigmoid"])
        if node.op.activation == "hardsigmoid"
        else None
    )


# How well weights compress moves latency and flash by some percent. Normal weights, scaled as
# quantisation does so that the largest of each channel is 127, compressed like trained ones
# (experiments/fashion_mnist_npu/README.md); finalists are compiled with their own weights.
_POOL_SIZE = 1 << 16


def _on_grid(draw: NDArray[np.float32], node: Node) -> NDArray[np.float32]:
    """Return the integers that rows of weights become, as quantisation chooses them."""
    bits = node.weight_bits
    if bits == NATIVE_BITS and not node.is_sparse:
        peaks = np.abs(draw).max(axis=1, keepdims=True)
        return np.asarray(np.round(draw * (largest(bits) / peaks)))
    import torch  # costs of networks of eight bits start without it

    from hwnas.models.int8 import weight_grids

    weight = torch.from_numpy(draw)
    if node.is_sparse:
        weight = weight_grids.two_of_four(weight.view(node.op.weight_shape)).view_as(weight)
    found = weight_grids.integers(weight, weight_grids.steps(weight, bits, by_channel=True), bits)
    return np.asarray(found)


def random_int8_network(lowered: Graph) -> QuantisedNetwork:
    """Return an int8 network of the right shape with stand-in weights and scales."""
    pool = np.random.default_rng(0).normal(size=_POOL_SIZE).astype(np.float32)
    scales = {INPUT: QuantisationScale(0.05, 0)}
    ops, used = [], 0
    for node in lowered:
        weights = real = None
        if shape := node.op.weight_shape:
            n, c_out = math.prod(shape), shape[0]
            n_scales = 1 if node.op.base == "linear" else c_out
            draw = np.take(pool, np.arange(used, used + n), mode="wrap").reshape(n_scales, -1)
            weight = _on_grid(draw, node).astype(np.int8).reshape(shape)
            steps = np.full(n_scales, 0.01, np.float32)
            weights = QuantisedWeights(weight, steps, np.zeros(c_out, np.int32))
            if node.in_float:
                real, weights = (weight * np.float32(0.01), np.zeros(c_out, np.float32)), None
            used += n
        # Outputs of relu and relu6 have no negative range, or runtimes could not fuse them.
        free = (
            QuantisationScale.of_range(0.0, 6.0)
            if node.op.activation in CLIPS
            else QuantisationScale(0.05, 0)
        )
        scales[node.name] = fixed_scale(node, scales) or free
        inner = QuantisationScale(0.05, 0) if needs_inner(node.op) else None
        ops.append(QuantisedOp(node, weights, scales[node.name], inner, real))
    return QuantisedNetwork(lowered[0].op.in_shape, scales[INPUT], tuple(ops), lowered.outputs)
