"""Who teaches the networks that are finished."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

from torch import nn

from hwnas.accuracy.base import Weights
from hwnas.families import annotations
from hwnas.identity import digest
from hwnas.progress import Progress
from hwnas.results import RunFolder
from hwnas.space import Genotype
from hwnas.supernets import TrainingSetup
from hwnas.training.alone import Teacher
from hwnas.training.config import TrainingConfig
from hwnas.training.soft_targets import SoftTargets, Views, record
from hwnas.training.sole import waited


class Tutor(Protocol):
    """Has a trained network whose answers others learn."""

    @property
    def words(self) -> str:
        """Which network it is, to be told from others; empty for a supernet's largest subnet."""
        ...

    def teacher(
        self, setup: TrainingSetup, options: TrainingConfig, first_epoch: int, alpha: float
    ) -> Teacher:
        """Return the network for one training.

        Args:
            setup: Of the network that is taught.
            options: Of its training.
            first_epoch: Of its training: its number.
            alpha: Share of the loss that is on the answers.
        """
        ...


@final
@dataclass(frozen=True)
class LargestSubnet:
    """The largest subnet of the supernet that a network comes from."""

    weights: Weights
    words: str = ""

    def teacher(
        self, setup: TrainingSetup, options: TrainingConfig, first_epoch: int, alpha: float
    ) -> Teacher:
        """Return it with the supernet's weights."""
        largest = setup.space.largest()
        network, resolution = self.weights.extracted(largest), setup.resolution(largest)
        return Teacher(network, resolution, alpha, dtype=setup.dtype(largest))


@final
@dataclass(frozen=True)
class FinishedNetwork:
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

    def teacher(
        self, setup: TrainingSetup, options: TrainingConfig, first_epoch: int, alpha: float
    ) -> Teacher:
        """Return it with its answers to the batches of the training."""
        own, resolution = self.setup, self.setup.resolution(self.genotype)
        views = Views(own.material, options, own.seed, resolution, first_epoch)
        dtype = own.dtype(self.genotype)
        return Teacher(self.network, resolution, alpha, self._answers(views, dtype), dtype)

    def _answers(self, views: Views, dtype: str) -> SoftTargets | None:
        """Return what it answers to all batches of a training.

        They are computed where they are not kept yet; where another process does so, wait for that.
        """
        drawn = ("epochs", "batch_size", "mixup", "unaugmented", "dtype")
        # Its own training began with the same epoch as that which it teaches.
        own = self.setup.network_checkpoint(self.genotype, self.origin, views.first_epoch)
        known = [own.path.parent.name, *(getattr(views.config, name) for name in drawn)]
        folder = RunFolder(Path(self.setup.supernets, digest(known)))
        with contextlib.closing(waited(folder, self.progress)):
            return record(self.network, folder.path, views, self.progress, dtype)
