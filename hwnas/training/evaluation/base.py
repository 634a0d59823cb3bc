"""How well a candidate answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hwnas.models.spaces import Genotype
from hwnas.tasks.base import Incumbent, Score

if TYPE_CHECKING:
    from torch import Tensor, nn


class Evaluator(Protocol):
    """Says how well a genotype's network answers."""

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        """Return the task's metric on the validation split.

        Args:
            genotype: Which network.
            incumbent: Reading may stop once the network is found to be worse than this one.
        """
        ...


class NetworkProvider(Protocol):
    """Has the networks of genotypes, with the weights that search scored them by."""

    @property
    def next_epoch(self) -> int:
        """The number of the first epoch that no network was shown: trainings go on from it."""
        ...

    def extracted(self, genotype: Genotype) -> nn.Module:
        """Return the plain network, its batch norm recalibrated; it can be trained on."""
        ...

    def network(self, genotype: Genotype) -> nn.Module:
        """Return the plain network with batch norm folded."""
        ...

    def calibration_images(self, genotype: Genotype) -> Tensor:
        """Return normalised training images at the genotype's resolution, ``(N, C, R, R)``."""
        ...

    def origin(self, genotype: Genotype) -> str:
        """Return where the weights come from, in words that tell all that decides them."""
        ...
