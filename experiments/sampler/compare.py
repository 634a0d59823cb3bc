"""Compare samplers on a benchmark table by the hypervolume relative to the exact front.

    python experiments/sampler/compare.py FILE.parquet --genotype edge_0 edge_1 --accuracy COLUMN
        --costs latency_a latency_b --samplers pareto nsga2 tpe gp random --seeds 10
        --trials 200 --at 25 50 100 200 --worst-accuracy 60 --out results.csv

Each column of ``--costs`` is a device with separate searches. Prints, for each sampler and device,
the mean over seeds with a 95 % bootstrap interval, the coverage of the sampler's predicted 95 %
intervals, and the seconds per proposal.
"""

import argparse
import csv
import itertools
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from hwnas.core.progress import NullProgress
from hwnas.nas import benchmark_table, loop
from hwnas.nas.explanation import n_within_intervals
from hwnas.nas.options import BenchmarkConfig, SamplerConfig
from hwnas.nas.study import LocalStudy, study_in_file
from hwnas.tasks.metrics.budget import Budget

_STARTUP = {"pareto": 10}  # as in conf/sampler


def main() -> None:
    """Run all searches, then print and store their results."""
    arguments = _parse()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    tasks = list(itertools.product(arguments.samplers, arguments.costs, seeds))
    rows = []
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for row in pool.imap(partial(_run, arguments), tasks):
            rows.append(row)
            if arguments.out:
                _write(Path(arguments.out), rows)
    for sampler, device in itertools.product(arguments.samplers, arguments.costs):
        matching = [r for r in rows if (r["sampler"], r["device"]) == (sampler, device)]
        cells = [f"{n}: {_interval([float(r[f'at_{n}']) for r in matching])}" for n in arguments.at]
        seconds = statistics.median(float(r["seconds_a_proposal"]) for r in matching)
        print(
            f"{sampler:<8} {device:<26} {'  '.join(cells)}  {_coverage(matching)}  {seconds:.3f} s"
        )
    for sampler in arguments.samplers:
        cells = []
        matching = [r for r in rows if r["sampler"] == sampler]
        for n in arguments.at:
            values = [float(r[f"at_{n}"]) for r in matching]
            cells.append(f"{n}: {_interval(values)}, lowest {min(values):.3f}")
        print(f"{sampler:<8} all  {'  '.join(cells)}  {_coverage(matching)}")


def _run(arguments: argparse.Namespace, task: tuple[str, str, int]) -> dict[str, str]:
    name, device, seed = task
    reference = {} if arguments.worst_accuracy is None else {"accuracy": arguments.worst_accuracy}
    config = BenchmarkConfig(
        arguments.table, arguments.genotype, arguments.accuracy, {"latency_ms": device},
        reference=reference,
    )  # fmt: skip
    benchmark = benchmark_table.load_benchmark(config)
    problem = loop.SearchProblem(benchmark.space, Budget(), benchmark, benchmark)
    sampler = SamplerConfig(name, n_startup_trials=arguments.startup or _STARTUP.get(name, 20))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "study.db")
        study = LocalStudy(path, benchmark.space, benchmark.names)
        start = time.perf_counter()
        candidates = loop.run_trials(
            problem, study, sampler, seed, arguments.trials, NullProgress()
        )
        elapsed_s = time.perf_counter() - start
        study.close()
        proposals = study_in_file(path).read().proposals
        n_within, n_intervals = n_within_intervals(candidates, proposals)
    genotypes = [candidate.genotype for candidate in candidates]
    row = {"sampler": name, "device": device, "seed": str(seed)}
    row |= {"kept": str(n_within), "intervals": str(n_intervals)}
    row |= {f"at_{n}": f"{benchmark.share(genotypes[:n], config):.5f}" for n in arguments.at}
    return row | {"seconds_a_proposal": f"{elapsed_s / arguments.trials:.4f}"}


def _interval(values: Sequence[float]) -> str:
    """Return the mean and its 95 % bootstrap interval as text."""
    rng = np.random.default_rng(0)
    means = rng.choice(values, (4000, len(values))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{statistics.mean(values):.4f} ({low:.4f}, {high:.4f})"


def _coverage(rows: Sequence[dict[str, str]]) -> str:
    """Return the coverage of the predicted 95 % intervals as text."""
    n = sum(int(row["intervals"]) for row in rows)
    return f"coverage {sum(int(row['kept']) for row in rows) / n:.1%}" if n else "no intervals"


def _write(path: Path, rows: Sequence[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("table", help="a Parquet or CSV file")
    parser.add_argument("--genotype", nargs="+", required=True, metavar="COLUMN")
    parser.add_argument("--accuracy", default="accuracy", metavar="COLUMN")
    parser.add_argument("--costs", nargs="+", required=True, metavar="COLUMN")
    parser.add_argument("--samplers", nargs="+", default=["pareto", "nsga2", "random"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--at", nargs="+", type=int, default=[25, 50, 100, 200])
    parser.add_argument("--startup", type=int, help="initial trials; default: as configured")
    parser.add_argument("--worst-accuracy", type=float, help="accuracy of the reference point")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", help="a CSV file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
