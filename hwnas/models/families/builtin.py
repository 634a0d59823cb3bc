"""The families of hwnas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast, final

from hwnas.models.families.base import TrainingRecipe
from hwnas.models.families.mbconv import lowering as mbconv
from hwnas.models.families.mbconv.space_checks import check_mbconv_space
from hwnas.models.families.resnet import lowering as resnet
from hwnas.models.families.vit import lowering as vit
from hwnas.models.graph import Graph, Signature
from hwnas.models.spaces import Genotype, SearchSpace

if TYPE_CHECKING:
    from torch import nn

    from hwnas.models.families.base import Supernet


@final
@dataclass(frozen=True)
class BuiltInFamily:
    """A family of hwnas; its torch modules are imported only when one is built."""

    recipe: TrainingRecipe
    check_space: Callable[[SearchSpace], None]
    dimensions: Callable[[SearchSpace, Genotype, Signature], Any]
    lowering: Callable[[Any, Signature], Graph]
    network: str  #: torch class, as ``module:name``
    supernet_class: str

    def check(self, space: SearchSpace) -> None:
        """Raise ``SpaceError`` if the space is not one of this family."""
        self.check_space(space)

    def resolution(self, space: SearchSpace, genotype: Genotype) -> int:
        """Return the height and width of the input images."""
        return int(space.values(genotype)["resolution"])

    def lower(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> Graph:
        """Return the graph of a genotype."""
        return self.lowering(self.dimensions(space, genotype, signature), signature)

    def build(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> nn.Module:
        """Return a freshly initialised network."""
        dims = self.dimensions(space, genotype, signature)
        return cast("nn.Module", _torch_class(self.network)(dims, signature))

    def supernet(self, space: SearchSpace, signature: Signature) -> Supernet:
        """Return a freshly initialised supernet."""
        return cast("Supernet", _torch_class(self.supernet_class)(space, signature))


def _torch_class(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"hwnas.models.families.{module}"), attribute)


def _mbconv(space: SearchSpace, genotype: Genotype, _: Signature) -> mbconv.MBConvDimensions:
    return mbconv.dimensions(space, genotype)


def _vit(space: SearchSpace, genotype: Genotype, _: Signature) -> vit.ViTDimensions:
    return vit.dimensions(space, genotype)


MBCONV = BuiltInFamily(
    TrainingRecipe("muon", lr=0.2, weight_decay=5e-5),  # supernets: see ``by_descent``
    check_mbconv_space,
    _mbconv,
    mbconv.lower,
    "mbconv.network:MBConvNet",
    "mbconv.supernet:MBConvSupernet",
)
RESNET = BuiltInFamily(
    TrainingRecipe("sgd", lr=0.1, weight_decay=5e-5),
    resnet.check_resnet_space,
    resnet.dimensions,
    resnet.lower,
    "resnet.network:ResidualNetwork",
    "resnet.network:ResidualSupernet",
)
VIT = BuiltInFamily(
    TrainingRecipe("adamw", lr=2e-3, weight_decay=0.05),
    vit.check_vit_space,
    _vit,
    vit.lower,
    "vit.network:VisionTransformer",
    "vit.network:ViTSupernet",
)
