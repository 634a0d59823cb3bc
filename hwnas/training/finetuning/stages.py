"""Trainings of one network after the search: sources, teachers, duration and fingerprints."""

import contextlib
import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
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
from hwnas.models.int8.weight_grids import weight_grids_of
from hwnas.models.spaces import Genotype
from hwnas.tasks.base import PerImageResults, Task
from hwnas.training import loop
from hwnas.training.checkpoints import Checkpoint
from hwnas.training.evaluation.interfaces import NetworkProvider
from hwnas.training.inference import FLOAT32
from hwnas.training.options import FinetuningConfig, TrainingConfig, without_muon
from hwnas.training.parallel import lock_folder
from hwnas.training.single_network import StudentNetwork, TeacherNetwork, estimate_seconds
from hwnas.training.soft_targets import AugmentedViews, SoftTargets, record
from hwnas.training.supernet import TrainingSetup


class TeacherProvider(Protocol):
    """Provides the teacher of fine-tuned networks."""

    @property
    def digest_text(self) -> str:
        """Text that identifies the teacher in digests; empty for a supernet's largest subnet."""
        ...

    def teacher(
        self, setup: TrainingSetup, options: TrainingConfig, first_epoch: int, alpha: float
    ) -> TeacherNetwork:
        """Return the teacher for one training; its outputs may be recorded first, in files.

        Args:
            setup: Training setup of the student.
            options: Training options of the student.
            first_epoch: Index of the first epoch of the training.
            alpha: Weight of the distillation loss, in [0, 1].
        """
        ...


@final
@dataclass(frozen=True)
class LargestSubnetTeacher:
    """The largest subnet of the student's supernet."""

    weights: NetworkProvider  #: provides that subnet
    digest_text: str = ""  #: empty: it follows from the student's weights

    def teacher(
        self, setup: TrainingSetup, options: TrainingConfig, first_epoch: int, alpha: float
    ) -> TeacherNetwork:
        """Return the largest subnet with the supernet's weights."""
        largest = setup.space.largest()
        network, resolution = self.weights.extracted(largest), setup.resolution(largest)
        return TeacherNetwork(network, resolution, alpha, dtype=setup.dtype(largest))


@final
@dataclass(frozen=True)
class FinetunedTeacher:
    """A fine-tuned network of the same search.

    Its outputs are recorded for all students if they take at most 1 GiB.
    """

    network: nn.Module
    genotype: Genotype
    setup: TrainingSetup  #: of the teacher
    origin: str  #: text that identifies the training of its weights
    progress: Progress

    @property
    def digest_text(self) -> str:
        """Text that identifies the teacher in digests."""
        return (
            f", taught by {annotations.weight_relevant_genotype(self.genotype).id} ({self.origin})"
        )

    def teacher(
        self, setup: TrainingSetup, options: TrainingConfig, first_epoch: int, alpha: float
    ) -> TeacherNetwork:
        """Return the teacher, with its recorded outputs if they take at most 1 GiB."""
        resolution, dtype = self.setup.resolution(self.genotype), self.setup.dtype(self.genotype)
        data, seed = self.setup.material, self.setup.seed
        views = AugmentedViews(data, options, seed, resolution, first_epoch)
        recorded = self._recorded_outputs(views, dtype)
        return TeacherNetwork(self.network, resolution, alpha, recorded, dtype)

    def _recorded_outputs(self, views: AugmentedViews, dtype: str) -> SoftTargets | None:
        """Return the outputs for all batches of a training, computed by one process only."""
        names = ("epochs", "batch_size", "mixup", "plain_fraction", "dtype")
        # The teacher's own training began with the same epoch as that of its students.
        checkpoint = self.setup.network_checkpoint(self.genotype, self.origin, views.first_epoch)
        values = asdict(views.config) | {"batch_size": views.config.images_per_step}
        key = [checkpoint.path.parent.name, *(values[name] for name in names)]
        folder = RunFolder(Path(self.setup.supernets, digest(key)))
        with contextlib.closing(lock_folder(folder, self.progress)):
            return record(self.network, folder.path, views, self.progress, dtype)


