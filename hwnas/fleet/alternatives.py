"""Plans beside a plan: what less carbon, more accuracy or shorter latencies would cost.

One limit at a time is tightened step by step, and the least cost within it found (epsilon
constraints; Haimes et al., 1971). Each program begins at the solution of the one before it, which
keeps a tighter limit. Each is simulated, and corrected as the plan itself is.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from hwnas.core.errors import BudgetError, ConfigError
from hwnas.core.pareto import non_dominated
from hwnas.core.progress import NullProgress, Progress
from hwnas.core.run_folder import Row
from hwnas.fleet import plan_conversion, planner
from hwnas.fleet.hours import Hour
from hwnas.fleet.plan import DeploymentPlan
from hwnas.fleet.plan_conversion import as_plan
from hwnas.fleet.planner import PlanningOutcome
from hwnas.fleet.problem import PlanningProblem, untold
from hwnas.fleet.routes import choices
from hwnas.fleet.solver import Solution, again, solution
from hwnas.fleet.task import Array, PlanningTask, corrected_as

_DAY = 24
_SPEEDS = (0.3, 0.9)  # of p99 limits: the tightest, and the loosest
_LITTLE = 1e-3  # of carbon or accuracy: less is not worth a point
_ROUNDING = 1e-6  # of a limit that was found by a program of its own
_DIGITS = 9  # of figures, after which they differ by rounding alone


@dataclass(frozen=True)
class LimitPoint:
    """A limit that is tightened."""

    varied: str
    asks: str  #: in the words of ``service.yaml``
    problem: PlanningProblem
    p99: float = 1.0  #: times the limits of the service


@dataclass(frozen=True)
class PlanFront:
    """Plans over cost, carbon, accuracy and latency."""

    rows: Sequence[Row]  #: those that no other dominates, the plan's own first
    sentences: Sequence[str]


def swept(
    found: PlanningOutcome, n: int, limit_s: float, seed: int, progress: Progress
) -> PlanFront:
    """Return the front of plans around a plan.

    Args:
        found: The plan.
        n: How many others are looked for.
        limit_s: Seconds that all may take.
        seed: Of their simulations.
        progress: Is told of points.
    """
    base = replace(found.solution, task=replace(found.solution.task, objective="cost"))
    rows = [_row(LimitPoint("the plan", "", base.task.problem), replace(found, solution=base))]
    began = time.perf_counter()
    longest = base.seconds.get("columns", 0.0)  # which no limit shortens
    done = tried = 0
    with progress.phase("Front", n) as advance:
        for points in _directions(base, _shares(n), limit_s / max(n, 1)):
            start: Solution | None = None
            for point in points:
                left = limit_s - (time.perf_counter() - began)
                tried += 1
                if left > longest:
                    until = began + limit_s
                    with suppress(TimeoutError):  # not corrected until then
                        each_s = min(left, 2 * limit_s / n)
                        solved = _solved(base, point, start, each_s)
                        held = _held(solved, seed, until, each_s)
                        done += 1
                        if held is not None:
                            start = held.solution
                            rows.append(_row(point, held))
                advance(1)
        advance(n - tried)
    is_known = not untold(base.task.problem)["carbon"]
    return PlanFront(*_told(rows, (done, tried), limit_s, carbon_is_known=is_known))


def _shares(n: int) -> tuple[int, int, int]:
    """Return how many points each direction has: carbon, accuracy, latency."""
    return n - 2 * (n // 3), n // 3, n // 3


def _directions(
    base: Solution, counts: tuple[int, int, int], limit_s: float
) -> Iterator[Iterator[LimitPoint]]:
    yield _carbon(base, counts[0], limit_s)
    yield _accuracy(base, counts[1])
    yield _latency(base, counts[2])


def _carbon(base: Solution, n: int, limit_s: float) -> Iterator[LimitPoint]:
    """Yield budgets of carbon, from the least there can be to almost that of the plan."""
    most, problem = base.taken("carbon"), base.task.problem
    if not n or most <= 0 or untold(problem)["carbon"]:
        return
    cleanest = solution(replace(base.task, objective="carbon"), limit_s, NullProgress())
    least = cleanest.taken("carbon") * (1 + _ROUNDING)
    if not cleanest.serves or least > most * (1 - _LITTLE):
        return
    for limit in np.linspace(least, most, n + 1)[:-1] / _days(problem):
        budgets = replace(problem.service.budgets, carbon_kg_per_day=float(limit))
        service = replace(problem.service, budgets=budgets)
        asks = f"budgets.carbon_kg_per_day={limit:.4g}"
        yield LimitPoint("carbon", asks, replace(problem, service=service))


def _accuracy(base: Solution, n: int) -> Iterator[LimitPoint]:
    """Yield floors of accuracy, from the highest that all classes can have downwards."""
    o, problem = base.task.choices.options, base.task.problem
    room = min(
        float(o.accuracy[o.klass == k].max(initial=0.0)) - c.accuracy_min
        for k, (_, c) in enumerate(problem.classes)
    )
    for more in np.linspace(room, 0.0, n + 1)[:-1] if room > _LITTLE else []:
        classes = {name: replace(c, accuracy_min=c.accuracy_min + float(more) * (1 - _ROUNDING))
                   for name, c in problem.classes}  # fmt: skip
        service = replace(problem.service, classes=classes)
        yield LimitPoint("accuracy", f"accuracy_min {more:+.4f}", replace(problem, service=service))


def _latency(base: Solution, n: int) -> Iterator[LimitPoint]:
    """Yield limits of latencies, from the shortest to almost those of the service."""
    problem = base.task.problem
    for factor in np.geomspace(*_SPEEDS, n) if n else []:
        classes = {name: replace(c, p99_ms=c.p99_ms * float(factor)) for name, c in problem.classes}
        service = replace(problem.service, classes=classes)
        asks = f"p99_ms x {factor:.2g}"
        yield LimitPoint("latency", asks, replace(problem, service=service), float(factor))


def _solved(
    base: Solution, point: LimitPoint, start: Solution | None, limit_s: float
) -> Solution | None:
    """Return the least cost at a point; ``None`` where a class has no model that fits."""
    try:
        found = choices(point.problem, base.task.choices.goodputs, NullProgress())
    except ConfigError:
        return None
    task = corrected_as(base.task, PlanningTask(point.problem, found, "cost"))
    return solution(task, limit_s, NullProgress(), _begun(task, start))


def _held(
    found: Solution | None, seed: int, until: float, limit_s: float
) -> PlanningOutcome | None:
    """Return a solution corrected as plans are; ``None``: there is none of which no class is late.

    Raises:
        TimeoutError: answers are late still at that time.
    """

    def resolve(found: Solution, task: PlanningTask, hours: Sequence[int]) -> Solution:
        left = until - time.perf_counter()
        if left <= 0:
            raise TimeoutError
        found = again(found, task, hours, left, NullProgress())
        if not found.serves:
            raise BudgetError("no such plan")  # which limit binds is not asked
        return found

    if found is None or not found.serves:
        return None
    try:
        held = planner.corrected(found, resolve, [seed], NullProgress())
    except BudgetError:
        return None
    left = until - time.perf_counter()
    if not held.solution.kept and left > 0:  # others have the goodputs that the plan was given
        with suppress(TimeoutError):
            held = planner.loosened(held, resolve, min(limit_s, left), [seed], NullProgress())
    return None if held.is_late else held


def _begun(task: PlanningTask, start: Solution | None) -> tuple[list[Hour], Array] | None:
    """Return a solution of another task as one of this; ``None``: it cannot be one."""
    if start is None or not start.serves:
        return None
    plan = as_plan(start)
    hours = plan_conversion.translated(task, plan, plan_conversion.named(task))
    kept = [hour for hour in hours if hour is not None]
    return (kept, start.owned) if len(kept) == len(hours) else None


def _days(problem: PlanningProblem) -> float:
    return problem.load.n_hours / _DAY


def _row(point: LimitPoint, held: PlanningOutcome) -> Row:
    """Return what a plan comes to a day, with what nothing can be below."""
    days, found = _days(point.problem), held.solution
    cost = found.taken("cost")
    least = min(found.bound_kept, cost) if found.task.objective == "cost" else 0.0
    return {
        "varied": point.varied, "asks": point.asks,
        "cost_per_day": cost / days, "cost_per_day_bound": least / days,
        "gap": round(1 - least / cost, _DIGITS) if cost > 0 else 0.0,
        "carbon_kg_per_day": found.taken("carbon") / days,
        "accuracy": _answered(found), "p99_of_limit": point.p99, "late": held.late,
        "source": "modelled",
    }  # fmt: skip


def _answered(found: Solution) -> float:
    """Return the mean of the lower ends of accuracies over all requests."""
    o, task, right, asked = found.task.choices.options, found.task, 0.0, 0.0
    for i, hour in enumerate(found.hours):
        for s, option, rate in hour.flows:
            if s == 0:
                right += rate * float(o.accuracy[option]) * task.weight[i]
                asked += rate * task.weight[i]
    return right / asked if asked else 0.0


_AXES: tuple[tuple[str, bool], ...] = (
    ("cost_per_day", False), ("carbon_kg_per_day", False), ("accuracy", True),
    ("p99_of_limit", False),
)  # fmt: skip


def _told(
    rows: list[Row], count: tuple[int, int], limit_s: float, *, carbon_is_known: bool = True
) -> tuple[list[Row], list[str]]:
    """Return the rows that none dominates, and what they say."""
    points = np.array([[round(row[name], _DIGITS) for name, _ in _AXES] for row in rows])
    kept = non_dominated(points, [maximise for _, maximise in _AXES])
    front = [rows[0], *(row for row, on in zip(rows[1:], kept[1:], strict=True) if on)]
    said = [_sentence(rows[0], row) for row in front[1:]]
    if not kept[0]:
        beaten = points[1:] - points[0]
        beaten[:, [i for i, (_, maximise) in enumerate(_AXES) if maximise]] *= -1
        better = rows[1 + int((beaten <= 0).all(1).argmax())]
        said.insert(0, f"With {better['asks']} another plan is as good in all, and better in some: "
                       "say so in service.yaml, and plan again.")  # fmt: skip
    done, tried = count
    emits = carbon_is_known and rows[0]["carbon_kg_per_day"] > 0
    if emits and not any(row["varied"] == "carbon" for row in rows):
        said.append("No plan was found that keeps all limits and emits less.")
    if len(front) < len(rows):
        said.append(f"{len(rows) - len(front)} plans were dominated by others, and left out.")
    if done < tried:
        said.append(
            f"{done} of {tried} points of the front were looked for in front_s={limit_s:g} s; a "
            "larger front_s looks for the others."
        )
    return front, said


def _sentence(plan: Row, row: Row) -> str:
    """Return what a point costs, and what it brings."""
    paid, emitted = plan["cost_per_day"], plan["carbon_kg_per_day"]
    more = row["cost_per_day"] - paid
    share = f" ({more / paid:+.1%})" if paid else ""
    carbon = f"carbon {row['carbon_kg_per_day'] / emitted - 1:+.1%}, " if emitted else ""
    gained = round(row["accuracy"] - plan["accuracy"], 4) + 0.0  # never -0.0000
    return (
        f"With {row['asks']}: {more:+.3g} $ a day{share}, {carbon}"
        f"accuracy {gained:+.4f}, at most {row['late']:.2%} late; "
        f"modelled, gap {row['gap']:.1%}."
    )


# Devices that do not exist yet: what would buying one change?


def real(problem: PlanningProblem) -> PlanningProblem:
    """Return a problem without devices that do not exist, unless there are no others."""
    return replace(problem, fleet=replace(problem.fleet, devices=problem.fleet.there))


def bought(
    problem: PlanningProblem, found: PlanningOutcome, limit_s: float, progress: Progress
) -> list[Row]:
    """Return what each device that does not exist would change, a row each."""
    sketched = [n for n, d in problem.fleet.devices.items() if d.sketch]
    if not sketched or len(sketched) == len(problem.fleet.devices):
        return []
    before, rows = found.plan.value, []
    with progress.phase("Sketches", len(sketched)) as advance:
        for name in sketched:
            devices = {n: d for n, d in problem.fleet.devices.items() if not d.sketch or n == name}
            wider = replace(problem, fleet=replace(problem.fleet, devices=devices))
            task = PlanningTask(
                wider, planner.choices_of(wider, NullProgress()), found.plan.objective
            )
            task = corrected_as(found.solution.task, task)
            other, d = solution(task, limit_s, NullProgress()), [*devices].index(name)
            advance(1)
            if not other.serves:  # there was no time for a plan; without the device there is one
                continue
            rows.append({
                "device": name,
                "machines_most": int(max(hour.machines[d] for hour in other.hours)),
                f"{found.plan.objective}_without": before,
                f"{found.plan.objective}_with": other.value,
                "saved": before - other.value,
                "saved_share": 1 - other.value / before if before else 0.0,
                "source": "modelled",
            })  # fmt: skip
    return rows


def sentences(rows: Sequence[Row], plan: DeploymentPlan) -> list[str]:
    """Return the same in words."""
    found = []
    for row in rows:
        if row["machines_most"]:
            found.append(
                f"Buying {row['device']} would save {row['saved']:.3g} {plan.unit} "
                f"({row['saved_share']:.1%}), at most {row['machines_most']} of them; modelled."
            )
        else:
            found.append(f"Buying {row['device']} would change nothing: no plan uses it.")
    return found
