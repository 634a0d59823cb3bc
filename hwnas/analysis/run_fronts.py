"""Reading of searches for comparisons, finished or not."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hwnas.analysis.fronts import ComparedRun, FrontPoint, declared
from hwnas.core.errors import ConfigError
from hwnas.core.manifest import Manifest
from hwnas.core.run_folder import Row
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import Member
from hwnas.nas.run import Run
from hwnas.tasks import metrics
from hwnas.tasks.metrics.budget import Budget


def read_run_folder(path: Path, option: str = "runs", storage: str | None = None) -> ComparedRun:
    """Return the compared points of a search, finished or not.

    Args:
        path: Folder of a search, or of one target within a search for several.
        option: The option that named the folder, for messages.
        storage: URL of the study's database; ``None``: that of the manifest.

    Raises:
        RunError: it is not the folder of a search, no trial is finished yet, or its database
            cannot be read.
    """
    run = Run.load(path, option, storage)
    if "targets" in run.manifest:
        return _for_all(run)
    config, observed = run.config, run.whole.observed
    budget, scored = Budget.of(config["budget"]), observed.candidates
    name = path.absolute().name
    if run.whole is not run:
        scored = [run.whole.targets.on_target(c, str(run.target)) for c in scored]
        name = f"{path.absolute().parent.name}/{name}"
    members = run.front().members
    return ComparedRun(
        name,
        declared(config.get("objectives", observed.objectives)),
        _scored_points(scored),
        _verified_points(members),
        block=str(config["seed"]),
        config={**config, "budget": _spelt_out(budget)},
        data=_data(run.manifest),
        limits=budget.limits,
        target=run.target,
        notes=(*observed.notes, *_progress(run.manifest, observed.candidates)),
        candidates=run.candidates,
        seconds=observed.seconds,
        members=members,
        path=str(path),
    )


def _spelt_out(budget: Budget) -> Row:
    """Return a budget with the limits that it does not have, too: runs differ in those."""
    return {"name": budget.name, **dict.fromkeys(metrics.cost_names()), **budget.limits}


def _for_all(run: Run) -> ComparedRun:
    """Return the front of networks that meet the budgets of all targets."""
    targets, state, config = run.targets, run.state, run.config
    name = "+".join(targets.budgets)
    return ComparedRun(
        run.path.absolute().name,
        declared(run.manifest["objectives"]),
        _scored_points([c for c in state.candidates if targets.fits_all(c)]),
        _verified_points(run.front().members),
        block=str(config["seed"]),
        config={**config, "target": {"name": name}, "budget": {"name": "joint"}},
        data=_data(run.manifest),
        limits=targets.all_limits,
        target=name,
        notes=(*state.notes, *_progress(run.manifest, state.candidates)),
        candidates=state.candidates,
        seconds=state.seconds,
        path=str(run.path),
    )


def _progress(manifest: Manifest, candidates: Sequence[Candidate]) -> Iterator[str]:
    status = manifest.get("status")
    if status == "running":
        n_trials = manifest["config"]["n_trials"]
        limited = manifest["config"].get("minutes") is not None
        n = f"{len(candidates)}{'' if limited else f' of {n_trials}'} trials"
        yield f"the search is running or was interrupted: compared after {n}"
    elif status == "finished by another":
        yield "verified by another process"
    elif status not in (None, "finished"):
        yield f"status '{status}': compared with searched figures"


def _scored_points(candidates: Sequence[Candidate]) -> list[FrontPoint]:
    return [FrontPoint(c.id, c.figures) for c in candidates if c.state == "complete"]


def _verified_points(members: Sequence[Member]) -> list[FrontPoint] | None:
    """Return the members that may be delivered; ``None`` where there is no verified front."""
    deliverable = [verified(member) for member in members if member.is_deliverable]
    return deliverable if members else None


def verified(member: Member) -> FrontPoint:
    """Return the verified metric and costs of a member as a point of its front.

    Of several targets, the metric is that of the target where it is worst, and costs have names
    such as ``npu.latency_ms``.
    """
    items = member.figures.items()
    costs = {name: f for name, f in items if name.rpartition(".")[2] in metrics.cost_names()}
    return FrontPoint(member.candidate.id, {member.metric: member.quality, **costs})


def _data(manifest: Manifest) -> str | None:
    """Return an identifier of the images on which a run was scored; ``None`` if unknown."""
    digests = manifest.get("digests", {})
    for name, digest in digests.items():
        if name == "data" or name.endswith(".data"):
            return str(digest)
    if table := manifest["config"].get("benchmark"):
        identifier = manifest.get("table_sha256", Path(table["path"]).name)
        return json.dumps([identifier, table["accuracy"]])
    return None


def named(runs: Sequence[ComparedRun], labels: Sequence[str] = ()) -> list[ComparedRun]:
    """Return copies of runs with different names: ``labels`` in their order.

    Without labels, equal names get as many parent folders of their paths as necessary.

    Raises:
        ConfigError: the labels are not as many as the runs, not different, or blank.
    """
    return _runs_with_labels(runs, labels) if labels else _named_by_path(runs)


def _named_by_path(runs: Sequence[ComparedRun]) -> list[ComparedRun]:
    """Return runs with different names, with as many folders of the path as necessary."""
    parts = [Path(run.path).absolute().parent.parts for run in runs]
    places = [(run.name, parent) for run, parent in zip(runs, parts, strict=True)]
    names = [  # a folder and a file may have the same name without its suffix
        f"{run.name}{Path(run.path).suffix}" if places.count(place) > 1 else run.name
        for run, place in zip(runs, places, strict=True)
    ]
    depth = 0
    while len({*names}) < len(names) and depth < max(map(len, parts)):
        depth += 1
        is_repeated = [names.count(name) > 1 for name in names]
        names = [
            f"{parts[i][-depth]}/{name}" if is_repeated[i] and depth <= len(parts[i]) else name
            for i, name in enumerate(names)
        ]
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def _runs_with_labels(runs: Sequence[ComparedRun], labels: Sequence[str]) -> list[ComparedRun]:
    """Return runs named by labels; each needs one, and they must differ."""
    if len(labels) != len(runs):
        raise ConfigError(
            f"label must name each front, got [{', '.join(labels)}]. Fronts in order: "
            f"{', '.join(run.path for run in runs)}."
        )
    if not all(label.strip() for label in labels) or len({*labels}) < len(labels):
        raise ConfigError(f"label needs different names, none blank, got [{', '.join(labels)}].")
    return [replace(run, name=label) for run, label in zip(runs, labels, strict=True)]
