"""Weight grids: weights with fewer than 8 bits or 2:4 sparsity, and training for them.

A grid is the set of allowed values of a weight: a step times an integer. Weights are stored and
computed as int8; NPUs whose compiler compresses weights read fewer bytes. Training has
straight-through gradients: Bengio et al., 2013, https://arxiv.org/abs/1308.3432; for few bits,
Esser et al., "Learned Step Size Quantization", ICLR 2020, https://arxiv.org/abs/1902.08153.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hwnas.models.families.base import Supernet
from hwnas.models.families.layers import layer_of
from hwnas.models.graph import NATIVE_BITS, Graph, max_integer
from hwnas.models.spaces import Genotype

if TYPE_CHECKING:
    from hwnas.models.families.elastic_layers import Rounding

#: Candidate maxima of a grid as fractions of the largest weight, in descending order.
_SHRINK = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
_MIN_STEP = 1e-12  # of a channel of zeros


def steps(weight: Tensor, bits: int, by_channel: bool) -> Tensor:
    """Return the step of the grid of a weight, ``(C,)`` by output channel or ``(1,)`` for all.

    With 8 bits the largest weight is on the grid; with fewer, the grid has the least squared error
    of several candidates. Weights that are on a grid keep it.
    """
    flat = _rows(weight.detach(), by_channel)
    if bits == NATIVE_BITS:
        return _peaks(flat) / max_integer(bits)
    candidates, _, best = _fit_grid(flat, bits)
    return candidates.gather(0, best[None])[0]


def integers(weight: Tensor, step: Tensor, bits: int) -> Tensor:
    """Return weights divided by ``step``, rounded and clipped to integers of ``bits`` bits.

    They are floats of the shape of ``weight``; ``step`` is as returned by :func:`steps`.
    """
    return _nearest_integers(weight / step.view(-1, *[1] * (weight.dim() - 1)), bits)


def two_of_four(weight: Tensor) -> Tensor:
    """Return a weight ``(C_out, C_in, ...)`` with 2:4 sparsity: the smaller two of four are zero.

    Groups are four consecutive input channels of the same position and output channel, as Ethos-U
    stores them; remaining channels are unchanged. In training with ``WeightGrid``, gradients reach
    zeroed weights, which may become nonzero again: Zhou et al., "Learning N:M Fine-grained
    Structured Sparse Neural Networks From Scratch", ICLR 2021, https://arxiv.org/abs/2102.04010.
    """
    n = weight.shape[1] // 4 * 4
    fours = weight[:, :n].reshape(len(weight), n // 4, 4, *weight.shape[2:])
    order = fours.abs().argsort(dim=2, descending=True, stable=True)
    sparse = fours.scatter(2, order[:, :, 2:], 0.0)
    return torch.cat([sparse.flatten(1, 2), weight[:, n:]], 1)


def _rows(weight: Tensor, by_channel: bool) -> Tensor:
    return weight.flatten(1) if by_channel else weight.reshape(1, -1)


def _peaks(rows: Tensor) -> Tensor:
    return rows.abs().amax(1)


def _fit_grid(rows: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return candidate steps ``(G, C)``, rows on each grid ``(G, C, K)`` and best index ``(C,)``.

    Training calls it for each layer at each step, so it has few operations.
    """
    candidates = rows.new_tensor(_SHRINK)[:, None] * _peaks(rows) / max_integer(bits)
    step = candidates.clamp(min=_MIN_STEP)[:, :, None]
    on_grid = (rows / step).round_().clamp_(-max_integer(bits), max_integer(bits)).mul_(step)
    return candidates, on_grid, (on_grid - rows).square_().sum(2).argmin(0)


def _nearest_integers(scaled: Tensor, bits: int) -> Tensor:
    return scaled.round().clamp(-max_integer(bits), max_integer(bits))


@dataclass(frozen=True)
class WeightGrid:
    """The allowed values of the weight of one layer."""

    bits: int  #: 2 to 8
    by_channel: bool  #: one step per output channel instead of one for all
    is_sparse: bool = False  #: 2:4 sparsity

    def rounded(self, weight: Tensor) -> Tensor:
        """Return the weight rounded to the grid, same shape; its gradient is that of ``weight``."""
        target = two_of_four(weight.detach()) if self.is_sparse else weight.detach()
        return weight + (self._on_grid(target) - weight).detach()

    def _on_grid(self, weight: Tensor) -> Tensor:
        if self.bits == NATIVE_BITS:
            step = steps(weight, self.bits, self.by_channel).clamp(min=_MIN_STEP)
            return integers(weight, step, self.bits) * step.view(-1, *[1] * (weight.dim() - 1))
        rows = _rows(weight, self.by_channel)
        _, on_grid, best = _fit_grid(rows, self.bits)
        return on_grid.gather(0, best[None, :, None].expand(1, *rows.shape))[0].view(weight.shape)


WeightGrids = Mapping[str, WeightGrid]  #: by parameter name


def weight_grids_of(network: nn.Module, graph: Graph) -> WeightGrids:
    """Return the grids of a plain network's weights by parameter name, except dense 8-bit ones.

    Grids of convolutions are per output channel, and so independent of batch norm, folded later.
    """
    names = {id(module): name for name, module in network.named_modules()}
    return {
        f"{names[id(layer_of(network, node.name))]}.weight": WeightGrid(
            node.weight_bits, node.op.base != "linear", node.is_sparse
        )
        for node in graph
        if node.weight_bits < NATIVE_BITS or node.is_sparse
    }


def subnet_rounding(supernet: Supernet, genotype: Genotype, graph: Graph) -> "Rounding":
    """Return the functions that round shared weights for a subnet, by elastic layer.

    Args:
        supernet: A supernet; only elastic layers that call ``register_copy`` are rounded.
        genotype: The subnet.
        graph: Its graph.
    """
    from hwnas.models.families.elastic_layers import record_copies

    with torch.random.fork_rng(devices=[]), record_copies() as pairs:
        network = supernet.extract(genotype)
    by_name = weight_grids_of(network, graph)
    names = {module: name for name, module in network.named_modules()}
    grids = [(layer, by_name.get(f"{names[plain]}.weight")) for layer, plain in pairs]
    return {layer: grid.rounded for layer, grid in grids if grid is not None}


def quantise_weights_(network: nn.Module, grids: WeightGrids) -> None:
    """Round the weights of a network to their grids, in place."""
    with torch.no_grad():
        for name, grid in grids.items():
            weight = network.get_parameter(name)
            weight.copy_(grid.rounded(weight))
