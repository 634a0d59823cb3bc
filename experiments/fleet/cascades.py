"""Cost of plans with and without cascades, on generated fleets.

    python -m experiments.fleet.cascades FLEETS SCALE [SECONDS]

Each fleet has 10 devices, 8 models, 4 classes and 6 hours. SCALE multiplies its demand. SECONDS
limit each solution (60). Both plans are simulated with five seeds not used in planning.
"""

import csv
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments.fleet import generated
from experiments.fleet.published_rules import max_late_fraction, without_cascades
from hwnas.core.progress import NullProgress
from hwnas.fleet import planner
from hwnas.fleet.problem import read_problem
from hwnas.fleet.task import PlanningTask

HERE = Path(__file__).parent


def compare(folder: Path, seed: int, scale: float, limit_s: float) -> dict[str, Any]:
    """Return a row for one fleet: cost and fraction of late requests of both plans."""
    generated.write(folder, seed=seed, n_models=8, scale=scale, hours=6)
    problem = read_problem(folder / "service.yaml", folder / "fleet.yaml")
    task = PlanningTask(problem, planner.read_choices(problem, NullProgress()), "cost")
    row: dict[str, Any] = {"fleet": seed, "scale": scale}
    for name, variant in (("cascades", task), ("single", without_cascades(task))):
        plan = planner.plan_task(variant, limit_s, [0, 1, 2, 3], NullProgress()).plan
        row |= {f"{name}_usd": plan.value, f"{name}_late": max_late_fraction(problem, plan),
                f"{name}_gap": plan.gap}  # fmt: skip
    return row | {"saved": 1 - row["cascades_usd"] / row["single_usd"]}


def main(fleets: int, scale: float, limit_s: float) -> None:
    """Compare the plans of each fleet, and write the results."""
    rows = []
    for seed in range(1, fleets + 1):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(compare(Path(folder), seed, scale, limit_s))
        print(rows[-1], flush=True)
    with (HERE / f"cascades_x{scale:g}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]) if sys.argv[3:] else 60.0)
