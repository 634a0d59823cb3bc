"""Tables of a comparison as rows of CSV files.

The quality is the metric of the task, or else the first objective to be maximised; the other
objectives are costs. A limit is met if the worse end of the interval meets it.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hwnas.analysis.fronts import Array, ComparedRun, Objective, ReferenceFrame, RunFront
from hwnas.core import pareto
from hwnas.core.agreement import agreement
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import Member
from hwnas.tasks.metrics import quality_names

_RUNGS = 8
_CHECKPOINTS = 48
_EQUAL = 1e-9  # relative rounding error of a limit


def parts(objectives: Sequence[Objective]) -> tuple[Objective, list[Objective]]:
    """Return the quality and the other objectives.

    The quality is the metric of the task if compared, else the first objective to be maximised,
    else the first.
    """
    metrics = [o for o in objectives if o.name in quality_names()]
    quality = [*metrics, *(o for o in objectives if o.maximise), *objectives][0]
    return quality, [o for o in objectives if o is not quality]


def ladder(fronts: Sequence[RunFront], objectives: Sequence[Objective]) -> list[Row]:
    """Return the rows of ``ladder.csv``: best quality of each front within limits of a cost.

    There are up to eight rounded limits per cost over the range of all fronts. The quality is
    ``None`` if no network is within the limit.
    """
    quality, costs = parts(objectives)
    return [
        _rung(front, objectives, cost, limit, quality)
        for cost in costs
        for limit in _limits(_worse_ends(fronts, objectives, cost), cost)
        for front in fronts
    ]


def needed(fronts: Sequence[RunFront], objectives: Sequence[Objective]) -> list[Row]:
    """Return the rows of ``needed.csv``: the best cost of each front at levels of the quality.

    There are up to seven levels per cost. The cost (``value``) is ``None`` if the front does not
    reach the level.
    """
    quality, costs = parts(objectives)
    rows = []
    reached = [best_of(front, objectives, quality) for front in fronts]
    top, bottom = _best_value(np.array(reached), quality), _worst_value(np.array(reached), quality)
    low = _worst_value(_column(fronts, objectives, quality), quality)
    levels = np.unique([*np.linspace(low, bottom, _RUNGS - 2), top])
    for cost, level, front in itertools.product(costs, levels.tolist(), fronts):
        rows.append(_price(front, objectives, quality, level, cost))
    return rows


def _rung(
    front: RunFront,
    objectives: Sequence[Objective],
    cost: Objective,
    limit: float,
    quality: Objective,
) -> Row:
    paid, gained = objectives.index(cost), objectives.index(quality)
    worse = (front.low if cost.maximise else front.high)[:, paid]
    over = (limit - worse if cost.maximise else worse - limit) / max(abs(limit), _EQUAL)
    fits = np.flatnonzero(over <= _EQUAL)
    row: Row = {"cost": cost.name, "limit": limit, "group": front.group, "run": front.name}
    row |= dict.fromkeys((quality.name, f"{quality.name}_low", f"{quality.name}_high", "id"))
    if not len(fits):
        return row
    values = front.values[fits, gained]
    i = fits[int(np.argmax(values) if quality.maximise else np.argmin(values))]
    row[quality.name] = float(front.values[i, gained])
    row[f"{quality.name}_low"] = float(front.low[i, gained])
    row[f"{quality.name}_high"] = float(front.high[i, gained])
    return row | {"id": front.points[i].id}


def _price(
    front: RunFront,
    objectives: Sequence[Objective],
    quality: Objective,
    level: float,
    cost: Objective,
) -> Row:
    paid, gained = objectives.index(cost), objectives.index(quality)
    values = front.values[:, gained]
    good = np.flatnonzero(values >= level if quality.maximise else values <= level)
    row: Row = {"quality": quality.name, "level": level, "cost": cost.name}
    row |= {"group": front.group, "run": front.name, "value": None, "id": None}
    if not len(good):
        return row
    prices = front.values[good, paid]
    i = good[int(np.argmax(prices) if cost.maximise else np.argmin(prices))]
    return row | {"value": float(front.values[i, paid]), "id": front.points[i].id}


def _column(
    fronts: Sequence[RunFront], objectives: Sequence[Objective], objective: Objective
) -> Array:
    return np.concatenate([f.members[:, objectives.index(objective)] for f in fronts])


def _worse_ends(
    fronts: Sequence[RunFront], objectives: Sequence[Objective], cost: Objective
) -> Array:
    i = objectives.index(cost)
    return np.concatenate([(f.low if cost.maximise else f.high)[f.mask, i] for f in fronts])


def best_of(front: RunFront, objectives: Sequence[Objective], objective: Objective) -> float:
    """Return the best value of an objective on a front: the highest if it is maximised.

    ``objectives`` are those of the front, in order.
    """
    return _best_value(_column([front], objectives, objective), objective)


def _best_value(values: Array, objective: Objective) -> float:
    return float(values.max() if objective.maximise else values.min())


def _worst_value(values: Array, objective: Objective) -> float:
    return float(values.min() if objective.maximise else values.max())


def _limits(values: Array, cost: Objective) -> list[float]:
    """Return rounded limits over the range of a cost; the last includes all points."""
    low, high = float(values.min()), float(values.max())
    wide = low > 0 and high / low > 3
    steps = np.geomspace(low, high, _RUNGS) if wide else np.linspace(low, high, _RUNGS)
    return sorted({_round(step, cost) for step in steps.tolist()}, reverse=cost.maximise)


def _round(value: float, cost: Objective) -> float:
    """Round a limit to three digits, so that the value still meets it."""
    if value == 0:
        return 0.0
    digits = 2 - math.floor(math.log10(abs(value)))
    scaled = value * 10.0**digits
    rounded = math.floor(scaled + _EQUAL) if cost.maximise else math.ceil(scaled - _EQUAL)
    return float(f"{rounded * 10.0**-digits:.3g}")


def by_group(rows: Sequence[Row], key: str, name: str) -> dict[Any, dict[str, float | None]]:
    """Return medians of column ``name`` over runs, by value of column ``key``, then by group.

    A median is of the runs that have a value; ``None`` if half or more of the runs have none.
    """
    values_by_group: dict[Any, dict[str, list[float | None]]] = {}
    for row in rows:
        values_by_group.setdefault(row[key], {}).setdefault(row["group"], []).append(row[name])
    return {
        value: {group: _median(figures) for group, figures in by_name.items()}
        for value, by_name in values_by_group.items()
    }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if 2 * len(known) > len(values) else None


def growth(rows: Sequence[Row]) -> dict[int | None, dict[str, float | None]]:
    """Return median hypervolume shares by number of evaluations, then by group.

    Numbers are 10, 20, 50, 100, ... The key ``None`` stands for all evaluations. A median is of the
    runs that have as many evaluations; ``None`` if half or more of the runs have fewer.

    Args:
        rows: The rows of ``convergence``.
    """
    of_runs: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for row in rows:
        steps = of_runs.setdefault((row["group"], row["run"]), [])
        steps.append((row["evaluations"], row["hypervolume_share"]))
    n_max = max((steps[-1][0] for steps in of_runs.values()), default=0)
    rounds = [m * 10**power for power in range(7) for m in (1, 2, 5)]
    counts = [*(count for count in rounds if 10 <= count < n_max), None]
    reached = [
        {"group": group, "count": count, "share": _share_after(steps, count)}
        for count in counts
        for (group, _), steps in of_runs.items()
    ]
    return by_group(reached, "count", "share")


def _share_after(steps: Sequence[tuple[int, float]], count: int | None) -> float | None:
    """Return the hypervolume share after ``count`` evaluations; ``None`` if a run has fewer."""
    if count is None:
        return steps[-1][1]
    if steps[-1][0] < count:
        return None
    return max((share for n, share in steps if n <= count), default=0.0)


def convergence(
    runs: Sequence[ComparedRun], frame: ReferenceFrame, objectives: Sequence[Objective]
) -> list[Row]:
    """Return the rows of ``convergence.csv``: the hypervolume share of searched figures by trials.

    They are for up to 48 numbers of trials, spaced geometrically. ``evaluations`` counts different
    scored networks; ``seconds`` are since the start of the first trial, including pauses, ``None``
    if unknown. CSV files and runs without a scored network have no rows.
    """
    return [row for run in runs for row in _growth(run, frame, objectives)]


def _growth(
    run: ComparedRun, frame: ReferenceFrame, objectives: Sequence[Objective]
) -> Iterator[Row]:
    candidates, names = run.candidates, [o.name for o in objectives]
    if not any(candidate.state != "infeasible" for candidate in candidates):
        return
    figures_by_id = {point.id: point.figures for point in reversed(run.scored)}
    evaluations = _evaluations(candidates)
    done, front = 0, np.zeros((0, len(names)))
    checkpoints = np.geomspace(1, len(candidates), _CHECKPOINTS).round().astype(int)
    for count in np.unique(checkpoints).tolist():
        new = [
            [figures_by_id[candidate.id][name].value for name in names]
            for candidate in candidates[done:count]
            if candidate.state == "complete" and candidate.id in figures_by_id
        ]
        front = np.concatenate([front, np.array(new, np.float64).reshape(-1, len(names))])
        # Trials of several workers end in any order.
        seconds = [run.seconds[c.trial] for c in candidates[:count] if c.trial in run.seconds]
        front, done = front[pareto.non_dominated(front, frame.maximise)], count
        yield {
            "run": run.name,
            "group": run.group,
            "trials": count,
            "evaluations": evaluations[count - 1],
            "seconds": max(seconds, default=None),
            "hypervolume_share": _share(front, frame),
        }


def _evaluations(candidates: Sequence[Candidate]) -> list[int]:
    """Return the number of different networks scored up to each trial."""
    scored: set[str] = set()
    counts = []
    for candidate in candidates:
        if candidate.state != "infeasible":
            scored.add(candidate.id)
        counts.append(len(scored))
    return counts


def verification(runs: Sequence[ComparedRun], frame: ReferenceFrame) -> list[Row]:
    """Return the rows of ``verification.csv``: changes of each front from searched to verified.

    They have hypervolume shares and, for each objective, the median over members of the verified
    minus the searched value. Searched figures are posterior means at the end of the search. Runs
    without verified members have no row.
    """
    return [_verification_row(run, frame) for run in runs if run.members]


def _verification_row(run: ComparedRun, frame: ReferenceFrame) -> Row:
    names = [o.name for o in frame.objectives]
    searched = np.array([[m.candidate.figures[n].value for n in names] for m in run.members])
    verified = np.array([[_verified_figure(m, n).value for n in names] for m in run.members])
    fits = np.array([m.is_deliverable for m in run.members])
    row: Row = {
        "run": run.name,
        "group": run.group,
        "n_members": len(run.members),
        "n_left": sum(not (m.on_front or m.near_front) for m in run.members),
        "hypervolume_share_searched": _share(searched, frame),
        "hypervolume_share_verified": _share(verified[fits], frame),
    }
    changes = np.median(verified - searched, axis=0).tolist()
    return row | {f"median_change_{n}": change for n, change in zip(names, changes, strict=True)}


def _verified_figure(member: Member, name: str) -> Quantity:
    return member.quality if name == member.metric else member.figures[name]


def _share(values: Array, frame: ReferenceFrame) -> float:
    """Return the hypervolume of points as a fraction of the frame."""
    points = frame.normalised(values)
    inside = points[(points < 1).all(axis=1)]
    n = len(frame.objectives)
    return pareto.hypervolume(inside, [1.0] * n, [False] * n) if len(inside) else 0.0


def predictions(runs: Sequence[ComparedRun]) -> list[Row]:
    """Return the rows of ``predictions.csv``: errors of predicted against measured latencies.

    One per run, over verified members whose latency was predicted in the search and then measured:
    the results of ``agreement``, such as ``mape`` (a fraction) and ``kendall``. Runs with fewer
    than two such members are left out.
    """
    rows = []
    for run in runs:
        pairs = [
            (m.candidate.figures["latency_ms"], m.figures["latency_ms"])
            for m in run.members
            if "latency_ms" in m.candidate.figures and "latency_ms" in m.figures
        ]
        both = [(a, b) for a, b in pairs if a.source != "measured" and b.source == "measured"]
        if len(both) < 2:
            continue
        agreed = agreement([a.value for a, _ in both], [b.value for _, b in both])
        kinds = ", ".join(sorted({a.source for a, _ in both}))
        row: Row = {"run": run.name, "group": run.group, "target": run.target, "n": len(both)}
        rows.append(row | {"predicted_by": kinds} | agreed)
    return rows


def shared(fronts: Sequence[RunFront]) -> list[Row]:
    """Return the rows of ``shared.csv``: one per pair of fronts that have networks in common.

    They have the number and the ids of these networks, and their fraction of each front. Fronts of
    CSV files are left out.
    """
    members = {
        front.name: {p.id for p, on in zip(front.points, front.mask, strict=True) if on}
        for front in fronts
        if front.run.candidates
    }
    rows = []
    for (first, a), (second, b) in itertools.combinations(members.items(), 2):
        if common := sorted(a & b):
            row: Row = {"first": first, "second": second, "n_shared": len(common)}
            row |= {"share_of_first": len(common) / len(a), "share_of_second": len(common) / len(b)}
            rows.append(row | {"ids": " ".join(common)})
    return rows
