"""Fraction of the exact hypervolume that ``sampler=pareto`` reaches in a benchmark table.

    python -m benchmarks.sampler nb201_cifar10.parquet [--seeds 2] [--trials 50] [--jobs 1]
        [--check] [--record]

A search knows the latency of all cells on one device and evaluates their accuracy. There are three
variants of the latencies:

- ``plain``: as in the table.
- ``subtracted``: minus 99 % of the lowest latency, so that the range exceeds a factor of 100.
- ``folded``: a ten-thousandth of the highest latency for cells without a path from input to output,
  because compilers remove such cells.

The script prints a value for each device and variant: the mean over seeds, over reference points of
60 and 80 % accuracy, and over latencies and their logarithms. ``--check`` exits with 1 if a value
is more than 0.01 below ``sampler.csv``. ``--record`` replaces that file.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import csv
import itertools
import multiprocessing
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import optuna
import pyarrow.parquet as pq
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution

from hwnas.core.pareto import hypervolume, non_dominated
from hwnas.nas.pareto.features import Assignment
from hwnas.nas.pareto.sampler import ParetoSampler

Array = NDArray[np.float64]
Task = tuple[str, str, int]  # device, variant, seed

RECORDED = Path(__file__).with_suffix(".csv")
_LATENCY, _ACCURACY = "latency_ms_", "test_accuracy"
_EDGES = [f"edge_{i}" for i in range(6)]
_VARIANTS = "plain", "subtracted", "folded"
_REFERENCES = 60.0, 80.0  # accuracy in per cent
_TOLERANCE = 0.01


def main() -> int:
    """Run the searches, print the means, and compare them with the recorded means."""
    arguments = _parse_arguments()
    devices = [c for c in pq.read_schema(arguments.table).names if c.startswith(_LATENCY)]
    groups = [*itertools.product(devices, _VARIANTS)]
    tasks = [(*group, seed) for group in groups for seed in range(arguments.seeds)]
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        search = partial(_search, arguments.table, arguments.trials)
        fractions = pool.map(search, tasks, chunksize=1)
    means = np.mean(np.reshape(fractions, (len(groups), arguments.seeds)), axis=1)
    results = {(d.removeprefix(_LATENCY), v): m for (d, v), m in zip(groups, means, strict=True)}
    recorded = _read_recorded()
    for (device, variant), mean in results.items():
        recorded_mean = recorded.get((device, variant))
        print(f"{device:<16}{variant:<12}{mean:.4f}   recorded {recorded_mean}")
    print(f"mean {means.mean():.4f}")
    if arguments.record:
        rows = [f"{device},{variant},{mean:.4f}" for (device, variant), mean in results.items()]
        RECORDED.write_text("\n".join(["device,variant,share", *rows, ""]), encoding="utf-8")
    decreased = [g for g, mean in results.items() if mean < recorded.get(g, 0.0) - _TOLERANCE]
    if arguments.check and decreased:
        print(f"more than {_TOLERANCE} below {RECORDED.name}: {decreased}", file=sys.stderr)
    return int(arguments.check and bool(decreased))


def _search(table: Path, n_trials: int, task: Task) -> float:
    """Return the fraction of the hypervolume that one search reaches."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    device, variant, seed = task
    rows = pq.read_table(table)
    cells = list(zip(*(rows[edge].to_pylist() for edge in _EDGES), strict=True))
    cell_index = {cell: i for i, cell in enumerate(cells)}
    accuracy, latency = (
        rows[_ACCURACY].to_numpy(),
        _latency(rows[device].to_numpy(), cells, variant),
    )
    operations = sorted({operation for cell in cells for operation in cell})
    choices = dict.fromkeys(_EDGES, CategoricalDistribution(operations))

    def index(assignment: Assignment) -> int:
        return cell_index[tuple(assignment[edge] for edge in _EDGES)]

    def costs(assignments: Sequence[Assignment]) -> Array:
        return latency[[index(assignment) for assignment in assignments], None]

    study = optuna.create_study(
        directions=["maximize", "minimize"],
        sampler=ParetoSampler(costs, seed=seed, search_space=choices),
    )
    evaluated = []
    for _ in range(n_trials):
        trial = study.ask(dict(choices))
        evaluated.append(index(trial.params))
        study.tell(trial, [accuracy[evaluated[-1]], latency[evaluated[-1]]])
    scales = latency, np.log(latency)
    return float(
        np.mean([_fraction(accuracy, x, evaluated, r) for x in scales for r in _REFERENCES])
    )


def _latency(latency: Array, cells: Sequence[Sequence[str]], variant: str) -> Array:
    if variant == "subtracted":
        return np.asarray(latency - 0.99 * latency.min())
    if variant == "folded":
        return np.where([_is_connected(cell) for cell in cells], latency, latency.max() / 1e4)
    return latency


def _is_connected(cell: Sequence[str]) -> bool:
    """Return whether a path leads from the input of a cell, node 0, to its output, node 3."""
    a, b, c, d, e, f = (operation != "none" for operation in cell)  # 01, 02, 12, 03, 13, 23
    return d or (a and e) or ((b or (a and c)) and f)


def _fraction(accuracy: Array, latency: Array, evaluated: Sequence[int], reference: float) -> float:
    """Return the hypervolume of evaluated cells relative to the exact front."""
    points, maximise = np.column_stack([accuracy, latency]), [True, False]
    limits = [reference, float(latency.max())]

    def volume(values: Array) -> float:
        inside = (values[:, 0] > limits[0]) & (values[:, 1] < limits[1])
        return hypervolume(values[inside], limits, maximise) if inside.any() else 0.0

    return volume(points[list(evaluated)]) / volume(points[non_dominated(points, maximise)])


def _read_recorded() -> dict[tuple[str, str], float]:
    if not RECORDED.exists():
        return {}
    with RECORDED.open(encoding="utf-8", newline="") as file:
        return {(r["device"], r["variant"]): float(r["share"]) for r in csv.DictReader(file)}


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("table", type=Path, help="NAS-Bench-201 as a Parquet file")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--check", action="store_true", help="fail if a mean is lower than recorded"
    )
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.name}")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
