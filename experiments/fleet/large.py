"""Cost and planning time for 10 devices x 30 models x 5 batches x 4 classes x 24 hours.

    python -m experiments.fleet.large SECONDS

The options include cascades. The solver stops after SECONDS. Prints the cost with both bounds.
"""

import sys
import tempfile
import time
from pathlib import Path

from experiments.fleet import generated
from hwnas.core.progress import NullProgress
from hwnas.fleet import planner
from hwnas.fleet.problem import read_problem
from hwnas.fleet.solver import solve_task
from hwnas.fleet.task import PlanningTask


def main(limit_s: float) -> None:
    """Plan, and print the result."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generated.write(folder)
        start = time.perf_counter()
        problem = read_problem(folder / "service.yaml", folder / "fleet.yaml")
        choices = planner.read_choices(problem, NullProgress())
        print(f"{len(choices.placements):,} placements, {len(choices.options):,} options per hour")
        solution = solve_task(PlanningTask(problem, choices, "cost"), limit_s, NullProgress())
        elapsed_s = time.perf_counter() - start
    pruned_gap = 1 - solution.bound_kept / solution.value
    print(
        f"{elapsed_s:.0f} s: {solution.value:.3f} $ a day, serves all: {solution.serves}; "
        f"lower bound for the pruned columns {solution.bound_kept:.3f} (gap {pruned_gap:.1%}), "
        f"for all columns {solution.bound_all:.3f}; {solution.seconds}"
    )


if __name__ == "__main__":
    main(float(sys.argv[1]))
