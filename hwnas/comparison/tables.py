"""Tables that answer a question each, as rows of a CSV file.

The *quality* is the first objective that is maximised, the accuracy for example; the others are
what is paid for it. A limit is met if the worse end of the figure's interval meets it.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from hwnas import pareto
from hwnas.agreement import agreement
from hwnas.comparison.frame import Frame
from hwnas.comparison.fronts import Array, Front, Objective, Run
from hwnas.results import Candidate, Row

_RUNGS = 8
_CHECKPOINTS = 48


def parts(objectives: Sequence[Objective]) -> tuple[Objective, list[Objective]]:
    """Return the quality, and what is paid for it."""
    quality = next((o for o in objectives if o.maximise), objectives[0])
    return quality, [o for o in objectives if o is not quality]


def ladder(fronts: Sequence[Front], objectives: Sequence[Objective]) -> list[Row]:
    """Return the best quality within each of some limits of each cost, of every front.

    A front that has nothing within a limit has no value there.
    """
    quality, costs = parts(objectives)
    return [
        _rung(front, objectives, cost, limit, quality)
        for cost in costs
        for limit in _limits(_worse_ends(fronts, objectives, cost), cost)
        for front in fronts
    ]


def needed(fronts: Sequence[Front], objectives: Sequence[Objective]) -> list[Row]:
    """Return what each cost is at least for some levels of the quality, of every front."""
    quality, costs = parts(objectives)
    rows = []
    reached = [_best(_column([f], objectives, quality), quality) for f in fronts]
    top, bottom = _best(np.array(reached), quality), _worst(np.array(reached), quality)
    low = _worst(_column(fronts, objectives, quality), quality)
    levels = np.unique([*np.linspace(low, bottom, _RUNGS - 2), top])
    for cost, level, front in itertools.product(costs, levels.tolist(), fronts):
        rows.append(_price(front, objectives, quality, level, cost))
    return rows


def _rung(
    front: Front, objectives: Sequence[Objective], cost: Objective, limit: float, quality: Objective
) -> Row:
    paid, gained = objectives.index(cost), objectives.index(quality)
    worse = (front.low if cost.maximise else front.high)[:, paid]
    fits = np.flatnonzero(worse >= limit if cost.maximise else worse <= limit)
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
    front: Front, objectives: Sequence[Objective], quality: Objective, level: float, cost: Objective
) -> Row:
    paid, gained = objectives.index(cost), objectives.index(quality)
    values = front.values[:, gained]
    good = np.flatnonzero(values >= level if quality.maximise else values <= level)
    row: Row = {"quality": quality.name, "at_least": level, "cost": cost.name}
    row |= {"group": front.group, "run": front.name, "value": None, "id": None}
    if not len(good):
        return row
    prices = front.values[good, paid]
    i = good[int(np.argmax(prices) if cost.maximise else np.argmin(prices))]
    return row | {"value": float(front.values[i, paid]), "id": front.points[i].id}


def _column(
    fronts: Sequence[Front], objectives: Sequence[Objective], objective: Objective
) -> Array:
    return np.concatenate([f.members[:, objectives.index(objective)] for f in fronts])


def _worse_ends(fronts: Sequence[Front], objectives: Sequence[Objective], cost: Objective) -> Array:
    i = objectives.index(cost)
    return np.concatenate([(f.low if cost.maximise else f.high)[f.mask, i] for f in fronts])


def _best(values: Array, objective: Objective) -> float:
    return float(values.max() if objective.maximise else values.min())


def _worst(values: Array, objective: Objective) -> float:
    return float(values.min() if objective.maximise else values.max())


def _limits(values: Array, cost: Objective) -> list[float]:
    """Return round limits over the range of a cost; all that was compared is within the last."""
    low, high = float(values.min()), float(values.max())
    wide = low > 0 and high / low > 3
    steps = np.geomspace(low, high, _RUNGS) if wide else np.linspace(low, high, _RUNGS)
    rounding = math.floor if cost.maximise else math.ceil
    found = {_round(float(step), rounding) for step in steps}
    return sorted(found, reverse=cost.maximise)


def _round(value: float, rounding: object) -> float:
    """Return a value with three digits, rounded so that it still meets its own limit."""
    if value == 0:
        return 0.0
    digits = 2 - math.floor(math.log10(abs(value)))
    scaled = value * 10.0**digits
    whole = round(scaled) if abs(scaled - round(scaled)) < 1e-9 else _whole(scaled, rounding)
    return float(f"{whole * 10.0**-digits:.3g}")


def _whole(value: float, rounding: object) -> int:
    return math.floor(value) if rounding is math.floor else math.ceil(value)


def convergence(runs: Sequence[Run], frame: Frame, objectives: Sequence[Objective]) -> list[Row]:
    """Return how the hypervolume of what was searched grew, of runs that say the order.

    By evaluations, which count each network once and only those that were scored, and by seconds
    since the first trial began, pauses included. The figures are the searched ones.
    """
    return [row for run in runs for row in _growth(run, frame, objectives)]


def _growth(run: Run, frame: Frame, objectives: Sequence[Objective]) -> Iterator[Row]:
    kept = {point.id for point in run.scored}
    seen: set[str] = set()
    evaluations, points, trials = [], [], []
    n = 0
    for candidate in run.candidates:
        new = candidate.state != "infeasible" and candidate.id not in seen
        n += new
        seen |= {candidate.id} if new else set()
        evaluations.append(n)
        trials.append(candidate.trial)
        points.append(_values(candidate, objectives, known=candidate.id in kept))
    if not n:
        return
    table = frame.normalised(np.array(points))
    wanted = np.unique(np.geomspace(1, len(points), _CHECKPOINTS).round().astype(int))
    for count in wanted.tolist():
        inside = table[:count][(table[:count] < 1).all(axis=1)]
        m = len(objectives)
        share = pareto.hypervolume(inside, [1.0] * m, [False] * m) if len(inside) else 0.0
        yield {
            "run": run.name,
            "group": run.group,
            "trials": count,
            "evaluations": evaluations[count - 1],
            "seconds": run.seconds.get(trials[count - 1]),
            "hypervolume_share": share,
        }


def _values(candidate: Candidate, objectives: Sequence[Objective], *, known: bool) -> list[float]:
    """Return the objectives of a candidate, NaN where it does not count."""
    names = [o.name for o in objectives]
    if not known or candidate.state != "complete" or any(n not in candidate.figures for n in names):
        return [math.nan] * len(names)
    return [candidate.figures[name].value for name in names]


def verification(runs: Sequence[Run], frame: Frame, objectives: Sequence[Objective]) -> list[Row]:
    """Return what verification changed of each run's front: hypervolume and medians."""
    rows = []
    for run in runs:
        if not run.members:
            continue
        searched = _table([[m.candidate.figures[o.name].value for o in objectives]
                           for m in run.members])  # fmt: skip
        verified = _table([[(m.accuracy if o.name == "accuracy" else m.figures[o.name]).value
                            for o in objectives] for m in run.members])  # fmt: skip
        fits = np.array([not m.over_budget for m in run.members])
        row: Row = {
            "run": run.name,
            "group": run.group,
            "n_members": len(run.members),
            "n_left": sum(not m.on_front for m in run.members),
            "hypervolume_share_searched": _share(searched, frame),
            "hypervolume_share_verified": _share(verified[fits], frame),
        }
        for i, objective in enumerate(objectives):
            change = verified[:, i] - searched[:, i]
            row[f"median_change_{objective.name}"] = float(np.median(change))
        rows.append(row)
    return rows


