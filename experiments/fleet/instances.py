"""Plans of random instances, compared with exhaustive search or checked for broken constraints.

    python -m experiments.fleet.instances tiny 50
    python -m experiments.fleet.instances random 1000

``tiny`` compares plans of tiny instances with exhaustive search. ``random`` checks plans with
tests/fleet/checker.py, which reads only plan.yaml, service.yaml, fleet.yaml and the CSV files, and
shares no code with the planner. Each writes one row per instance to this folder.
"""

import csv
import dataclasses
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hwnas.core.errors import HwnasError
from hwnas.core.progress import NullProgress
from hwnas.fleet.demand import Arrivals
from hwnas.fleet.placements import Goodputs
from hwnas.fleet.plan import to_yaml
from hwnas.fleet.plan_conversion import to_plan
from hwnas.fleet.problem import PlanningProblem, read_problem
from hwnas.fleet.routes import find_choices
from hwnas.fleet.service_file import OBJECTIVES
from hwnas.fleet.solver import solve_task
from hwnas.fleet.task import PlanningTask
from tests.fleet import brute_force, checker, examples

HERE = Path(__file__).parent
POISSON, GOODPUTS = Arrivals(), Goodputs(0.05)  # simulated goodputs are shared by all instances


def _read_problem(folder: Path) -> PlanningProblem:
    problem = read_problem(folder / "service.yaml", folder / "fleet.yaml")
    return dataclasses.replace(problem, arrivals=(POISSON,))


def compare_tiny(seed: int, folder: Path) -> dict[str, Any]:
    """Return the costs found by the planner and by exhaustive search for a tiny instance."""
    examples.write_random(folder, np.random.default_rng(seed), classes=1, tiny=True)
    problem = _read_problem(folder)
    task = PlanningTask(problem, find_choices(problem, GOODPUTS, NullProgress()), "cost")
    solution = solve_task(task, 60, NullProgress())
    cost = solution.value if solution.serves else math.inf
    minimum = brute_force.least_cost(task)
    equal = cost == minimum or math.isclose(cost, minimum, rel_tol=1e-6)
    return {"seed": seed, "cost": cost, "brute_force": minimum, "equal": equal}


def check_random(seed: int, folder: Path) -> dict[str, Any]:
    """Return the result of the checker for the plan of a random instance."""
    rng = np.random.default_rng(seed)
    examples.write_random(folder, rng, classes=int(rng.integers(1, 4)), tiny=False)
    examples.write_answers(folder, rng)
    problem = _read_problem(folder)
    objective = OBJECTIVES[seed % 3]
    task = PlanningTask(problem, find_choices(problem, GOODPUTS, NullProgress()), objective)
    solution = solve_task(task, 3, NullProgress())
    if not solution.serves:
        return {"seed": seed, "outcome": "refused", "words": "a limit leaves demand unserved"}
    plan = to_plan(solution)
    (folder / "plan.yaml").write_bytes(to_yaml(plan))
    violations = checker.find_violations(folder, folder)
    cascades = sum(route.second is not None for hour in plan.hours for route in hour.routes)
    return {"seed": seed, "outcome": "broken" if violations else "holds", "objective": objective,
            "value": solution.value, "gap": plan.gap, "cascades": cascades,
            "words": "; ".join(violations)}  # fmt: skip


def main(kind: str, n_rows: int) -> None:
    """Evaluate ``n_rows`` random instances, or ``n_rows`` tiny instances that have a plan."""
    rows: list[dict[str, Any]] = []
    seed = 0
    while len(rows) < n_rows:
        with tempfile.TemporaryDirectory() as folder:
            try:
                row = (compare_tiny if kind == "tiny" else check_random)(seed, Path(folder))
            except HwnasError as error:
                row = {"seed": seed, "outcome": "refused", "words": str(error).replace(folder, "")}
        seed += 1
        if kind == "random" or math.isfinite(row.get("cost", math.inf)):
            rows.append(row)
            _write(kind, rows)
    _print_summary(kind, rows, seed)


def _write(kind: str, rows: list[dict[str, Any]]) -> None:
    """Write all rows so far; an interrupted run keeps them."""
    names = [*dict.fromkeys(name for row in rows for name in row)]
    with (HERE / f"{kind}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _print_summary(kind: str, rows: list[dict[str, Any]], n_seeds: int) -> None:
    if kind == "tiny":
        n_equal = sum(row["equal"] for row in rows)
        print(f"{n_equal} of {len(rows)} have equal costs; {n_seeds} seeds tried")
    else:
        outcomes = [row["outcome"] for row in rows]
        print({name: outcomes.count(name) for name in sorted({*outcomes})})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
