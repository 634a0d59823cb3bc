"""Run folders of ``search`` as what is compared of them, finished or not."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from hwnas.analysis.fronts import ComparedRun, FrontPoint, declared
from hwnas.core.manifest import Manifest, ManifestOptions
from hwnas.core.run_folder import Row
from hwnas.nas import reading, verified_files
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import Member
from hwnas.tasks import metrics
from hwnas.tasks.metrics.budget import Budget


def read_run_folder(path: Path, option: str = "runs") -> ComparedRun:
    """Read the folder of a search: for one target, for several, of one of several, or tabular.

    Args:
        path: The folder.
        option: By which the user named it.

    Raises:
        RunError: it is not the folder of a search, or nothing is finished in it yet.
    """
    manifest = reading.read_search(path, option)
    if "targets" in manifest:
        return _for_all(path, manifest, option)
    config = manifest["config"]
    budget, target = Budget.of(config["budget"]), _target(config)
    whole, of_all = reading.whole(path, manifest, option)
    known = reading.read_search_state(whole, of_all, option)
    searched = reading.as_read(known, whole, of_all)
    scored, candidates = searched.candidates, known.candidates
    objectives = config.get("objectives", searched.objectives)
    if whole != path:
        scored = [reading.targets(of_all).seen(c, str(target)) for c in scored]
        candidates = reading.believed(path, manifest, of_all) or scored
    members = verified_files.read_verified_front(path, manifest, candidates).members
    return ComparedRun(
        f"{path.absolute().parent.name}/{path.name}" if whole != path else path.absolute().name,
        declared(objectives),
        _scored(scored),
        _verified(members),
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


def _target(config: ManifestOptions) -> str | None:
    """Return the name of a search's target; a benchmark table has none."""
    return config["target"]["name"] if "target" in config else None


def _spelt_out(budget: Budget) -> Row:
    """Return a budget with the limits that it does not have, too: runs differ in those."""
    return {"name": budget.name, **dict.fromkeys(metrics.costs()), **budget.limits}


def _for_all(path: Path, manifest: Manifest, option: str) -> ComparedRun:
    """Return the front of models that fit the budgets of all targets."""
    targets, searched = reading.targets(manifest), reading.read_search_state(path, manifest, option)
    name = "+".join(targets.budgets)
    return ComparedRun(
        path.absolute().name,
        declared(manifest["objectives"]),
        _scored([c for c in searched.candidates if targets.fits_all(c)]),
        _verified(verified_files.read_verified_front(path, manifest, searched.candidates).members),
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


def _scored(candidates: Sequence[Candidate]) -> list[FrontPoint]:
    return [FrontPoint(c.id, c.figures) for c in candidates if c.state == "complete"]


def _verified(members: Sequence[Member]) -> list[FrontPoint] | None:
    """Return the members that may be delivered; ``None`` where there is no verified front."""
    found = [verified(member) for member in members if member.is_deliverable]
    return found if members else None


def verified(member: Member) -> FrontPoint:
    """Return a member by the figures of its artefact: its metric, where it is worst, and costs."""
    each = member.figures.items()
    costs = {name: f for name, f in each if name.rpartition(".")[2] in metrics.costs()}
    return FrontPoint(member.candidate.id, {member.metric: member.quality, **costs})


def _data(manifest: Manifest) -> str | None:
    """Return what says on which images runs were scored, the same for the same images."""
    digests = manifest.get("digests", {})
    for name, digest in digests.items():
        if name == "data" or name.endswith(".data"):
            return str(digest)
    if table := manifest["config"].get("benchmark"):
        return json.dumps([Path(table["path"]).name, table["accuracy"]])
    return None
