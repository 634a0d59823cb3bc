"""Plans by simulated goodputs against plans by the rules of papers, on made-up fleets and traces.

    python -m experiments.fleet.rules FLEETS [TRACE.csv ...]

Proteus (algorithms/ilp.py of UMass-LIDS/Proteus): a replica takes b / L(b) of the largest batch
with L(b) below the limit. IPA (optimizer/optimizer.py of reconfigurable-ml-pipeline/ipa): of the
largest with L(b) + (b - 1) / rate below it, which at that rate is L(b) (2 b - 1) / b. Both are
solved by the same program, times a factor for all pools, and simulated with five seeds that
planning has not seen. What ``rules.csv`` has of a fleet and a trace is not run again.
"""

import csv
import itertools
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.fleet import made
from hwnas.planning import planner, simulation
from hwnas.planning.goodput import service_times
from hwnas.planning.plan import Plan
from hwnas.planning.problem import Problem, read_problem
from hwnas.planning.solving import solution
from hwnas.planning.stations import Station, Variant
from hwnas.planning.task import Task
from hwnas.planning.writing import as_plan
from hwnas.progress import Silent

HERE = Path(__file__).parent
SEEDS = range(100, 105)
FACTORS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
LIMIT_S = 20.0


def by_rule(problem: Problem, station: Station, rule: str, factor: float) -> Station:
    """Return a station with the rate that a rule gives its replicas."""
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
    variants = (Variant(batch, 0.0, 1, rate, rate),) if rate else station.variants[:1]
    return replace(station, variants=variants)


def late(problem: Problem, plan: Plan) -> float:
    """Return the largest share of late requests of a class in an hour, over five seeds."""
    scene = simulation.Scene(planner.arrivals(problem))
    seen = simulation.simulate(plan, scene, [*SEEDS], Silent())
    return max(c.late for each in seen for c in each.classes.values())


def _called(trace: str | None) -> str:
    return Path(trace).stem if trace else "Poisson"


def compared(folder: Path, seed: int, trace: str | None) -> list[dict[str, Any]]:
    """Return a row for our plan and for each rule at each factor, on one fleet."""
    rows = []
    made.write(folder, seed=seed, n_models=8, scale=0.3, hours=3, trace=trace)
    problem = read_problem(folder / "service.yaml", folder / "fleet.yaml")
    choices = planner.choices_of(problem, Silent())
    task = Task(problem, choices, "cost")
    about = {"fleet": seed, "trace": _called(trace)}
    ours = planner.planned_of(task, LIMIT_S, [0, 1, 2, 3], Silent())
    rows.append({**about, "rule": "ours", "factor": 1.0, "cost": ours.plan.value,
                 "late": late(problem, ours.plan), "gap": ours.plan.gap})  # fmt: skip
    single = choices.options.only((choices.options.second < 0).nonzero()[0])
    alone = replace(task, choices=replace(choices, options=single))
    without = planner.planned_of(alone, LIMIT_S, [0, 1, 2, 3], Silent())
    rows.append({**about, "rule": "ours, single models", "factor": 1.0, "cost": without.plan.value,
                 "late": late(problem, without.plan), "gap": without.plan.gap})  # fmt: skip
    for rule in ("proteus", "ipa"):
        for factor in FACTORS:
            stations = tuple(by_rule(problem, s, rule, factor) for s in choices.stations)
            found = solution(
                Task(problem, replace(choices, stations=stations), "cost"), LIMIT_S, Silent()
            )
            plan = as_plan(found)
            rows.append({**about, "rule": rule, "factor": factor, "cost": plan.value,
                         "late": late(problem, plan) if found.serves else 1.0,
                         "gap": plan.gap})  # fmt: skip
            if rows[-1]["late"] <= simulation.LATE or not found.serves:
                break
    return rows


def main(fleets: int, traces: list[str]) -> None:
    """Compare on fleets, each with Poisson's arrivals and with each trace."""
    file = HERE / "rules.csv"
    rows: list[dict[str, Any]] = [*csv.DictReader(file.open())] if file.exists() else []
    done = {(int(row["fleet"]), row["trace"]) for row in rows if row["rule"] == "ipa"}
    for seed, trace in itertools.product(range(1, fleets + 1), [None, *traces]):
        if (seed, _called(trace)) in done:
            continue
        with tempfile.TemporaryDirectory() as folder:
            found = compared(Path(folder), seed, trace)
        others = [r for r in rows if (int(r["fleet"]), r["trace"]) != (seed, _called(trace))]
        rows = [*others, *found]
        with file.open("w", newline="") as written:
            writer = csv.DictWriter(written, [*rows[0]], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        for row in found:
            print(row, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
