"""The trainings of one network on its way to the device: how long they take, what decides them."""

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, final

import numpy as np
from torch import Tensor, nn

from hwnas.core.options import digest
from hwnas.core.progress import Progress
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import RunFolder
from hwnas.models.families import annotations
from hwnas.models.graph import Graph
from hwnas.models.int8.simulation import SimulatedInt8
from hwnas.models.int8.weight_grids import grids
from hwnas.models.spaces import Genotype
from hwnas.tasks.base import PerImageResults, Task
from hwnas.training import loop
from hwnas.training.checkpoints import Checkpoint
from hwnas.training.evaluation.base import NetworkProvider
from hwnas.training.finetuning.finetuning_options import FinishingConfig
from hwnas.training.options import TrainingConfig, by_descent
from hwnas.training.parallel import waited
from hwnas.training.precision import FLOAT32
from hwnas.training.single_network import StudentNetwork, TeacherNetwork, seconds
from hwnas.training.soft_targets import AugmentedViews, SoftTargets, record
from hwnas.training.supernet import TrainingSetup

# Who teaches the networks that are finished.


class TeacherProvider(Protocol):
    """Has a trained network whose answers others learn."""

    @property
    def words(self) -> str:
        """Which network it is, to be told from others; empty for a supernet's largest subnet."""
        ...

    def teacher(
        self, setup: TrainingSetup, options: TrainingConfig, first_epoch: int, alpha: float
    ) -> TeacherNetwork:
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
class LargestSubnetTeacher:
    """The largest subnet of the supernet that a network comes from."""

    weights: NetworkProvider
    words: str = ""

    def teacher(
        self, setup: TrainingSetup, options: TrainingConfig, first_epoch: int, alpha: float
    ) -> TeacherNetwork:
        """Return it with the supernet's weights."""
        largest = setup.space.largest()
        network, resolution = self.weights.extracted(largest), setup.resolution(largest)
        return TeacherNetwork(network, resolution, alpha, dtype=setup.dtype(largest))


@final
@dataclass(frozen=True)
class FinetunedTeacher:
    """A finished network of the same search; its answers are computed once for all it teaches."""

    network: nn.Module
    genotype: Genotype
    setup: TrainingSetup  #: of that network
    origin: str  #: how its weights came to be
    progress: Progress

    @property
    def words(self) -> str:
        """Which network it is."""
        return (
            f", taught by {annotations.weight_relevant_genotype(self.genotype).id} ({self.origin})"
        )

    def teacher(
        self, setup: TrainingSetup, options: TrainingConfig, first_epoch: int, alpha: float
    ) -> TeacherNetwork:
        """Return it with its answers to the batches of the training."""
        own, resolution = self.setup, self.setup.resolution(self.genotype)
        views = AugmentedViews(own.material, options, own.seed, resolution, first_epoch)
        dtype = own.dtype(self.genotype)
        return TeacherNetwork(self.network, resolution, alpha, self._answers(views, dtype), dtype)

    def _answers(self, views: AugmentedViews, dtype: str) -> SoftTargets | None:
        """Return what it answers to all batches of a training.

        They are computed where they are not kept yet; where another process does so, wait for that.
        """
        drawn = ("epochs", "batch_size", "mixup", "plain_fraction", "dtype")
        # Its own training began with the same epoch as that which it teaches.
        own = self.setup.network_checkpoint(self.genotype, self.origin, views.first_epoch)
        known = [own.path.parent.name, *(getattr(views.config, name) for name in drawn)]
        folder = RunFolder(Path(self.setup.supernets, digest(known)))
        with contextlib.closing(waited(folder, self.progress)):
            return record(self.network, folder.path, views, self.progress, dtype)


@dataclass(frozen=True)
class NetworkSource:
    """Where the weights of a network come from."""

    setup: TrainingSetup  #: data, options and seed of the training
    weights: NetworkProvider  #: that search scored the network by
    genotype: Genotype
    tutor: TeacherProvider | None = None  #: whose answers are learned, beside the targets

    @property
    def resolution(self) -> int:
        """Height and width of the images that the network reads."""
        return self.setup.resolution(self.genotype)

    @property
    def images(self) -> Tensor:
        """The normalised training images that search calibrates on."""
        return self.weights.calibration_images(self.genotype)

    @property
    def first_epoch(self) -> int:
        """The number of the first epoch of its trainings: those before, search may have shown it.

        It is the same of all networks of a search, and of all trainings of one: they show the same
        images, to which a teacher answers once.
        """
        return self.weights.next_epoch

    def graph(self) -> Graph:
        """Return the operators of the network."""
        return self.setup.graph(self.genotype)

    def checkpoint(self, past: str) -> Checkpoint:
        """Return where the network is kept after a training; ``past`` tells all before, and it."""
        return self.setup.network_checkpoint(self.genotype, past, self.first_epoch)

    @property
    def task(self) -> Task:
        """What the network is for."""
        return self.setup.data.task

    def score(self, found: Callable[[Tensor, Tensor], PerImageResults]) -> Quantity:
        """Return the metric on the validation split.

        Args:
            found: Tells of images ``(N, C, R, R)`` and targets what the task finds of each.
        """
        data = self.setup.data
        batches = data.batches(data.validation, self.resolution)
        return self.task.score(np.concatenate([found(*batch) for batch in batches]))


