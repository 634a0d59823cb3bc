"""Search networks, plan a fleet for them, simulate failures, and replan.

    pip install -c constraints.txt -e '.[plan]' && python -m experiments.fleet.run

The commands work in a fresh clone. The steps are:

1. Search networks for handwritten digits on an NPU (Vela estimates) and on this machine's CPU
   (onnxruntime, complete networks measured). Existing runs are reused.
2. Plan ``service.yaml`` on ``fleet.yaml`` with the demand of ``trace.py``.
3. Simulate failures of the NPU and of spot machines.
4. Replan for 1.5 times the demand: once with all machines, and once after so many NPUs failed that
   one NPU of the plan is missing.

Results are written to ``results/``. ``python -m experiments.fleet.run quick`` uses few, small
networks, and writes no results.
"""

import argparse
import csv
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import hwnas
from experiments.fleet import trace
from hwnas.fleet.plan import read_plan
from hwnas.workflows.result_folders import FolderResult
from hwnas.workflows.results import SearchResult

HERE, RUNS = Path(__file__).parent, Path("runs/fleet")
RESULTS = HERE / "results"
OPTIONS: dict[str, dict[str, Any]] = {
    "npu": {"target": "npu"},
    "cpu": {
        "target": "cpu",
        "target__runtime": "onnxruntime",
        "cost": "measured",
        "table__dir": RUNS / "tables",
    },
}
QUICK = {"search_space": "tiny", "train__epochs": 6, "n_trials": 10, "finish__epochs": 2}
_TABLES = ("classes", "costs", "decisions", "failures", "limits", "plans", "pools", "sketches")
PEAKS = [13, 20]  # hours with simulated failures
_SEED, _NOISE = 1, 0.02


def load_or_search(name: str, changes: dict[str, Any]) -> SearchResult:
    """Return the run of a target; search if it does not exist."""
    folder = RUNS / name
    if (folder / "front.json").exists():
        return hwnas.load(folder)
    options = {**OPTIONS[name], "budget": "none", "n_trials": 40, "seed": 0, **changes}
    print(f"Searching on {name} takes a few minutes: {folder}", flush=True)
    return hwnas.search(**options, run__dir=folder)


def write_service(*, quick: bool) -> None:
    """Write the service next to the runs, with lower accuracy limits for small networks."""
    service = yaml.safe_load((HERE / "service.yaml").read_text())
    if quick:
        for request_class in service["classes"].values():
            request_class |= {"accuracy_min": 0.3, "degraded_accuracy": 0.25}
    (RUNS / "service.yaml").write_text(yaml.safe_dump(service, sort_keys=False))
    shutil.copy(HERE / "fleet.yaml", RUNS)
    trace.write(RUNS)


def n_failures(folder: FolderResult, name: str) -> int:
    """Return how many machines must fail so that one machine of the plan is missing."""
    plan = read_plan(folder.path)
    n_used = max(hour.machines.get(name, 0) for hour in plan.hours)
    return plan.devices[name].quota - n_used + 1


def write_telemetry(plan: FolderResult, path: Path, factor: float, failed: str = "") -> None:
    """Write telemetry of the demand times a factor, optionally with failed machines."""
    content = yaml.safe_load((plan.path / "plan.yaml").read_text())
    rng = np.random.default_rng(_SEED)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["hour", "class", "requests_per_s", "device", "machines_down"])
        for name, request_class in content["classes"].items():
            for hour, rate in enumerate(request_class["demand"]):
                observed = rate * factor * rng.lognormal(0.0, _NOISE)
                writer.writerow([hour, name, f"{observed:.1f}", "", ""])
        if failed:
            writer.writerow([0, "", "", failed, n_failures(plan, failed)])


def print_messages(title: str, result: FolderResult, start: float) -> list[str]:
    """Print and return the messages of a result, with the duration in the title."""
    lines = [f"## {title} ({time.perf_counter() - start:.0f} s)", *result.messages]
    print(*lines, sep="\n", flush=True)
    return lines


def copy_results(name: str, result: FolderResult) -> None:
    """Copy the tables and figures of a plan into ``results/``."""
    folder = RESULTS / name
    folder.mkdir(parents=True, exist_ok=True)
    for table in {*_TABLES} & {*result.tables}:
        shutil.copy(result.path / f"{table}.csv", folder)
    for figure in sorted(result.path.glob("*.png")):
        shutil.copy(figure, folder)


def main(*, quick: bool) -> None:
    """Search, plan, simulate failures, and replan."""
    for name in OPTIONS:
        load_or_search(name, QUICK if quick else {})
    write_service(quick=quick)
    start, lines = time.perf_counter(), []
    plan = hwnas.plan(RUNS / "service.yaml", RUNS / "fleet.yaml", limit_s=60, n_seeds=2)
    lines += print_messages("plan", plan, start)
    for failed in ("npu", "spot"):
        start = time.perf_counter()
        result = hwnas.simulate(plan, kill=failed, hours=PEAKS)
        lines += print_messages(f"{failed} fails", result, start)
    plans, telemetry = {"plan": plan}, RUNS / "seen.csv"
    for name, failed in (("replan", ""), ("replan_down", "npu")):
        write_telemetry(plan, telemetry, 1.5, failed)
        start = time.perf_counter()
        plans[name] = hwnas.replan(plan, telemetry, n_seeds=2)
        down = f", {n_failures(plan, failed)} {failed} down" if failed else ""
        lines += print_messages(f"1.5 times the demand{down}", plans[name], start)
    print("Open in a browser:", *(result.path / "report.html" for result in plans.values()))
    if not quick:
        for name, result in plans.items():
            copy_results(name, result)
        (RESULTS / "summary.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("size", nargs="?", choices=["quick"])
    main(quick=parser.parse_args().size == "quick")