def _table(values: Sequence[Sequence[float]]) -> Array:
    return np.array(values, np.float64)


def _share(values: Array, frame: Frame) -> float:
    points = frame.normalised(values)
    inside = points[(points < 1).all(axis=1)] if len(points) else points
    m = len(frame.objectives)
    return pareto.hypervolume(inside, [1.0] * m, [False] * m) if len(inside) else 0.0


def predictions(runs: Sequence[Run]) -> list[Row]:
    """Return how well predicted latencies agree with those that verification measured.

    Of runs with two members or more whose latency was predicted and then measured.
    """
    rows = []
    for run in runs:
        pairs = [
            (m.candidate.figures["latency_ms"], m.figures["latency_ms"])
            for m in run.members
            if "latency_ms" in m.candidate.figures and "latency_ms" in m.figures
        ]
        told = [(a, b) for a, b in pairs if a.source != "measured" and b.source == "measured"]
        if len(told) < 2:
            continue
        found = agreement([a.value for a, _ in told], [b.value for _, b in told])
        kinds = ", ".join(sorted({a.source for a, _ in told}))
        row: Row = {"run": run.name, "group": run.group, "target": run.target, "n": len(told)}
        rows.append(row | {"predicted_by": kinds} | found)
    return rows


def shared(fronts: Sequence[Front]) -> list[Row]:
    """Return which genotypes the fronts of two runs have in common, where they have any."""
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
