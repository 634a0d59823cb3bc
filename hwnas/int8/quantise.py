"""Post-training quantisation of a plain network to int8, from calibration images."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hwnas.families.blocks import layer_of
from hwnas.int8.network import (
    QuantisedNetwork,
    QuantisedOp,
    Scale,
    Weights,
    fixed_scale,
    needs_inner,
)
from hwnas.op import INPUT, Lowered, Node

_SAMPLES = 1 << 15  # values of a tensor that its range is chosen from
_SHRINK = np.linspace(0.5, 1.0, 26)  # ranges tried, as fractions of the observed one


def quantise(network: nn.Module, lowered: Lowered, images: Tensor) -> QuantisedNetwork:
    """Return the network in int8.

    The range of each activation is the one with the smallest mean squared error on the calibration
    images, among fractions of what was observed.

    Args:
        network: A plain network with its batch norm folded.
        lowered: Its operators, named after its modules.
        images: Normalised calibration images, ``(N, C, R, R)``.
    """
    scales = {INPUT: Scale.of_range(float(images.min()), float(images.max()))}
    outputs, inner = _observe(network, lowered, images)
    ops = []
    for node in lowered:
        scales[node.name] = fixed_scale(node, scales) or _best_scale(outputs[node.name])
        before = _best_scale(inner[node.name]) if needs_inner(node.op) else None
        weights = _weights(network, node, scales)
        ops.append(QuantisedOp(node, weights, scales[node.name], before))
    return QuantisedNetwork(lowered[0].op.in_shape, scales[INPUT], tuple(ops))


Samples = dict[str, NDArray[np.float32]]


def _observe(network: nn.Module, lowered: Lowered, images: Tensor) -> tuple[Samples, Samples]:
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
        places = [(outputs, network.get_submodule(node.name))]
        if needs_inner(node.op):
            places.append((inner, layer_of(network, node.name)))
        for samples, module in places:
            hooks.append(
                module.register_forward_hook(
                    lambda module, args, out, samples=samples, name=node.name: observe(
                        samples, name, out
                    )
                )
            )
    try:
        with torch.inference_mode():
            network.eval()(images.to(memory_format=torch.channels_last))
    finally:
        for hook in hooks:
            hook.remove()
    return outputs, inner


def _best_scale(sample: NDArray[np.float32]) -> Scale:
    low, high = float(sample.min()), float(sample.max())
    candidates = [Scale.of_range(low * shrink, high * shrink) for shrink in _SHRINK]
    return min(candidates, key=lambda scale: _squared_error(sample, scale))


def _squared_error(sample: NDArray[np.float32], scale: Scale) -> float:
    rounded = np.clip(np.round(sample / scale.scale) + scale.zero_point, -128, 127)
    return float(np.mean((sample - (rounded - scale.zero_point) * scale.scale) ** 2))


def _weights(network: nn.Module, node: Node, scales: Mapping[str, Scale]) -> Weights | None:
    if not node.op.weight_shape:
        return None
    layer = layer_of(network, node.name)
    assert layer.bias is not None, "fold the batch norm first"
    weight = layer.weight.detach().numpy().astype(np.float64)
    bias = layer.bias.detach().numpy().astype(np.float64)
    if node.op.activation == "hardsigmoid":
        weight, bias = weight / 6, bias / 6 + 0.5
    in_scale = scales[node.inputs[0]].scale
    peaks = np.abs(weight).reshape(len(weight), -1).max(axis=1)
    if isinstance(layer, nn.Linear):
        peaks = peaks.max(keepdims=True)
    # A channel of (nearly) no weight still has a bias to hold in 31 bits.
    floor = np.abs(bias).max() / in_scale / 2.0**30
    weight_scales = np.maximum(peaks / 127.0, max(floor, 1e-9)).astype(np.float32)
    per_channel = weight_scales.reshape(-1, *[1] * (weight.ndim - 1))
    return Weights(
        np.clip(np.round(weight / per_channel), -127, 127).astype(np.int8),
        weight_scales,
        np.round(bias / (weight_scales.astype(np.float64) * in_scale)).astype(np.int32),
    )
