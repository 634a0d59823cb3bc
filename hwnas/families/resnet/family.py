"""Residual networks as a family."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from hwnas.families.base import Recipe
from hwnas.families.resnet import lowering
from hwnas.graph import Graph
from hwnas.op import Signature
from hwnas.space import Genotype, SearchSpace

if TYPE_CHECKING:
    from torch import nn

    from hwnas.families.base import Supernet


@final
class ResNet:
    """Residual networks of basic or bottleneck blocks; torch is imported only for a module."""

    @property
    def recipe(self) -> Recipe:
        """How supernets and networks of this family are trained by default."""
        return Recipe("sgd", lr=0.1, weight_decay=5e-5)

    def check(self, space: SearchSpace) -> None:
        """Raise ``SpaceError`` if the space does not describe residual networks."""
        lowering.check(space)

    def resolution(self, space: SearchSpace, genotype: Genotype) -> int:
        """Return the height and width of the images that the network reads."""
        return int(space.values(genotype)["resolution"])

    def lower(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> Graph:
        """Return the operators in order of execution."""
        return lowering.lower(lowering.dimensions(space, genotype, signature), signature)

    def build(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> nn.Module:
        """Return the plain network, freshly initialised."""
        from hwnas.families.resnet.network import ResidualNetwork

        return ResidualNetwork(lowering.dimensions(space, genotype, signature), signature)

    def supernet(self, space: SearchSpace, signature: Signature) -> Supernet:
        """Return a freshly initialised supernet."""
        from hwnas.families.resnet.supernet import ResidualSupernet

        return ResidualSupernet(space, signature)
