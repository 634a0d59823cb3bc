"""The interface of families of networks."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast, final

from hwnas.models.graph import Graph, Signature
from hwnas.models.spaces import Genotype, SearchSpace

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class TrainingRecipe:
    """Default training options of a family, which ``train.*`` options replace."""

    optimiser: str  #: ``sgd`` (with Nesterov momentum), ``adamw`` or ``muon``
    lr: float  #: peak learning rate of the schedule
    weight_decay: float  #: coefficient, as of torch's optimisers


class Supernet(Protocol):
    """Shared weights of all networks of a space."""

    @property
    def module(self) -> nn.Module:
        """The module that holds the shared weights."""
        ...

    def forward(self, images: Tensor, genotype: Genotype) -> Tensor:
        """Return the outputs ``(N, n_outputs)`` of a subnet for images ``(N, C, R, R)``.

        Training calls it from several threads at once unless it changes buffers or draws random
        numbers.
        """
        ...

    def extract(self, genotype: Genotype) -> nn.Module:
        """Return the network of a genotype with copies of its weights; outputs are equal."""
        ...


class Family(Protocol):
    """A family of networks, described by the choices of search spaces."""

    @property
    def recipe(self) -> TrainingRecipe:
        """Default training options."""
        ...

    def check(self, space: SearchSpace) -> None:
        """Raise ``SpaceError`` if the space is not one of this family."""
        ...

    def resolution(self, space: SearchSpace, genotype: Genotype) -> int:
        """Return the height and width of the (square) input images in pixels."""
        ...

    def lower(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> Graph:
        """Return the graph of a genotype, without importing torch.

        Names must be ``stages.<i>.blocks.<j>.<...>`` for operators of blocks. The choices that
        spaces of all families have (``weight_bits``, ``weight_sparsity``, exits) apply to these
        operators; without any such operator, a space with these choices is an error.
        """
        ...

    def build(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> nn.Module:
        """Return a network with new random weights, whose modules are named as the graph's nodes.

        The submodule ``node.name`` computes the node.
        """
        ...

    def supernet(self, space: SearchSpace, signature: Signature) -> Supernet:
        """Return a supernet with new random weights, drawn from torch's global generator."""
        ...


@final
@dataclass(frozen=True)
class BuiltInFamily:
    """A family of hwnas. Torch is imported only when a network or a supernet is built.

    Modules are relative to ``hwnas.models.families``.
    """

    recipe: TrainingRecipe
    lowering: str  #: module with ``dimensions`` and ``lower``; it needs no torch
    check_space: str  #: function that checks a space, as ``module:name``
    network: str  #: torch class of networks, as ``module:name``
    supernet_class: str  #: torch class of supernets, as ``module:name``

    def check(self, space: SearchSpace) -> None:
        """Raise ``SpaceError`` if the space is not one of this family."""
        _import_attribute(self.check_space)(space)

    def resolution(self, space: SearchSpace, genotype: Genotype) -> int:
        """Return the height and width of the (square) input images in pixels."""
        return int(space.values(genotype)["resolution"])

    def lower(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> Graph:
        """Return the graph of a genotype."""
        graph = _import_attribute(f"{self.lowering}:lower")(
            self._dimensions(space, genotype, signature), signature
        )
        return cast("Graph", graph)

    def build(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> nn.Module:
        """Return a network with new random weights."""
        dims = self._dimensions(space, genotype, signature)
        return cast("nn.Module", _import_attribute(self.network)(dims, signature))

    def supernet(self, space: SearchSpace, signature: Signature) -> Supernet:
        """Return a supernet with new random weights."""
        return cast("Supernet", _import_attribute(self.supernet_class)(space, signature))

    def _dimensions(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> Any:
        return _import_attribute(f"{self.lowering}:dimensions")(space, genotype, signature)


def _import_attribute(name: str) -> Any:
    """Return an attribute of a module of this folder; it is imported when it is needed."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"hwnas.models.families.{module}"), attribute)


MBCONV = BuiltInFamily(
    TrainingRecipe("muon", lr=0.2, weight_decay=5e-5),
    "mbconv.lowering",
    "mbconv.space_checks:check_mbconv_space",
    "mbconv.network:MBConvNet",
    "mbconv.supernet:MBConvSupernet",
)
RESNET = BuiltInFamily(
    TrainingRecipe("sgd", lr=0.1, weight_decay=5e-5),
    "resnet.lowering",
    "resnet.lowering:check_resnet_space",
    "resnet.network:ResidualNetwork",
    "resnet.network:ResidualSupernet",
)
VIT = BuiltInFamily(
    TrainingRecipe("adamw", lr=2e-3, weight_decay=0.05),
    "vit.lowering",
    "vit.lowering:check_vit_space",
    "vit.network:VisionTransformer",
    "vit.network:ViTSupernet",
)
