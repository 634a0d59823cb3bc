"""The trainings of one network on its way to the device: how long they take, what decides them."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor, nn

from hwnas.accuracy.base import Weights
from hwnas.figure import Figure
from hwnas.finishing.options import FinishingConfig
from hwnas.finishing.teachers import Tutor
from hwnas.graph import Graph
from hwnas.int8.grid import grids
from hwnas.int8.simulated import Simulated
from hwnas.progress import Progress
from hwnas.space import Genotype
from hwnas.supernets import TrainingSetup
from hwnas.tasks.base import Found, Task
from hwnas.training import loop
from hwnas.training.alone import Student, seconds
from hwnas.training.checkpoint import Checkpoint
from hwnas.training.config import TrainingConfig, by_descent
from hwnas.training.precision import FLOAT32
from hwnas.training.soft_targets import Views


@dataclass(frozen=True)
class Origin:
    """Where the weights of a network come from."""

    setup: TrainingSetup  #: data, options and seed of the training
    weights: Weights  #: that search scored the network by
    genotype: Genotype
    tutor: Tutor | None = None  #: whose answers are learned, beside the targets

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

    def lowered(self) -> Graph:
        """Return the operators of the network."""
        return self.setup.lowered(self.genotype)

    def checkpoint(self, past: str) -> Checkpoint:
        """Return where the network is kept after a training; ``past`` tells all before, and it."""
        return self.setup.network_checkpoint(self.genotype, past, self.first_epoch)

    @property
    def task(self) -> Task:
        """What the network is for."""
        return self.setup.data.task

    def score(self, found: Callable[[Tensor, Tensor], Found]) -> Figure:
        """Return the metric on the validation split.

        Args:
            found: Tells of images ``(N, C, R, R)`` and targets what the task finds of each.
        """
        data = self.setup.data
        batches = data.batches(data.validation, self.resolution)
        return self.task.score(np.concatenate([found(*batch) for batch in batches]))


@dataclass(frozen=True)
class Lesson:
    """One training of one network, with all that it needs."""

    setup: TrainingSetup
    student: Student
    options: TrainingConfig
    checkpoint: Checkpoint
    n_before: int = 0  #: steps of another training that is to come first

    def learn(self, progress: Progress) -> float:
        """Train the network in place; return the seconds that it took, 0 where it was before."""
        summary = self.setup.teach(self.student, self.options, self.checkpoint, progress)
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
        return Views(setup.material, self.options, setup.seed, *where).n_recorded


@dataclass(frozen=True)
class Training:
    """A kind of training of a network that has learned before."""

    name: str  #: of the step
    phase: str  #: what progress calls it
    is_first: bool = False
    gentleness: float = 1.0  #: fraction of the finishing's rate

    def epochs(self, config: FinishingConfig) -> int:
        """Return for how long."""
        return config.epochs if self.is_first else config.later

    def words(self, origin: Origin, config: FinishingConfig) -> str:
        """Return what decides the outcome, beside the setup and what was before."""
        rate = config.rate * self.gentleness
        words = f"{self.name}: {self.epochs(config)} epochs, rate x {rate:g}"
        if origin.tutor is not None and config.alpha:
            words += f", alpha {config.alpha}{origin.tutor.words}"
        return words

    def lesson(
        self, origin: Origin, config: FinishingConfig, network: nn.Module, lowered: Graph, past: str
    ) -> Lesson:
        """Return the training of a network, in place.

        Args:
            origin: Whose it is.
            config: How it is finished.
            network: As it is by now.
            lowered: Its operators.
            past: All that decides the weights then, this training included, beside the setup.
        """
        setup = origin.setup
        options = setup.train.of_recipe(self.epochs(config))
        # What is simulated in int8 knows of its grids, which bfloat16 would round, and its batch
        # norm is folded.
        is_simulated = isinstance(network, Simulated)
        usual = setup.family.recipe
        recipe = setup.train.recipe(by_descent(usual) if is_simulated else usual)
        recipe = replace(recipe, lr=recipe.lr * config.rate * self.gentleness)
        teacher = None
        if origin.tutor is not None and config.alpha:
            teacher = origin.tutor.teacher(setup, options, origin.first_epoch, config.alpha)
        student = Student(
            network,
            origin.resolution,
            recipe,
            teacher,
            phase=self.phase,
            grids={} if is_simulated else grids(network, lowered),
            dtype=FLOAT32 if is_simulated else setup.dtype(origin.genotype),
            has_exits=bool(lowered.exits),
            first_epoch=origin.first_epoch,
        )
        return Lesson(setup, student, options, origin.checkpoint(past))


FINE_TUNED = Training("fine-tuned", "Fine-tune", is_first=True)
PRUNED = Training("pruned", "Fine-tune the pruned")
OF_FEW_BITS = Training("bits-trained", "Train for few bits")
FOR_INT8 = Training("int8-trained", "Train for int8", gentleness=0.3)


def first(origin: Origin, config: FinishingConfig) -> Lesson:
    """Return the fine-tuning of a network, which has learned nothing yet: to see what it takes."""
    network = origin.setup.build(origin.genotype)
    return FINE_TUNED.lesson(origin, config, network, origin.lowered(), _tuned(origin, config))


def checkpoint(origin: Origin, config: FinishingConfig) -> Checkpoint:
    """Return where a network is kept once it is fine-tuned."""
    return origin.checkpoint(_tuned(origin, config))


def _tuned(origin: Origin, config: FinishingConfig) -> str:
    return f"{origin.weights.origin(origin.genotype)}; {FINE_TUNED.words(origin, config)}"


def prepare(origin: Origin, config: FinishingConfig) -> None:
    """Have what teaches a network at hand before its training, or that of others, begins."""
    if origin.tutor is not None and config.epochs and config.alpha:
        options = origin.setup.train.of_recipe(config.epochs)
        origin.tutor.teacher(origin.setup, options, origin.first_epoch, config.alpha)
