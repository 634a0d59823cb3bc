"""A search on a CPU without a table, and the prediction error on networks measured afterwards.

    python -m experiments.cpu_at_once.evaluate [--n 60] [--passes 4] OUT.csv

Needs an empty folder and an idle machine with a CPU other than that of the shipped table. Times
``search +target=cpu n_trials=120``, then compiles random networks of the space with the same plans,
times each in several passes, minutes apart, and compares the fastest with the table's prediction.
"""

import argparse
import csv
import json
import random
import re
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
    """Search, measure, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--n", type=int, default=60, help="networks measured afterwards")
    parser.add_argument("--passes", type=int, default=4)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        _search(Path(name))
        (folder,) = Path(name, "latency_tables", "cpu").iterdir()
        config: ProfileConfig = compose("profile", ["+target=cpu"])
        networks, _ = read_networks(config, NullProgress())
        table = load_table(folder)
        (space,) = config.spaces
        model = TableCostModel(table, config.target, networks.fused_graph, [space], "")
        rng = random.Random(2026)
        drawn = [networks.space.sample(rng) for _ in range(asked.n)]
        plans = dict(table.taken_over())
        measured = _measured(config, networks, drawn, plans, asked.passes)
    rows = [
        {"genotype": json.dumps(g.to_dict()), "measured_ms": min(ms), "passes": json.dumps(ms)}
        | _foretold(model, g)
        for g, ms in zip(drawn, measured, strict=True)
    ]
    with asked.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    _tell(rows)


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
    print(f"search of 120 ended after {time.monotonic() - start:.1f} s", flush=True)


def _measured(
    config: ProfileConfig,
    networks: Networks,
    drawn: Sequence[Genotype],
    plans: Mapping[OpSpec, str],
    n_passes: int,
) -> list[list[float]]:
    """Return the latencies of each network in ms, one per pass."""
    found: list[list[float]] = [[] for _ in drawn]
    with Worker(config.target, config.timing, config.rpc, config.tuning.limit_s) as worker:
        for number in range(n_passes):
            order = list(range(len(drawn)))
            random.Random(number).shuffle(order)
            for i in order:
                timing = worker.time_network(networks.fused_graph(drawn[i]), plans)
                found[i].append(timing.median_ms)
    return found


def _foretold(model: TableCostModel, genotype: Genotype) -> dict[str, float | None]:
    figure = model.cost(genotype).figures["latency_ms"]
    return {"foretold_ms": figure.value, "low_ms": figure.low, "high_ms": figure.high}


def _tell(rows: Sequence[dict[str, object]]) -> None:
    numbers = [
        [float(str(row[name])) for name in ("foretold_ms", "measured_ms", "low_ms", "high_ms")]
        for row in rows
    ]
    found = agreement([row[0] for row in numbers], [row[1] for row in numbers])
    worst = max(abs(value / ms - 1) for value, ms, _, _ in numbers)
    inside = sum(low <= ms <= high for _, ms, low, high in numbers) / len(numbers)
    words = re.sub(r"[{}']", "", str({name: round(value, 4) for name, value in found.items()}))
    print(f"{len(rows)} networks: {words}, worst {worst:.3f}, in their intervals {inside:.3f}")


if __name__ == "__main__":
    main()
