"""The joint front of several targets: networks that meet all budgets, and the files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hwnas.analysis import search_page
from hwnas.analysis.figures import front_png
from hwnas.analysis.page.html import render
from hwnas.analysis.result_section import SearchResultData, result_section
from hwnas.analysis.sections import class_tables
from hwnas.core.run_folder import Row, RunFolder
from hwnas.export import picking
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import Front, pareto_front
from hwnas.nas.member import Member
from hwnas.nas.targets import join_members
from hwnas.nas.verified_files import FORMAT, classes_record
from hwnas.tasks.base import Confusion
from hwnas.tasks.metrics import metric_of
from hwnas.tasks.metrics.budget import Budget
from hwnas.training import inference
from hwnas.workflows.reporter import Reporter
from hwnas.workflows.search import context
from hwnas.workflows.search.context import TargetContext, objectives
from hwnas.workflows.search.finetuning_outcome import FinetuningOutcome
from hwnas.workflows.search.front import (
    LONGER,
    TargetFront,
    baseline_record,
    chance_level_headline,
    failure_messages,
    final_record,
    folder_of,
    search_words,
)


@dataclass(frozen=True)
class JointFront:
    """Networks that meet the budgets of all targets, compiled and evaluated for each."""

    front: Front  #: ``failed`` has only networks that failed here, not on the target's own front
    notes: list[str] = field(default_factory=list)  #: warnings about failures and chance level
    #: one sentence, if no member is better than a constant answer; else empty
    headline: list[str] = field(default_factory=list)
    #: confusion matrices by ``ID``, or by ``ID on TARGET`` if targets give different answers
    confusions: Mapping[str, Confusion] = field(default_factory=dict)


def empty_front_message(
    joint: JointFront, contexts: Sequence[TargetContext], candidates: Sequence[Candidate]
) -> list[str]:
    """Return a message on why the joint front is empty, as a list; empty if it is not."""
    if joint.front.members:
        return []
    several = context.targets(contexts)
    if any(several.fits_all(replace(c, stopped=False)) for c in candidates):
        return ["No candidate that meets the budgets of all targets could be verified on each."]
    return ["No candidate meets the budgets of all targets. Relax them, or search longer."]


def fitting(
    contexts: Sequence[TargetContext], candidates: Sequence[Candidate], finish: FinetuningOutcome
) -> list[Candidate]:
    """Return the fine-tuned candidates that meet the budgets of all targets."""
    targets = context.targets(contexts)
    done = [finish.as_finished(c) for c in candidates if c.id in finish.finished]
    return [c for c in done if targets.fits_all(c)]


def verified(
    contexts: Sequence[TargetContext],
    folder: RunFolder,
    fitting: Sequence[Candidate],
    finish: FinetuningOutcome,
    fronts: Sequence[TargetFront],
    reporter: Reporter,
) -> JointFront:
    """Compile and evaluate candidates for each target; return their joint front.

    Only the Pareto front of ``fitting`` is compiled, without networks that failed on a target.

    Args:
        contexts: One for each target.
        folder: Folder of the run.
        fitting: Candidates that meet the budgets of all targets.
        finish: The results of fine-tuning.
        fronts: Fronts of the targets.
        reporter: Is notified of progress and receives warnings.
    """
    names, targets = objectives(contexts), context.targets(contexts)
    known, failed = {name for front in fronts for name in front.front.failed}, dict[str, str]()
    open_candidates = [c for c in fitting if c.id not in known]
    selected = pareto_front(open_candidates, names) if open_candidates else []
    by_target: dict[str, dict[str, Member]] = {}
    for s in contexts if selected else ():
        candidates = [targets.on_target(c, s.target) for c in selected if c.id not in failed]
        place, phase = folder_of(folder, s.target), f"Verify on {s.target}"
        front = s.verified(candidates, finish.finisher, place, reporter, phase)
        failed |= {name: f"{s.target}: {reason}" for name, reason in front.failed.items()}
        by_target[s.target] = {member.candidate.id: member for member in front.members}
    members = [
        join_members(c, {target: parts[c.id] for target, parts in by_target.items()})
        for c in selected
        if c.id not in failed
    ]
    data, qualities = contexts[0].parts.data, {m.candidate.id: m.quality for m in members}
    at_chance = inference.at_chance_level(data.task.metric, qualities, data.constant("test"))
    joint = Front(names, members, failed, sorted(at_chance)).with_on_front()
    named = {name for f in fronts for name in f.front.at_chance_level}
    others = {name: figure for name, figure in qualities.items() if name not in named}
    headline, notes = chance_level_headline(joint, data), failure_messages(failed)
    if not headline:
        notes += inference.chance_level_messages(data, "test", others, LONGER)
    reporter.say([*headline, *notes], alarming=True)
    return JointFront(joint, notes, headline, _confusions(members, by_target))


def _confusions(
    members: Sequence[Member], by_target: Mapping[str, Mapping[str, Member]]
) -> dict[str, Confusion]:
    result: dict[str, Confusion] = {}
    for name in (member.candidate.id for member in members):
        confusions = {target: parts[name].confusion for target, parts in by_target.items()}
        first, *others = confusions.values()
        if all(other == first for other in others):
            confusions = {"": first}
        result |= {
            f"{name} on {t}" if t else name: c for t, c in confusions.items() if c is not None
        }
    return result


def joint_record(
    reporter: Reporter,
    candidates: Sequence[Candidate],
    fronts: Sequence[TargetFront],
    members: Sequence[Member],
) -> Row:
    """Return the entries of the manifest of a finished search for several targets."""
    return {
        **final_record(reporter, candidates, []),
        "n_front": len(members),
        "n_fronts": {front.context.target: len(front.members) for front in fronts},
    }


def write_joint_front(
    folder: RunFolder,
    manifest: Row,
    fronts: Sequence[TargetFront],
    fitting: Sequence[Candidate],
    joint: JointFront,
    missed: Sequence[str],
) -> None:
    """Write the joint front as CSV, JSON, figure and page, and the manifest.

    An entry ``baseline`` is added to ``manifest``, if there is one.
    """
    first = fronts[0].context
    rows = [member.row(first.parts.space) for member in joint.front.members]
    folder.write_or_remove_csv("front.csv", rows)
    names: Sequence[str] = manifest["objectives"]
    counts = first.parts.data.class_counts
    content = {
        "format": FORMAT,
        "objectives": {n: "max" if metric_of(n).maximise else "min" for n in names},
        "budgets": {
            t: dict(_budget(target_facts).limits) for t, target_facts in manifest["targets"].items()
        },
        "members": rows,
        **({"classes": classes_record(counts, joint.confusions)} if counts else {}),
        **({"unverified": dict(joint.front.failed)} if joint.front.failed else {}),
        **({"guessing": list(guessing)} if (guessing := joint.front.at_chance_level) else {}),
    }
    against = {f.context.target: f.against for f in fronts if f.against is not None}
    if against:
        manifest["baseline"] = {
            target: baseline_record(comparison) for target, comparison in against.items()
        }
    folder.write_json("front.json", content)
    ids = frozenset(member.candidate.id for member in joint.front.remaining)
    data = {front.context.target: replace(front.data, for_all=ids) for front in fronts}
    folder.write_bytes("front.png", front_png(*data.values()))
    named = ", ".join(manifest["targets"])
    title = f"hwnas: {first.config.searched} on {named}, {first.parts.data.name}"
    page = search_page.for_all(title, fitting, joint.front.members, data, _facts(manifest))
    if joint.front.members:
        page = replace(page, results=[result_section(_result(folder, manifest, fronts, joint))])
    findings = [*missed]
    findings += [
        f"{target}: {line}"
        for target, comparison in against.items()
        for line in comparison.sentences
    ]
    findings += joint.notes
    for f in fronts:
        lines = [*f.headline, *f.notes, *f.cascades.sentences, *f.exits.sentences]
        findings += [f"{f.context.target}: {line}" for line in lines]
    tables = class_tables(counts, joint.confusions) if counts else []
    page = search_page.with_more(page, findings, tables)
    folder.write_bytes("report.html", render(page).encode())
    folder.write_manifest(manifest)


def _result(
    folder: RunFolder, manifest: Row, fronts: Sequence[TargetFront], joint: JointFront
) -> SearchResultData:
    """Return the data of the first section of the page."""
    caveats = [
        (f"target {target}", target_facts["config"]["target"]["caveat"])
        for target, target_facts in manifest["targets"].items()
    ]
    return SearchResultData(
        str(folder.path),
        joint.front.members,
        picking.recommended(joint.front),
        manifest["objectives"],
        context.targets([front.context for front in fronts]).all_limits,
        [*caveats, ("search", search_words(manifest))],
        headline=joint.headline,
    )


def _budget(target_facts: Mapping[str, Any]) -> Budget:
    return Budget.of(target_facts["config"]["budget"])


def _facts(manifest: Row) -> list[tuple[str, str]]:
    facts = []
    for target, target_facts in manifest["targets"].items():
        facts += [
            (f"{target}: target", target_facts["config"]["target"]["caveat"]),
            (f"{target}: cost model", target_facts["config"]["cost"]),
            (f"{target}: budget", str(_budget(target_facts))),
        ]
    n = f"{manifest['n_candidates']}, {manifest['n_distinct']} different, "
    n += f"{manifest['n_infeasible']} meet no budget"
    facts += [("candidates", n), ("command", manifest["command"])]
    return [*facts, *((f"version of {name}", v) for name, v in manifest["versions"].items())]
