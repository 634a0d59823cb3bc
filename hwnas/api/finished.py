"""How a search that came to its end made networks ready: the same again costs no training."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hwnas import kept_supernets
from hwnas.api.context import TargetContext
from hwnas.config import ExportConfig, SearchConfig
from hwnas.errors import RunError
from hwnas.finishing.finisher import Finisher
from hwnas.finishing.teachers import LargestSubnet
from hwnas.manifest import Manifest, weights_of
from hwnas.metrics import column
from hwnas.progress import Progress
from hwnas.results import Candidate, Row
from hwnas.space import Genotype
from hwnas.weights import as_left, left_after

_FINISH = ("epochs", "rate", "alpha", "max_int8_drop")


def as_recorded(search: SearchConfig, manifest: Manifest) -> SearchConfig:
    """Return the configuration of a search with what it did and where it kept its networks.

    Args:
        search: Composed again, by a version with other defaults perhaps.
        manifest: Of the search.
    """
    recorded = manifest["config"]
    folder = recorded["run"]["supernets"]
    if weights_of(manifest) == "supernet":
        folder = str(kept_supernets.folder_of(manifest["checkpoint"]))
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
) -> Finisher:
    """Return what makes networks of a search ready, as the search did where nothing else is said.

    Args:
        of: A target, its configuration ``as_recorded``.
        manifest: Of the search.
        candidates: Of the search, with the metric after each fidelity.
        config: What is asked for.
        progress: Of the trainings.
    """
    weights = as_left(of.evaluator, left_after(of.config, candidates))
    found = Finisher(of.parts, weights, progress=progress)
    other = config.finishing(found.searched)
    found = replace(found, other=None if other == found.searched else other)
    if "finishing" not in manifest:  # of an earlier version, which had supernets alone
        return replace(found, tutor=LargestSubnet(weights))
    done = manifest["finishing"]
    teacher = done["teacher"]
    if teacher is None:  # the search had none; this may have the one that answers best
        sign = 1 if column(of.config.metric).maximise else -1
        finished = {name: (sign * figure[0], name) for name, figure in done["finished"].items()}
        teacher = max(finished, key=finished.__getitem__, default="")
    genotypes = {c.id: c.genotype for c in candidates}
    return replace(found, teacher=genotypes.get(teacher))


def check_kept(finisher: Finisher, genotypes: Sequence[Genotype], manifest: Manifest) -> None:
    """Refuse to go on where weights of a search would have to be trained again.

    Args:
        finisher: Of the search.
        genotypes: Networks of the search, finished by it or not.
        manifest: Of the search.

    Raises:
        RunError: they are not where the run left them, or this version would train others.
    """
    parts = finisher.parts
    if weights_of(manifest) == "supernet":
        kept = kept_supernets.checkpoints(manifest["checkpoint"], parts.space)
        for genotype in genotypes:
            kept_supernets.check_kept(parts.setup_of(genotype), kept[genotype.space])
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
    before = Finisher(of.parts, weights, genotypes.get(done.get("teacher")), progress)
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


def _lost(searched: Finisher, genotypes: Sequence[Genotype], done: Mapping[str, object]) -> str:
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


def facts(finisher: Finisher, genotype: Genotype) -> Row:
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