@dataclass(frozen=True)
class NetworkSource:
    """Initial weights of a network to be fine-tuned, and its teacher."""

    setup: TrainingSetup  #: data, options and seed
    weights: NetworkProvider  #: weights of the search
    genotype: Genotype
    tutor: TeacherProvider | None = None  #: provides the teacher; ``None``: no distillation

    @property
    def resolution(self) -> int:
        """Height and width of the network's input, in pixels."""
        return self.setup.resolution(self.genotype)

    @property
    def images(self) -> Tensor:
        """Normalised training images for calibration, ``(N, C, R, R)``."""
        return self.weights.calibration_images(self.genotype)

    @property
    def first_epoch(self) -> int:
        """Index of the first epoch of its trainings, after all epochs of the search.

        It is equal for all networks of a search, so that they use the same images and recorded
        outputs of the teacher.
        """
        return self.weights.next_epoch

    def graph(self) -> Graph:
        """Return the graph of the network."""
        return self.setup.graph(self.genotype)

    def checkpoint(self, past: str) -> Checkpoint:
        """Return the checkpoint of a training that the text ``past`` identifies."""
        return self.setup.network_checkpoint(self.genotype, past, self.first_epoch)

    @property
    def task(self) -> Task:
        """Task of the network."""
        return self.setup.data.task

    def score(self, evaluate: Callable[[Tensor, Tensor], PerImageResults]) -> Quantity:
        """Return the metric on the validation split, with its 95 % interval.

        Args:
            evaluate: Returns the task's results ``(N,)`` for images ``(N, C, R, R)`` and targets.
        """
        data = self.setup.data
        batches = data.batches(data.validation, self.resolution)
        return self.task.score(np.concatenate([evaluate(*batch) for batch in batches]))


@dataclass(frozen=True)
class TrainingStage:
    """One training of one network."""

    setup: TrainingSetup
    student: StudentNetwork
    options: TrainingConfig
    checkpoint: Checkpoint
    n_before: int = 0  #: steps of another training of the network that comes first

    def run(self, progress: Progress) -> float:
        """Train the network in place; return the duration in seconds, 0 if it was complete.

        Raises:
            RunError: the checkpoint is damaged or of another training.
            TrainingError: the training collapsed, or a batch does not fit into memory.
            TimeLimitReached: ``stop_trainings`` stopped it.
        """
        summary = self.setup.train_single(self.student, self.options, self.checkpoint, progress)
        return summary.seconds if summary.n_steps else 0.0

    def fits(self, remaining_s: float) -> bool:
        """Return whether the remaining training is estimated to take at most ``remaining_s``.

        True if nothing remains, or for an infinite ``remaining_s``.
        """
        if not self.n_left or remaining_s == float("inf"):
            return True
        return remaining_s > 0 and self.takes_s() <= remaining_s

    @property
    def n_left(self) -> int:
        """Number of remaining steps, including ``n_before``."""
        total = loop.n_steps(self.options, len(self.setup.data.train))
        return self.n_before + max(0, total - self.checkpoint.n_steps())

    def takes_s(self, n_read: int = 0) -> float:
        """Return the estimated duration of the remaining training in seconds.

        A few steps of a copy of the network are timed.

        Args:
            n_read: Number of further images that the network reads in inference.
        """
        copied = replace(self.student, network=copy.deepcopy(self.student.network))
        setup = self.setup
        return estimate_seconds(
            copied, setup.material, self.options, setup.seed, self.n_left, n_read
        )

    def epoch_s(self) -> float:
        """Return the estimated duration of a training of one epoch in seconds.

        Batch norm recalibration and two validations are included. The network is changed.
        """
        setup, options = self.setup, self.options.with_epochs(1)
        total = loop.n_steps(options, len(setup.data.train))
        return estimate_seconds(self.student, setup.material, options, setup.seed, total)

    @property
    def n_shown(self) -> int:
        """Number of images for which the teacher's outputs are recorded; 0 for more than 1 GiB."""
        setup, student = self.setup, self.student
        position = (student.resolution, student.first_epoch)
        return AugmentedViews(setup.material, self.options, setup.seed, *position).n_recorded


