"""Networks with exits in torch, whatever their family."""

from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn

from hwnas.families import annotations
from hwnas.families.blocks import Mean
from hwnas.graph import INPUT, Graph
from hwnas.op import Signature
from hwnas.space import Genotype, SearchSpace

if TYPE_CHECKING:
    from hwnas.families.base import Family


def build(
    family: "Family", space: SearchSpace, genotype: Genotype, signature: Signature
) -> nn.Module:
    """Return the plain network of a genotype with its exits, freshly initialised."""
    network = family.build(space, genotype, signature)
    lowered = annotations.lower(family, space, genotype, signature)
    return ExitNetwork(network, lowered) if lowered.exits else network


@final
class ExitNetwork(nn.Module):
    """A plain network with exits; its modules have the names of the lowered operators.

    Args:
        network: Without exits; its modules are taken over.
        lowered: The operators, in the order in which they run.
    """

    def __init__(self, network: nn.Module, lowered: Graph):
        super().__init__()
        for name, module in network.named_children():
            self.add_module(name, module)
        known = {node.name: node for node in lowered}
        self.exits = nn.ModuleDict()
        for output in lowered.exits:
            (c_in, _, _), (c_out, _, _) = known[output].op.in_shape, known[output].op.out_shape
            head = {"pool": Mean(), "classifier": nn.Linear(c_in, c_out)}
            self.exits[output.split(".")[1]] = nn.ModuleDict(head)
        self._steps = [(node.name, node.inputs) for node in lowered]
        self._outputs = lowered.outputs

    def forward(self, images: Tensor, every: bool = False) -> Tensor:
        """``(N, C, R, R)`` to the last outputs ``(N, n_outputs)``.

        With ``every``, to those of each exit before them, too: ``(n_exits + 1, N, n_outputs)``.
        """
        tensors = {INPUT: images}
        for name, inputs in self._steps:
            tensors[name] = self.get_submodule(name)(*(tensors[source] for source in inputs))
        found = [tensors[name] for name in self._outputs]
        return torch.stack(found) if every else found[-1]
