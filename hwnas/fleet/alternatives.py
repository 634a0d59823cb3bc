"""Alternative plans: the cost of lower emissions, higher accuracy or shorter latencies.

One limit at a time is tightened step by step (epsilon constraints; Haimes et al., 1971). Each
program starts from the previous solution. Each plan is simulated and corrected like the main plan.
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
from hwnas.fleet.plan_conversion import to_plan
from hwnas.fleet.planner import PlanningOutcome
from hwnas.fleet.problem import PlanningProblem, missing_keys
from hwnas.fleet.routes import find_choices
from hwnas.fleet.solver import Solution, solve_again, solve_task
from hwnas.fleet.task import Array, PlanningTask, copy_corrections

_DAY = 24
_SPEEDS = (0.3, 0.9)  # factors of the p99 limits: tightest and loosest
_LITTLE = 1e-3  # smallest change of carbon or accuracy that is worth a point
_ROUNDING = 1e-6  # tolerance on a limit that another program found
_DIGITS = 9  # decimal places; smaller differences are rounding


@dataclass(frozen=True)
class LimitPoint:
    """A planning problem with one limit tighter than in ``service.yaml``."""

    varied: str  #: ``carbon``, ``accuracy``, ``latency``, or ``the plan`` without a tighter limit
    limit: str  #: the tightened limit as text, as ``budgets.carbon_kg_per_day=1.2``
    problem: PlanningProblem  #: with the tightened limit
    p99: float = 1.0  #: factor of all ``p99_ms`` of the service


@dataclass(frozen=True)
class PlanFront:
    """Pareto front of plans over daily cost, daily emissions, accuracy and latency limits."""

    rows: Sequence[Row]  #: rows of ``plans.csv``: the main plan, then non-dominated alternatives
    sentences: Sequence[str]  #: a sentence per alternative plan, and remarks on the front


def plan_front(
    outcome: PlanningOutcome, n: int, limit_s: float, seed: int, progress: Progress
) -> PlanFront:
    """Return the Pareto front of a plan and alternatives with one tighter limit each.

    Args:
        outcome: The main plan.
        n: Maximum number of tightened limits to try.
        limit_s: Time limit in seconds. Plans that are not found in time are left out; a sentence
            has their number.
        seed: Seed of the simulations.
        progress: Receives phases.
    """
    rows = [_row(LimitPoint("the plan", "", outcome.solution.task.problem), outcome)]
    base = replace(outcome.solution, task=replace(outcome.solution.task, objective="cost"))
    began = time.perf_counter()
    longest = base.seconds.get("columns", 0.0)  # column generation takes as long at any limit
    done = tried = 0
    with progress.phase("Front", n) as advance:
        for points in _directions(base, _point_counts(n), limit_s / max(n, 1)):
            start: Solution | None = None
            for point in points:
                rest_s = limit_s - (time.perf_counter() - began)
                tried += 1
                if rest_s > longest:
                    until = began + limit_s
                    with suppress(TimeoutError):  # not corrected until then
                        each_s = min(rest_s, 2 * limit_s / n)
                        solved = _solve_at(base, point, start, each_s)
                        corrected = _corrected_at(solved, seed, until, each_s)
                        done += 1
                        if corrected is not None:
                            start = corrected.solution
                            rows.append(_row(point, corrected))
                advance(1)
        advance(n - tried)
    is_known = not missing_keys(base.task.problem)["carbon"]
    return PlanFront(*_select_front(rows, (done, tried), limit_s, carbon_is_known=is_known))


def _point_counts(n: int) -> tuple[int, int, int]:
    """Return the number of points of each direction: carbon, accuracy, latency."""
    return n - 2 * (n // 3), n // 3, n // 3


def _directions(
    base: Solution, counts: tuple[int, int, int], limit_s: float
) -> Iterator[Iterator[LimitPoint]]:
    yield _carbon(base, counts[0], limit_s)
    yield _accuracy(base, counts[1])
    yield _latency(base, counts[2])


def _carbon(base: Solution, n: int, limit_s: float) -> Iterator[LimitPoint]:
    """Yield carbon budgets, from the minimum to almost that of the plan."""
    highest, problem = base.objective_value("carbon"), base.task.problem
    if not n or highest <= 0 or missing_keys(problem)["carbon"]:
        return
    cleanest = solve_task(replace(base.task, objective="carbon"), limit_s, NullProgress())
    least = cleanest.objective_value("carbon") * (1 + _ROUNDING)
    if not cleanest.serves or least > highest * (1 - _LITTLE):
        return
    for limit in np.linspace(least, highest, n + 1)[:-1] / _days(problem):
        budgets = replace(problem.service.budgets, carbon_kg_per_day=float(limit))
        service = replace(problem.service, budgets=budgets)
        asks = f"budgets.carbon_kg_per_day={limit:.4g}"
        yield LimitPoint("carbon", asks, replace(problem, service=service))


def _accuracy(base: Solution, n: int) -> Iterator[LimitPoint]:
    """Yield accuracy floors, from the highest feasible one downwards."""
    o, problem = base.task.choices.options, base.task.problem
    room = min(
        float(o.accuracy[o.request_class == k].max(initial=0.0)) - c.accuracy_min
        for k, (_, c) in enumerate(problem.classes)
    )
    for more in np.linspace(room, 0.0, n + 1)[:-1] if room > _LITTLE else []:
        classes = {name: replace(c, accuracy_min=c.accuracy_min + float(more) * (1 - _ROUNDING))
                   for name, c in problem.classes}  # fmt: skip
        service = replace(problem.service, classes=classes)
        yield LimitPoint("accuracy", f"accuracy_min {more:+.4f}", replace(problem, service=service))


def _latency(base: Solution, n: int) -> Iterator[LimitPoint]:
    """Yield latency limits, from the shortest to almost those of the service."""
    problem = base.task.problem
    for factor in np.geomspace(*_SPEEDS, n) if n else []:
        classes = {name: replace(c, p99_ms=c.p99_ms * float(factor)) for name, c in problem.classes}
        service = replace(problem.service, classes=classes)
        asks = f"p99_ms x {factor:.2g}"
        yield LimitPoint("latency", asks, replace(problem, service=service), float(factor))


def _solve_at(
    base: Solution, point: LimitPoint, start: Solution | None, limit_s: float
) -> Solution | None:
    """Return the cheapest solution at a point; ``None`` if a class has no feasible model."""
    try:
        result = find_choices(point.problem, base.task.choices.goodputs, NullProgress())
    except ConfigError:
        return None
    task = copy_corrections(base.task, PlanningTask(point.problem, result, "cost"))
    return solve_task(task, limit_s, NullProgress(), _start_values(task, start))


def _corrected_at(
    solution: Solution | None, seed: int, until: float, limit_s: float
) -> PlanningOutcome | None:
    """Return a corrected plan; ``None`` if some class is still late or demand is unserved.

    Raises:
        TimeoutError: corrections did not end before ``until``.
    """

    def resolve(solution: Solution, task: PlanningTask, hours: Sequence[int]) -> Solution:
        rest_s = until - time.perf_counter()
        if rest_s <= 0:
            raise TimeoutError
        solution = solve_again(solution, task, hours, rest_s, NullProgress())
        if not solution.serves:
            raise BudgetError("no such plan")  # no search for the binding limit
        return solution

    if solution is None or not solution.serves:
        return None
    try:
        outcome = planner.correct(solution, resolve, [seed], NullProgress())
    except BudgetError:
        return None
    rest_s = until - time.perf_counter()
    if not outcome.solution.hour_columns and rest_s > 0:  # the main plan has raised goodputs, too
        with suppress(TimeoutError):
            outcome = planner.raise_goodputs(
                outcome, resolve, min(limit_s, rest_s), [seed], NullProgress()
            )
    return None if outcome.is_late else outcome


def _start_values(task: PlanningTask, start: Solution | None) -> tuple[list[Hour], Array] | None:
    """Return a solution as start values of another task; ``None`` if it does not fit."""
    if start is None or not start.serves:
        return None
    plan = to_plan(start)
    hours = plan_conversion.translate_hours(task, plan, plan_conversion.placements_by_name(task))
    fitting = [hour for hour in hours if hour is not None]
    return (fitting, start.owned) if len(fitting) == len(hours) else None


def _days(problem: PlanningProblem) -> float:
    return problem.load.n_hours / _DAY


def _row(point: LimitPoint, outcome: PlanningOutcome) -> Row:
    """Return a plan's daily figures, and the lower bound of its cost."""
    days, result = _days(point.problem), outcome.solution
    cost = result.objective_value("cost")
    least = min(result.bound_kept, cost) if result.task.objective == "cost" else 0.0
    return {
        "varied": point.varied, "asks": point.limit,
        "cost_per_day": cost / days, "cost_per_day_bound": least / days,
        "gap": round(1 - least / cost, _DIGITS) if cost > 0 else 0.0,
        "carbon_kg_per_day": result.objective_value("carbon") / days,
        "accuracy": _mean_accuracy(result), "p99_of_limit": point.p99, "late": outcome.late,
        "source": "modelled",
    }  # fmt: skip


