"""Fine-tuning as in a finished search, from its cached trainings; and its execution."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, zip_longest
from pathlib import Path

from hwnas.core.errors import RunError
from hwnas.core.manifest import Manifest, accuracy_source
from hwnas.core.progress import Progress
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import WEIGHTS, Row
from hwnas.models.spaces import Genotype
from hwnas.nas.candidates import Candidate
from hwnas.tasks.metrics import metric_of
from hwnas.training import jobs
from hwnas.training.finetuning.stages import LargestSubnetTeacher
from hwnas.training.finetuning.time_budget import ALWAYS, TimeWindow
from hwnas.training.jobs import TaskProcesses
from hwnas.workflows import components
from hwnas.workflows.components import accuracies, as_left, left_after
from hwnas.workflows.config import ExportConfig, SearchConfig
from hwnas.workflows.search.context import TargetContext
from hwnas.workflows.search.finisher import Finetuner

_FINISH = ("epochs", "rate", "alpha", "max_int8_drop")


def as_recorded(search: SearchConfig, manifest: Manifest, run: Path) -> SearchConfig:
    """Return the configuration of a search with its recorded fine-tuning and its weights.

    Args:
        search: The configuration, composed by this version, possibly with other defaults.
        manifest: Manifest of the search.
        run: Folder of the search.
    """
    recorded = manifest["config"]
    folder = weights_folder(manifest, run)
    known: Row = {**recorded.get("finish", {}), **manifest.get("finishing", {})}
    done = {name: known[name] for name in _FINISH if known.get(name) is not None}
    where = replace(search.run, dir=None, supernets=str(folder))
    return replace(search, run=where, finish=replace(search.finish, **done))


def weights_folder(manifest: Manifest, run: Path) -> Path:
    """Return the folder with the weights of a search; of earlier versions, that of all runs."""
    folder = run / WEIGHTS
    return folder if folder.is_dir() else Path(manifest["config"]["run"]["supernets"])


def finisher(
    of: TargetContext,
    manifest: Manifest,
    candidates: Sequence[Candidate],
    config: ExportConfig,
    progress: Progress,
) -> Finetuner:
    """Return the fine-tuner of a search, with options that an export changes.

    Args:
        of: A target, its configuration ``as_recorded``.
        manifest: Manifest of the search.
        candidates: Candidates of the search, with the metric after each fidelity.
        config: Options of the export.
        progress: Progress of trainings.
    """
    weights = as_left(of.evaluator, left_after(of.config, candidates))
    found = Finetuner(of.parts, weights, progress=progress)
    other = config.finishing(found.searched)
    found = replace(found, other=None if other == found.searched else other)
    if "finishing" not in manifest:  # of an earlier version, which only had supernets
        return replace(found, tutor=LargestSubnetTeacher(weights))
    done = manifest["finishing"]
    teacher = done["teacher"]
    if teacher is None:  # the search had none: use the most accurate network
        sign = 1 if metric_of(of.config.metric).maximise else -1
        finished = {name: (sign * figure[0], name) for name, figure in done["finished"].items()}
        teacher = max(finished, key=finished.__getitem__, default="")
    genotypes = {c.id: c.genotype for c in candidates}
    return replace(found, teacher=genotypes.get(teacher))


def check_kept(finisher: Finetuner, genotypes: Sequence[Genotype], manifest: Manifest) -> None:
    """Reject networks whose weights would have to be trained again.

    Args:
        finisher: Fine-tuner of the search.
        genotypes: Networks of the search, fine-tuned or not.
        manifest: Manifest of the search.

    Raises:
        RunError: the weights are missing, or this version would train different ones.
    """
    parts = finisher.parts
    if accuracy_source(manifest) == "supernet":
        for genotype in genotypes:
            jobs.check_kept(parts.setup_of(genotype))
        return
    done: Mapping[str, object] = manifest.get("finishing", {}).get("finished", {})
    if lost := _lost(replace(finisher, other=None), genotypes, done):
        raise RunError(
            f"The trained networks of the run are not in {Path(parts.config.run.supernets)} as "
            f"this version would train them ({lost} is missing); use the working directory of the "
            "search, with the same versions and data."
        )


def check_kept_so_far(
    of: TargetContext,
    earlier: Row,
    candidates: Sequence[Candidate],
    folder: Path,
    progress: Progress,
) -> None:
    """Refuse to resume a search whose fine-tuned networks would have to be trained again.

    With a time limit, the remaining time would be used for them, and some would be lost.

    Args:
        of: One of its targets.
        earlier: The manifest before resuming; empty for a new search.
        candidates: Candidates of the search.
        folder: Folder of the search.
        progress: Progress of the command.

    Raises:
        RunError: the weights are missing, or this version would train different ones.
    """
    done = earlier.get("finishing", {"finished": {}})
    if of.config.finish.minutes is None:
        return
    genotypes = {c.id: c.genotype for c in candidates if c.id in done["finished"]}
    if not genotypes:
        return
    weights = as_left(of.evaluator, left_after(of.config, candidates))
    before = Finetuner(of.parts, weights, genotypes.get(done.get("teacher")), progress)
    if any(getattr(before.config, name) != done.get(name) for name in _FINISH):
        return  # other options are requested
    if lost := _lost(before, [*genotypes.values()], done["finished"]):
        raise RunError(
            f"run.resume={folder}: its fine-tuned networks are not in "
            f"{Path(of.config.run.supernets)} as this version would train them ({lost} is not): "
            "finish.minutes would be used to train them again. Use the working directory of the "
            f"search, set run.supernets=DIR, or start a new search: start_from={folder}"
        )


def _lost(searched: Finetuner, genotypes: Sequence[Genotype], done: Mapping[str, object]) -> str:
    """Return the id of the first network without cached weights; empty if all are cached.

    Args:
        searched: As the search finished networks.
        genotypes: The networks.
        done: By id, those that it finished.
    """
    taught = searched.config.epochs and searched.config.alpha
    teacher = [searched.teacher] if searched.teacher is not None and taught else []
    for genotype in (*teacher, *genotypes):  # the teacher first: others refer to its weights
        is_kept = searched.is_kept if genotype.id in done else searched.is_inherited
        if not is_kept(genotype):
            return genotype.id
    return ""


def facts(finisher: Finetuner, genotype: Genotype) -> Row:
    """Return the options of a network's fine-tuning for its proof."""
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

    figure: Quantity  #: its metric on the validation split
    without_int8_training: bool = False  #: True if time ran out before its int8 training


