"""Post-training quantisation to int8 with calibration images."""

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

_SAMPLES = 1 << 15  # values of a tensor from which its range is chosen
_SHRINK = np.linspace(0.5, 1.0, 26)  # candidate ranges, as fractions of the observed range

Samples = dict[str, NDArray[np.float32]]
Choose = Callable[[NDArray[np.float32]], QuantisationScale]  #: from values of a tensor to its scale


@dataclass(frozen=True)
class ActivationScales:
    """Scales of all activations."""

    out: Mapping[str, QuantisationScale]  #: of outputs, by operator; of the image by ``INPUT``
    #: of the inputs of activation functions that are computed from int8, by operator
    inner: Mapping[str, QuantisationScale]


def quantise(network: nn.Module, graph: Graph, images: Tensor) -> QuantisedNetwork:
    """Return the network in int8 with scales from ``calibrate``.

    Args:
        network: A plain network with folded batch norm.
        graph: Its graph.
        images: Normalised calibration images, ``(N, C, R, R)``.
    """
    return quantise_with_scales(network, graph, calibrate(network, graph, images))


def min_error_scale(sample: NDArray[np.float32]) -> QuantisationScale:
    """Return the scale with the smallest mean squared error on a sample ``(n,)`` of a tensor.

    Candidates cover 50 to 100 % of the sample's range.
    """
    low, high = float(sample.min()), float(sample.max())
    candidates = [QuantisationScale.of_range(low * shrink, high * shrink) for shrink in _SHRINK]
    return min(candidates, key=lambda scale: _squared_error(sample, scale))


def calibrate(
    network: nn.Module, graph: Graph, images: Tensor, choose: Choose = min_error_scale
) -> ActivationScales:
    """Return the scales that ``choose`` selects from the activations on calibration images.

    The scale of the image covers its range; some operators have fixed scales. The network is put
    into evaluation mode. No method was significantly better than ``min_error_scale``
    (``experiments/calibration``). Arguments are those of ``quantise``.
    """
    out = {INPUT: QuantisationScale.of_range(float(images.min()), float(images.max()))}
    outputs, inner = _observe(network, graph, images)
    for node in graph:
        out[node.name] = fixed_scale(node, out) or choose(outputs[node.name])
    return ActivationScales(out, {name: choose(sample) for name, sample in inner.items()})


def quantise_with_scales(
    network: nn.Module, graph: Graph, scales: ActivationScales
) -> QuantisedNetwork:
    """Return the network in int8 with the given scales of activations."""
    ops = []
    for node in graph:
        weights = real = None
        if node.in_float and node.op.n_params:
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
    shape = graph[0].op.in_shape
    return QuantisedNetwork(shape, scales.out[INPUT], tuple(ops), graph.outputs)


@dataclass(frozen=True)
class IntegerWeights:
    """Quantised weight and bias of an operator, as integers in float64 without gradients."""

    weight: Tensor  #: in torch's layout
    #: real value of the integer 1: ``(C,)`` by output channel, ``(1,)`` in linear layers; float32
    steps: Tensor
    bias: Tensor  #: ``(C,)``, in units of ``steps`` times the scale of the input


def round_weights(network: nn.Module, node: Node, in_scale: QuantisationScale) -> IntegerWeights:
    """Return the quantised weights of an operator whose input has the scale ``in_scale``."""
    weight, bias = (tensor.detach() for tensor in real_weights(network, node))
    # The bias of a channel with almost zero weights must fit into 31 bits, too.
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
    """Return weight and bias in float64, in torch's layout.

    The linear part of a hard sigmoid is folded into them.
    """
    layer = layer_of(network, node.name)
    assert layer.bias is not None, "fold the batch norm first"
    weight, bias = layer.weight.double(), layer.bias.double()
    if node.op.activation == "hardsigmoid":
        return weight / 6, bias / 6 + 0.5
    return weight, bias


def _observe(network: nn.Module, graph: Graph, images: Tensor) -> tuple[Samples, Samples]:
    """Return samples of the outputs of operators and of the inputs of their activations.

    Samples include the extremes.
    """
    outputs: Samples = {}
    inner: Samples = {}

    def observe(samples: Samples, name: str, out: Tensor) -> None:
        flat = out.detach().reshape(-1)
        step = max(1, flat.numel() // _SAMPLES)
        # An odd step, as the number of channels is often a power of two.
        sample = torch.cat([flat[:: step | 1], flat.min()[None], flat.max()[None]])
        samples[name] = sample.numpy().astype(np.float32)

    hooks = []
    for node in graph:
        hooks.append(
            network.get_submodule(node.name).register_forward_hook(
                lambda module, args, out, name=node.name: observe(outputs, name, out)
            )
        )
        if needs_inner(node.op):  # also additions, which have no weights
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
