"""Time a search on a CPU without a latency table, and compute its prediction error.

    python -m experiments.cpu_at_once.evaluate [--n 60] [--passes 4] OUT.csv

Requires an empty folder and an idle machine. Its CPU must differ from that of the shipped table.
Times ``search +target=cpu n_trials=120``. Then compiles random networks of the space with the same
plans and times them in several passes, minutes apart. The fastest pass of each network is compared
with the prediction of the table.
"""

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hwnas.core.agreement import agreement
from hwnas.core.progress import NullProgress
from hwnas.hardware.costs.table_cost import TableCostModel
from hwnas.hardware.latency_tables.latency_table import load_table
from hwnas.hardware.runtimes.worker import Worker
from hwnas.models.graph import OpSpec
from hwnas.models.spaces import Genotype
from hwnas.workflows.config import ProfileConfig
from hwnas.workflows.config.compose import compose
from hwnas.workflows.networks import Networks, read_networks

_SEARCH = ("search", "+target=cpu", "n_trials=120", "run.dir=run")


def main() -> None:
    """Run the search, measure random networks, and write and print the prediction errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="a CSV file")
    parser.add_argument("--n", type=int, default=60, help="networks measured after the search")
    parser.add_argument("--passes", type=int, default=4, help="measurements of each network")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        _search(Path(name))
        (folder,) = Path(name, "latency_tables", "cpu").iterdir()
        config: ProfileConfig = compose("profile", ["+target=cpu"])
        networks, _ = read_networks(config, NullProgress())
        table = load_table(folder)
        (space,) = config.spaces
        model = TableCostModel(table, config.target, networks.fused_graph, [space], "")
        rng = random.Random(2026)
        genotypes = [networks.space.sample(rng) for _ in range(arguments.n)]
        plans = dict(table.transferred_plans())
        latencies = _measure(config, networks, genotypes, plans, arguments.passes)
    rows = [
        {"genotype": json.dumps(g.to_dict()), "measured_ms": min(ms), "passes": json.dumps(ms)}
        | _predict(model, g)
        for g, ms in zip(genotypes, latencies, strict=True)
    ]
    with arguments.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    _print_errors(rows)


def _search(folder: Path) -> None:
    """Run a search with its defaults; print the time until the first costs and the total time."""
    start = time.monotonic()
    command = [sys.executable, "-m", "hwnas", *_SEARCH]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    while process.poll() is None and not (folder / "run" / "manifest.json").exists():
        time.sleep(0.1)
    print(f"costs available after {time.monotonic() - start:.1f} s", flush=True)
    if process.wait():
        sys.exit("the search failed")
    print(f"search of 120 trials ended after {time.monotonic() - start:.1f} s", flush=True)


def _measure(
    config: ProfileConfig,
    networks: Networks,
    genotypes: Sequence[Genotype],
    plans: Mapping[OpSpec, str],
    n_passes: int,
) -> list[list[float]]:
    """Return the latencies of each network in ms, one per pass."""
    latencies: list[list[float]] = [[] for _ in genotypes]
    with Worker(config.target, config.timing, config.rpc, config.tuning.limit_s) as worker:
        for number in range(n_passes):
            order = list(range(len(genotypes)))
            random.Random(number).shuffle(order)
            for i in order:
                timing = worker.time_network(networks.fused_graph(genotypes[i]), plans)
                latencies[i].append(timing.median_ms)
    return latencies


def _predict(model: TableCostModel, genotype: Genotype) -> dict[str, float | None]:
    figure = model.cost(genotype).figures["latency_ms"]
    return {"foretold_ms": figure.value, "low_ms": figure.low, "high_ms": figure.high}


def _print_errors(rows: Sequence[dict[str, object]]) -> None:
    predicted, measured, low, high = (
        [float(str(row[name])) for row in rows]
        for name in ("foretold_ms", "measured_ms", "low_ms", "high_ms")
    )
    metrics = agreement(predicted, measured)
    metrics_text = ", ".join(f"{name}: {round(value, 4)}" for name, value in metrics.items())
    largest = max(abs(p / m - 1) for p, m in zip(predicted, measured, strict=True))
    coverage = sum(a <= m <= b for a, m, b in zip(low, measured, high, strict=True)) / len(rows)
    print(
        f"{len(rows)} networks: {metrics_text}, largest error {largest:.3f}, "
        f"interval coverage {coverage:.3f}"
    )


if __name__ == "__main__":
    main()
