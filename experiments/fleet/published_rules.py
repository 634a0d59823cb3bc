"""Plans of hwnas compared with published rules for the rate of a replica.

    python -m experiments.fleet.published_rules FLEETS [TRACE.csv ...]

hwnas uses simulated goodputs. L(b) is the latency of a batch of b requests. A rule selects the
largest batch that meets a condition on the latency limit of the class:

- Proteus (algorithms/ilp.py of UMass-LIDS/Proteus): L(b) is below the limit. The rate is b / L(b).
- IPA (optimizer/optimizer.py of reconfigurable-ml-pipeline/ipa): L(b) + (b - 1) / rate is below
  the limit. At the rate b / L(b) this sum is L(b) (2 b - 1) / b.

Both rules use the integer program of hwnas. Their rates are multiplied by a factor, the same for
all pools. All plans are simulated with five seeds not used in planning. The fleets are generated,
with Poisson arrivals and with those of each trace. Results in ``rules.csv`` are not computed again:
delete their rows to repeat them.
"""

import csv
import itertools
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.fleet import generated
from hwnas.core.progress import NullProgress
from hwnas.fleet import planner, simulation
from hwnas.fleet.placements import Placement, ServingConfig, service_times
from hwnas.fleet.plan import DeploymentPlan
from hwnas.fleet.plan_conversion import to_plan
from hwnas.fleet.problem import PlanningProblem, read_problem
from hwnas.fleet.solver import solve_task
from hwnas.fleet.task import PlanningTask

HERE = Path(__file__).parent
SEEDS = range(100, 105)
FACTORS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
LIMIT_S = 20.0


def apply_rule(
    problem: PlanningProblem, placement: Placement, rule: str, factor: float
) -> Placement:
    """Return a placement with the replica rate of a rule, times a factor."""
    name = problem.devices[placement.device][0]
    latencies = problem.catalogue.on(problem.fleet, name, placement.model)
    upper = {batch: latency.upper for batch, latency in latencies.items()}
    best = 0.0, 1
    for batch in upper:
        batch_ms = float(service_times(upper, batch)[-1]) * 1e3
        worst_ms = batch_ms if rule == "proteus" else batch_ms * (2 * batch - 1) / batch
        if worst_ms < placement.limit_ms:
            best = max(best, (batch / batch_ms * 1e3 * factor, batch))
    rate, batch = best
    configs = (ServingConfig(batch, 0.0, 1, rate, rate),) if rate else placement.configs[:1]
    return replace(placement, configs=configs)


def max_late_fraction(problem: PlanningProblem, plan: DeploymentPlan) -> float:
    """Return the largest fraction of late requests of a class in an hour, over five seeds."""
    setup = simulation.SimulationSetup(planner.arrivals_by_class(problem))
    hours = simulation.simulate(plan, setup, [*SEEDS], NullProgress())
    return max(statistics.late for hour in hours for statistics in hour.classes.values())


def without_cascades(task: PlanningTask) -> PlanningTask:
    """Return the task with single models only."""
    options = task.choices.options
    single = options.only((options.second < 0).nonzero()[0])
    return replace(task, choices=replace(task.choices, options=single))


def plan_with_goodputs(task: PlanningTask) -> Iterator[dict[str, Any]]:
    """Yield a row for the plan of hwnas, and one for its plan with single models only."""
    for rule, variant in (("ours", task), ("ours, single models", without_cascades(task))):
        plan = planner.plan_task(variant, LIMIT_S, [0, 1, 2, 3], NullProgress()).plan
        yield _row(rule, 1.0, plan, max_late_fraction(task.problem, plan))


def plan_with_rules(task: PlanningTask) -> Iterator[dict[str, Any]]:
    """Yield a row for each rule and factor, down to the first factor without late classes."""
    problem, choices = task.problem, task.choices
    for rule in ("proteus", "ipa"):
        for factor in FACTORS:
            placements = tuple(apply_rule(problem, p, rule, factor) for p in choices.placements)
            variant = PlanningTask(problem, replace(choices, placements=placements), "cost")
            solution = solve_task(variant, LIMIT_S, NullProgress())
            plan = to_plan(solution)
            late = max_late_fraction(problem, plan) if solution.serves else 1.0
            yield _row(rule, factor, plan, late)
            if late <= simulation.LATE or not solution.serves:
                break


def _row(rule: str, factor: float, plan: DeploymentPlan, late: float) -> dict[str, Any]:
    return {"rule": rule, "factor": factor, "cost": plan.value, "late": late, "gap": plan.gap}


def planning_task(seed: int, trace: str | None) -> PlanningTask:
    """Return the task of a generated fleet, with Poisson arrivals or those of a trace."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generated.write(folder, seed=seed, n_models=8, scale=0.3, hours=3, trace=trace)
        problem = read_problem(folder / "service.yaml", folder / "fleet.yaml")
    return PlanningTask(problem, planner.read_choices(problem, NullProgress()), "cost")


def main(fleets: int, traces: list[str]) -> None:
    """Compare on fleets, each with Poisson arrivals and with each trace."""
    path = HERE / "rules.csv"
    rows: list[dict[str, Any]] = [*csv.DictReader(path.open())] if path.exists() else []
    for seed, trace in itertools.product(range(1, fleets + 1), [None, *traces]):
        key = {"fleet": str(seed), "trace": Path(trace).stem if trace else "Poisson"}
        known = {row["rule"] for row in rows if key.items() <= row.items()}
        missing = [method for method, last in _LAST_RULES.items() if last not in known]
        task = planning_task(seed, trace) if missing else None
        for method in missing:
            assert task is not None
            new = [key | row for row in method(task)]
            rows = sorted([*rows, *new], key=lambda row: int(row["fleet"]))
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, [*rows[0]], lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
            for row in new:
                print(row, flush=True)


#: The rule in the last row of each method.
_LAST_RULES = {plan_with_goodputs: "ours, single models", plan_with_rules: "ipa"}


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
