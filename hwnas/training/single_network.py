"""Training of one plain network, from scratch or on from the weights it has."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hwnas.core.errors import ConfigError
from hwnas.core.progress import Progress
from hwnas.models.families.base import TrainingRecipe
from hwnas.models.int8.weight_grids import WeightGrid, WeightGrids, quantise_weights_
from hwnas.training import loop, parallel
from hwnas.training.batches import StepContext, TrainingBatch, TrainingData
from hwnas.training.inference import recalibrate
from hwnas.training.loop import (
    CheckpointPolicy,
    LogRow,
    StepOutcome,
    TrainingJobSpec,
    TrainingSummary,
)
from hwnas.training.options import TrainingConfig
from hwnas.training.precision import FLOAT32, forward
from hwnas.training.soft_targets import SoftTargets

_N_RECALIBRATION = 2048  # images, as many as there are
_FORWARD = 1 / 3  # of what an image takes in a step, to read it: no gradients
_SELF = 0.5  # of an exit's loss: what is on the answers of the network's end


@dataclass(frozen=True)
class TeacherNetwork:
    """A trained network whose answers are learned, on the same images as the targets.

    Source: Hinton et al., "Distilling the Knowledge in a Neural Network", 2015,
    https://arxiv.org/abs/1503.02531, at a temperature of 1.
    """

    network: nn.Module
    resolution: int  #: of the images it reads
    alpha: float = 0.5  #: share of the loss that is on its answers; the rest is on the targets
    recorded: SoftTargets | None = None  #: what it answers to the very batches of the training
    dtype: str = FLOAT32  #: of its forward pass

    def loss_targets(self, batch: TrainingBatch, step_context: StepContext) -> Tensor:
        """Return what is learned from its answers to the images of a batch."""
        if self.recorded is not None:
            return self.recorded.of(batch, step_context)
        seen = batch.at(self.resolution)
        with torch.no_grad():
            return batch.data.task.distillation_targets(
                forward(lambda: self.network(seen), seen, self.dtype)
            )


@dataclass(frozen=True)
class StudentNetwork:
    """One plain network that is to be trained, in place."""

    network: nn.Module
    resolution: int  #: of the images it reads
    recipe: TrainingRecipe  #: the family's; or ``config.fine_tuning`` of it
    teacher: TeacherNetwork | None = None
    #: for the log: gives figures by name, with the weights that the network holds just then
    measure: Callable[[], LogRow] | None = None
    grids: WeightGrids = field(
        default_factory=dict
    )  #: that its weights are trained for, and end on
    phase: str = "Train network"  #: what progress calls it
    has_exits: bool = False  #: which are trained, too: by the targets, and by the last outputs
    dtype: str = FLOAT32  #: of its forward pass
    first_epoch: int = 0  #: its number: it goes on from trainings that saw those before


def train_network(
    student: StudentNetwork,
    material: TrainingData,
    config: TrainingConfig,
    seed: int,
    saving: CheckpointPolicy,
    progress: Progress,
) -> TrainingSummary:
    """Train a network to the end, as supernets are trained, going on from its checkpoint.

    Afterwards it holds the weights to be used (averages, where ``config.ema`` says so), its batch
    norm is recalibrated, and it is in evaluation mode.

    Raises:
        ConfigError: a batch does not fit the data, or there are several processes.
        TrainingError: the training collapsed, or a batch does not fit into memory.
    """
    if parallel.current().n > 1:
        raise ConfigError(
            "One network is trained by one process: leave out torchrun, or leave out genotype=... "
            "to train the supernet."
        )
    summary = loop.train(_trainee(student, config), material, config, seed, saving, progress)
    quantise_weights_(student.network, student.grids)
    train = material.data.train
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    images = train.take(order[:_N_RECALIBRATION]).images
    recalibrate(student.network, material.data.prepare(images, student.resolution))
    return summary


def seconds(
    student: StudentNetwork,
    material: TrainingData,
    config: TrainingConfig,
    seed: int,
    n_steps: int,
    n_read: int = 0,
) -> float:
    """Return the seconds that so many steps of a training will take here just now.

    What comes with it counts, too: batch norm is recalibrated, and the validation split is read
    before and after. The network is spent: it learns from a few steps.

    Args:
        student: The network, and how it is trained.
        material: What it is trained on.
        config: How it is trained.
        seed: Of the training.
        n_steps: How many.
        n_read: Images that the network answers beside.
    """
    data = material.data
    n_read += 2 * len(data.validation) + min(len(data.train), _N_RECALIBRATION)
    step_s = loop.step_s(_trainee(student, config), material, config, seed)
    return step_s * (n_steps + _FORWARD * n_read / config.batch_size)


def _trainee(student: StudentNetwork, config: TrainingConfig) -> TrainingJobSpec:
    if student.teacher is not None:
        student.teacher.network.to(loop.device(config)).eval()
    student.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    step = _SingleNetworkStep(student, config)
    how = (student.recipe, student.phase, student.measure, student.first_epoch)
    return TrainingJobSpec(student.network, step, *how)


@final
@dataclass(frozen=True)
class _SingleNetworkStep:
    """One step of one network."""

    student: StudentNetwork
    config: TrainingConfig

    def __call__(self, batch: TrainingBatch, step_context: StepContext) -> StepOutcome:
        images = batch.at(self.student.resolution)
        found = forward(lambda: self._outputs(images), images, self.student.dtype)
        *early, outputs = found if self.student.has_exits else found[None]
        loss = batch.loss(outputs, self.config.label_smoothing)
        if (teacher := self.student.teacher) is not None:
            loss_targets = teacher.loss_targets(batch, step_context)
            loss = torch.lerp(loss, batch.data.task.loss(outputs, loss_targets), teacher.alpha)
        loss = sum((self._early(batch, answers, outputs.detach()) for answers in early), loss)
        torch.autograd.backward(loss)
        return StepOutcome({"loss": float(loss.detach())}, batch.total(outputs), 1)

    def _early(self, batch: TrainingBatch, answers: Tensor, last: Tensor) -> Tensor:
        """Return the loss of an exit, half of it on what the network answers in the end.

        Source: Zhang et al., "Be Your Own Teacher", ICCV 2019, https://arxiv.org/abs/1905.08094.
        """
        task = batch.data.task
        taught = task.loss(answers, task.distillation_targets(last))
        return torch.lerp(batch.loss(answers, self.config.label_smoothing), taught, _SELF)

    @cached_property
    def _on_grids(self) -> list[tuple[str, Tensor, WeightGrid]]:
        found, grids = self.student.network.get_parameter, self.student.grids
        return [(name, found(name), grid) for name, grid in grids.items()]

    def _outputs(self, images: Tensor) -> Tensor:
        network = self.student.network
        weights = {name: grid.rounded(weight) for name, weight, grid in self._on_grids}
        how = {"every": True} if self.student.has_exits else {}
        found: Tensor = functional_call(network, weights, (images,), how, tie_weights=False)
        return found
