"""Weights on a grid of few bits: which values int8 holds, and training for them.

An NPU whose compiler packs weights reads fewer bytes where they take fewer values; they are stored
and computed as int8. Source of the training: gradients pass rounding as if it were not there
(Bengio et al., 2013, https://arxiv.org/abs/1308.3432; for weights of few bits, Esser et al.,
"Learned Step Size Quantization", ICLR 2020, https://arxiv.org/abs/1902.08153).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hwnas.families.blocks import layer_of
from hwnas.graph import NATIVE_BITS, Graph, largest

#: Fractions of the largest weight that the grid may end at, the largest first.
_SHRINK = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)


def steps(weight: Tensor, bits: int, by_channel: bool) -> Tensor:
    """Return the real value of 1, ``(C,)`` by output channel or ``(1,)`` for all.

    In eight bits the largest weight is on the grid; in fewer, the grid is that of the least squared
    error. What is on a grid already stays as it is.
    """
    flat = weight.detach().flatten(1) if by_channel else weight.detach().reshape(1, -1)
    peaks = flat.abs().amax(1)
    if bits == NATIVE_BITS:
        return peaks / largest(bits)
    found = torch.stack([shrink * peaks / largest(bits) for shrink in _SHRINK])
    spread = found.clamp(min=1e-12)[:, :, None]
    errors = (_nearest(flat / spread, bits) * spread - flat).square().sum(2)
    return found.gather(0, errors.argmin(0)[None])[0]


def integers(weight: Tensor, step: Tensor, bits: int) -> Tensor:
    """Return the integers nearest to weights, as floats, given ``steps``."""
    return _nearest(weight / step.view(-1, *[1] * (weight.dim() - 1)), bits)


def _nearest(scaled: Tensor, bits: int) -> Tensor:
    return scaled.round().clamp(-largest(bits), largest(bits))


@dataclass(frozen=True)
class Grid:
    """On what the weight of one layer lies."""

    bits: int
    by_channel: bool

    def rounded(self, weight: Tensor) -> Tensor:
        """Return the weight on the grid, with the gradient of the weight itself."""
        step = steps(weight, self.bits, self.by_channel).clamp(min=1e-12)
        found = integers(weight.detach(), step, self.bits)
        found = found * step.view(-1, *[1] * (weight.dim() - 1))
        return weight + (found - weight).detach()


Grids = Mapping[str, Grid]  #: by the name of the parameter


def grids(network: nn.Module, lowered: Graph) -> Grids:
    """Return the grids of a plain network's weights, those of eight bits left out.

    They are by output channel, as in int8; batch norm, folded later, scales channel and grid alike.
    """
    names = {id(module): name for name, module in network.named_modules()}
    return {
        f"{names[id(layer_of(network, node.name))]}.weight": Grid(
            node.weight_bits, node.op.base != "linear"
        )
        for node in lowered
        if node.weight_bits < NATIVE_BITS
    }


def put_on(network: nn.Module, found: Grids) -> None:
    """Round the weights of a network to their grids, in place."""
    with torch.no_grad():
        for name, grid in found.items():
            weight = network.get_parameter(name)
            weight.copy_(grid.rounded(weight))