def _mean_accuracy(solution: Solution) -> float:
    """Return the mean over all requests of the lower ends of accuracy."""
    o, task, right, request_class = solution.task.choices.options, solution.task, 0.0, 0.0
    for i, hour in enumerate(solution.hours):
        for s, option, rate in hour.flows:
            if s == 0:
                right += rate * float(o.accuracy[option]) * task.weight[i]
                request_class += rate * task.weight[i]
    return right / request_class if request_class else 0.0


_AXES: tuple[tuple[str, bool], ...] = (
    ("cost_per_day", False), ("carbon_kg_per_day", False), ("accuracy", True),
    ("p99_of_limit", False),
)  # fmt: skip


def _select_front(
    rows: list[Row], count: tuple[int, int], limit_s: float, *, carbon_is_known: bool = True
) -> tuple[list[Row], list[str]]:
    """Return the non-dominated rows, and messages on them."""
    points = np.array([[round(row[name], _DIGITS) for name, _ in _AXES] for row in rows])
    on_front = non_dominated(points, [maximise for _, maximise in _AXES])
    front = [rows[0], *(row for row, on in zip(rows[1:], on_front[1:], strict=True) if on)]
    messages = [_describe_point(rows[0], row) for row in front[1:]]
    if not on_front[0]:
        differences = points[1:] - points[0]
        differences[:, [i for i, (_, maximise) in enumerate(_AXES) if maximise]] *= -1
        better = rows[1 + int((differences <= 0).all(1).argmax())]
        messages.insert(0, f"With {better['asks']} another plan dominates this one: set that "
                       "limit in the service file and plan again.")  # fmt: skip
    done, tried = count
    emits = carbon_is_known and rows[0]["carbon_kg_per_day"] > 0
    if emits and not any(row["varied"] == "carbon" for row in rows):
        messages.append("No plan with lower emissions was found that keeps all limits.")
    if len(front) < len(rows):
        messages.append(f"{len(rows) - len(front)} dominated plans were left out.")
    if done < tried:
        messages.append(
            f"{done} of {tried} points of the front were computed in front_s={limit_s:g} s; "
            "increase front_s for the others."
        )
    return front, messages


