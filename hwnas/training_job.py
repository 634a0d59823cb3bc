"""The training of one network alone, by all that decides its weights."""

import copy
from dataclasses import dataclass

from torch import nn

from hwnas.families.base import Recipe, Supernet
from hwnas.progress import Progress
from hwnas.space import Genotype
from hwnas.supernets import TrainingSetup
from hwnas.training import loop
from hwnas.training.alone import Student
from hwnas.training.checkpoint import Checkpoint
from hwnas.training.config import TrainingConfig, fine_tuning
from hwnas.training.loop import Log, Summary


@dataclass(frozen=True)
class TrainingJob:
    """The training of one network alone: from scratch, or on from a supernet's weights."""

    setup: TrainingSetup  #: data, options and seed
    genotype: Genotype
    supernet: Supernet | None = None  #: whose weights it goes on from

    @property
    def options(self) -> TrainingConfig:
        """How it is trained; what the family's recipe leaves open is in ``recipe``."""
        train = self.setup.train
        return train if self.supernet is None else train.of_recipe(train.fine_tuning_epochs)

    @property
    def recipe(self) -> Recipe:
        """The family's recipe, changed where options say so; gentler on learned weights."""
        recipe = self.setup.train.recipe(self.setup.family.recipe)
        return recipe if self.supernet is None else fine_tuning(recipe)

    def checkpoint(self) -> Checkpoint:
        """Return where the network is kept."""
        start = "scratch"
        if self.supernet is not None:
            start = f"supernet, {self.options.epochs} epochs of fine-tuning"
        return self.setup.network_checkpoint(self.genotype, start)

    def trained(self, progress: Progress, log: Log | None = None) -> tuple[nn.Module, Summary]:
        """Return the trained network, ready for use; trains what is not trained yet."""
        setup = self.setup
        loop.check(self.options, len(setup.data.train))
        start, metric = self.supernet, setup.data.task.metric
        network = (setup.build if start is None else start.extract)(self.genotype)
        student = Student(
            network,
            setup.resolution(self.genotype),
            self.recipe,
            measure=lambda: {metric: setup.glance(copy.deepcopy(network), self.genotype)},
            grids=setup.grids(network, self.genotype),
            dtype=setup.dtype(self.genotype),
            has_exits=bool(setup.lowered(self.genotype).exits),
        )
        return network, setup.teach(student, self.options, self.checkpoint(), progress, log)
