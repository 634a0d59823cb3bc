"""Convolutional networks of several kinds of blocks as a family."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from hwnas.models.families.base import TrainingRecipe
from hwnas.models.families.mbconv import lowering as lowering_mbconv
from hwnas.models.families.mbconv.space_checks import check_mbconv_space
from hwnas.models.families.resnet import lowering as lowering_resnet
from hwnas.models.families.vit import lowering as lowering_vit
from hwnas.models.graph import Graph, Signature
from hwnas.models.spaces import Genotype, SearchSpace

if TYPE_CHECKING:
    from torch import nn

    from hwnas.models.families.base import Supernet
if TYPE_CHECKING:
    from torch import nn

    from hwnas.models.families.base import Supernet
if TYPE_CHECKING:
    from torch import nn

    from hwnas.models.families.base import Supernet


@final
class MBConv:
    """Networks of several kinds of blocks; torch is imported only where a module is built."""

    @property
    def recipe(self) -> TrainingRecipe:
        """How networks are trained alone by default; supernets: see ``by_descent``."""
        return TrainingRecipe("muon", lr=0.2, weight_decay=5e-5)

    def check(self, space: SearchSpace) -> None:
        """Raise ``SpaceError`` if the space does not describe such networks."""
        check_mbconv_space(space)

    def resolution(self, space: SearchSpace, genotype: Genotype) -> int:
        """Return the height and width of the images that the network reads."""
        return int(space.values(genotype)["resolution"])

    def lower(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> Graph:
        """Return the operators in order of execution."""
        return lowering_mbconv.lower(lowering_mbconv.dimensions(space, genotype), signature)

    def build(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> nn.Module:
        """Return the plain network, freshly initialised."""
        from hwnas.models.families.mbconv.network import MBConvNet

        return MBConvNet(lowering_mbconv.dimensions(space, genotype), signature)

    def supernet(self, space: SearchSpace, signature: Signature) -> Supernet:
        """Return a freshly initialised supernet."""
        from hwnas.models.families.mbconv.supernet import MBConvSupernet

        return MBConvSupernet(space, signature)


# Residual networks as a family.


@final
class ResNet:
    """Residual networks of basic or bottleneck blocks; torch is imported only for a module."""

    @property
    def recipe(self) -> TrainingRecipe:
        """How supernets and networks of this family are trained by default."""
        return TrainingRecipe("sgd", lr=0.1, weight_decay=5e-5)

    def check(self, space: SearchSpace) -> None:
        """Raise ``SpaceError`` if the space does not describe residual networks."""
        lowering_resnet.check_resnet_space(space)

    def resolution(self, space: SearchSpace, genotype: Genotype) -> int:
        """Return the height and width of the images that the network reads."""
        return int(space.values(genotype)["resolution"])

    def lower(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> Graph:
        """Return the operators in order of execution."""
        return lowering_resnet.lower(
            lowering_resnet.dimensions(space, genotype, signature), signature
        )

    def build(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> nn.Module:
        """Return the plain network, freshly initialised."""
        from hwnas.models.families.resnet.network import ResidualNetwork

        return ResidualNetwork(lowering_resnet.dimensions(space, genotype, signature), signature)

    def supernet(self, space: SearchSpace, signature: Signature) -> Supernet:
        """Return a freshly initialised supernet."""
        from hwnas.models.families.resnet.network import ResidualSupernet

        return ResidualSupernet(space, signature)


# Vision transformers as a family.


@final
class ViT:
    """AutoFormer's vision transformers; torch is imported only where a module is built."""

    @property
    def recipe(self) -> TrainingRecipe:
        """How supernets and networks of this family are trained by default."""
        return TrainingRecipe("adamw", lr=2e-3, weight_decay=0.05)

    def check(self, space: SearchSpace) -> None:
        """Raise ``SpaceError`` if the space does not describe vision transformers."""
        lowering_vit.check_vit_space(space)

    def resolution(self, space: SearchSpace, genotype: Genotype) -> int:
        """Return the height and width of the images that the network reads."""
        return int(space.values(genotype)["resolution"])

    def lower(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> Graph:
        """Return the operators in order of execution."""
        return lowering_vit.lower(lowering_vit.dimensions(space, genotype), signature)

    def build(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> nn.Module:
        """Return the plain network, freshly initialised."""
        from hwnas.models.families.vit.network import VisionTransformer

        return VisionTransformer(lowering_vit.dimensions(space, genotype), signature)

    def supernet(self, space: SearchSpace, signature: Signature) -> Supernet:
        """Return a freshly initialised supernet."""
        from hwnas.models.families.vit.network import ViTSupernet

        return ViTSupernet(space, signature)
