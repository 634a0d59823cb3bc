"""Fine-tuning as in a finished search, from its cached trainings; and its execution."""

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, final

from hwnas.core.errors import CollapseError, RunError
from hwnas.core.manifest import Manifest, accuracy_source
from hwnas.core.progress import Progress, TimeLimitReached, stop_trainings
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import WEIGHTS, Row
from hwnas.models.spaces import Genotype
from hwnas.nas.candidates import Candidate
from hwnas.tasks.metrics import metric_of
from hwnas.training.checkpoints import Checkpoint
from hwnas.training.data import ImageData
from hwnas.training.finetuning.stages import LargestSubnetTeacher
from hwnas.training.finetuning.time_budget import ALWAYS, TimeWindow
from hwnas.training.supernet import check_supernet_exists
from hwnas.workflows import components
from hwnas.workflows.components import accuracies, at_recorded_fidelity, completed_trainings
from hwnas.workflows.config import ExportConfig, SearchConfig
from hwnas.workflows.search.context import TargetContext
from hwnas.workflows.search.finisher import Finetuner

if TYPE_CHECKING:
    from hwnas.training.jobs import TaskProcesses

_FINISH = ("epochs", "rate", "alpha", "max_int8_drop")


def as_recorded(search: SearchConfig, manifest: Manifest, run: Path) -> SearchConfig:
    """Return the configuration with the recorded fine-tuning options and folder of weights.

    Args:
        search: Configuration of the search, composed by this version of hwnas, whose defaults may
            differ.
        manifest: Manifest of the search.
        run: Folder of the search.
    """
    recorded = manifest["config"]
    folder = weights_folder(manifest, run)
    known: Row = {**recorded.get("finish", {}), **manifest.get("finishing", {})}
    done = {name: known[name] for name in _FINISH if known.get(name) is not None}
    run_options = replace(search.run, dir=None, supernets=str(folder))
    return replace(search, run=run_options, finish=replace(search.finish, **done))


def weights_folder(manifest: Manifest, run: Path) -> Path:
    """Return the folder with the weights of a search.

    For searches of earlier versions it is the common folder, ``run.supernets``.
    """
    folder = run / WEIGHTS
    return folder if folder.is_dir() else Path(manifest["config"]["run"]["supernets"])


def finisher(
    context: TargetContext,
    manifest: Manifest,
    candidates: Sequence[Candidate],
    config: ExportConfig,
    progress: Progress,
) -> Finetuner:
    """Return the fine-tuner of a search, with options that an export changes.

    Args:
        context: A target, its configuration ``as_recorded``.
        manifest: Manifest of the search.
        candidates: Candidates of the search, with the metric after each fidelity.
        config: Options of the export.
        progress: Is notified of trainings.
    """
    weights = at_recorded_fidelity(
        context.evaluator, completed_trainings(context.config, candidates)
    )
    result = Finetuner(context.parts, weights, progress=progress)
    other = config.finishing(result.searched)
    result = replace(result, other=None if other == result.searched else other)
    if "finishing" not in manifest:  # of an earlier version, which only had supernets
        return replace(result, tutor=LargestSubnetTeacher(weights))
    done = manifest["finishing"]
    teacher = done["teacher"]
    if teacher is None:  # the search had none: use the most accurate network
        sign = 1 if metric_of(context.config.metric).maximise else -1
        finished = {name: (sign * figure[0], name) for name, figure in done["finished"].items()}
        teacher = max(finished, key=finished.__getitem__, default="")
    genotypes = {c.id: c.genotype for c in candidates}
    return replace(result, teacher=genotypes.get(teacher))


def check_weights_exist(
    finisher: Finetuner, genotypes: Sequence[Genotype], manifest: Manifest
) -> None:
    """Check that the weights with which a search ended exist and need not be trained again.

    Args:
        finisher: Fine-tuner of the search.
        genotypes: The networks, fine-tuned or not.
        manifest: Manifest of the search.

    Raises:
        RunError: the weights are missing, or this version would train different ones.
    """
    parts = finisher.parts
    if accuracy_source(manifest) == "supernet":
        for genotype in genotypes:
            check_supernet_exists(parts.setup_of(genotype))
        return
    done: Mapping[str, object] = manifest.get("finishing", {}).get("finished", {})
    if lost := _lost_network(replace(finisher, other=None), genotypes, done):
        raise RunError(
            f"The trained networks of the search are not in {Path(parts.config.run.supernets)}: "
            f"{lost} is missing. Start hwnas in the folder in which the search was started, with "
            "the same versions of the packages and the same data."
        )