def _describe_point(plan: Row, row: Row) -> str:
    """Return the cost and the gain of a point as a sentence."""
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


# Sketches: devices of ``fleet.yaml`` with ``sketch: true``, which do not exist yet.


def without_sketches(problem: PlanningProblem) -> PlanningProblem:
    """Return the problem with existing devices only; unchanged if every device is a sketch."""
    return replace(problem, fleet=replace(problem.fleet, devices=problem.fleet.existing))


def sketch_rows(
    problem: PlanningProblem, outcome: PlanningOutcome, limit_s: float, progress: Progress
) -> list[Row]:
    """Return the rows of ``sketches.csv``: the plan's objective with and without each sketch.

    The value (in $, kg of CO2 or kWh over all hours of the plan) includes other devices' part.
    Plans with a sketch are not simulated. Sketches for which none was found within ``limit_s``
    seconds each are left out; the list is empty if there are no sketches, or nothing else.
    """
    sketched = [n for n, d in problem.fleet.devices.items() if d.sketch]
    if not sketched or len(sketched) == len(problem.fleet.devices):
        return []
    before, rows = outcome.plan.value, []
    with progress.phase("Sketches", len(sketched)) as advance:
        for name in sketched:
            devices = {n: d for n, d in problem.fleet.devices.items() if not d.sketch or n == name}
            wider = replace(problem, fleet=replace(problem.fleet, devices=devices))
            task = PlanningTask(
                wider, planner.read_choices(wider, NullProgress()), outcome.plan.objective
            )
            task = copy_corrections(outcome.solution.task, task)
            other, d = solve_task(task, limit_s, NullProgress()), [*devices].index(name)
            advance(1)
            if not other.serves:  # time ran out: without the device there is a plan
                continue
            rows.append({
                "device": name,
                "machines_most": int(max(hour.machines[d] for hour in other.hours)),
                f"{outcome.plan.objective}_without": before,
                f"{outcome.plan.objective}_with": other.value,
                "saved": before - other.value,
                "saved_share": 1 - other.value / before if before else 0.0,
                "source": "modelled",
            })  # fmt: skip
    return rows


def describe_sketches(rows: Sequence[Row], plan: DeploymentPlan) -> list[str]:
    """Return a sentence per row of ``sketch_rows``: what buying the device would save."""
    result = []
    for row in rows:
        if row["machines_most"] and row["saved"] > 0:
            result.append(
                f"Buying {row['device']} would save {row['saved']:.3g} {plan.unit} "
                f"({row['saved_share']:.1%}), at most {row['machines_most']} of them; modelled."
            )
        else:
            result.append(f"Buying {row['device']} would save nothing: no better plan uses it.")
    return result
