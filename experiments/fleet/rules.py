"""Plans by simulated goodputs compared with published rules, on generated fleets and traces.

    python -m experiments.fleet.rules FLEETS [TRACE.csv ...]

Proteus (algorithms/ilp.py of UMass-LIDS/Proteus): the rate of a replica is b / L(b) of the largest
batch with L(b) below the limit. IPA (optimizer/optimizer.py of reconfigurable-ml-pipeline/ipa): of
the largest with L(b) + (b - 1) / rate below it, which at that rate is L(b) (2 b - 1) / b. Both use
the same integer program, times a factor for all pools, and are simulated with five seeds not used
in planning. Fleets and traces in ``rules.csv`` are not run again: delete their rows to repeat them.
"""

import csv
import itertools
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.fleet import made
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


def by_rule(problem: PlanningProblem, station: Placement, rule: str, factor: float) -> Placement:
    """Return a placement with the replica rate of a rule."""
    name = problem.devices[station.device][0]
    timed = problem.catalogue.on(problem.fleet, name, station.model)
    upper = {b: f.upper for b, f in timed.items()}
    best = 0.0, 1
    for batch in upper:
        whole = float(service_times(upper, batch)[-1]) * 1e3
        worst = whole if rule == "proteus" else whole * (2 * batch - 1) / batch
        if worst < station.limit_ms:
            best = max(best, (batch / whole * 1e3 * factor, batch))
    rate, batch = best
    configs = (ServingConfig(batch, 0.0, 1, rate, rate),) if rate else station.configs[:1]
    return replace(station, configs=configs)


def late(problem: PlanningProblem, plan: DeploymentPlan) -> float:
    """Return the largest fraction of late requests of a class in an hour, over five seeds."""
    scene = simulation.SimulationSetup(planner.arrivals_by_class(problem))
    seen = simulation.simulate(plan, scene, [*SEEDS], NullProgress())
    return max(c.late for each in seen for c in each.classes.values())


def _called(trace: str | None) -> str:
    return Path(trace).stem if trace else "Poisson"


def ours(task: PlanningTask) -> Iterator[dict[str, Any]]:
    """Yield a row for the plan of hwnas, and one for its plan with single models only."""
    options = task.choices.options
    single = replace(task.choices, options=options.only((options.second < 0).nonzero()[0]))
    for rule, of in (("ours", task), ("ours, single models", replace(task, choices=single))):
        plan = planner.plan_task(of, LIMIT_S, [0, 1, 2, 3], NullProgress()).plan
        yield _row(rule, 1.0, plan, late(task.problem, plan))


def theirs(task: PlanningTask) -> Iterator[dict[str, Any]]:
    """Yield a row for each rule at each factor, down to the first that is not late."""
    problem, choices = task.problem, task.choices
    for rule in ("proteus", "ipa"):
        for factor in FACTORS:
            placements = tuple(by_rule(problem, s, rule, factor) for s in choices.placements)
            of = PlanningTask(problem, replace(choices, placements=placements), "cost")
            found = solve_task(of, LIMIT_S, NullProgress())
            plan = to_plan(found)
            share = late(problem, plan) if found.serves else 1.0
            yield _row(rule, factor, plan, share)
            if share <= simulation.LATE or not found.serves:
                break


def _row(rule: str, factor: float, plan: DeploymentPlan, share: float) -> dict[str, Any]:
    return {"rule": rule, "factor": factor, "cost": plan.value, "late": share, "gap": plan.gap}


def task_of(seed: int, trace: str | None) -> PlanningTask:
    """Return a generated fleet with Poisson arrivals or those of a trace."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made.write(folder, seed=seed, n_models=8, scale=0.3, hours=3, trace=trace)
        problem = read_problem(folder / "service.yaml", folder / "fleet.yaml")
    return PlanningTask(problem, planner.read_choices(problem, NullProgress()), "cost")


def main(fleets: int, traces: list[str]) -> None:
    """Compare on fleets, each with Poisson arrivals and with each trace."""
    file = HERE / "rules.csv"
    rows: list[dict[str, Any]] = [*csv.DictReader(file.open())] if file.exists() else []
    for seed, trace in itertools.product(range(1, fleets + 1), [None, *traces]):
        about = {"fleet": str(seed), "trace": _called(trace)}
        known = {row["rule"] for row in rows if about.items() <= row.items()}
        wanted = [of for of, last in _LAST.items() if last not in known]
        task = task_of(seed, trace) if wanted else None
        for of in wanted:
            assert task is not None
            found = [about | row for row in of(task)]
            rows = sorted([*rows, *found], key=lambda row: int(row["fleet"]))
            with file.open("w", newline="") as written:
                writer = csv.DictWriter(written, [*rows[0]], lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
            for row in found:
                print(row, flush=True)


_LAST = {ours: "ours, single models", theirs: "ipa"}  #: rule of the last row of each


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
