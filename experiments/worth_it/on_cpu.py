"""Latency of the front of a search and of hand-designed networks on this CPU with TVM.

python -m experiments.worth_it.on_cpu [--dtype float32] [--muon]

Networks of both sides, with known test accuracies, are compiled with random weights and timed in
several passes in random order: ``cpu.csv`` from ``cpu_front.csv`` in int8, ``cpu_float32.csv`` from
``cpu_float32_front.csv``, both with ``baselines_2.csv``; with ``--muon`` ``cpu_muon.csv`` from
``cpu_front.csv`` with ``baselines_3.csv``, which were trained with Muon. Each non-dominated
baseline is compared with the fastest member of at least its accuracy.
"""

import argparse
import csv
import random
from pathlib import Path
from typing import Any

from experiments.tvm_int8.in_turns import Lab
from experiments.worth_it.sides import network, told, verified
from hwnas.hardware.timing import Timer, TimingConfig, measure
from hwnas.models import families
from hwnas.models.graph import Signature

_HERE = Path(__file__).parent
_PASSES, _TIMING = 5, TimingConfig()
#: The front, the column of accuracies, and the table, by number format.
_FILES = {
    "int8": ("cpu_front", "verified_accuracy_int8", "cpu"),
    "float32": ("cpu_float32_front", "verified_accuracy_fp32", "cpu_float32"),
}


def main() -> None:
    """Time all networks, write the table, and print the ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=list(_FILES), default="int8")
    parser.add_argument("--muon", action="store_true", help="use the baselines trained with Muon")
    arguments = parser.parse_args()
    dtype = arguments.dtype
    front, accuracy, table = _FILES[dtype]
    table += "_muon" * arguments.muon
    baselines = "baselines_3" if arguments.muon else "baselines_2"
    lab, rows, timers = Lab(), list[dict[str, Any]](), list[Timer]()
    for side, file in (("front", front), ("baseline", baselines)):
        for row in verified(_HERE / f"{file}.csv", accuracy):
            searched, genotype = network(row)
            lowered = families.family_of(searched).lower(searched, genotype, Signature(1, 10))
            timers.append(lab.timer("tvm", dtype, lowered))
            rows.append({
                "side": side, "id": row["id"], "space": searched.name,
                "accuracy": float(row[accuracy]), "latency_us": 0.0,
            })  # fmt: skip
    found: list[list[float]] = [[] for _ in rows]
    for number in range(_PASSES):
        for i in random.Random(number).sample(range(len(rows)), len(rows)):
            found[i].append(1e3 * measure(timers[i], _TIMING).median_ms)
    for result, times in zip(rows, found, strict=True):
        result["latency_us"] = float(f"{min(times):.4g}")
        result["slowest_pass_us"] = float(f"{max(times):.4g}")
    with (_HERE / f"{table}.csv").open("w", encoding="utf-8", newline="") as file_:
        writer = csv.DictWriter(file_, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    told(rows)


if __name__ == "__main__":
    main()
