"""How a search that came to its end made networks ready: the same again costs no training."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, zip_longest
from pathlib import Path

from hwnas.core.errors import RunError
from hwnas.core.manifest import Manifest, accuracy_source
from hwnas.core.progress import Progress
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row
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


def as_recorded(search: SearchConfig, manifest: Manifest) -> SearchConfig:
    """Return the configuration of a search with what it did and where it kept its networks.

    Args:
        search: Composed again, by a version with other defaults perhaps.
        manifest: Of the search.
    """
    recorded = manifest["config"]
    folder = recorded["run"]["supernets"]
    if accuracy_source(manifest) == "supernet":
        folder = str(jobs.folder_of(manifest["checkpoint"]))
    known: Row = {**recorded.get("finish", {}), **manifest.get("finishing", {})}
    done = {name: known[name] for name in _FINISH if known.get(name) is not None}
    run = replace(search.run, supernets=str(folder))
    return replace(search, run=run, finish=replace(search.finish, **done))


def finisher(
    of: TargetContext,
    manifest: Manifest,
    candidates: Sequence[Candidate],
    config: ExportConfig,
    progress: Progress,
) -> Finetuner:
    """Return what makes networks of a search ready, as the search did where nothing else is said.

    Args:
        of: A target, its configuration ``as_recorded``.
        manifest: Of the search.
        candidates: Of the search, with the metric after each fidelity.
        config: What is asked for.
        progress: Of the trainings.
    """
    weights = as_left(of.evaluator, left_after(of.config, candidates))
    found = Finetuner(of.parts, weights, progress=progress)
    other = config.finishing(found.searched)
    found = replace(found, other=None if other == found.searched else other)
    if "finishing" not in manifest:  # of an earlier version, which had supernets alone
        return replace(found, tutor=LargestSubnetTeacher(weights))
    done = manifest["finishing"]
    teacher = done["teacher"]
    if teacher is None:  # the search had none; this may have the one that answers best
        sign = 1 if metric_of(of.config.metric).maximise else -1
        finished = {name: (sign * figure[0], name) for name, figure in done["finished"].items()}
        teacher = max(finished, key=finished.__getitem__, default="")
    genotypes = {c.id: c.genotype for c in candidates}
    return replace(found, teacher=genotypes.get(teacher))


def check_kept(finisher: Finetuner, genotypes: Sequence[Genotype], manifest: Manifest) -> None:
    """Refuse to go on where weights of a search would have to be trained again.

    Args:
        finisher: Of the search.
        genotypes: Networks of the search, finished by it or not.
        manifest: Of the search.

    Raises:
        RunError: they are not where the run left them, or this version would train others.
    """
    parts = finisher.parts
    if accuracy_source(manifest) == "supernet":
        kept = jobs.checkpoints(manifest["checkpoint"], parts.space)
        for genotype in genotypes:
            jobs.check_kept(parts.setup_of(genotype), kept[genotype.space])
        return
    done: Mapping[str, object] = manifest.get("finishing", {}).get("finished", {})
    if lost := _lost(replace(finisher, other=None), genotypes, done):
        raise RunError(
            f"The trained networks of the run are not in {Path(parts.config.run.supernets)} as "
            f"this version would train them ({lost} is not); start from the folder in "
            "which the search was started, with the same versions and data."
        )


def check_kept_so_far(
    of: TargetContext,
    earlier: Row,
    candidates: Sequence[Candidate],
    folder: Path,
    progress: Progress,
) -> None:
    """Refuse to go on with a search whose finished networks would have to be trained again.

    Where time is limited, it would be spent on them, and those that it is too short for would be
    lost.

    Args:
        of: One of its targets.
        earlier: What the manifest said before; empty where the search has just begun.
        candidates: Of the search.
        folder: Of the search.
        progress: Of the command.

    Raises:
        RunError: they are not where the run left them, or this version would train others.
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
        return  # otherwise than before is what was asked for
    if lost := _lost(before, [*genotypes.values()], done["finished"]):
        raise RunError(
            f"run.resume={folder}: the networks that it finished are not in "
            f"{Path(of.config.run.supernets)} as this version would train them ({lost} is not): "
            "finish.minutes would be spent on them again, and what it is too short for be lost. "
            "Start from the folder in which the search was started, say run.supernets=DIR, or "
            f"begin another one: start_from={folder}"
        )


def _lost(searched: Finetuner, genotypes: Sequence[Genotype], done: Mapping[str, object]) -> str:
    """Return the id of the first network that is not where a search left it; empty if all are.

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
    """Return what a proof says of how a network was finished, beside its steps."""
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


# Networks are finished: one after another, or by several processes, as far as there is time.


@dataclass(frozen=True)
class FinetuneResult:
    """What finishing one network came to."""

    figure: Quantity  #: its metric on the validation split
    without_int8_training: bool = False  #: True if time ran out before its int8 training


@dataclass(frozen=True)
class FinetuneTarget:
    """One target of the search; networks that do not fit it are not trained for it."""

    config: SearchConfig
    fitting: Collection[str]  #: ids of the networks that fit it


@dataclass(frozen=True)
class FinetuneBatch:
    """How some networks are finished together."""

    #: when their trainings may begin, and must have ended; where that is limited, trainings for
    #: int8 come right behind
    slot: TimeWindow = ALWAYS
    targets: Sequence[
        FinetuneTarget
    ] = ()  #: the finisher's first, if there may be trainings for int8
    crew: TaskProcesses[list[Finetuner]] | None = (
        None  #: processes that finish several; else this one does
    )


def finished(
    finisher: Finetuner,
    genotypes: Sequence[Genotype],
    phases: Progress,
    phase: str,
    how: FinetuneBatch = FinetuneBatch(),
) -> dict[str, FinetuneResult | None]:
    """Finish networks; return by id what came of it, ``None`` where there was no time for one.

    Args:
        finisher: Finishes them.
        genotypes: Of the networks.
        phases: Of the command.
        phase: What progress calls it.
        how: When, by whom and for which targets.
    """
    epochs, slot, crew = finisher.config.epochs, how.slot, how.crew
    n_steps = max(1, finisher.n_steps)
    taught = [genotype for genotype in genotypes if not finisher.is_teacher(genotype)]
    if finisher.teacher is not None and taught:
        finisher.prepare(taught[0])
    paths = [finisher.checkpoint(genotype) for genotype in genotypes] if epochs else []
    if paths:  # first what is finished already, or nearly
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
    """Return processes that finish networks as one does; ``None`` where one process is wanted.

    Args:
        finisher: The one.
        configs: Of the search, of each target.
    """
    n = finisher.parts.config.study.workers or 1
    again = partial(_again, configs, finisher.teacher, finisher.left)
    return TaskProcesses(again, n) if n > 1 else None


def _finishers(finisher: Finetuner, others: Sequence[SearchConfig]) -> list[Finetuner]:
    """Return what finishes networks, and the same for other targets."""
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
    """Finish one network, unless there is no time for it; there is a finisher for each target."""
    if not own[0].fits(genotype, slot.left_s()):
        return None
    figure = own[0].tuned(genotype)
    if not slot.is_limited:  # it is trained for int8 when it is verified
        return FinetuneResult(figure)
    without_int8_training = [each.for_int8(genotype, slot.left_s) for each in compress(own, fits)]
    return FinetuneResult(figure, any(without_int8_training))
