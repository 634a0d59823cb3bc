"""Latency of the front of a search and of hand-designed networks on this CPU with TVM.

    python -m experiments.worth_it.on_cpu [--dtype float32] [--muon]
    python -m experiments.worth_it.on_cpu --front cpu_front_hour --muon --out cpu_hour

Test accuracies are known. The networks are compiled with random weights, and timed in several
passes in random order. Input and output files:

- default: ``cpu_front.csv`` and ``baselines_2.csv`` in int8, results in ``cpu.csv``;
- ``--dtype float32``: ``cpu_float32_front.csv`` and ``baselines_2.csv``, results in
  ``cpu_float32.csv``;
- ``--muon``: ``cpu_front.csv`` and ``baselines_3.csv``, whose networks were trained with Muon,
  results in ``cpu_muon.csv``.

Each non-dominated baseline is compared with the fastest member of at least its accuracy.
"""

import argparse
import csv
import random
from pathlib import Path
from typing import Any

from experiments.tvm_int8.compare_runtimes import Runtimes
from experiments.worth_it.comparison import network, print_speedups, read_verified
from hwnas.hardware.timing import Timer, TimingConfig, measure
from hwnas.models import families
from hwnas.models.graph import Signature

_HERE = Path(__file__).parent
_PASSES, _TIMING = 5, TimingConfig()
#: File of the front, column of its accuracies, and file of the results, by dtype.
_FILES = {
    "int8": ("cpu_front", "verified_accuracy_int8", "cpu"),
    "float32": ("cpu_float32_front", "verified_accuracy_fp32", "cpu_float32"),
}


def main() -> None:
    """Time all networks, write the table, and print the speedups."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=list(_FILES), default="int8")
    parser.add_argument("--muon", action="store_true", help="use the baselines trained with Muon")
    parser.add_argument("--front", help="name of another front.csv, without its suffix")
    parser.add_argument("--out", help="name of the results, without their suffix")
    arguments = parser.parse_args()
    dtype = arguments.dtype
    front, accuracy, table = _FILES[dtype]
    front = arguments.front or front
    table = arguments.out or table + "_muon" * arguments.muon
    baselines = "baselines_3" if arguments.muon else "baselines_2"
    runtimes, rows, timers = Runtimes(), list[dict[str, Any]](), list[Timer]()
    for side, name in (("front", front), ("baseline", baselines)):
        for row in read_verified(_HERE / f"{name}.csv", accuracy):
            space, genotype = network(row)
            lowered = families.family_of(space).lower(space, genotype, Signature(1, 10))
            timers.append(runtimes.timer("tvm", dtype, lowered))
            rows.append({
                "side": side, "id": row["id"], "space": space.name,
                "accuracy": float(row[accuracy]), "latency_us": 0.0,
            })  # fmt: skip
    latencies_us: list[list[float]] = [[] for _ in rows]
    for seed in range(_PASSES):
        for i in random.Random(seed).sample(range(len(rows)), len(rows)):
            latencies_us[i].append(1e3 * measure(timers[i], _TIMING).median_ms)
    for result, passes in zip(rows, latencies_us, strict=True):
        result["latency_us"] = float(f"{min(passes):.4g}")
        result["slowest_pass_us"] = float(f"{max(passes):.4g}")
    with (_HERE / f"{table}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print_speedups(rows)


if __name__ == "__main__":
    main()
