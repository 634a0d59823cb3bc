"""Simulation of int8 networks in float, for quantisation-aware training.

Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", CVPR 2018, https://arxiv.org/abs/1712.05877, section 3;
straight-through gradients: Bengio et al., 2013, https://arxiv.org/abs/1308.3432.

Why no library: torchao (0.18) has quantisers for Inductor, not for this scheme. A custom quantiser
and the conversion of its graph back to operators would be longer than this module, and could not
express a hard sigmoid folded into weights.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.models.families.layers import fold_batch_norm, layer_of
from hwnas.models.graph import INPUT, Graph, Node, without_exits
from hwnas.models.int8.quantisation import (
    ActivationScales,
    calibrate,
    quantise_with_scales,
    real_weights,
    round_weights,
)
from hwnas.models.int8.quantised_network import (
    QuantisationScale,
    QuantisedNetwork,
    int8_tensors,
    needs_inner,
)

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x,
    "relu": F.relu,
    "relu6": F.relu6,
    "hardswish": F.hardswish,
    "hardsigmoid": lambda x: x,  # folded into weights and range
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
}
_IN_FLOAT = {**_ACTIVATIONS, "hardsigmoid": F.hardsigmoid}


@final
class SimulatedInt8(nn.Module):
    """An int8 network simulated in float.

    Its outputs equal those of ``quantised`` but for the rounding of ties.

    Scales of activations are constant; scales of weights follow the weights.

    Args:
        network: A plain network with folded batch norm; it is copied.
        graph: Its graph; all operators must exist in int8 runtimes.
        scales: Scales of its activations.
    """

    def __init__(self, network: nn.Module, graph: Graph, scales: ActivationScales):
        super().__init__()
        # Folding creates biases without gradients.
        self.network = copy.deepcopy(network).requires_grad_(True)
        self._graph, self._scales = graph, scales
        self._int8 = int8_tensors(graph)

    def forward(self, images: Tensor, every: bool = False) -> Tensor:
        """``(N, C, R, R)`` to the last output ``(N, n_outputs)``.

        With ``every``, to the outputs of all exits and the last: ``(n_exits + 1, N, n_outputs)``.
        """
        tensors = {INPUT: self._as_stored(INPUT, images)}
        for node in self._graph:
            x = self._compute(node, [tensors[name] for name in node.inputs])
            tensors[node.name] = self._as_stored(node.name, self._activate(node, x))
        outputs = [tensors[name] for name in self._graph.outputs]
        return torch.stack(outputs) if every else outputs[-1]

    def quantised(self) -> QuantisedNetwork:
        """Return the int8 network with the present weights."""
        return quantise_with_scales(self.network, self._graph, self._scales)

    def _as_stored(self, name: str, x: Tensor) -> Tensor:
        """Return a tensor as stored, in int8 or float."""
        return fake_quantise(x, self._scales.out[name]) if name in self._int8 else x

    def _activate(self, node: Node, x: Tensor) -> Tensor:
        """Return the activation of an operator's result."""
        if node.in_float:
            return _IN_FLOAT[node.op.activation](x)
        if needs_inner(node.op):
            x = fake_quantise(x, self._scales.inner[node.name])
        return _ACTIVATIONS[node.op.activation](x)

    def _compute(self, node: Node, inputs: list[Tensor]) -> Tensor:
        """Return the result of an operator before its activation."""
        op, x = node.op, inputs[0]
        match op.base:
            case "conv2d" | "linear":
                return self._weighted(node, x)
            case "add":
                return x + inputs[1]
            case "mul":
                return x * inputs[1].flatten(1)[:, :, None, None]
            case "mean":
                return x.mean((2, 3))
            case "max_pool2d":
                return F.max_pool2d(x, op.kernel, op.stride, op.padding)
        assert node.in_float, f"{op.kind} has no int8 operator"
        norm = layer_of(self.network, node.name)
        result: Tensor = norm(x) if x.dim() == 2 else norm(x.movedim(1, -1)).movedim(-1, 1)
        return result

    def _weighted(self, node: Node, x: Tensor) -> Tensor:
        """Return the result of a convolution, or of a linear layer on one or more pixels."""
        op, weights = node.op, self._weights(node)
        if op.base == "conv2d":
            return F.conv2d(x, *weights, op.stride, op.padding, groups=op.groups)
        if op.in_shape[1:] == (1, 1):
            return F.linear(x.flatten(1), *weights)
        return F.linear(x.permute(0, 2, 3, 1), *weights).permute(0, 3, 1, 2)

    def _weights(self, node: Node) -> tuple[Tensor, Tensor]:
        """Return quantised weight and bias, with the gradients of the real ones."""
        if node.in_float:
            layer = layer_of(self.network, node.name)
            assert layer.bias is not None
            return layer.weight, layer.bias
        in_scale = self._scales.out[node.inputs[0]]
        integers = round_weights(self.network, node, in_scale)
        steps = integers.steps.double()
        quantised = (
            integers.weight * steps.view(-1, *[1] * (integers.weight.dim() - 1)),
            integers.bias * steps * in_scale.scale,
        )
        weight, bias = (
            (real + (value - real).detach()).float()
            for real, value in zip(real_weights(self.network, node), quantised, strict=True)
        )
        return weight, bias


def with_graph_precision(
    network: nn.Module, graph: Graph, images: Callable[[], Tensor]
) -> nn.Module:
    """Return a network that computes in its graph's precision.

    Int8 is simulated, in evaluation mode. Networks of other precisions are returned as they are.

    Args:
        network: A plain network; for int8, its batch norm is folded in place.
        graph: Its graph; for int8, all operators must exist in int8 runtimes.
        images: Returns normalised calibration images, ``(N, C, R, R)``.
    """
    if graph.dtype != "int8":
        return network
    folded = fold_batch_norm(network)
    return SimulatedInt8(folded, graph, calibrate(folded, graph, images())).eval()


def fake_quantise(x: Tensor, scale: QuantisationScale) -> Tensor:
    """Return ``x`` rounded to int8 values, as float; the gradient is 1 in the range, else 0."""
    quantised: Tensor = _FakeQuantise.apply(x, scale)  # type: ignore[no-untyped-call]
    return quantised


class _FakeQuantise(torch.autograd.Function):
    """``torch.fake_quantize_per_tensor_affine``, but ten times as fast (torch 2.13)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: QuantisationScale) -> Tensor:
        step, low, high = scale.scale, -128 - scale.zero_point, 127 - scale.zero_point
        ctx.save_for_backward(x)
        ctx.limits = step * (low - 0.5), step * (high + 0.5)
        return (x / step).round_().clamp_(low, high).mul_(step)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return torch.ops.aten.hardtanh_backward(gradient, x, *ctx.limits), None


@dataclass(frozen=True)
class DeployableNetwork:
    """A network ready for export, in float32 and int8."""

    network: nn.Module  #: float32, with folded batch norm, in evaluation mode
    graph: Graph  #: narrower than the family's if pruned
    int8: QuantisedNetwork | None  #: ``None`` if it cannot be written in int8
    simulated: SimulatedInt8 | None = None  #: ``None`` if ``int8`` is calibrated, not trained
    record: dict[str, Any] = field(default_factory=dict)  #: fine-tuning steps, for ``proof.json``
    without_int8_training: bool = False  #: True if time ran out before its int8 training

    @property
    def without_exits(self) -> "DeployableNetwork":
        """The network whose ``graph`` and ``int8`` have no early exits; its modules keep them."""
        graph = without_exits(self.graph)
        int8 = None if self.int8 is None else self.int8.subnetwork(graph)
        return replace(self, graph=graph, int8=int8)
