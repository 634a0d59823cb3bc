"""Post-training quantisation of a plain network to int8, from calibration images."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hwnas.models.families.layers import layer_of
from hwnas.models.graph import INPUT, Graph, Node
from hwnas.models.int8 import weight_grids
from hwnas.models.int8.quantised_network import (
    QuantisationScale,
    QuantisedNetwork,
    QuantisedOp,
    QuantisedWeights,
    fixed_scale,
    needs_inner,
)

_SAMPLES = 1 << 15  # values of a tensor that its range is chosen from
_SHRINK = np.linspace(0.5, 1.0, 26)  # ranges tried, as fractions of the observed one

Samples = dict[str, NDArray[np.float32]]
Choose = Callable[
    [NDArray[np.float32]], QuantisationScale
]  #: the scale of a tensor, from values of it


@dataclass(frozen=True)
class ActivationScales:
    """The scales of all activations, by operator; of the image by ``INPUT``."""

    out: Mapping[str, QuantisationScale]
    inner: Mapping[
        str, QuantisationScale
    ]  #: of what goes into an activation that is computed from int8


def quantise(network: nn.Module, lowered: Graph, images: Tensor) -> QuantisedNetwork:
    """Return the network in int8, its activations scaled by ``calibrate``.

    Args:
        network: A plain network with its batch norm folded.
        lowered: Its operators, named after its modules.
        images: Normalised calibration images, ``(N, C, R, R)``.
    """
    return in_int8(network, lowered, calibrate(network, lowered, images))


def least_error(sample: NDArray[np.float32]) -> QuantisationScale:
    """Return the scale of the smallest mean squared error, among fractions of the range."""
    low, high = float(sample.min()), float(sample.max())
    candidates = [QuantisationScale.of_range(low * shrink, high * shrink) for shrink in _SHRINK]
    return min(candidates, key=lambda scale: _squared_error(sample, scale))


def calibrate(
    network: nn.Module, lowered: Graph, images: Tensor, choose: Choose = least_error
) -> ActivationScales:
    """Return the scales that ``choose`` finds for what activations are on the images.

    ``least_error`` came closest to float32 of five methods (``experiments/calibration``).
    """
    out = {INPUT: QuantisationScale.of_range(float(images.min()), float(images.max()))}
    outputs, inner = _observe(network, lowered, images)
    for node in lowered:
        out[node.name] = fixed_scale(node, out) or choose(outputs[node.name])
    return ActivationScales(out, {name: choose(sample) for name, sample in inner.items()})


def in_int8(network: nn.Module, lowered: Graph, scales: ActivationScales) -> QuantisedNetwork:
    """Return the network in int8 with given scales of activations."""
    ops = []
    for node in lowered:
        weights = real = None
        if node.op.weight_shape and node.in_float:
            layer = layer_of(network, node.name)
            assert layer.bias is not None, "fold the batch norm first"
            real = (layer.weight.detach().numpy().copy(), layer.bias.detach().numpy().copy())
        elif node.op.weight_shape:
            rounded = round_weights(network, node, scales.out[node.inputs[0]])
            weights = QuantisedWeights(
                rounded.weight.numpy().astype(np.int8),
                rounded.steps.numpy(),
                rounded.bias.numpy().astype(np.int32),
            )
        inner = None if node.in_float else scales.inner.get(node.name)
        ops.append(QuantisedOp(node, weights, scales.out[node.name], inner, real))
    shape = lowered[0].op.in_shape
    return QuantisedNetwork(shape, scales.out[INPUT], tuple(ops), lowered.outputs)


@dataclass(frozen=True)
class IntegerWeights:
    """Weight and bias of an operator as integers, in float64 and without gradients."""

    weight: Tensor
    steps: Tensor  #: real value of 1, by output channel or, in linear layers, ``(1,)``; float32
    bias: Tensor  #: in units of ``steps`` times the scale of the input


def round_weights(network: nn.Module, node: Node, in_scale: QuantisationScale) -> IntegerWeights:
    """Return the integers that an operator's weights become."""
    weight, bias = (tensor.detach() for tensor in real_weights(network, node))
    # A channel of (nearly) no weight still has a bias to hold in 31 bits.
    floor = bias.abs().max() / in_scale.scale / 2.0**30
    if node.is_sparse:
        weight = weight_grids.two_of_four(weight)
    steps = weight_grids.steps(weight, node.weight_bits, by_channel=node.op.base != "linear")
    steps = steps.clamp(min=max(float(floor), 1e-9)).float()
    return IntegerWeights(
        weight_grids.integers(weight, steps.double(), node.weight_bits),
        steps,
        (bias / (steps.double() * in_scale.scale)).round(),
    )


def real_weights(network: nn.Module, node: Node) -> tuple[Tensor, Tensor]:
    """Return weight and bias in float64 as int8 has them: they hold part of a hard sigmoid."""
    layer = layer_of(network, node.name)
    assert layer.bias is not None, "fold the batch norm first"
    weight, bias = layer.weight.double(), layer.bias.double()
    if node.op.activation == "hardsigmoid":
        return weight / 6, bias / 6 + 0.5
    return weight, bias


def _observe(network: nn.Module, lowered: Graph, images: Tensor) -> tuple[Samples, Samples]:
    """Return samples of the output of each operator, and of what goes into its activation.

    The extremes are always in a sample.
    """
    outputs: Samples = {}
    inner: Samples = {}

    def observe(samples: Samples, name: str, out: Tensor) -> None:
        flat = out.detach().reshape(-1)
        step = max(1, flat.numel() // _SAMPLES)
        # An odd step does not fall in line with powers of two of channels.
        sample = torch.cat([flat[:: step | 1], flat.min()[None], flat.max()[None]])
        samples[name] = sample.numpy().astype(np.float32)

    hooks = []
    for node in lowered:
        hooks.append(
            network.get_submodule(node.name).register_forward_hook(
                lambda module, args, out, name=node.name: observe(outputs, name, out)
            )
        )
        if needs_inner(node.op):  # a sum has an activation, too, but no layer with weights
            hooks.append(
                network.get_submodule(f"{node.name}.act").register_forward_pre_hook(
                    lambda module, args, name=node.name: observe(inner, name, args[0])
                )
            )
    try:
        with torch.inference_mode():
            network.eval()(images.to(memory_format=torch.channels_last))
    finally:
        for hook in hooks:
            hook.remove()
    return outputs, inner


def _squared_error(sample: NDArray[np.float32], scale: QuantisationScale) -> float:
    rounded = np.clip(np.round(sample / scale.scale) + scale.zero_point, -128, 127)
    return float(np.mean((sample - (rounded - scale.zero_point) * scale.scale) ** 2))