def check_resumed_weights(
    context: TargetContext,
    earlier: Row,
    candidates: Sequence[Candidate],
    folder: Path,
    progress: Progress,
) -> None:
    """Check that the fine-tuned networks of a resumed search with a time limit exist.

    Otherwise the remaining time would be used to train them again.

    Args:
        context: One of its targets.
        earlier: The manifest before resuming; empty for a new search.
        candidates: Candidates of the search.
        folder: Folder of the search.
        progress: Is notified of progress.

    Raises:
        RunError: the weights are missing, or this version would train different ones.
    """
    done = earlier.get("finishing", {"finished": {}})
    if context.config.finish.minutes is None and context.config.minutes is None:
        return
    genotypes = {c.id: c.genotype for c in candidates if c.id in done["finished"]}
    if not genotypes:
        return
    weights = at_recorded_fidelity(
        context.evaluator, completed_trainings(context.config, candidates)
    )
    before = Finetuner(
        context.parts, weights, genotypes.get(done.get("teacher")), progress,
        chosen_epochs=earlier.get("finishing_epochs"),
    )  # fmt: skip
    if any(getattr(before.config, name) != done.get(name) for name in _FINISH):
        return  # other options are requested
    if lost := _lost_network(before, [*genotypes.values()], done["finished"]):
        raise RunError(
            f"run.resume={folder}: its fine-tuned networks are not in "
            f"{Path(context.config.run.supernets)} ({lost} is missing), and training them again "
            "would use up the time limit. Start hwnas in the folder in which the search was "
            f"started, set run.supernets=DIR, or start a new search with start_from={folder}"
        )


def _lost_network(
    searched: Finetuner, genotypes: Sequence[Genotype], done: Mapping[str, object]
) -> str:
    """Return the id of the first network without cached weights; empty if all are cached.

    Args:
        searched: As the search finished networks.
        genotypes: The networks.
        done: By id, those that it finished.
    """
    has_teacher = searched.config.epochs and searched.config.alpha
    teacher = [searched.teacher] if searched.teacher is not None and has_teacher else []
    for genotype in (*teacher, *genotypes):  # the teacher first: others refer to its weights
        is_kept = searched.is_kept if genotype.id in done else searched.is_inherited
        if not is_kept(genotype):
            return genotype.id
    return ""


def facts(finisher: Finetuner, genotype: Genotype) -> Row:
    """Return the options of a network's fine-tuning for its proof.

    The keys are ``epochs``, ``rate``, ``alpha`` and ``teacher`` (an id, a text, or ``None``).
    """
    config, teacher = finisher.config, None
    if config.epochs and config.alpha:
        if finisher.teacher is not None:
            teacher = None if finisher.is_teacher(genotype) else finisher.teacher.id
        elif finisher.tutor is not None:
            teacher = "the supernet's largest subnet"
    return {
        "epochs": config.epochs,
        "rate": config.rate,
        "alpha": config.alpha if teacher is not None else 0.0,
        "teacher": teacher,
    }


# Execution: sequentially or by several processes, within the time limit.


@dataclass(frozen=True)
class FinetuneResult:
    """The result of fine-tuning one network."""

    figure: Quantity | None  #: metric on the validation split; ``None``: the training collapsed
    elapsed_s: float | None = None  #: seconds of the training; ``None``: resumed, or no time limit
    without_int8_training: bool = False  #: True if time ran out before its int8 training
    failure: str = ""  #: message of a training that collapsed


@dataclass(frozen=True)
class FinetuneTarget:
    """A target of the search, and the networks that are feasible on it."""

    config: SearchConfig
    fitting: Collection[str]  #: ids of feasible networks


@dataclass(frozen=True)
class FinetuneBatch:
    """Time window, targets and processes for a batch of networks."""

    #: latest start and end of trainings; with a limit, int8 training follows fine-tuning directly
    slot: TimeWindow = ALWAYS
    #: targets for which int8 training is possible, the fine-tuner's target first
    targets: Sequence[FinetuneTarget] = ()
    #: worker processes; ``None``: networks are trained in this process
    crew: "TaskProcesses[list[Finetuner]] | None" = None
    #: Returns the estimated seconds of a network. If they are over half of the remaining time, a
    #: few steps are timed.
    estimate_s: Callable[[Genotype], float] = lambda genotype: math.inf
    n_expected: int = 0  #: number of networks including those of ``refill``, for progress displays
    #: Returns more networks, given the results so far; called when no network is left to start.
    refill: Callable[[Mapping[str, FinetuneResult | None]], Sequence[Genotype]] | None = None


def finished(
    finisher: Finetuner,
    genotypes: Sequence[Genotype],
    phases: Progress,
    phase: str,
    how: FinetuneBatch = FinetuneBatch(),
) -> dict[str, FinetuneResult | None]:
    """Fine-tune networks, or resume; return the result of each by id, ``None`` if time ran out.

    Networks that ``how.refill`` adds are included.

    Args:
        finisher: Fine-tunes one network.
        genotypes: Genotypes of the networks.
        phases: Is notified of progress.
        phase: Title of the progress bar.
        how: Time window, targets and processes.
    """
    students = [g for g in genotypes if not finisher.is_teacher(g) and not finisher.is_kept(g)]
    if finisher.teacher is not None and students:
        finisher.prepare(students[0])
    queue = _Queue(finisher, how)
    queue.extend(genotypes)
    before = queue.n_done()
    total = max(how.n_expected, len(genotypes)) * max(1, finisher.n_steps)
    with phases.phase(phase, total, before, how.slot.left_s()) as advance:

        def advance_within(n: int) -> None:  # networks may be added while others are trained
            nonlocal before
            n = min(n, total - before)
            advance(n)
            before += n

        if how.crew is not None and (before < total or how.refill is not None):
            first = before
            how.crew.run(
                queue.next_task, queue.collect, lambda: queue.n_done() - first, advance_within
            )
        else:
            finishers = _finishers(finisher, [target.config for target in how.targets[1:]])
            while (task := queue.next_task()) is not None:
                queue.collect(task(finishers))
                advance_within(max(0, queue.n_done() - before))
    return {name: queue.results.get(name) for name in queue.ids}


