"""How fast the front of a search and hand-made networks are on this CPU, in int8 by TVM.

python -m experiments.worth_it.on_cpu

Networks of ``cpu_front.csv`` and ``baselines_2.csv``, whose accuracies on the test split are known,
are compiled with stand-in weights and timed in several passes of random order: ``cpu.csv``. At each
accuracy of a baseline that none is ahead of, it is held against the fastest member as accurate.
"""

import csv
import random
from pathlib import Path
from typing import Any

from experiments.tvm_int8.in_turns import Lab
from experiments.worth_it.sides import network, told, verified
from hwnas import families
from hwnas.op import Signature
from hwnas.timing import Timer, TimingConfig, measure

_HERE = Path(__file__).parent
_PASSES, _TIMING = 5, TimingConfig()


def main() -> None:
    """Time all, write the table, and print the ratios."""
    lab, rows, timers = Lab(), list[dict[str, Any]](), list[Timer]()
    for side, file in (("front", "cpu_front.csv"), ("baseline", "baselines_2.csv")):
        for row in verified(_HERE / file):
            searched, genotype = network(row)
            lowered = families.of(searched).lower(searched, genotype, Signature(1, 10))
            timers.append(lab.timer("tvm", "int8", lowered))
            rows.append({
                "side": side, "id": row["id"], "space": searched.name,
                "accuracy": float(row["verified_accuracy_int8"]), "latency_us": 0.0,
            })  # fmt: skip
    found: list[list[float]] = [[] for _ in rows]
    for number in range(_PASSES):
        for i in random.Random(number).sample(range(len(rows)), len(rows)):
            found[i].append(1e3 * measure(timers[i], _TIMING).median_ms)
    for row, times in zip(rows, found, strict=True):
        row["latency_us"] = float(f"{min(times):.4g}")
        row["slowest_pass_us"] = float(f"{max(times):.4g}")
    with (_HERE / "cpu.csv").open("w", encoding="utf-8", newline="") as file_:
        writer = csv.DictWriter(file_, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    told(rows)


if __name__ == "__main__":
    main()
