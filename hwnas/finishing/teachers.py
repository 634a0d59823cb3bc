"""Who teaches the networks that are finished."""

from dataclasses import dataclass
from typing import Protocol, final

from torch import nn

from hwnas.accuracy.base import Weights
from hwnas.families import annotations
from hwnas.progress import Progress
from hwnas.space import Genotype
from hwnas.supernets import TrainingSetup
from hwnas.training.alone import Teacher
from hwnas.training.config import TrainingConfig


class Tutor(Protocol):
    """Has a trained network whose answers others learn."""

    @property
    def words(self) -> str:
        """Which network it is, to be told from others; empty for a supernet's largest subnet."""
        ...

    def teacher(self, setup: TrainingSetup, options: TrainingConfig, alpha: float) -> Teacher:
        """Return the network for one training.

        Args:
            setup: Of the network that is taught.
            options: Of its training.
            alpha: Share of the loss that is on the answers.
        """
        ...


@final
@dataclass(frozen=True)
class LargestSubnet:
    """The largest subnet of the supernet that a network comes from."""

    weights: Weights
    words: str = ""

    def teacher(self, setup: TrainingSetup, options: TrainingConfig, alpha: float) -> Teacher:
        """Return it with the supernet's weights."""
        largest = setup.space.largest()
        network, resolution = self.weights.extracted(largest), setup.resolution(largest)
        return Teacher(network, resolution, alpha, dtype=setup.dtype(largest))


@final
@dataclass(frozen=True)
class Member:
    """A finished network of the same search; its answers are computed once for all it teaches."""

    network: nn.Module
    genotype: Genotype
    setup: TrainingSetup  #: of that network
    origin: str  #: how its weights came to be
    progress: Progress

    @property
    def words(self) -> str:
        """Which network it is."""
        return f", taught by {annotations.bare(self.genotype).id} ({self.origin})"

    def teacher(self, setup: TrainingSetup, options: TrainingConfig, alpha: float) -> Teacher:
        """Return it with its answers to the batches of the training."""
        resolution = self.setup.resolution(self.genotype)
        recorded = self.setup.answers(
            self.network, self.genotype, self.origin, options, self.progress
        )
        return Teacher(self.network, resolution, alpha, recorded, self.setup.dtype(self.genotype))
