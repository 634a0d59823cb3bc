"""From two searches to a fleet, with one command from a fresh clone.

    pip install -c constraints.txt -e '.[plan]' && python -m experiments.fleet.run

Searches networks for handwritten digits on an NPU (Vela estimates) and on this machine's CPU
(onnxruntime, complete networks measured), plans for the service and the fleet of this folder with
the demand of ``trace.py``, simulates failures, and replans for 1.5 times the demand, with all
machines and with one NPU less than running. Existing runs are reused; the results are written to
``results/``.
``python -m experiments.fleet.run quick`` uses few, small networks, and writes no results.
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
_KEPT = ("classes", "costs", "decisions", "failures", "limits", "plans", "pools", "sketches")
PEAKS = [13, 20]  # hours with simulated failures
_SEED, _NOISE = 1, 0.02


def searched(name: str, more: dict[str, Any]) -> SearchResult:
    """Return the run of a target; search if it does not exist."""
    folder = RUNS / name
    if (folder / "front.json").exists():
        return hwnas.load(folder)
    options = {**OPTIONS[name], "budget": "none", "n_trials": 40, "seed": 0, **more}
    print(f"Searching on {name}, a few minutes: {folder}", flush=True)
    return hwnas.search(**options, run__dir=folder)


def write_service(*, quick: bool) -> None:
    """Write the service next to the runs, with a lower demand for small networks."""
    asked = yaml.safe_load((HERE / "service.yaml").read_text())
    if quick:
        for each in asked["classes"].values():
            each |= {"accuracy_min": 0.3, "degraded_accuracy": 0.25}
    (RUNS / "service.yaml").write_text(yaml.safe_dump(asked, sort_keys=False))
    shutil.copy(HERE / "fleet.yaml", RUNS)
    trace.write(RUNS)


def down(plan: FolderResult, name: str) -> int:
    """Return how many machines must fail so that one running machine is missing."""
    found = read_plan(plan.path)
    most = max(hour.machines.get(name, 0) for hour in found.hours)
    return found.devices[name].quota - most + 1


def write_telemetry(plan: FolderResult, path: Path, factor: float, without: str = "") -> None:
    """Write telemetry of the demand times a factor, optionally with failed machines."""
    said = yaml.safe_load((plan.path / "plan.yaml").read_text())
    rng = np.random.default_rng(_SEED)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["hour", "class", "requests_per_s", "device", "machines_down"])
        for name, asked in said["classes"].items():
            for hour, rate in enumerate(asked["demand"]):
                seen = rate * factor * rng.lognormal(0.0, _NOISE)
                writer.writerow([hour, name, f"{seen:.1f}", "", ""])
        if without:
            writer.writerow([0, "", "", without, down(plan, without)])


def told(name: str, found: FolderResult, began: float) -> list[str]:
    """Return the output of a plan or simulation, with its duration in seconds."""
    lines = [f"## {name} ({time.perf_counter() - began:.0f} s)", *found.messages]
    print(*lines, sep="\n", flush=True)
    return lines


def keep(name: str, found: FolderResult) -> None:
    """Copy the tables and pictures of a plan into the results."""
    folder = RESULTS / name
    folder.mkdir(parents=True, exist_ok=True)
    for table in {*_KEPT} & {*found.tables}:
        shutil.copy(found.path / f"{table}.csv", folder)
    for picture in sorted(found.path.glob("*.png")):
        shutil.copy(picture, folder)


def main(*, quick: bool) -> None:
    """Search, plan, simulate failures, and replan."""
    for name in OPTIONS:
        searched(name, QUICK if quick else {})
    write_service(quick=quick)
    began, lines = time.perf_counter(), []
    plan = hwnas.plan(RUNS / "service.yaml", RUNS / "fleet.yaml", limit_s=60, n_seeds=2)
    lines += told("plan", plan, began)
    for what in ("npu", "spot"):
        began = time.perf_counter()
        lines += told(f"{what} fails", hwnas.simulate(plan, kill=what, hours=PEAKS), began)
    plans = {"plan": plan}
    for name, without in (("replan", ""), ("replan_down", "npu")):
        write_telemetry(plan, RUNS / "seen.csv", 1.5, without)
        began = time.perf_counter()
        plans[name] = hwnas.replan(plan, RUNS / "seen.csv", n_seeds=2)
        words = f", {down(plan, without)} {without} down" if without else ""
        lines += told(f"1.5 times the demand{words}", plans[name], began)
    print("Open in a browser:", *(found.path / "report.html" for found in plans.values()))
    if not quick:
        for name, found in plans.items():
            keep(name, found)
        (RESULTS / "summary.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("size", nargs="?", choices=["quick"])
    main(quick=parser.parse_args().size == "quick")
