"""Do models found for one target win on another? Fronts costed on each other's target.

The cost models of the searches say the costs; how well models answer stays that
of the run that found them.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hwnas.analysis.fronts import FrontPoint, Objective, RunFront
from hwnas.analysis.summary import Comparison
from hwnas.core import pareto
from hwnas.core.errors import CompileError, RunError
from hwnas.core.progress import Progress
from hwnas.core.run_folder import Row
from hwnas.hardware.costs.cost_model import Cost, CostModel
from hwnas.hardware.target import UNSAID
from hwnas.models.spaces import Genotype
from hwnas.tasks import metrics
from hwnas.tasks.metrics.budget import exceeded
from hwnas.workflows import components
from hwnas.workflows.config import SearchConfig
from hwnas.workflows.device import open_device

Searches = Callable[[str], Sequence[SearchConfig]]

_OWN_TARGET = ("target", "cost", "search_space")  # of a configuration: what decides costs
# Of a target: earlier versions did not record them.
_NO_COST = UNSAID


@dataclass(frozen=True)
class CrossTargetCosts:
    """What re-costing found."""

    tables: dict[str, Sequence[Row]]
    sentences: list[str]


def recosted(comparison: Comparison, searches: Searches, progress: Progress) -> CrossTargetCosts:
    """Cost the members of each front on the targets of the others, where those differ.

    Raises:
        RunError: no two of the runs are searches of one space for different targets.
    """
    names = [o.name for o in comparison.objectives]
    able = [front for front in comparison.fronts if _is_able(front, names)]
    pairs = [(a, b) for b in able for a in able if a is not b and _differ(a, b)]
    if not pairs:
        raise RunError(
            "recost=true needs searches of one space for different targets, with costs that a cost "
            "model says; there are no two such runs."
        )
    found: dict[tuple[str, str], list[Row]] = {}
    for target in dict.fromkeys(_key(b) for _, b in pairs):
        own = [(a, b) for a, b in pairs if _key(b) == target]
        with _cost_model(own[0][1], searches, progress) as model:
            known = _costs([a for a, _ in own], model, progress)
        for a, b in own:
            found[a.name, b.name] = _rows(a, b, known, comparison.objectives)
    fronts = [_summary(comparison, a, b, found[a.name, b.name]) for a, b in pairs]
    members = [row for a, b in pairs for row in found[a.name, b.name]]
    return CrossTargetCosts({"recosted": members, "recosted_fronts": fronts}, [*_words(fronts)])


def _is_able(front: RunFront, names: Sequence[str]) -> bool:
    priced = metrics.paid(names)
    return (
        "dataset" in front.run.config
        and bool(front.run.candidates)
        and all(name in metrics.costs() for name in priced)
    )


def _differ(first: RunFront, second: RunFront) -> bool:
    same = first.run.config["search_space"] == second.run.config["search_space"]
    return bool(same) and _key(first) != _key(second)


def _key(front: RunFront) -> str:
    """Return what decides the costs of a run."""
    found = {name: front.run.config.get(name) for name in _OWN_TARGET}
    # Earlier versions did not record facts, either.
    target = (found["target"] or {}).items()
    found["target"] = {n: v for n, v in target if n not in _NO_COST and (n != "facts" or v)}
    return json.dumps(found, sort_keys=True)


@contextlib.contextmanager
def _cost_model(front: RunFront, searches: Searches, progress: Progress) -> Iterator[CostModel]:
    """Give the cost model with which a run was searched."""
    config = next(c for c in searches(front.run.path) if c.target.name == front.run.target)
    parts = components.parts(config, progress)
    # Who compares wants nothing tuned: a table that is not here is said to be missing.
    there = replace(config, table=replace(config.table, networks=0))
    device = open_device(there, parts.networks, progress)
    try:
        yield components.cost_model(parts, device)
    finally:
        if device is not None:
            device.close()


def _costs(fronts: Sequence[RunFront], model: CostModel, progress: Progress) -> dict[str, Cost]:
    """Return the costs of all members, by id."""
    genotypes = {g.id: g for front in fronts for g in _genotypes(front)}
    found = {}
    with progress.phase("Cost again", len(genotypes)) as advance:
        for genotype in genotypes.values():
            try:
                found[genotype.id] = model.cost(genotype)
            except CompileError as error:
                found[genotype.id] = Cost({}, reason=str(error))
            advance(1)
    return found


def _genotypes(front: RunFront) -> list[Genotype]:
    known = {c.id: c.genotype for c in front.run.candidates}
    return [known[point.id] for point in _members(front)]


def _members(front: RunFront) -> list[FrontPoint]:
    return [point for point, on in zip(front.points, front.mask, strict=True) if on]


def _rows(
    front: RunFront, other: RunFront, costs: Mapping[str, Cost], objectives: Sequence[Objective]
) -> list[Row]:
    """Return the members of a front as they are on another's target, and whether they'd join it."""
    rows, values = [], []
    already = {point.id for point in _members(other)}
    for point in _members(front):
        cost = costs[point.id]
        scored = {n: f for n, f in point.figures.items() if n in metrics.qualities()}
        figures = {**scored, **cost.figures}
        reason = cost.reason or exceeded(other.run.limits, figures)
        row: Row = {"id": point.id, "members_of": front.name, "on": other.name}
        for objective in objectives:
            figure = figures.get(objective.name)
            row[objective.name] = None if figure is None else figure.value
        told = {"is_member": point.id in already, "fits": not reason, "reason": reason}
        rows.append(row | told | {"joins": False})
        values.append([row[o.name] if not reason else np.nan for o in objectives])
    fits = [i for i, row in enumerate(rows) if row["fits"] and not row["is_member"]]
    if fits:
        n = len(other.members)
        every = np.concatenate([other.members, np.array(values, np.float64)[fits]])
        mask = pareto.non_dominated(every, [o.maximise for o in objectives])[n:]
        for i, joins in zip(fits, mask.tolist(), strict=True):
            rows[i]["joins"] = joins
    return rows


def _summary(comparison: Comparison, front: RunFront, other: RunFront, rows: Sequence[Row]) -> Row:
    names = [o.name for o in comparison.objectives]
    joining = [[row[name] for name in names] for row in rows if row["joins"]]
    yardstick = comparison.yardstick
    both = np.concatenate([other.members, np.array(joining).reshape(-1, len(names))])
    return {
        "members_of": front.name,
        "on": other.name,
        "n_members": len(rows),
        "n_fit": sum(row["fits"] for row in rows),
        "n_already_there": sum(row["is_member"] for row in rows),
        "n_joining": len(joining),
        "hypervolume_share": yardstick.share(other.members),
        "hypervolume_share_with_them": yardstick.share(both),
    }


def _words(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        yield (
            f"{row['members_of']} on the target of {row['on']}: {row['n_fit']} of "
            f"{row['n_members']} members fit its budget; {row['n_already_there']} are on its front "
            f"already, {row['n_joining']} would join it."
        )
    yield (
        "Costed again: costs as that target's search predicts them, not verified there; what "
        "the run that found a model says of its answers stays."
    )
