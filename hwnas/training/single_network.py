"""Training of one plain network, from scratch or from given weights."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hwnas.core.errors import ConfigError
from hwnas.core.progress import Progress
from hwnas.models.families.base import TrainingRecipe
from hwnas.models.families.layers import ExitNetwork
from hwnas.models.int8.simulation import SimulatedInt8
from hwnas.models.int8.weight_grids import WeightGrid, WeightGrids, quantise_weights_
from hwnas.training import loop, parallel
from hwnas.training.batches import StepContext, TrainingBatch, TrainingData
from hwnas.training.inference import FLOAT32, forward, recalibrate
from hwnas.training.loop import (
    CheckpointPolicy,
    LogRow,
    StepOutcome,
    TrainingJobSpec,
    TrainingSummary,
)
from hwnas.training.options import TrainingConfig

if TYPE_CHECKING:
    from hwnas.training.soft_targets import SoftTargets

_N_RECALIBRATION = 2048  # images for batch norm statistics
_FORWARD = 1 / 3  # cost of an inference relative to a training step, per image
_SELF_DISTILLATION = 0.5  # fraction of an exit's loss on the outputs of the final classifier


@dataclass(frozen=True)
class TeacherNetwork:
    """A trained network whose outputs are learned, in addition to the targets.

    Source: Hinton et al., "Distilling the Knowledge in a Neural Network", 2015,
    https://arxiv.org/abs/1503.02531, at a temperature of 1.
    """

    network: nn.Module
    resolution: int  #: height and width of its input, in pixels
    alpha: float = 0.5  #: weight of the distillation loss, in [0, 1]; targets have 1 - alpha
    recorded: "SoftTargets | None" = None  #: its outputs, recorded for all batches of the training
    dtype: str = FLOAT32  #: number format of its forward pass: float32 or bfloat16

    def loss_targets(self, batch: TrainingBatch, step_context: StepContext) -> Tensor:
        """Return the network's outputs for a batch in the form that the task's loss takes."""
        if self.recorded is not None:
            return self.recorded.loss_targets(batch, step_context)
        images = batch.at(self.resolution)
        with torch.no_grad():
            outputs = forward(lambda: self.network(images), images, self.dtype)
        return batch.data.task.distillation_targets(outputs)


@dataclass(frozen=True)
class StudentNetwork:
    """A plain network to be trained in place."""

    network: nn.Module
    resolution: int  #: height and width of its input, in pixels
    recipe: TrainingRecipe  #: the family's recipe, or a fine-tuning version of it
    teacher: TeacherNetwork | None = None
    #: returns metrics of the current weights by name, for the log
    measure: Callable[[], LogRow] | None = None
    #: grids of its weights of fewer than 8 bits or with 2:4 sparsity, by parameter name
    grids: WeightGrids = field(default_factory=dict)
    phase: str = "Train network"  #: name in progress displays
    dtype: str = FLOAT32  #: number format of its forward pass
    #: index of the first epoch; the seed of a batch follows from it
    first_epoch: int = 0
    lower_lr: str = ""  #: option for a lower learning rate, for messages; empty: ``train.lr``


@parallel.one_thread()
def train_network(
    student: StudentNetwork,
    material: TrainingData,
    config: TrainingConfig,
    seed: int,
    saving: CheckpointPolicy,
    progress: Progress,
) -> TrainingSummary:
    """Train a network to the end, resuming from its checkpoint; return the work done.

    Afterwards it holds the final weights (averages if ``config.ema`` is set), its batch norm is
    recalibrated, and it is in evaluation mode.

    Raises:
        ConfigError: the options do not suit the data, or there are several processes.
        RunError: the checkpoint is damaged or of another training.
        TrainingError: the training collapsed, or a batch does not fit into memory.
        TimeLimitReached: ``stop_trainings`` stopped it.
    """
    if parallel.current().n > 1:
        raise ConfigError(
            "A single network is trained by one process: start without torchrun, or without "
            "genotype=... to train the supernet."
        )
    summary = loop.train(_trainee(student, config), material, config, seed, saving, progress)
    quantise_weights_(student.network, student.grids)
    train = material.data.train
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    images = train.take(order[:_N_RECALIBRATION]).images
    recalibrate(student.network, material.data.prepare(images, student.resolution))
    return summary


@parallel.one_thread()
def estimate_seconds(
    student: StudentNetwork,
    material: TrainingData,
    config: TrainingConfig,
    seed: int,
    n_steps: int,
    n_read: int = 0,
) -> float:
    """Return the estimated seconds of a training on this machine.

    Batch norm recalibration and two validations are included. The network is changed, because a
    few steps are timed.

    Args:
        student: The network and its recipe.
        material: Training data.
        config: Training options.
        seed: Seed of the training.
        n_steps: Number of steps.
        n_read: Number of further images that the network reads in inference.
    """
    data = material.data
    n_read += 2 * len(data.validation) + min(len(data.train), _N_RECALIBRATION)
    step_s = loop.step_s(_trainee(student, config), material, config, seed)
    return step_s * (n_steps + _FORWARD * n_read / config.images_per_step)


def _trainee(student: StudentNetwork, config: TrainingConfig) -> TrainingJobSpec:
    if student.teacher is not None:
        student.teacher.network.to(loop.device(config)).eval()
    student.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    step = _SingleNetworkStep(student, config)
    options = (student.recipe, student.phase, student.measure, student.first_epoch)
    return TrainingJobSpec(student.network, step, *options, student.lower_lr)


@final
@dataclass(frozen=True)
class _SingleNetworkStep:
    """Gradient step of one network."""

    student: StudentNetwork
    config: TrainingConfig

    def __call__(self, batch: TrainingBatch, step_context: StepContext) -> StepOutcome:
        images = batch.at(self.student.resolution)
        *early, outputs = forward(lambda: self._outputs(images), images, self.student.dtype)
        loss = batch.loss(outputs, self.config.label_smoothing)
        if (teacher := self.student.teacher) is not None:
            loss_targets = teacher.loss_targets(batch, step_context)
            loss = torch.lerp(loss, batch.data.task.loss(outputs, loss_targets), teacher.alpha)
        loss = sum((self._exit_loss(batch, exit_, outputs.detach()) for exit_ in early), loss)
        torch.autograd.backward(loss)
        return StepOutcome({"loss": float(loss.detach())}, batch.total(outputs), 1)

    def _exit_loss(self, batch: TrainingBatch, outputs: Tensor, final: Tensor) -> Tensor:
        """Return the loss of an exit: half on the targets, half on the final outputs.

        Source: Zhang et al., "Be Your Own Teacher", ICCV 2019, https://arxiv.org/abs/1905.08094.
        """
        task = batch.data.task
        target_loss = batch.loss(outputs, self.config.label_smoothing)
        distillation = task.loss(outputs, task.distillation_targets(final))
        return torch.lerp(target_loss, distillation, _SELF_DISTILLATION)

    @cached_property
    def _on_grids(self) -> list[tuple[str, Tensor, WeightGrid]]:
        parameter = self.student.network.get_parameter
        return [(name, parameter(name), grid) for name, grid in self.student.grids.items()]

    def _outputs(self, images: Tensor) -> Tensor:
        """Return the outputs of all exits and the last, ``(n_exits + 1, N, n_outputs)``."""
        network = self.student.network
        weights = {name: grid.rounded(weight) for name, weight, grid in self._on_grids}
        every = isinstance(network, ExitNetwork | SimulatedInt8)
        options = {"every": True} if every else {}
        outputs: Tensor = functional_call(network, weights, (images,), options, tie_weights=False)
        return outputs if every else outputs[None]
