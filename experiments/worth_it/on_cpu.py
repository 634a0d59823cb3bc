"""How fast the front of a search and hand-made networks are on this CPU, in int8 by TVM.

python -m experiments.worth_it.on_cpu

Networks of ``cpu_front.csv`` and ``baselines_2.csv``, whose accuracies on the test split are known,
are compiled with stand-in weights and timed in several passes of random order: ``cpu.csv``. At each
accuracy of a baseline that none is ahead of, it is held against the fastest member as accurate.
"""

import csv
import random
import statistics
from pathlib import Path
from typing import Any

from experiments.tvm_int8.in_turns import Lab
from hwnas import families, space
from hwnas.op import Signature
from hwnas.space import Genotype, SearchSpace
from hwnas.timing import Timer, TimingConfig, measure

_HERE = Path(__file__).parent
_PASSES, _TIMING = 5, TimingConfig()


def main() -> None:
    """Time all, write the table, and print the ratios."""
    lab, rows, timers = Lab(), list[dict[str, Any]](), list[Timer]()
    for side, file in (("front", "cpu_front.csv"), ("baseline", "baselines_2.csv")):
        for row in _verified(_HERE / file):
            searched, genotype = _network(row)
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
    _print(rows)


def _print(rows: list[dict[str, Any]]) -> None:
    front = [row for row in rows if row["side"] == "front"]
    baselines = [row for row in rows if row["side"] == "baseline"]
    ratios = []
    for one in sorted(baselines, key=lambda row: row["accuracy"]):
        if any(b["accuracy"] >= one["accuracy"] and b["latency_us"] < one["latency_us"]
               for b in baselines):  # fmt: skip
            continue
        as_good = [row for row in front if row["accuracy"] >= one["accuracy"]]
        if not as_good:
            print(f"{one['accuracy']:.4f} {one['space']}: {one['latency_us']} us; not reached")
            continue
        fastest = min(as_good, key=lambda row: row["latency_us"])
        ratios.append(one["latency_us"] / fastest["latency_us"])
        print(
            f"{one['accuracy']:.4f} {one['space']}: {one['latency_us']} us; "
            f"{fastest['accuracy']:.4f} {fastest['latency_us']} us; {ratios[-1]:.2f}"
        )
    print(f"geometric mean {statistics.geometric_mean(ratios):.2f}, least {min(ratios):.2f}")


def _verified(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row.get("verified_accuracy_int8")]


def _network(row: dict[str, str]) -> tuple[SearchSpace, Genotype]:
    """Return the space and the genotype of a row: of one space, or of several."""
    one = row.get("space", "")
    searched = space.load(space.find(f"baselines/{one}" if one else "dense_small"))
    prefix = f"{one}." if one else ""
    said = {
        name: option
        for name, options in searched.choices.items()
        for option in options
        if str(option) == row.get(prefix + name)
    }
    return searched, searched.genotype(said)


if __name__ == "__main__":
    main()
