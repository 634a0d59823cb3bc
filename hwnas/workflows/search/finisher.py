"""Fine-tuning of a search's networks for its target."""

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import chain, islice
from typing import TYPE_CHECKING, final

from torch import nn

from hwnas.core.progress import NullProgress, Progress
from hwnas.core.quantity import Quantity
from hwnas.hardware.backends import base as backends
from hwnas.models.families import annotations
from hwnas.models.graph import n_macs
from hwnas.models.int8.simulation import DeployableNetwork
from hwnas.models.spaces import Genotype
from hwnas.nas.candidates import Candidate
from hwnas.nas.verification import NETWORK_ERRORS, Verifier
from hwnas.tasks.metrics import is_better, metric_of
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
from hwnas.training.finetuning.time_budget import TimeBudget, TimeWindow, TrainingTimes
from hwnas.training.options import FinetuningConfig
from hwnas.workflows import components
from hwnas.workflows.components import Accuracies, SearchComponents

if TYPE_CHECKING:
    from hwnas.workflows.device import MeasuredTarget


_LONG_S = 1e9  # of a training after the time limit


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


@final
class FinetuneSchedule:
    """Networks that are fine-tuned within a time limit, and their epochs.

    Args:
        times: Durations of trainings.
        slot: Latest start and end of trainings.
        epochs: Epochs of each network.
        n_processes: Number of processes.
    """

    def __init__(self, times: TrainingTimes, slot: TimeWindow, epochs: int, n_processes: int):
        self._times, self._n = times, n_processes
        self.slot, self.epochs = slot, epochs
        self.started: set[str] = set()  #: ids of networks that were started

    @staticmethod
    def of(
        some: Sequence[Candidate], finisher: Finetuner, allowance: TimeBudget
    ) -> "FinetuneSchedule":
        """Return the schedule for candidates, by timing a few of them.

        Args:
            some: Candidates, those most probably on the front first.
            finisher: Fine-tunes them.
            allowance: The time budget; the number of epochs is stored in it.
        """
        genotypes = {c.id: c.genotype for c in some}
        sizes = {c.id: finisher.n_macs(c.genotype) for c in some}
        n, left_s = finisher.parts.config.study.workers or 1, allowance.left_s()
        times = TrainingTimes(
            sizes, lambda name: finisher.epoch_s(genotypes[name]) if left_s > 0 else _LONG_S
        )
        epochs = allowance.epochs
        if epochs is None:
            n_max, core_s = finisher.config.epochs, n * max(0.0, left_s)
            epochs = n_max
            if finisher.parts.config.finish.epochs is None:
                epochs = times.epochs([*sizes], n_max, core_s, n)
            allowance.choose_epochs(epochs)
        return FinetuneSchedule(times, allowance.slot(1.0), epochs, n)

    def estimate_s(self, genotype: Genotype) -> float:
        """Return the estimated seconds of fine-tuning and int8 training of a network."""
        return self._times.member_s(genotype.id, self.epochs)

    def n_expected(self) -> int:
        """Return the number of networks that fit into the remaining time."""
        left_s = self.slot.left_s()
        return len(self._times.within(self._times.names, self.epochs, self._n * left_s, left_s))

    def take(
        self,
        wanted: Sequence[Candidate],
        durations_s: Mapping[str, float | None],
        is_begun: Callable[[Genotype], bool],
    ) -> list[Genotype]:
        """Return the networks to start next: all that were begun before, and one more.

        That is the first whose training takes at most half of the remaining time, so that no long
        training begins late; if there is none, the first that fits.

        Args:
            wanted: Candidates that were not started, in the order of preference. Those that are
                returned are added to ``started``.
            durations_s: Seconds of each training that ended, by id; ``None`` if it was not
                complete, or resumed.
            is_begun: Returns whether weights of a network are stored, complete or not.
        """
        times, epochs, left_s = self._times, self.epochs, self.slot.left_s()
        times.correct({n: s for n, s in durations_s.items() if s is not None}, epochs)
        resumable = [c.id for c in wanted if is_begun(c.genotype)]
        names = [c.id for c in wanted if c.id not in resumable]
        short = (n for n in names if times.member_s(n, epochs) <= left_s / 2)
        fitting = (n for n in names if times.member_s(n, epochs) <= left_s)
        chosen = [*resumable, *islice(chain(short, fitting), 1)]
        self.started.update(chosen)
        genotypes = {c.id: c.genotype for c in wanted}
        return [genotypes[name] for name in chosen]


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


# The teacher.

_TEACHER_FRACTION = 0.25  # of the remaining time, for the teacher
_MAX_TIMING_ROUNDS = 3


def choose_teacher(
    wanted: Sequence[Candidate],
    scored: Sequence[Candidate],
    finisher: Finetuner,
    left_s: Callable[[], float],
) -> Genotype:
    """Return the network to train as teacher; all others wait for its training and predictions.

    Without a time limit, it is the most accurate one in ``wanted``. With one, both must fit into a
    quarter of the remaining time; if none fits, it is the smallest network. A resumed run with a
    limit keeps the most accurate network with stored steps, unless one that fits is significantly
    more accurate.

    Args:
        wanted: Candidates to fine-tune.
        scored: All candidates of a resumed run with a limit: its teacher may not be in ``wanted``.
        finisher: Fine-tunes them.
        left_s: Returns the remaining seconds; infinite without a time limit.
    """
    config = finisher.parts.config
    sign = 1 if metric_of(config.metric).maximise else -1

    def ordered(candidates: Sequence[Candidate]) -> list[Candidate]:
        return sorted(candidates, key=lambda c: (-sign * c.figures[config.metric].value, c.id))

    best = ordered(wanted)
    if math.isinf(left_s()):
        return best[0].genotype
    before = (c for c in chain(best, ordered(scored)) if finisher.checkpoint(c.genotype).n_steps())
    started = next(before, None)
    if started is best[0]:
        return started.genotype
    first = _first_within(_TEACHER_FRACTION * left_s(), best, finisher)
    if started is None:
        return (first or least(best, finisher)).genotype
    if first is None:
        return started.genotype
    known = metric_of(config.metric).best(started.figures[config.metric])
    is_worse = is_better(config.metric, first.figures[config.metric].value, known)
    return (first if is_worse else started).genotype


def _first_within(
    limit_s: float, candidates: Sequence[Candidate], finisher: Finetuner
) -> Candidate | None:
    """Return the first candidate whose training and predictions fit into a time limit.

    Time is assumed to grow with the number of operations, so that only a few networks are timed
    (bisection). Other load can only slow a training down: the smallest network that was too slow
    is timed again, and then larger ones if it is fast enough.
    """
    if limit_s <= 0:
        return None
    by_size = sorted(
        range(len(candidates)), key=lambda i: (finisher.n_macs(candidates[i].genotype), i)
    )
    n, indices = 0, list[int]()
    for _ in range(_MAX_TIMING_ROUNDS):
        teaching_s = cache(lambda i: finisher.teaching_s(candidates[i].genotype))
        n = bisect_right(by_size, limit_s, lo=n, key=teaching_s)
        within = (i for i in sorted(by_size[:n]) if teaching_s(i) <= limit_s)
        indices += islice(within, 1)
        if n == len(by_size) or finisher.teaching_s(candidates[by_size[n]].genotype) > limit_s:
            break
    return candidates[min(indices)] if indices else None


def least(some: Sequence[Candidate], finisher: Finetuner) -> Candidate:
    """Return the candidate with the fewest multiply-accumulates."""
    return min(some, key=lambda c: (finisher.n_macs(c.genotype), c.id))
