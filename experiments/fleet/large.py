"""Quality and time for 10 devices x 30 models x 5 batches x 4 classes x 24 hours with cascades.

    python -m experiments.fleet.large SECONDS

Prints the result after about SECONDS, with both bounds.
"""

import sys
import tempfile
import time
from pathlib import Path

from experiments.fleet import made
from hwnas.core.progress import NullProgress
from hwnas.fleet import planner
from hwnas.fleet.problem import read_problem
from hwnas.fleet.solver import solve_task
from hwnas.fleet.task import PlanningTask


def main(limit_s: float) -> None:
    """Plan, and print the result."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made.write(folder)
        began = time.perf_counter()
        problem = read_problem(folder / "service.yaml", folder / "fleet.yaml")
        choices = planner.read_choices(problem, NullProgress())
        print(f"{len(choices.placements):,} placements, {len(choices.options):,} options per hour")
        found = solve_task(PlanningTask(problem, choices, "cost"), limit_s, NullProgress())
        took = time.perf_counter() - began
    print(
        f"{took:.0f} s: {found.value:.3f} $ a day, serves all: {found.serves}; bound of the pruned "
        f"columns {found.bound_kept:.3f} (gap {1 - found.bound_kept / found.value:.1%}), of all "
        f"columns {found.bound_all:.3f}; {found.seconds}"
    )


if __name__ == "__main__":
    main(float(sys.argv[1]))
