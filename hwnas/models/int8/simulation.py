"""An int8 network simulated in float, so that it can be trained for what int8 will do to it.

Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", CVPR 2018, https://arxiv.org/abs/1712.05877, section 3;
gradients pass rounding as if it were not there (Bengio et al., 2013,
https://arxiv.org/abs/1308.3432).

Why no library: torchao (0.18) has quantisers for what Inductor compiles, none of this scheme. One
of our own, and the way back from its graph to operators, would be longer than this, and has no
words for a hard sigmoid that is part of weights.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.models.families.layers import fold_batch_norm, layer_of
from hwnas.models.graph import INPUT, Graph, Node
from hwnas.models.int8.quantisation import (
    ActivationScales,
    calibrate,
    in_int8,
    real_weights,
    round_weights,
)
from hwnas.models.int8.quantised_network import (
    QuantisationScale,
    QuantisedNetwork,
    needs_inner,
    through_int8,
)
from hwnas.models.partition import without_exits

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x,
    "relu": F.relu,
    "relu6": F.relu6,
    "hardswish": F.hardswish,
    "hardsigmoid": lambda x: x,  # in weights and range
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
}
_IN_FLOAT = {**_ACTIVATIONS, "hardsigmoid": F.hardsigmoid}


@final
class SimulatedInt8(nn.Module):
    """Computes in float what ``quantised`` computes in int8, but for the rounding of ties.

    The scales of activations stay as they are; those of weights follow the weights.

    Args:
        network: A plain network with its batch norm folded; it is copied.
        lowered: Its operators, all of which int8 runtimes have.
        scales: Of its activations.
    """

    def __init__(self, network: nn.Module, lowered: Graph, scales: ActivationScales):
        super().__init__()
        # Folding leaves biases that learn nothing.
        self.network = copy.deepcopy(network).requires_grad_(True)
        self._lowered, self._scales = lowered, scales
        self._through = through_int8(lowered)

    def forward(self, images: Tensor, every: bool = False) -> Tensor:
        """``(N, C, R, R)`` to outputs ``(N, n_outputs)``; ``every``: as ``ExitNetwork``."""
        tensors = {INPUT: self._passed(INPUT, images)}
        for node in self._lowered:
            x = self._plain(node, [tensors[name] for name in node.inputs])
            tensors[node.name] = self._passed(node.name, self._active(node, x))
        found = [tensors[name] for name in self._lowered.outputs]
        return torch.stack(found) if every else found[-1]

    def quantised(self) -> QuantisedNetwork:
        """Return the network in int8."""
        return in_int8(self.network, self._lowered, self._scales)

    def _passed(self, name: str, x: Tensor) -> Tensor:
        """Return a tensor as those see it that read it."""
        return rounded(x, self._scales.out[name]) if name in self._through else x

    def _active(self, node: Node, x: Tensor) -> Tensor:
        """Return what an operator answers, of what it computes before its activation."""
        if node.in_float:
            return _IN_FLOAT[node.op.activation](x)
        if needs_inner(node.op):
            x = rounded(x, self._scales.inner[node.name])
        return _ACTIVATIONS[node.op.activation](x)

    def _plain(self, node: Node, inputs: list[Tensor]) -> Tensor:
        """Return what an operator computes before its activation."""
        op, x = node.op, inputs[0]
        match op.base:
            case "conv2d":
                weights = self._weights(node)
                return F.conv2d(x, *weights, op.stride, op.padding, groups=op.groups)
            case "linear":
                return F.linear(x.flatten(1), *self._weights(node))
            case "add":
                return x + inputs[1]
            case "mul":
                return x * inputs[1].flatten(1)[:, :, None, None]
            case "mean":
                return x.mean((2, 3))
            case "max_pool2d":
                return F.max_pool2d(x, op.kernel, op.stride, op.padding)
        raise AssertionError(f"{op.kind} has no int8 operator")

    def _weights(self, node: Node) -> tuple[Tensor, Tensor]:
        """Return weight and bias as integers make them, with the gradients of real ones."""
        if node.in_float:
            layer = layer_of(self.network, node.name)
            assert layer.bias is not None
            return layer.weight, layer.bias
        in_scale = self._scales.out[node.inputs[0]]
        integers = round_weights(self.network, node, in_scale)
        steps = integers.steps.double()
        found = (
            integers.weight * steps.view(-1, *[1] * (integers.weight.dim() - 1)),
            integers.bias * steps * in_scale.scale,
        )
        weight, bias = (
            (real + (found - real).detach()).float()
            for real, found in zip(real_weights(self.network, node), found, strict=True)
        )
        return weight, bias


def as_run(network: nn.Module, lowered: Graph, images: Callable[[], Tensor]) -> nn.Module:
    """Return a network as it answers: simulated where its space says that it computes in int8.

    Args:
        network: A plain network, whose batch norm may be folded by this.
        lowered: Its operators, all of which int8 runtimes have if it is in int8.
        images: Gives normalised images to calibrate on, ``(N, C, R, R)``.
    """
    if lowered.dtype != "int8":
        return network
    folded = fold_batch_norm(network)
    return SimulatedInt8(folded, lowered, calibrate(folded, lowered, images())).eval()


def rounded(x: Tensor, scale: QuantisationScale) -> Tensor:
    """Return what an int8 tensor of that scale holds; its gradient is that of ``x`` in range."""
    found: Tensor = _Rounded.apply(x, scale)  # type: ignore[no-untyped-call]
    return found


class _Rounded(torch.autograd.Function):
    """``torch.fake_quantize_per_tensor_affine``, which takes ten times as long (torch 2.13)."""

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


# A network that is ready for a target, in float32 and in int8.


@dataclass(frozen=True)
class DeployableNetwork:
    """A network that is ready for export."""

    network: nn.Module  #: float32, its batch norm folded, in evaluation mode
    lowered: Graph  #: its operators, narrower than the family's where it was pruned
    int8: QuantisedNetwork | None  #: ``None`` where it cannot be written in int8
    #: What ``int8`` was trained as; ``None`` where it is ``network``, calibrated.
    simulated: SimulatedInt8 | None = None
    record: dict[str, Any] = field(
        default_factory=dict
    )  #: what was done to the weights, for the proof
    without_int8_training: bool = False  #: True if time ran out before its int8 training

    @property
    def whole(self) -> "DeployableNetwork":
        """The network without its exits."""
        lowered = without_exits(self.lowered)
        int8 = None if self.int8 is None else self.int8.part(lowered)
        return replace(self, lowered=lowered, int8=int8)
