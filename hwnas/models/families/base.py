"""What a family of networks must offer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hwnas.models.graph import Graph, Signature
from hwnas.models.spaces import Genotype, SearchSpace

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class TrainingRecipe:
    """How networks of a family are trained where the user does not say otherwise."""

    optimiser: str  #: ``sgd`` (with Nesterov's momentum), ``adamw`` or ``muon``
    lr: float  #: peak of the schedule
    weight_decay: float


class Supernet(Protocol):
    """Shared weights from which every genotype of a space can be computed."""

    @property
    def module(self) -> nn.Module:
        """The module that holds the shared weights."""
        ...

    def forward(self, images: Tensor, genotype: Genotype) -> Tensor:
        """Return the outputs of one subnet.

        If it changes no buffer and draws no random numbers, training calls it from several threads
        at once.

        Shapes:
            ``(N, C, R, R)`` with the genotype's resolution ``R`` to ``(N, n_outputs)``.
        """
        ...

    def extract(self, genotype: Genotype) -> nn.Module:
        """Return a plain network with a copy of the weights, equal in its outputs."""
        ...


class Family(Protocol):
    """Networks of one kind, described by the choices of their spaces."""

    @property
    def recipe(self) -> TrainingRecipe:
        """How supernets and networks of this family are trained by default."""
        ...

    def check(self, space: SearchSpace) -> None:
        """Raise ``SpaceError`` if the space is not one of this family."""
        ...

    def resolution(self, space: SearchSpace, genotype: Genotype) -> int:
        """Return the height and width of the images that the network reads."""
        ...

    def lower(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> Graph:
        """Return the operators that run on a target; needs no torch.

        What any space may say of a stage or a block (``weight_bits``, ``weight_sparsity``, exits)
        is of operators called ``stages.<i>.blocks.<j>.<...>``; it is refused where there are none.
        """
        ...

    def build(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> nn.Module:
        """Return the plain network, freshly initialised.

        Every lowered operator has the name of the module that computes it.
        """
        ...

    def supernet(self, space: SearchSpace, signature: Signature) -> Supernet:
        """Return a freshly initialised supernet; draws from torch's global generator."""
        ...