@dataclass(frozen=True)
class FinetuneTraining:
    """A kind of training after the search."""

    name: str  #: name of the step in reports
    phase: str  #: name in progress displays
    is_first: bool = False  #: True: lasts ``epochs`` epochs, else ``later_epochs``
    gentleness: float = 1.0  #: factor of the learning rate of fine-tuning

    def epochs(self, config: FinetuningConfig) -> int:
        """Return the number of epochs: of the first training of a network, or of later ones."""
        return config.epochs if self.is_first else config.later

    def digest_text(self, origin: NetworkSource, config: FinetuningConfig) -> str:
        """Return a text that identifies this training, for digests."""
        rate = config.rate * self.gentleness
        text = f"{self.name}: {self.epochs(config)} epochs, rate x {rate:g}"
        if origin.tutor is not None and config.alpha:
            text += f", alpha {config.alpha}{origin.tutor.digest_text}"
        return text

    def stage(
        self,
        origin: NetworkSource,
        config: FinetuningConfig,
        network: nn.Module,
        graph: Graph,
        past: str,
    ) -> TrainingStage:
        """Return the training of a network; running it changes the network in place.

        The teacher is loaded or trained, and its outputs recorded, unless the training is complete.

        Args:
            origin: Source of the network.
            config: Fine-tuning options.
            network: The network to be trained.
            graph: Its graph.
            past: Text that identifies all trainings of the weights, including this one.
        """
        setup = origin.setup
        options = setup.train.with_epochs(self.epochs(config))
        # Simulated int8 networks contain their grids, which bfloat16 would round, and have batch
        # norm folded, which Muon does not suit.
        recipe = setup.train.recipe(setup.family.recipe)
        if is_simulated := isinstance(network, SimulatedInt8):
            is_muon = setup.train.optimiser == "muon"  # its default replacement keeps other options
            train = replace(setup.train, optimiser=None) if is_muon else setup.train
            recipe = without_muon(train.recipe(without_muon(setup.family.recipe)))
        recipe = replace(recipe, lr=recipe.lr * config.rate * self.gentleness)
        checkpoint, teacher = origin.checkpoint(past), None
        is_complete = checkpoint.n_steps() >= loop.n_steps(options, len(setup.data.train))
        if origin.tutor is not None and config.alpha and not is_complete:
            teacher = origin.tutor.teacher(setup, options, origin.first_epoch, config.alpha)
        student = StudentNetwork(
            network,
            origin.resolution,
            recipe,
            teacher,
            phase=self.phase,
            grids={} if is_simulated else weight_grids_of(network, graph),
            dtype=FLOAT32 if is_simulated else setup.dtype(origin.genotype),
            first_epoch=origin.first_epoch,
            lower_lr=f"finish.rate={config.rate / 4:g} in a search",
        )
        return TrainingStage(setup, student, options, checkpoint)


FINE_TUNED = FinetuneTraining("fine-tuned", "Fine-tune", is_first=True)
PRUNED = FinetuneTraining("pruned", "Fine-tune the pruned")
OF_FEW_BITS = FinetuneTraining("bits-trained", "Train for few bits")
FOR_INT8 = FinetuneTraining("int8-trained", "Train for int8", gentleness=0.3)


def first_stage(origin: NetworkSource, config: FinetuningConfig) -> TrainingStage:
    """Return the fine-tuning of a network with untrained weights, to estimate its duration.

    The teacher is loaded or trained, see ``FinetuneTraining.stage``.
    """
    network = origin.setup.build(origin.genotype)
    return FINE_TUNED.stage(origin, config, network, origin.graph(), _past(origin, config))


def checkpoint(origin: NetworkSource, config: FinetuningConfig) -> Checkpoint:
    """Return the checkpoint of a network's fine-tuning, before pruning or int8 training.

    Nothing is trained; the file may not exist yet.
    """
    return origin.checkpoint(_past(origin, config))


def _past(origin: NetworkSource, config: FinetuningConfig) -> str:
    return f"{origin.weights.origin(origin.genotype)}; {FINE_TUNED.digest_text(origin, config)}"


def prepare(origin: NetworkSource, config: FinetuningConfig) -> None:
    """Record the teacher's outputs for fine-tuning, so that later trainings only read them.

    Outputs of more than 1 GiB, and those of a supernet's largest subnet, are not recorded.
    """
    if origin.tutor is not None and config.epochs and config.alpha:
        options = origin.setup.train.with_epochs(config.epochs)
        origin.tutor.teacher(origin.setup, options, origin.first_epoch, config.alpha)
