"""Random instances: tiny ones compared with exhaustive search, others checked by a file checker.

    python -m experiments.fleet.instances tiny 50
    python -m experiments.fleet.instances random 1000

The checker (tests/fleet/checker.py) reads plan.yaml, service.yaml, fleet.yaml and the CSV files
and shares no code with the planner. Writes one row per instance to this folder.
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


def _problem(folder: Path) -> PlanningProblem:
    problem = read_problem(folder / "service.yaml", folder / "fleet.yaml")
    return dataclasses.replace(problem, arrivals=(POISSON,))


def tiny(seed: int, folder: Path) -> dict[str, Any]:
    """Return the results of plan and of exhaustive search for a tiny instance."""
    examples.write_random(folder, np.random.default_rng(seed), classes=1, tiny=True)
    problem = _problem(folder)
    task = PlanningTask(problem, find_choices(problem, GOODPUTS, NullProgress()), "cost")
    found = solve_task(task, 60, NullProgress())
    value = found.value if found.serves else math.inf
    best = brute_force.least_cost(task)
    near = value == best or math.isclose(value, best, rel_tol=1e-6)
    return {"seed": seed, "cost": value, "brute_force": best, "equal": near}


def drawn(seed: int, folder: Path) -> dict[str, Any]:
    """Return the result of the checker for the plan of a random instance."""
    rng = np.random.default_rng(seed)
    examples.write_random(folder, rng, classes=int(rng.integers(1, 4)), tiny=False)
    examples.write_answers(folder, rng)
    problem = _problem(folder)
    objective = OBJECTIVES[seed % 3]
    task = PlanningTask(problem, find_choices(problem, GOODPUTS, NullProgress()), objective)
    found = solve_task(task, 3, NullProgress())
    if not found.serves:
        return {"seed": seed, "outcome": "refused", "words": "a limit leaves demand unserved"}
    (folder / "plan.yaml").write_bytes(to_yaml(to_plan(found)))
    broken = checker.find_violations(folder, folder)
    cascades = sum(r.second is not None for h in to_plan(found).hours for r in h.routes)
    return {"seed": seed, "outcome": "broken" if broken else "holds", "objective": objective,
            "value": found.value, "gap": to_plan(found).gap, "cascades": cascades,
            "words": "; ".join(broken)}  # fmt: skip


def main(kind: str, wanted: int) -> None:
    """Try the requested number of seeds, or of tiny ones until the requested number has a plan."""
    rows: list[dict[str, Any]] = []
    seed = 0
    while len(rows) < wanted:
        with tempfile.TemporaryDirectory() as folder:
            try:
                row = (tiny if kind == "tiny" else drawn)(seed, Path(folder))
            except HwnasError as error:
                row = {"seed": seed, "outcome": "refused", "words": str(error).replace(folder, "")}
        seed += 1
        if kind == "random" or math.isfinite(row.get("cost", math.inf)):
            rows.append(row)
            _write(kind, rows)
    _tell(kind, rows, seed)


def _write(kind: str, rows: list[dict[str, Any]]) -> None:
    """Write the rows so far, so that nothing is lost."""
    names = [*dict.fromkeys(name for row in rows for name in row)]
    with (HERE / f"{kind}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _tell(kind: str, rows: list[dict[str, Any]], seed: int) -> None:
    if kind == "tiny":
        print(f"{sum(row['equal'] for row in rows)} of {len(rows)} equal, of {seed} seeds")
    else:
        told = [row["outcome"] for row in rows]
        print({name: told.count(name) for name in sorted({*told})})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
