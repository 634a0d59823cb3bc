"""Fine-tuning of a search's networks for its target."""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from torch import nn

from hwnas.core.progress import NullProgress, Progress
from hwnas.core.quantity import Quantity
from hwnas.hardware.backends import base as backends
from hwnas.models.families import annotations
from hwnas.models.graph import n_macs
from hwnas.models.int8.simulation import DeployableNetwork
from hwnas.models.spaces import Genotype
from hwnas.nas.verification import NETWORK_ERRORS, Verifier
from hwnas.training.batches import steps_per_epoch
from hwnas.training.checkpoints import Checkpoint
from hwnas.training.data import DataSplit, ImageBatch
from hwnas.training.evaluation.trained import TrainedEvaluator
from hwnas.training.finetuning import pipeline, stages
from hwnas.training.finetuning.pipeline import Load
from hwnas.training.finetuning.stages import (
    FinetunedTeacher,
    NetworkSource,
    TeacherProvider,
    TrainingStage,
)
from hwnas.training.options import FinetuningConfig
from hwnas.workflows import components
from hwnas.workflows.components import Accuracies, SearchComponents

if TYPE_CHECKING:
    from hwnas.workflows.device import MeasuredTarget


@dataclass(frozen=True)
class Finetuner:
    """Fine-tunes networks of a search; they learn from the predictions of one teacher."""

    parts: SearchComponents
    weights: Accuracies  #: provides the weights of the search
    teacher: Genotype | None = None  #: network whose predictions the others learn, if there is one
    progress: Progress = field(default_factory=NullProgress)
    #: options of all networks but the teacher; ``None``: those of the search
    other: FinetuningConfig | None = None
    #: provides predictions without ``teacher``, such as those of a supernet's largest subnet
    tutor: TeacherProvider | None = None
    #: ids of networks without int8 training, because time ran out
    without_int8_training: Collection[str] = ()
    #: epochs of each network instead of the default, to fit into a time limit
    chosen_epochs: int | None = None

    @property
    def config(self) -> FinetuningConfig:
        """The options of fine-tuning, ``other`` or, if it is ``None``, ``searched``."""
        return self.other or self.searched

    @property
    def searched(self) -> FinetuningConfig:
        """Options of fine-tuning in the search; the teacher uses them, too."""
        config, default = self.parts.config, FinetuningConfig()
        epochs, rate = default.epochs, default.rate
        if config.accuracy == "trained":
            epochs, rate = config.train.epochs, 1.0
        return config.finish.of_one(self.chosen_epochs or epochs, rate)

    @property
    def left(self) -> dict[str, int]:
        """Number of completed fidelities of networks trained separately, by id; else empty."""
        return (
            self.weights.recorded_fidelities if isinstance(self.weights, TrainedEvaluator) else {}
        )

    def tuned(self, genotype: Genotype) -> Quantity:
        """Fine-tune a network, or resume; return its metric on the validation split."""
        return pipeline.finetune_float(self._origin(genotype), self.config, self.progress).figure

    def network(self, genotype: Genotype) -> nn.Module:
        """Return the fine-tuned network, with batch norm not folded; train it if necessary."""
        return pipeline.finetune_float(self._origin(genotype), self.config, self.progress).network

    def finished(self, genotype: Genotype) -> DeployableNetwork:
        """Return a network with final weights for the target; train it if necessary."""
        is_int8 = self.parts.networks.dtype(genotype) == annotations.INT8
        return self.in_int8(genotype) if is_int8 else self._final_network(genotype, None)

    def in_int8(self, genotype: Genotype) -> DeployableNetwork:
        """Return the network with final weights and, if its operators allow it, an int8 version.

        Missing weights are trained; those for int8 only if the network is not in
        ``without_int8_training``.
        """
        left_s = 0.0 if genotype.id in self.without_int8_training else math.inf
        return self._int8_network(genotype, lambda: left_s)

    def for_int8(self, genotype: Genotype, left_s: Callable[[], float]) -> bool:
        """Train a network for int8 if necessary; return True if time was too short for that.

        Errors of this network are ignored here; verification reports them.

        Args:
            genotype: Genotype of the fine-tuned network.
            left_s: Returns the remaining seconds.
        """
        is_int8 = self.parts.networks.dtype(genotype) == annotations.INT8
        if not is_int8 or not self.config.later:
            return False
        try:
            return self._int8_network(genotype, left_s).without_int8_training
        except NETWORK_ERRORS:
            return False

    def _int8_network(self, genotype: Genotype, left_s: Callable[[], float]) -> DeployableNetwork:
        load = backends.backend_of(self.parts.config.target).int8_session
        return self._final_network(genotype, load, left_s)

    def _final_network(
        self, genotype: Genotype, load: Load | None, left_s: Callable[[], float] = lambda: math.inf
    ) -> DeployableNetwork:
        return pipeline.finetune(self._origin(genotype), self.config, load, self.progress, left_s)

    def is_kept(self, genotype: Genotype) -> bool:
        """Return whether fine-tuning of a network is complete and its weights are stored.

        The weights from which it started must be stored, too.
        """
        if not self.is_inherited(genotype):
            return False
        return self.n_steps == 0 or self.checkpoint(genotype).n_steps() >= self.n_steps

    def is_begun(self, genotype: Genotype) -> bool:
        """Return whether weights of a network are stored, complete or not."""
        return self.is_kept(genotype) or self.checkpoint(genotype).n_steps() > 0

    @property
    def n_steps(self) -> int:
        """Number of fine-tuning steps of a network, the same for all; 0 without fine-tuning."""
        n_images = len(self.parts.data.train)
        train = self.parts.config.train.for_images(n_images)
        return self.config.epochs * steps_per_epoch(train.images_per_step, n_images)

    def fits(self, genotype: Genotype, left_s: float) -> bool:
        """Return whether fine-tuning ends within ``left_s`` seconds, by timing a few steps."""
        if self.is_kept(genotype) or math.isinf(left_s):
            return True
        return self._first_stage(genotype).fits(left_s)

    def n_macs(self, genotype: Genotype) -> int:
        """Return the number of multiply-accumulates per image of a network."""
        return n_macs(self.parts.networks.lower(genotype))

    def epoch_s(self, genotype: Genotype) -> float:
        """Return the seconds of an epoch of fine-tuning, by timing a few steps."""
        return self._first_stage(genotype).epoch_s()

    def teaching_s(self, genotype: Genotype) -> float:
        """Return the estimated seconds of fine-tuning a teacher and computing its predictions."""
        training = self._first_stage(genotype)
        return training.takes_s(training.n_shown)

    def _first_stage(self, genotype: Genotype) -> TrainingStage:
        """Return the first training stage of ``tuned``, with the number of trainings before it."""
        weights, training = self.weights, stages.first_stage(self._origin(genotype), self.config)
        n = weights.n_missing(genotype) if isinstance(weights, TrainedEvaluator) else 0
        return replace(training, n_before=n)

    def is_inherited(self, genotype: Genotype) -> bool:
        """Return whether the weights with which the search scored a network are stored."""
        return not isinstance(self.weights, TrainedEvaluator) or self.weights.is_kept(genotype)

    def checkpoint(self, genotype: Genotype) -> Checkpoint:
        """Return the checkpoint in which ``tuned`` stores a network; it may not exist yet."""
        return stages.checkpoint(self._origin(genotype), self.config)

    def weights_of(self, genotype: Genotype) -> str:
        """Return a text that identifies the final weights of a network."""
        suffix = ", in int8 in haste" * (genotype.id in self.without_int8_training)
        return f"{self.checkpoint(genotype).path.parent.name}{suffix}"

    def prepare(self, genotype: Genotype) -> None:
        """Compute and store the teacher's predictions, which serve all networks.

        ``genotype`` is any network that learns from them.
        """
        stages.prepare(self._origin(genotype), self.config)

    def is_teacher(self, genotype: Genotype) -> bool:
        """Return whether a network has the weights of the teacher."""
        return self.teacher is not None and annotations.weight_relevant_genotype(
            genotype
        ) == annotations.weight_relevant_genotype(self.teacher)

    def _origin(self, genotype: Genotype) -> NetworkSource:
        tutor = self.tutor
        if self.teacher is not None and self.config.epochs and self.config.alpha:
            tutor = None if self.is_teacher(genotype) else self._finetuned_teacher
        return NetworkSource(self.parts.setup_of(genotype), self.weights, genotype, tutor)

    @cached_property
    def _finetuned_teacher(self) -> FinetunedTeacher:
        assert self.teacher is not None
        setup = self.parts.setup_of(self.teacher)
        origin = NetworkSource(setup, self.weights, self.teacher)
        network = pipeline.finetune_float(origin, self.searched, self.progress)
        return FinetunedTeacher(network.network, self.teacher, setup, network.past, self.progress)


def verifier(
    parts: SearchComponents, finisher: Finetuner, device: "MeasuredTarget | None"
) -> Verifier:
    """Return the object that compiles networks and evaluates the files; only it reads test data.

    Args:
        parts: Components of the search.
        finisher: Provides the final weights.
        device: The device, if the target is measured.
    """
    data, config = parts.data, parts.config

    def batches(split: DataSplit, genotype: Genotype) -> Iterator[ImageBatch]:
        return data.batches(split, parts.networks.resolution(genotype), rounded=True)

    return Verifier(
        finetuned=finisher.finished,
        test=partial(batches, data.test),
        validation=partial(batches, data.validation),
        artefacts=components.artefacts(parts, device),
        task=data.task,
        dtype=config.target.dtype,
        weights=finisher.weights_of,
        leaves=bool(config.expected_costs),
    )
