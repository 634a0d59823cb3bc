"""The end of a search: what may be on a front is finished, verified on its target, and written."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hwnas.core.errors import BudgetError, RunError
from hwnas.core.run_folder import Row, RunFolder
from hwnas.nas import candidates as columns
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import Member
from hwnas.training.data import ImageData
from hwnas.training.finetuning.finetuning_options import FinishConfig
from hwnas.training.finetuning.time_budget import TimeBudget
from hwnas.training.inference import at_chance_level
from hwnas.workflows.reporter import Reporter
from hwnas.workflows.search import baseline, cascades, context, finishing, joint_front
from hwnas.workflows.search import cascades as exits
from hwnas.workflows.search.baseline import Baseline
from hwnas.workflows.search.context import TargetContext
from hwnas.workflows.search.finishing import FinetuningOutcome
from hwnas.workflows.search.front import SearchOutcome, TargetFront, finished, withdraw, write_front

_NOTHING, _NONE = "nothing fits the budget", "none could be verified"


def end(
    contexts: Sequence[TargetContext],
    folder: RunFolder,
    manifest: Row,
    candidates: list[Candidate],
    reporter: Reporter,
    baselines: Mapping[str, Baseline],
) -> SearchOutcome:
    """Finish and verify the front of each target, and write reports.

    Raises:
        BudgetError: nothing fits any target.
        RunError: nothing that fits could be verified.
    """
    fitted, missed = _fitted(contexts, folder, candidates)
    lacking = dict.fromkeys({s.target for s in contexts} - {s.target for s in fitted}, _NOTHING)
    if not fitted:
        _without_front(folder, manifest, lacking, _NOTHING)
        raise BudgetError(" ".join(missed))
    allowance = _allowance(contexts[0].config.finish, folder, manifest)
    views = context.views(contexts)
    found = finishing.finish(fitted, views, candidates, allowance, reporter)
    manifest |= found.facts()
    verified = [_front(s, contexts, folder, found, reporter, baselines) for s in fitted]
    fronts = [front for front in verified if front.members]
    missed += [_none_verified(f, folder, len(contexts)) for f in verified if not f.members]
    lacking |= {front.context.target: _NONE for front in verified if not front.members}
    if failed := {f.context.target: dict(f.failed) for f in verified if f.failed}:
        manifest["unverified"] = failed
    _without_front(folder, manifest, lacking, "" if fronts else _NONE)
    if not fronts:
        raise RunError(" ".join(missed))
    with reporter.timed("Count cascades"):
        fronts = _with_cascades(fronts)
    with reporter.timed("Count exits"):
        fronts = [replace(f, exits=exits.exits_of_target(f.folder, f.members)) for f in fronts]
    if len(contexts) == 1:
        (front,) = fronts
        with reporter.timed("Write reports"):
            write_front(front, manifest | finished(reporter, front.candidates, front.members))
        return SearchOutcome(folder, manifest, fronts)
    fitting = [] if missed else joint_front.fitting(contexts, candidates, found)
    joint = joint_front.verified(contexts, folder, fitting, found, fronts, reporter)
    missed += joint_front.nothing(joint, contexts, candidates)
    with reporter.timed("Write reports"):
        manifest |= joint_front.ended(reporter, candidates, fronts, joint.front.members)
        for front in fronts:
            told = finished(reporter, front.candidates, front.members)
            write_front(front, joint_front.part(manifest, front.context.target) | told)
        joint_front.write_joint_front(folder, manifest, fronts, fitting, joint, missed)
    return SearchOutcome(folder, manifest, fronts, joint.front.members, missed)


def _allowance(config: FinishConfig, folder: RunFolder, manifest: Row) -> TimeBudget:
    """Return the time of finishing; the manifest keeps what was spent."""

    def keep(spent_s: float) -> None:
        manifest["finishing_s"] = round(spent_s, 2)
        folder.write_json("manifest.json", manifest)

    limit_s = math.inf if config.minutes is None else 60 * config.minutes
    return TimeBudget(limit_s, manifest.get("finishing_s", 0.0), keep)


def _fitted(
    contexts: Sequence[TargetContext], folder: RunFolder, candidates: Sequence[Candidate]
) -> tuple[list[TargetContext], list[str]]:
    """Return the targets that something fits, and why nothing fits the others."""
    fitted, missed = [], []
    for view, each in zip(context.views(contexts).values(), contexts, strict=True):
        try:
            each.front([view.seen(candidate) for candidate in candidates], folder)
            fitted.append(each)
        except BudgetError as error:
            missed.append(f"{view.name}: {error}" if view.name else str(error))
    return fitted, missed


def _without_front(
    folder: RunFolder, manifest: Row, lacking: Mapping[str, str], status: str
) -> None:
    """Say in the folders of targets without a front, and of the run, that there is none.

    Args:
        folder: Of the run.
        manifest: Of the run.
        lacking: Why, by target.
        status: Why there is none at all; empty if there is one.
    """
    for target in [name for name in manifest.get("targets", ()) if name in lacking]:
        own = joint_front.part(manifest, target) | {"status": lacking[target]}
        withdraw(joint_front.folder_of(folder, target), own)
    if status:
        withdraw(folder, manifest | {"status": status})


def _with_cascades(fronts: Sequence[TargetFront]) -> list[TargetFront]:
    """Return fronts with the cascades of their members, on the target or to the one of a link.

    These are held against the baseline, too.
    """
    stages = {
        f.context.target: cascades.stages(f.folder, f.members, f.context.config.target.batch)
        for f in fronts
    }
    found = []
    for front in fronts:
        config, target = front.context.config, front.context.target
        to = config.link.to
        server = [] if to is None or to == target else stages.get(to, [])
        counted = cascades.cascades_of_target(config, stages[target], server)
        against = baseline.with_cascades(front.against, front.members, counted)
        found.append(replace(front, cascades=counted, against=against))
    return found


def _front(
    of: TargetContext,
    contexts: Sequence[TargetContext],
    folder: RunFolder,
    found: FinetuningOutcome,
    reporter: Reporter,
    baselines: Mapping[str, Baseline],
) -> TargetFront:
    """Verify the front of a target, fastest first, in the run's folder or one of its own within."""
    own, phase = folder, "Verify front"
    if len(contexts) > 1:
        own, phase = joint_front.folder_of(folder, of.target), f"Verify on {of.target}"
    candidates = found.known[of.target].candidates
    band = found.members(of.target)
    verified = of.verified(band, found.finisher, own, reporter, phase)
    members = sorted(verified.members, key=lambda m: m.figures["latency_ms"].value)
    rows = [c.row(of.parts.space, of.config.metric) for c in candidates]
    own.write_parquet("candidates.parquet", rows)
    base = baselines.get(of.target) if members else None
    held = baseline.against(base, of.config, candidates, members)
    hurried = {m.candidate.id for m in members if m.dtype("") == "int8"}.intersection(found.hurried)
    left = found.unfinished(of.target)
    front = TargetFront(
        of, own, candidates, members, held, verified.failed,
        in_int8_in_haste=hurried, guessing=_guessing(of.parts.data, members), unfinished=left.ids,
        more=left.sentences(of.config.finish.probability, folder.path),
    )  # fmt: skip
    where = f"{of.target}: " * (len(contexts) > 1)
    if members:  # else that is said of all
        reporter.say([f"{where}{line}" for line in front.notes], alarming=True)
    return front


def _guessing(data: ImageData, members: Sequence[Member]) -> dict[str, float]:
    """Return the metric on validation of finished members that may be guessing, by id."""
    after = columns.finished(data.task.metric)
    found = {m.candidate.id: m.candidate.details[after] for m in members}
    return at_chance_level(data.task, found, len(data.validation))


def _none_verified(front: TargetFront, folder: RunFolder, n_targets: int) -> str:
    """Return that no network of a target could be verified, and what may help."""
    where = f"{front.context.target}: " if n_targets > 1 else ""
    again = f"python -m hwnas search {shlex.quote(f'run.resume={folder.path}')}"
    if not front.failed:
        return (
            f"{where}None of the networks that fit its budget was finished, so that none was "
            f"verified. A larger finish.minutes or finish.max_candidates finishes more: {again}"
        )
    name, reason = next(iter(front.failed.items()))
    return (
        f"{where}None of {len(front.failed)} networks that may be on the front could be verified, "
        f"for example {name}: {reason.rstrip('.')}. All that was found is in {folder.path}; they "
        f"are tried again by: {again}"
    )
