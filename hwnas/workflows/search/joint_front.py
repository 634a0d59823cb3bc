"""The front of networks for all targets of a search: what it is, and its files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hwnas.analysis import search_page
from hwnas.analysis.figures import FrontPanel, front_png
from hwnas.analysis.page.html import render
from hwnas.core.run_folder import Row, RunFolder
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import Front, pareto_front
from hwnas.nas.member import Member
from hwnas.nas.targets import join_members
from hwnas.nas.verified_files import FORMAT
from hwnas.tasks.metrics import metric_of
from hwnas.tasks.metrics.budget import Budget
from hwnas.training import inference
from hwnas.workflows.reporter import Reporter
from hwnas.workflows.search import context
from hwnas.workflows.search.context import TargetContext, objectives
from hwnas.workflows.search.finishing import FinetuningOutcome
from hwnas.workflows.search.front import LONGER, TargetFront, finished, left_out, told


@dataclass(frozen=True)
class JointFront:
    """Networks for all targets, verified on each."""

    front: Front  #: without failures of single targets
    notes: list[str] = field(default_factory=list)  #: failures and chance level, as text


def nothing(
    joint: JointFront, contexts: Sequence[TargetContext], candidates: Sequence[Candidate]
) -> list[str]:
    """Return why there are no networks for all targets, if there are none."""
    if joint.front.members:
        return []
    if any(map(context.targets(contexts).fits_all, candidates)):
        return ["No candidate that fits the budgets of all targets could be verified on each."]
    return ["No candidate fits the budgets of all targets."]


def folder_of(folder: RunFolder, target: str) -> RunFolder:
    """Return the folder of a target within that of the run."""
    own = RunFolder(folder.path / target)
    own.path.mkdir(exist_ok=True)
    return own


def part(manifest: Row, target: str) -> Row:
    """Return what the manifest of a target's folder says, of that of its run."""
    inner = {n: v for n, v in manifest.items() if n not in ("targets", "objectives")}
    own: Row = manifest["targets"][target]
    return {**inner, **own, "part_of": ".."}


def fitting(
    contexts: Sequence[TargetContext], candidates: Sequence[Candidate], finish: FinetuningOutcome
) -> list[Candidate]:
    """Return the candidates that fit every target's budget and were finished, as they are then."""
    targets = context.targets(contexts)
    found = [c for c in candidates if c.id in finish.finished and targets.fits_all(c)]
    return [finish.as_finished(c) for c in found]


def verified(
    contexts: Sequence[TargetContext],
    folder: RunFolder,
    fitting: Sequence[Candidate],
    finish: FinetuningOutcome,
    fronts: Sequence[TargetFront],
    reporter: Reporter,
) -> JointFront:
    """Return the front of candidates that fit every target's budget, verified on each."""
    names, targets = objectives(contexts), context.targets(contexts)
    known, failed = {name for front in fronts for name in front.failed}, dict[str, str]()
    left = [c for c in fitting if c.id not in known]
    found = pareto_front(left, names) if left else []
    by_target: dict[str, dict[str, Member]] = {}
    for s in contexts if found else ():
        seen = [targets.seen(c, s.target) for c in found if c.id not in failed]
        own, phase = folder_of(folder, s.target), f"Verify on {s.target}"
        verification = s.verified(seen, finish.finisher, own, reporter, phase)
        failed |= {name: f"{s.target}: {why}" for name, why in verification.failed.items()}
        by_target[s.target] = {member.candidate.id: member for member in verification.members}
    members = [
        join_members(c, {target: parts[c.id] for target, parts in by_target.items()})
        for c in found
        if c.id not in failed
    ]
    metric, data = contexts[0].config.metric, contexts[0].parts.data
    named = {name for front in fronts for name in front.guessing}
    after = {c.id: c.figures[metric].value for c in found if c.id not in {*failed, *named}}
    notes = [*left_out(failed), *inference.chance_level_messages(data, after, LONGER)]
    reporter.say(notes, alarming=True)
    return JointFront(Front(names, members, failed).judged(), notes)


def ended(
    reporter: Reporter,
    candidates: list[Candidate],
    fronts: Sequence[TargetFront],
    members: Sequence[Member],
) -> Row:
    """Return what the manifest of a run for several targets says of its end."""
    return {
        **finished(reporter, candidates, []),
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
    """Write the front as CSV, JSON, picture and page, and the manifest."""
    first = fronts[0].context
    rows = [member.row(first.parts.space) for member in joint.front.members]
    if rows:
        folder.write_csv("front.csv", rows)
    else:  # that of an earlier end
        (folder.path / "front.csv").unlink(missing_ok=True)
    names: Sequence[str] = manifest["objectives"]
    content = {
        "format": FORMAT,
        "objectives": {n: "max" if metric_of(n).maximise else "min" for n in names},
        "budgets": {t: dict(_budget(own).limits) for t, own in manifest["targets"].items()},
        "members": rows,
        **({"unverified": dict(joint.front.failed)} if joint.front.failed else {}),
    }
    against = {f.context.target: f.against for f in fronts if f.against is not None}
    if against:
        manifest["baseline"] = {target: told(held) for target, held in against.items()}
    folder.write_json("front.json", content)
    ids = {member.candidate.id for member in joint.front.members}
    folder.write_bytes("front.png", front_png(*(_panel(front, ids) for front in fronts)))
    named = ", ".join(manifest["targets"])
    title = f"hwnas: {first.config.searched} on {named}, {first.parts.data.name}"
    data = {front.context.target: front.data for front in fronts}
    page = search_page.for_all(title, fitting, joint.front.members, data, missed, _facts(manifest))
    findings = [f"{target}: {line}" for target, held in against.items() for line in held.sentences]
    findings += joint.notes
    for f in fronts:
        lines = [*f.notes, *f.cascades.sentences, *f.exits.sentences]
        findings += [f"{f.context.target}: {line}" for line in lines]
    page = search_page.with_more(page, findings)
    folder.write_bytes("report.html", render(page).encode())
    folder.write_json("manifest.json", manifest)


def _panel(front: TargetFront, ids: set[str]) -> FrontPanel:
    config = front.context.config
    return FrontPanel(front.data, f"{config.searched} on {config.target.name}", ids)


def _budget(own: Mapping[str, Any]) -> Budget:
    return Budget.of(own["config"]["budget"])


def _facts(manifest: Row) -> list[tuple[str, str]]:
    facts = []
    for target, own in manifest["targets"].items():
        facts += [
            (f"{target}: target", own["config"]["target"]["caveat"]),
            (f"{target}: cost model", own["config"]["cost"]),
            (f"{target}: budget", str(_budget(own))),
        ]
    n = f"{manifest['n_candidates']}, {manifest['n_distinct']} different, "
    n += f"{manifest['n_infeasible']} fit no target"
    facts += [("candidates", n), ("command", manifest["command"])]
    return [*facts, *((f"version of {name}", v) for name, v in manifest["versions"].items())]
