"""Run folders of ``search`` as what is compared of them, finished or not."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hwnas import metrics
from hwnas.budget import Budget
from hwnas.comparison.fronts import Point, Run, declared
from hwnas.cost.in_float import RATIOS, is_outrun
from hwnas.errors import RunError
from hwnas.figure import Figure
from hwnas.manifest import Manifest, Options
from hwnas.metrics import column, quality
from hwnas.results import Candidate, Row
from hwnas.searching import earlier
from hwnas.searching.member import Member, own, verified_names
from hwnas.verified import read_front, read_made


def read(path: Path, option: str = "runs") -> Run:
    """Read the folder of a search: for one target, for several, of one of several, or tabular.

    Args:
        path: The folder.
        option: By which the user named it.

    Raises:
        RunError: it is not the folder of a search, or nothing is finished in it yet.
    """
    manifest = earlier.read_search(path, option)
    if "targets" in manifest:
        return _for_all(path, manifest, option)
    config = manifest["config"]
    budget, target = Budget.of(config["budget"]), _target(config)
    whole, of_all = earlier.whole(path, manifest, option)
    known = earlier.found(whole, of_all, option)
    searched = earlier.as_read(known, whole, of_all)
    scored, candidates = searched.candidates, known.candidates
    objectives = config.get("objectives", searched.objectives)
    if whole != path:
        scored = [earlier.targets(of_all).seen(c, str(target)) for c in scored]
        candidates = earlier.believed(path, manifest, of_all) or scored
    members = _members(path, {c.id: c for c in candidates}, budget)
    return Run(
        f"{path.absolute().parent.name}/{path.name}" if whole != path else path.absolute().name,
        declared(objectives),
        _scored(scored),
        [verified(member) for member in members if member.is_deliverable] if members else None,
        block=str(config["seed"]),
        config={**config, "budget": _spelt_out(budget)},
        data=_data(manifest),
        limits=budget.limits,
        target=target,
        notes=(*searched.notes, *_progress(manifest, searched.candidates)),
        candidates=candidates,
        seconds=searched.seconds,
        members=members,
        path=str(path),
    )


def _target(config: Options) -> str | None:
    """Return the name of a search's target; a benchmark table has none."""
    return config["target"]["name"] if "target" in config else None


def _spelt_out(budget: Budget) -> Row:
    """Return a budget with the limits that it does not have, too: runs differ in those."""
    return {"name": budget.name, **dict.fromkeys(metrics.costs()), **budget.limits}


def _for_all(path: Path, manifest: Manifest, option: str) -> Run:
    """Return the front of models that fit the budgets of all targets."""
    targets, searched = earlier.targets(manifest), earlier.found(path, manifest, option)
    name = "+".join(targets.budgets)
    return Run(
        path.absolute().name,
        declared(manifest["objectives"]),
        _scored([c for c in searched.candidates if targets.fits_all(c)]),
        _verified_on_all(path, list(targets.budgets)),
        block=str(manifest["config"]["seed"]),
        config={**manifest["config"], "target": {"name": name}, "budget": {"name": "joint"}},
        data=_data(manifest),
        limits=targets.all_limits,
        target=name,
        notes=(*searched.notes, *_progress(manifest, searched.candidates)),
        candidates=searched.candidates,
        seconds=searched.seconds,
        path=str(path),
    )


def _progress(manifest: Manifest, candidates: Sequence[Candidate]) -> Iterator[str]:
    status = manifest.get("status")
    if status == "running":
        of = manifest["config"]["n_trials"]
        n = f"{len(candidates)} of {of} trials"
        yield f"still going, or cut off: compared as it stands, after {n}"
    elif status == "finished by another":
        yield "verified by another process, elsewhere"
    elif status not in (None, "finished"):
        yield f"{status}: compared as searched"


def _scored(candidates: Sequence[Candidate]) -> list[Point]:
    return [Point(c.id, c.figures) for c in candidates if c.state == "complete"]


def _members(folder: Path, candidates: Mapping[str, Candidate], budget: Budget) -> list[Member]:
    """Return the verified members of a finished search; none of a tabular one."""
    rows = (read_front(folder) or {"members": []})["members"]
    found = []
    for row in rows:
        if row["id"] not in candidates:
            raise RunError(f"{folder}: front.json names {row['id']}, which is no candidate.")
        figures = _figures(row, "verified_", verified_names(quality(row)))
        over = tuple(name for name, by in budget.violations(figures).items() if by > 0)
        details = {n: row[f"verified_{n}"] for n in RATIOS if row.get(f"verified_{n}") is not None}
        stays, is_near = bool(row["verified_on_front"]), bool(row.get("verified_near_front"))
        candidate = candidates[row["id"]]
        found.append(Member(candidate, figures, details, {}, over, stays, is_near))
    return found


def verified(member: Member) -> Point:
    """Return a member by the figures of its artefact."""
    costs = {name: figure for name, figure in member.figures.items() if name in metrics.costs()}
    return Point(member.candidate.id, {member.metric: member.quality, **costs})


def _verified_on_all(folder: Path, targets: Sequence[str]) -> list[Point] | None:
    """Return models that may go onto all targets; their metric is that where it is worst.

    ``None`` where there is no verified front.
    """
    rows = (read_front(folder) or {"members": []})["members"]
    found = []
    for row in rows:
        if not row["verified_fits_budget"] or _is_outrun(folder, targets, row["id"]):
            continue
        each: list[Figure] = []
        metric = quality(row)
        costs: dict[str, Figure] = {}
        for target in targets:
            figures = _figures(row, f"verified_{target}.", verified_names(metric))
            each.append(figures[own(metric, figures)])
            own_costs = (name for name in metrics.costs() if name in figures)
            costs |= {f"{target}.{name}": figures[name] for name in own_costs}
        worst = min if column(metric).maximise else max
        found.append(Point(row["id"], {metric: worst(each, key=lambda f: f.value), **costs}))
    return found if rows else None


def _is_outrun(folder: Path, targets: Sequence[str], genotype_id: str) -> bool:
    """Return whether float32 may be as fast on a target, which its own folder says."""
    made = (read_made(folder / target, genotype_id) for target in targets)
    return any(is_outrun(found["details"]) for found in made if found is not None)


def _figures(row: Mapping[str, Any], prefix: str, names: Sequence[str]) -> dict[str, Figure]:
    return {
        name: Figure(
            row[f"{prefix}{name}"],
            row[f"{prefix}{name}_source"],
            row.get(f"{prefix}{name}_low"),
            row.get(f"{prefix}{name}_high"),
        )
        for name in names
        if None not in (row.get(f"{prefix}{name}"), row.get(f"{prefix}{name}_source"))
    }


def _data(manifest: Manifest) -> str | None:
    """Return what says on which images runs were scored, the same for the same images."""
    digests = manifest.get("digests", {})
    for name, digest in digests.items():
        if name == "data" or name.endswith(".data"):
            return str(digest)
    table = manifest["config"].get("table") or {}
    if "accuracy" in table:  # a benchmark table
        return json.dumps([Path(table["path"]).name, table["accuracy"]])
    return None