@dataclass(frozen=True)
class TrainingStage:
    """One training of one network, with all that it needs."""

    setup: TrainingSetup
    student: StudentNetwork
    options: TrainingConfig
    checkpoint: Checkpoint
    n_before: int = 0  #: steps of another training that is to come first

    def learn(self, progress: Progress) -> float:
        """Train the network in place; return the seconds that it took, 0 where it was before."""
        summary = self.setup.train_single(self.student, self.options, self.checkpoint, progress)
        return summary.seconds if summary.n_steps else 0.0

    def fits(self, left_s: float) -> bool:
        """Return whether what is left of it will end within some seconds, by a few steps of it."""
        if not self.n_left or left_s == float("inf"):
            return True
        return left_s > 0 and self.takes_s() <= left_s

    @property
    def n_left(self) -> int:
        """The steps that are left."""
        total = loop.n_steps(self.options, len(self.setup.data.train))
        return self.n_before + max(0, total - self.checkpoint.n_steps())

    def takes_s(self, n_read: int = 0) -> float:
        """Return the seconds that the rest will take here just now; nothing is learned by that.

        Args:
            n_read: Images that are read afterwards.
        """
        spent = replace(self.student, network=copy.deepcopy(self.student.network))
        setup = self.setup
        return seconds(spent, setup.material, self.options, setup.seed, self.n_left, n_read)

    @property
    def n_shown(self) -> int:
        """The images of the whole training that a teacher answers once for all."""
        setup, student = self.setup, self.student
        where = (student.resolution, student.first_epoch)
        return AugmentedViews(setup.material, self.options, setup.seed, *where).n_recorded


@dataclass(frozen=True)
class FinetuneTraining:
    """A kind of training of a network that has learned before."""

    name: str  #: of the step
    phase: str  #: what progress calls it
    is_first: bool = False
    gentleness: float = 1.0  #: fraction of the finishing's rate

    def epochs(self, config: FinishingConfig) -> int:
        """Return for how long."""
        return config.epochs if self.is_first else config.later

    def words(self, origin: NetworkSource, config: FinishingConfig) -> str:
        """Return what decides the outcome, beside the setup and what was before."""
        rate = config.rate * self.gentleness
        words = f"{self.name}: {self.epochs(config)} epochs, rate x {rate:g}"
        if origin.tutor is not None and config.alpha:
            words += f", alpha {config.alpha}{origin.tutor.words}"
        return words

    def lesson(
        self,
        origin: NetworkSource,
        config: FinishingConfig,
        network: nn.Module,
        graph: Graph,
        past: str,
    ) -> TrainingStage:
        """Return the training of a network, in place.

        Args:
            origin: Whose it is.
            config: How it is finished.
            network: As it is by now.
            graph: Its operators.
            past: All that decides the weights then, this training included, beside the setup.
        """
        setup = origin.setup
        options = setup.train.of_recipe(self.epochs(config))
        # What is simulated in int8 knows of its grids, which bfloat16 would round, and its batch
        # norm is folded.
        is_simulated = isinstance(network, SimulatedInt8)
        usual = setup.family.recipe
        recipe = setup.train.recipe(by_descent(usual) if is_simulated else usual)
        recipe = replace(recipe, lr=recipe.lr * config.rate * self.gentleness)
        teacher = None
        if origin.tutor is not None and config.alpha:
            teacher = origin.tutor.teacher(setup, options, origin.first_epoch, config.alpha)
        student = StudentNetwork(
            network,
            origin.resolution,
            recipe,
            teacher,
            phase=self.phase,
            grids={} if is_simulated else grids(network, graph),
            dtype=FLOAT32 if is_simulated else setup.dtype(origin.genotype),
            has_exits=bool(graph.exits),
            first_epoch=origin.first_epoch,
        )
        return TrainingStage(setup, student, options, origin.checkpoint(past))


FINE_TUNED = FinetuneTraining("fine-tuned", "Fine-tune", is_first=True)
PRUNED = FinetuneTraining("pruned", "Fine-tune the pruned")
OF_FEW_BITS = FinetuneTraining("bits-trained", "Train for few bits")
FOR_INT8 = FinetuneTraining("int8-trained", "Train for int8", gentleness=0.3)


def first(origin: NetworkSource, config: FinishingConfig) -> TrainingStage:
    """Return the fine-tuning of a network, which has learned nothing yet: to see what it takes."""
    network = origin.setup.build(origin.genotype)
    return FINE_TUNED.lesson(origin, config, network, origin.graph(), _tuned(origin, config))


def checkpoint(origin: NetworkSource, config: FinishingConfig) -> Checkpoint:
    """Return where a network is kept once it is fine-tuned."""
    return origin.checkpoint(_tuned(origin, config))


def _tuned(origin: NetworkSource, config: FinishingConfig) -> str:
    return f"{origin.weights.origin(origin.genotype)}; {FINE_TUNED.words(origin, config)}"


def prepare(origin: NetworkSource, config: FinishingConfig) -> None:
    """Have what teaches a network at hand before its training, or that of others, begins."""
    if origin.tutor is not None and config.epochs and config.alpha:
        options = origin.setup.train.of_recipe(config.epochs)
        origin.tutor.teacher(origin.setup, options, origin.first_epoch, config.alpha)
