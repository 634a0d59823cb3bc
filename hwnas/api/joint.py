"""The end of a search for several targets: a front for each, and one of models for all."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hwnas.api import baseline, finishing
from hwnas.api.baseline import Baseline
from hwnas.api.finishing import Finish
from hwnas.api.front import Front, Outcome, finished, told, write_front
from hwnas.api.reporter import Reporter
from hwnas.api.station import Station, objectives
from hwnas.budget import Budget
from hwnas.device import table_facts
from hwnas.errors import BudgetError
from hwnas.metrics import column, paid
from hwnas.report import searched
from hwnas.report.page import render
from hwnas.report.plot import Panel, front_png
from hwnas.results import Candidate, Row, RunFolder, plain
from hwnas.searching.front import pareto_front
from hwnas.searching.joint import JointMember, fits_all, judge, on_target
from hwnas.searching.member import Member


def described(stations: Sequence[Station]) -> Row:
    """Return what a manifest says of targets."""
    if len(stations) == 1:
        return {"latency_table": table_facts(stations[0].device)}
    return {
        "objectives": list(objectives(stations)),
        "targets": {s.target: _own(s) for s in stations},
    }


def _own(station: Station) -> Row:
    facts = table_facts(station.device)
    return {"latency_table": facts, "config": plain(asdict(station.config))}


def finish(
    stations: Sequence[Station],
    folder: RunFolder,
    manifest: Row,
    candidates: list[Candidate],
    phases: Reporter,
    baselines: Mapping[str, Baseline],
) -> Outcome:
    """Verify all fronts and write reports.

    Raises:
        BudgetError: nothing fits any target.
    """
    fronts, fitted, missed = [], [], []
    for station in stations:
        try:
            station.front(_seen(candidates, station), folder)
            fitted.append(station)
        except BudgetError as error:
            missed.append(f"{station.target}: {error}")
    if not fitted:
        folder.write_json("manifest.json", manifest | {"status": "nothing fits the budget"})
        raise BudgetError(" ".join(missed))
    views = {s.target: s.view_among_others for s in fitted}
    found = finishing.finish(fitted, views, candidates, phases)
    for station in fitted:
        own = _own_folder(folder, station.target)
        views_of = found.known[station.target].candidates
        band, phase = found.members(station.target), f"Verify on {station.target}"
        members = station.verified(band, found.finisher, own, phases, phase)
        held = baseline.against(baselines.get(station.target), station.config, views_of, members)
        fronts.append(Front(station, own, views_of, members, held))
        own.write_parquet(
            "candidates.parquet",
            [c.row(station.parts.space, station.config.metric) for c in views_of],
        )
    manifest |= found.facts()
    budgets = {s.target: s.config.allowed for s in stations}
    fitting = [] if missed else [c for c in candidates if fits_all(c, budgets)]
    fitting = [c for c in fitting if c.id in found.finished]
    joint = _for_all(stations, folder, fitting, found, phases) if fitting else []
    with phases.timed("Write reports"):
        for front in fronts:
            _write_own(front, manifest, phases)
        manifest |= _end(phases, candidates, fronts, joint)
        _write(folder, manifest, fronts, fitting, joint, missed)
    return Outcome(folder, manifest, fronts, joint, missed)


def _own_folder(folder: RunFolder, target: str) -> RunFolder:
    own = RunFolder(folder.path / target)
    own.path.mkdir(exist_ok=True)
    return own


def _seen(candidates: Sequence[Candidate], station: Station) -> list[Candidate]:
    return [station.view_among_others.seen(candidate) for candidate in candidates]


def _for_all(
    stations: Sequence[Station],
    folder: RunFolder,
    fitting: list[Candidate],
    finish: Finish,
    phases: Reporter,
) -> list[JointMember]:
    """Return the verified front of what was finished and fits every target's budget."""
    names = objectives(stations)
    found = pareto_front([finish.as_finished(c) for c in fitting], names)
    by_target: dict[str, list[Member]] = {}
    for s in stations:
        views = [on_target(c, s.target, s.config.allowed) for c in found]
        own, phase = _own_folder(folder, s.target), f"Verify on {s.target}"
        by_target[s.target] = s.verified(views, finish.finisher, own, phases, phase)
    members = [
        JointMember(c, {target: parts[i] for target, parts in by_target.items()})
        for i, c in enumerate(found)
    ]
    return judge(members, names)


def _write_own(front: Front, manifest: Row, phases: Reporter) -> None:
    """Write what a search for one target alone would write, into the target's own folder."""
    own = manifest["targets"][front.station.target]
    inner = {key: value for key, value in manifest.items() if key not in ("targets", "objectives")}
    inner |= {**own, "part_of": ".."} | finished(phases, front.candidates, front.members)
    parts, against = front.station.parts, front.against
    write_front(parts, front.folder, inner, front.candidates, front.members, against)


def _end(
    phases: Reporter,
    candidates: list[Candidate],
    fronts: Sequence[Front],
    members: Sequence[JointMember],
) -> Row:
    return {
        **finished(phases, candidates, []),
        "n_front": len(members),
        "n_fronts": {front.station.target: len(front.members) for front in fronts},
    }


def _write(
    folder: RunFolder,
    manifest: Row,
    fronts: Sequence[Front],
    fitting: Sequence[Candidate],
    members: Sequence[JointMember],
    missed: Sequence[str],
) -> None:
    station = fronts[0].station
    rows = [member.row(station.parts.space, station.config.metric) for member in members]
    if rows:
        folder.write_csv("front.csv", rows)
    names: Sequence[str] = manifest["objectives"]
    content = {
        "objectives": {n: "max" if column(n).maximise else "min" for n in names},
        "budgets": {t: dict(_budget(own).limits) for t, own in manifest["targets"].items()},
        "members": rows,
    }
    against = {f.station.target: f.against for f in fronts if f.against is not None}
    if against:
        manifest["baseline"] = {target: told(held) for target, held in against.items()}
    folder.write_json("front.json", content)
    ids = {member.candidate.id for member in members}
    folder.write_bytes("front.png", front_png(*(_panel(front, ids) for front in fronts)))
    data = station.parts.data.name
    title = f"hwnas: {station.config.searched} on {', '.join(manifest['targets'])}, {data}"
    found = {
        front.station.target: searched.Front(
            front.candidates, front.members, front.station.config.objectives,
            front.station.config.allowed, front.beside,
        )
        for front in fronts
    }  # fmt: skip
    page = searched.joint(title, fitting, members, found, missed, _facts(manifest))
    findings = [f"{target}: {line}" for target, held in against.items() for line in held.sentences]
    page = searched.with_baseline(page, findings, [])
    folder.write_bytes("report.html", render(page).encode())
    folder.write_json("manifest.json", manifest)


def _panel(front: Front, ids: set[str]) -> Panel:
    config = front.station.config
    cost = paid(config.objectives)[0]
    title = f"{config.searched} on {config.target.name}"
    members = front.members
    return Panel(
        front.candidates, members, config.metric, cost, config.allowed, title, ids, front.beside
    )


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
