"""The end of a search: fine-tuning, verification and reports of likely front members."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hwnas.core.errors import BudgetError, RunError
from hwnas.core.run_folder import Row, RunFolder
from hwnas.nas.candidates import Candidate
from hwnas.training.finetuning.time_budget import TimeBudget
from hwnas.training.inference import at_chance_level
from hwnas.training.options import FinishConfig
from hwnas.workflows.reporter import Reporter
from hwnas.workflows.search import cascades, context, finishing
from hwnas.workflows.search.context import TargetContext
from hwnas.workflows.search.finishing import FinetuningOutcome
from hwnas.workflows.search.front import (
    SearchOutcome,
    TargetFront,
    final_record,
    folder_of,
    manifest_of,
    remove_front_files,
    write_front,
)
from hwnas.workflows.search.time_plan import TimeLimit

if TYPE_CHECKING:
    from hwnas.workflows.search.baseline import Baseline

_NOTHING, _NONE = "nothing fits the budget", "none could be verified"


def end(  # noqa: PLR0913, PLR0917
    contexts: Sequence[TargetContext],
    folder: RunFolder,
    manifest: Row,
    candidates: list[Candidate],
    reporter: Reporter,
    baselines: Mapping[str, "Baseline"],
    limit: TimeLimit | None = None,
) -> SearchOutcome:
    """Fine-tune and verify the front of each target, write reports, and return the results.

    Args:
        contexts: One for each target.
        folder: Folder of the run.
        manifest: Manifest of the run.
        candidates: All candidates of the search.
        reporter: Is notified of progress.
        baselines: Baselines by name of the target.
        limit: Time limit of the command.

    Raises:
        BudgetError: no candidate is feasible on any target.
        RunError: no feasible candidate could be verified.
    """
    feasible, missed = _feasible(contexts, folder, candidates)
    lacking = dict.fromkeys({s.target for s in contexts} - {s.target for s in feasible}, _NOTHING)
    if not feasible:
        _without_front(folder, manifest, lacking, _NOTHING)
        raise BudgetError(" ".join(missed))
    budget = _time_budget(contexts[0].config.finish, folder, manifest, limit)
    views = context.views(contexts)
    finetuned = finishing.finish(feasible, views, candidates, budget, reporter)
    reporter.say(finetuned.messages, alarming=True)
    manifest |= finetuned.facts()
    verified = [_front(s, folder, finetuned, reporter, baselines) for s in feasible]
    fronts = [front for front in verified if front.members]
    missed += [_none_verified(f, folder) for f in verified if not f.members]
    lacking |= {front.context.target: _NONE for front in verified if not front.members}
    if failed := {f.context.target: dict(f.front.failed) for f in verified if f.front.failed}:
        manifest["unverified"] = failed
    _without_front(folder, manifest, lacking, "" if fronts else _NONE)
    if not fronts:
        raise RunError(" ".join(missed))
    with reporter.timed("Count cascades"):
        fronts = _with_cascades(fronts)
    with reporter.timed("Count exits"):
        fronts = [replace(f, exits=cascades.exits_of_target(f.folder, f.members)) for f in fronts]
    if limit is not None:
        manifest["elapsed_s"] = round(limit.elapsed_s, 2)
    if len(contexts) == 1:
        (front,) = fronts
        with reporter.timed("Write reports"):
            write_front(front, manifest | final_record(reporter, front.candidates, front.members))
        return SearchOutcome(folder, manifest, fronts)
    from hwnas.workflows.search import joint_front  # imported here: several targets are rare

    fitting = [] if missed else joint_front.fitting(contexts, candidates, finetuned)
    joint = joint_front.verified(contexts, folder, fitting, finetuned, fronts, reporter)
    missed += joint_front.nothing(joint, contexts, candidates)
    with reporter.timed("Write reports"):
        manifest |= joint_front.joint_record(reporter, candidates, fronts, joint.front.members)
        for front in fronts:
            record = final_record(reporter, front.candidates, front.members)
            write_front(front, manifest_of(manifest, front.context.target) | record)
        joint_front.write_joint_front(folder, manifest, fronts, fitting, joint, missed)
    return SearchOutcome(folder, manifest, fronts, joint.front, missed)


def _time_budget(
    config: FinishConfig, folder: RunFolder, manifest: Row, limit: TimeLimit | None
) -> TimeBudget:
    """Return the time budget of fine-tuning; the manifest stores the elapsed time."""

    def keep(spent_s: float) -> None:
        manifest["finishing_s"] = round(spent_s, 2)
        if limit is not None:
            manifest["elapsed_s"] = round(limit.elapsed_s, 2)
        folder.write_json("manifest.json", manifest)

    def keep_epochs(epochs: int) -> None:
        manifest["finishing_epochs"] = epochs
        folder.write_json("manifest.json", manifest)

    spent_s = manifest.get("finishing_s", 0.0)
    limit_s = math.inf if config.minutes is None else 60 * config.minutes
    if limit is not None:
        limit_s = spent_s + limit.finetuning_left_s()
    return TimeBudget(limit_s, spent_s, keep, manifest.get("finishing_epochs"), keep_epochs)


def _feasible(
    contexts: Sequence[TargetContext], folder: RunFolder, candidates: Sequence[Candidate]
) -> tuple[list[TargetContext], list[str]]:
    """Return the targets with feasible candidates, and errors of the others."""
    feasible, missed = [], []
    for view, each in zip(context.views(contexts).values(), contexts, strict=True):
        try:
            each.front([view.seen(candidate) for candidate in candidates], folder)
            feasible.append(each)
        except BudgetError as error:
            missed.append(f"{each.label}{error}")
    return feasible, missed


def _without_front(
    folder: RunFolder, manifest: Row, lacking: Mapping[str, str], status: str
) -> None:
    """Write the manifests of targets without a front, and of a run without any.

    Args:
        folder: Folder of the run.
        manifest: Manifest of the run.
        lacking: Reasons, by target.
        status: The reason if no target has a front, else empty.
    """
    for target in [name for name in manifest.get("targets", ()) if name in lacking]:
        own = manifest_of(manifest, target) | {"status": lacking[target]}
        remove_front_files(folder_of(folder, target), own)
    if status:
        remove_front_files(folder, manifest | {"status": status})


def _with_cascades(fronts: Sequence[TargetFront]) -> list[TargetFront]:
    """Return fronts with cascades of their members, on the target or across ``link.to``.

    The cascades are also compared with the baseline.
    """
    stages = {
        f.context.target: cascades.stages(f.folder, f.members, f.context.config.target.batch)
        for f in fronts
    }
    results = []
    for front in fronts:
        config, target = front.context.config, front.context.target
        to = config.link.to
        server = [] if to is None or to == target else stages.get(to, [])
        report = cascades.cascades_of_target(config, stages[target], server)
        against = front.against
        if against is not None:
            against = against.with_cascades(front.members, report)
        results.append(replace(front, cascades=report, against=against))
    return results


def _front(
    of: TargetContext,
    folder: RunFolder,
    found: FinetuningOutcome,
    reporter: Reporter,
    baselines: Mapping[str, "Baseline"],
) -> TargetFront:
    """Verify the front of a target, in the run's folder or in a subfolder for the target."""
    place, phase = folder, "Verify front"
    if of.is_one_of_several:
        place, phase = folder_of(folder, of.target), f"Verify on {of.target}"
    candidates = found.known[of.target].candidates
    verified = of.verified(found.members(of.target), found.finisher, place, reporter, phase)
    members = sorted(verified.members, key=lambda m: m.figures["latency_ms"].value)
    qualities = {member.candidate.id: member.quality for member in members}
    at_chance = at_chance_level(of.config.metric, qualities, of.parts.data.constant("test"))
    rows = [c.row(of.parts.space, of.config.metric) for c in candidates]
    place.write_parquet("candidates.parquet", rows)
    base = baselines.get(of.target) if members else None
    against = None if base is None else base.compared_with(of.config, candidates, members)
    in_int8 = {m.candidate.id for m in members if m.dtype("") == "int8"}
    remaining = found.unfinished(of.target)
    front = TargetFront(
        of,
        place,
        candidates,
        replace(verified, members=members, at_chance_level=sorted(at_chance)),
        against,
        without_int8_training=in_int8 & found.without_int8_training,
        unfinished=remaining.ids,
        more=remaining.messages(of.config.finish.probability, folder.path),
    )
    if members:  # else one error names all targets
        lines = [*front.headline, *front.notes]
        reporter.say([f"{of.label}{line}" for line in lines], alarming=True)
    return front


def _none_verified(front: TargetFront, folder: RunFolder) -> str:
    """Return why no network of a target is verified, with the command that continues."""
    where = front.context.label
    again = f"hwnas search {shlex.quote(f'run.resume={folder.path}')}"
    failed = front.front.failed
    if not failed:
        return (
            f"{where}None of the networks within its budget was fine-tuned and verified. Resume "
            f"with larger minutes, finish.minutes or finish.max_candidates: {again}"
        )
    name, reason = next(iter(failed.items()))
    return (
        f"{where}None of {len(failed)} networks that may be on the front could be verified, "
        f"for example {name}: {reason.rstrip('.')}. All candidates are in {folder.path}. To try "
        f"again: {again}"
    )
