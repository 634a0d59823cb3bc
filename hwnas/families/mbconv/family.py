"""Convolutional networks of several kinds of blocks as a family."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from hwnas.families.base import Recipe
from hwnas.families.mbconv import lowering
from hwnas.families.mbconv.check import check
from hwnas.graph import Graph
from hwnas.op import Signature
from hwnas.space import Genotype, SearchSpace

if TYPE_CHECKING:
    from torch import nn

    from hwnas.families.base import Supernet


@final
class MBConv:
    """Networks of several kinds of blocks; torch is imported only where a module is built."""

    @property
    def recipe(self) -> Recipe:
        """How networks are trained alone by default; supernets: see ``by_descent``."""
        return Recipe("muon", lr=0.2, weight_decay=5e-5)

    def check(self, space: SearchSpace) -> None:
        """Raise ``SpaceError`` if the space does not describe such networks."""
        check(space)

    def resolution(self, space: SearchSpace, genotype: Genotype) -> int:
        """Return the height and width of the images that the network reads."""
        return int(space.values(genotype)["resolution"])

    def lower(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> Graph:
        """Return the operators in order of execution."""
        return lowering.lower(lowering.dimensions(space, genotype), signature)

    def build(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> nn.Module:
        """Return the plain network, freshly initialised."""
        from hwnas.families.mbconv.network import MBConvNet

        return MBConvNet(lowering.dimensions(space, genotype), signature)

    def supernet(self, space: SearchSpace, signature: Signature) -> Supernet:
        """Return a freshly initialised supernet."""
        from hwnas.families.mbconv.supernet import MBConvSupernet

        return MBConvSupernet(space, signature)
