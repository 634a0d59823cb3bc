"""Vision transformers as a family."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from hwnas.families.base import Recipe
from hwnas.families.vit import lowering
from hwnas.graph import Graph
from hwnas.op import Signature
from hwnas.space import Genotype, SearchSpace

if TYPE_CHECKING:
    from torch import nn

    from hwnas.families.base import Supernet


@final
class ViT:
    """AutoFormer's vision transformers; torch is imported only where a module is built."""

    @property
    def recipe(self) -> Recipe:
        """How supernets and networks of this family are trained by default."""
        return Recipe("adamw", lr=2e-3, weight_decay=0.05)

    def check(self, space: SearchSpace) -> None:
        """Raise ``SpaceError`` if the space does not describe vision transformers."""
        lowering.check(space)

    def resolution(self, space: SearchSpace, genotype: Genotype) -> int:
        """Return the height and width of the images that the network reads."""
        return int(space.values(genotype)["resolution"])

    def lower(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> Graph:
        """Return the operators in order of execution."""
        return lowering.lower(lowering.dimensions(space, genotype), signature)

    def build(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> nn.Module:
        """Return the plain network, freshly initialised."""
        from hwnas.families.vit.network import VisionTransformer

        return VisionTransformer(lowering.dimensions(space, genotype), signature)

    def supernet(self, space: SearchSpace, signature: Signature) -> Supernet:
        """Return a freshly initialised supernet."""
        from hwnas.families.vit.supernet import ViTSupernet

        return ViTSupernet(space, signature)
