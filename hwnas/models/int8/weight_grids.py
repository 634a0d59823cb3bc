"""Weights on a grid of few bits, or half zeros: which values int8 holds, and training for them.

An NPU whose compiler packs weights reads fewer bytes where they take fewer values; they are stored
and computed as int8. Source of the training: gradients pass rounding as if it were not there
(Bengio et al., 2013, https://arxiv.org/abs/1308.3432; for weights of few bits, Esser et al.,
"Learned Step Size Quantization", ICLR 2020, https://arxiv.org/abs/1902.08153).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hwnas.models.families.base import Supernet
from hwnas.models.families.elastic_layers import Rounding, copies
from hwnas.models.families.layers import layer_of
from hwnas.models.graph import NATIVE_BITS, Graph, largest
from hwnas.models.spaces import Genotype

#: Fractions of the largest weight that the grid may end at, the largest first.
_SHRINK = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
_LEAST = 1e-12  # that 1 stands for: of a channel of zeros


def steps(weight: Tensor, bits: int, by_channel: bool) -> Tensor:
    """Return the real value of 1, ``(C,)`` by output channel or ``(1,)`` for all.

    In eight bits the largest weight is on the grid; in fewer, the grid is that of the least squared
    error. What is on a grid already stays as it is.
    """
    flat = _rows(weight.detach(), by_channel)
    if bits == NATIVE_BITS:
        return _peaks(flat) / largest(bits)
    found, _, best = _fitted(flat, bits)
    return found.gather(0, best[None])[0]


def integers(weight: Tensor, step: Tensor, bits: int) -> Tensor:
    """Return the integers nearest to weights, as floats, given ``steps``."""
    return _nearest(weight / step.view(-1, *[1] * (weight.dim() - 1)), bits)


def two_of_four(weight: Tensor) -> Tensor:
    """Return a weight ``(C_out, C_in, ...)`` without the smaller two of each four in a row.

    They are of the same place and output channel, and of four input channels in a row, as Ethos-U
    stores them; channels that make no four stay. Gradients reach what is zero, which may come back:
    Zhou et al., "Learning N:M Fine-grained Structured Sparse Neural Networks From Scratch", ICLR
    2021, https://arxiv.org/abs/2102.04010.
    """
    n = weight.shape[1] // 4 * 4
    fours = weight[:, :n].reshape(len(weight), n // 4, 4, *weight.shape[2:])
    order = fours.abs().argsort(dim=2, descending=True, stable=True)
    kept = fours.scatter(2, order[:, :, 2:], 0.0)
    return torch.cat([kept.flatten(1, 2), weight[:, n:]], 1)


def _rows(weight: Tensor, by_channel: bool) -> Tensor:
    return weight.flatten(1) if by_channel else weight.reshape(1, -1)


def _peaks(rows: Tensor) -> Tensor:
    return rows.abs().amax(1)


def _fitted(rows: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the grids that rows ``(C, K)`` may lie on, the rows on these, and which is best.

    That is the real values of 1 ``(G, C)``, ``(G, C, K)`` and ``(C,)``. A training does this to
    each layer at each step: in few operations, since what they are called by takes most of it.
    """
    found = rows.new_tensor(_SHRINK)[:, None] * _peaks(rows) / largest(bits)
    spread = found.clamp(min=_LEAST)[:, :, None]
    on_grid = (rows / spread).round_().clamp_(-largest(bits), largest(bits)).mul_(spread)
    return found, on_grid, (on_grid - rows).square_().sum(2).argmin(0)


def _nearest(scaled: Tensor, bits: int) -> Tensor:
    return scaled.round().clamp(-largest(bits), largest(bits))


@dataclass(frozen=True)
class WeightGrid:
    """On what the weight of one layer lies."""

    bits: int
    by_channel: bool
    is_sparse: bool = False  #: whether two in four are zero

    def rounded(self, weight: Tensor) -> Tensor:
        """Return the weight on the grid, with the gradient of the weight itself."""
        kept = two_of_four(weight.detach()) if self.is_sparse else weight.detach()
        return weight + (self._on_it(kept) - weight).detach()

    def _on_it(self, weight: Tensor) -> Tensor:
        if self.bits == NATIVE_BITS:
            step = steps(weight, self.bits, self.by_channel).clamp(min=_LEAST)
            return integers(weight, step, self.bits) * step.view(-1, *[1] * (weight.dim() - 1))
        rows = _rows(weight, self.by_channel)
        _, on_grid, best = _fitted(rows, self.bits)
        return on_grid.gather(0, best[None, :, None].expand(1, *rows.shape))[0].view(weight.shape)


WeightGrids = Mapping[str, WeightGrid]  #: by the name of the parameter


def grids(network: nn.Module, lowered: Graph) -> WeightGrids:
    """Return the grids of a plain network's weights, those of eight bits and no zeros left out.

    They are by output channel, as in int8; batch norm, folded later, scales channel and grid alike.
    """
    names = {id(module): name for name, module in network.named_modules()}
    return {
        f"{names[id(layer_of(network, node.name))]}.weight": WeightGrid(
            node.weight_bits, node.op.base != "linear", node.is_sparse
        )
        for node in lowered
        if node.weight_bits < NATIVE_BITS or node.is_sparse
    }


def rounding(supernet: Supernet, genotype: Genotype, lowered: Graph) -> Rounding:
    """Return what shared weights are rounded to where they compute a subnet.

    Args:
        supernet: Whose layers say what they give copies of, as ``families.elastic`` does; others
            are not rounded.
        genotype: Of the subnet.
        lowered: Its operators.
    """
    with torch.random.fork_rng(devices=[]), copies() as pairs:
        network = supernet.extract(genotype)
    found, names = grids(network, lowered), {m: name for name, m in network.named_modules()}
    known = [(layer, found.get(f"{names[plain]}.weight")) for layer, plain in pairs]
    return {layer: grid.rounded for layer, grid in known if grid is not None}


def quantise_weights_(network: nn.Module, found: WeightGrids) -> None:
    """Round the weights of a network to their grids, in place."""
    with torch.no_grad():
        for name, grid in found.items():
            weight = network.get_parameter(name)
            weight.copy_(grid.rounded(weight))
