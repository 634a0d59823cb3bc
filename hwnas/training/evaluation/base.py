"""Interfaces of candidate evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hwnas.models.spaces import Genotype
from hwnas.tasks.base import Incumbent, Score

if TYPE_CHECKING:
    from torch import Tensor, nn


class Evaluator(Protocol):
    """Estimates the quality of a genotype's network."""

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        """Return the task's metric on the validation split.

        Args:
            genotype: Genotype of the network.
            incumbent: Reading stops early once the network is significantly worse than this one.
        """
        ...


class NetworkProvider(Protocol):
    """Provides networks with the weights that the search evaluated."""

    @property
    def next_epoch(self) -> int:
        """The first epoch whose batches no network was trained on; fine-tuning starts there."""
        ...

    def extracted(self, genotype: Genotype) -> nn.Module:
        """Return the plain network with recalibrated batch norm, ready for further training."""
        ...

    def network(self, genotype: Genotype) -> nn.Module:
        """Return the plain network with batch norm folded."""
        ...

    def calibration_images(self, genotype: Genotype) -> Tensor:
        """Return normalised training images at the genotype's resolution, ``(N, C, R, R)``."""
        ...

    def origin(self, genotype: Genotype) -> str:
        """Return a text with everything that determines the weights; enters digests."""
        ...
