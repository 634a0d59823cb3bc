"""The interface of families of networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hwnas.models.graph import Graph, Signature
from hwnas.models.spaces import Genotype, SearchSpace

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class TrainingRecipe:
    """Default training options of a family."""

    optimiser: str  #: ``sgd`` (with Nesterov momentum), ``adamw`` or ``muon``
    lr: float  #: peak of the schedule
    weight_decay: float


class Supernet(Protocol):
    """Shared weights of all networks of a space."""

    @property
    def module(self) -> nn.Module:
        """The module that holds the shared weights."""
        ...

    def forward(self, images: Tensor, genotype: Genotype) -> Tensor:
        """Return the outputs of a subnet, ``(N, C, R, R)`` to ``(N, n_outputs)``.

        Training calls it from several threads at once unless it changes buffers or draws random
        numbers.
        """
        ...

    def extract(self, genotype: Genotype) -> nn.Module:
        """Return a plain network with copies of the weights and equal outputs."""
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
        """Return the height and width of the input images."""
        ...

    def lower(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> Graph:
        """Return the graph of a genotype, without importing torch.

        Choices of any space (``weight_bits``, ``weight_sparsity``, exits) apply to operators named
        ``stages.<i>.blocks.<j>.<...>``; without such operators they are refused.
        """
        ...

    def build(self, space: SearchSpace, genotype: Genotype, signature: Signature) -> nn.Module:
        """Return a freshly initialised network; its modules have the names of the graph's nodes."""
        ...

    def supernet(self, space: SearchSpace, signature: Signature) -> Supernet:
        """Return a freshly initialised supernet; draws from torch's global generator."""
        ...