@final
class _Queue:
    """Networks to be fine-tuned: cached ones first, then interrupted ones, then in their order."""

    def __init__(self, finisher: Finetuner, how: FinetuneBatch):
        self._finisher, self._how = finisher, how
        self._waiting, self._paths = deque[Genotype](), list[Checkpoint]()
        self.results: dict[str, FinetuneResult | None] = {}
        self.ids: list[str] = []  #: of all networks, in the order in which they were added

    def extend(self, genotypes: Sequence[Genotype]) -> None:
        """Add networks."""
        self.ids += [genotype.id for genotype in genotypes]
        if self._finisher.config.epochs:
            paths = {g: self._finisher.checkpoint(g) for g in genotypes}
            is_kept = {g: self._finisher.is_kept(g) for g in genotypes}
            genotypes = sorted(genotypes, key=lambda g: (not is_kept[g], -paths[g].n_steps()))
            self._paths += paths.values()
        self._waiting.extend(genotypes)

    def next_task(
        self,
    ) -> "Callable[[Sequence[Finetuner]], tuple[str, FinetuneResult | None]] | None":
        """Return the next task, if any is left for which there is time."""
        batch = self._how
        if not self._waiting and batch.refill is not None:
            self.extend(batch.refill(self.results))
        while self._waiting:
            genotype = self._waiting.popleft()
            if batch.slot.open_s() >= 0 or self._finisher.is_kept(genotype):
                fits = [genotype.id in target.fitting for target in batch.targets]
                return partial(
                    _finetuned_network, genotype, batch.slot, fits, batch.estimate_s(genotype)
                )
            self.results[genotype.id] = None
        return None

    def collect(self, result: "tuple[str, FinetuneResult | None]") -> None:
        """Add the result of a task."""
        self.results[result[0]] = result[1]

    def n_done(self) -> int:
        """Return the number of steps so far; without fine-tuning, the number of networks."""
        is_trained = self._finisher.n_steps > 0
        return sum(path.n_steps() for path in self._paths) if is_trained else len(self.results)


def finetuning_processes_of(
    finisher: Finetuner, configs: Sequence[SearchConfig]
) -> "TaskProcesses[list[Finetuner]] | None":
    """Return the processes that fine-tune for all targets; ``None`` if this process does it."""
    if (n := components.finetuning_processes(finisher.parts)) == 1:
        return None
    from hwnas.training.jobs import TaskProcesses

    data = finisher.parts.data.sendable
    reopen = partial(
        _reopened_finetuners, configs, finisher.teacher, finisher.left, finisher.chosen_epochs, data
    )
    return TaskProcesses(reopen, n)


def _finishers(finisher: Finetuner, others: Sequence[SearchConfig]) -> list[Finetuner]:
    """Return the fine-tuner of each target, given the first one."""
    parts = [components.retargeted(finisher.parts, config) for config in others]
    return [finisher, *(replace(finisher, parts=part) for part in parts)]


def _reopened_finetuners(
    configs: Sequence[SearchConfig],
    teacher: Genotype | None,
    left: Mapping[str, int],
    chosen_epochs: int | None,
    data: ImageData | None,
    progress: Progress,
) -> list[Finetuner]:
    parts = components.parts(configs[0], progress, data)
    weights = at_recorded_fidelity(accuracies(parts, progress), left)
    first = Finetuner(parts, weights, teacher, progress, chosen_epochs=chosen_epochs)
    return _finishers(first, configs[1:])


def _finetuned_network(
    genotype: Genotype,
    slot: TimeWindow,
    fits: Sequence[bool],
    estimate_s: float,
    tuners: Sequence[Finetuner],
) -> tuple[str, FinetuneResult | None]:
    """Fine-tune one network for all targets; ``None`` if time is too short."""
    left_s = slot.left_s()
    if estimate_s > left_s / 2 and not tuners[0].fits(genotype, left_s):
        return genotype.id, None
    start, is_new = time.monotonic(), not tuners[0].checkpoint(genotype).n_steps()
    try:
        with stop_trainings(slot.end_by):
            figure = tuners[0].tuned(genotype)
    except TimeLimitReached:  # the machine has become slower since
        return genotype.id, None
    except CollapseError as error:  # of this network only
        return genotype.id, FinetuneResult(None, failure=str(error))
    if not slot.is_limited:  # int8 training runs at verification
        return genotype.id, FinetuneResult(figure)
    without_int8_training = [t.for_int8(genotype, slot.left_s) for t in compress(tuners, fits)]
    elapsed_s = time.monotonic() - start if is_new else None
    return genotype.id, FinetuneResult(figure, elapsed_s, any(without_int8_training))
