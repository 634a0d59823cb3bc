"""Devices that do not exist yet: what would buying one change?"""

from collections.abc import Sequence
from dataclasses import replace

from hwnas.planning import planner
from hwnas.planning.plan import Plan
from hwnas.planning.planner import Planned
from hwnas.planning.problem import Problem
from hwnas.planning.solving import solution
from hwnas.planning.task import Task, corrected_as
from hwnas.progress import Progress, Silent
from hwnas.results import Row


def real(problem: Problem) -> Problem:
    """Return a problem without devices that do not exist, unless there are no others."""
    return replace(problem, fleet=replace(problem.fleet, devices=problem.fleet.there))


def bought(problem: Problem, found: Planned, limit_s: float, progress: Progress) -> list[Row]:
    """Return what each device that does not exist would change, a row each."""
    sketched = [n for n, d in problem.fleet.devices.items() if d.sketch]
    if not sketched or len(sketched) == len(problem.fleet.devices):
        return []
    before, rows = found.plan.value, []
    with progress.phase("Sketches", len(sketched)) as advance:
        for name in sketched:
            devices = {n: d for n, d in problem.fleet.devices.items() if not d.sketch or n == name}
            wider = replace(problem, fleet=replace(problem.fleet, devices=devices))
            task = Task(wider, planner.choices_of(wider, Silent()), found.plan.objective)
            task = corrected_as(found.solution.task, task)
            other, d = solution(task, limit_s, Silent()), [*devices].index(name)
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


def sentences(rows: Sequence[Row], plan: Plan) -> list[str]:
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