@dataclass(frozen=True)
class FinetuneTarget:
    """A target of the search; infeasible networks are not trained for it."""

    config: SearchConfig
    fitting: Collection[str]  #: ids of feasible networks


@dataclass(frozen=True)
class FinetuneBatch:
    """Time window, targets and processes for a batch of networks."""

    #: start and end of trainings; if limited, int8 training follows fine-tuning directly
    slot: TimeWindow = ALWAYS
    #: the fine-tuner's target first, if int8 training is possible
    targets: Sequence[FinetuneTarget] = ()
    crew: TaskProcesses[list[Finetuner]] | None = None  #: processes; ``None``: this process


def finished(
    finisher: Finetuner,
    genotypes: Sequence[Genotype],
    phases: Progress,
    phase: str,
    how: FinetuneBatch = FinetuneBatch(),
) -> dict[str, FinetuneResult | None]:
    """Fine-tune networks; return results by id, ``None`` if time ran out.

    Args:
        finisher: Fine-tunes one network.
        genotypes: Genotypes of the networks.
        phases: Progress of the command.
        phase: Title of the progress bar.
        how: Time window, targets and processes.
    """
    epochs, slot, crew = finisher.config.epochs, how.slot, how.crew
    n_steps = max(1, finisher.n_steps)
    taught = [g for g in genotypes if not finisher.is_teacher(g) and not finisher.is_kept(g)]
    if finisher.teacher is not None and taught:
        finisher.prepare(taught[0])
    paths = [finisher.checkpoint(genotype) for genotype in genotypes] if epochs else []
    if paths:  # cached networks first, then interrupted ones
        kept = [finisher.is_kept(genotype) for genotype in genotypes]
        order = sorted(range(len(paths)), key=lambda i: (not kept[i], -paths[i].n_steps()))
        genotypes, paths = [genotypes[i] for i in order], [paths[i] for i in order]

    def n_done() -> int:
        return sum(path.n_steps() for path in paths)

    def late(i: int) -> bool:
        return slot.open_s() < 0 and not finisher.is_kept(genotypes[i])

    before = n_done()
    with phases.phase(phase, len(genotypes) * n_steps, before, slot.open_s()) as advance:
        tasks = [
            partial(_ready, g, slot, [g.id in t.fitting for t in how.targets]) for g in genotypes
        ]
        if crew is not None and len(tasks) > 1 and before < len(tasks) * n_steps:
            found = crew.run(tasks, lambda: n_done() - before, advance, late)
        else:
            found, own = [], _finishers(finisher, [target.config for target in how.targets[1:]])
            for i, task in enumerate(tasks, 1):
                if late(i - 1):
                    break
                found.append(task(own))
                advance(max(0, i * n_steps - before))
                before = max(before, i * n_steps)
    return {g.id: ready for g, ready in zip_longest(genotypes, found)}


def crew_of(
    finisher: Finetuner, configs: Sequence[SearchConfig]
) -> TaskProcesses[list[Finetuner]] | None:
    """Return processes for fine-tuning; ``None`` if ``study.workers`` is 1.

    Args:
        finisher: The fine-tuner of this process.
        configs: Configuration of each target.
    """
    n = finisher.parts.config.study.workers or 1
    again = partial(_again, configs, finisher.teacher, finisher.left)
    return TaskProcesses(again, n) if n > 1 else None


def _finishers(finisher: Finetuner, others: Sequence[SearchConfig]) -> list[Finetuner]:
    """Return the fine-tuner of each target, given the first one."""
    parts = [components.retargeted(finisher.parts, config) for config in others]
    return [finisher, *(replace(finisher, parts=each) for each in parts)]


def _again(
    configs: Sequence[SearchConfig],
    teacher: Genotype | None,
    left: Mapping[str, int],
    progress: Progress,
) -> list[Finetuner]:
    parts = components.parts(configs[0], progress)
    weights = as_left(accuracies(parts, progress), left)
    return _finishers(Finetuner(parts, weights, teacher, progress), configs[1:])


def _ready(
    genotype: Genotype, slot: TimeWindow, fits: Sequence[bool], own: Sequence[Finetuner]
) -> FinetuneResult | None:
    """Fine-tune one network for all targets; ``None`` if time is too short."""
    if not own[0].fits(genotype, slot.left_s()):
        return None
    figure = own[0].tuned(genotype)
    if not slot.is_limited:  # int8 training runs at verification
        return FinetuneResult(figure)
    without_int8_training = [each.for_int8(genotype, slot.left_s) for each in compress(own, fits)]
    return FinetuneResult(figure, any(without_int8_training))
