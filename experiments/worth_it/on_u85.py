"""Latency of the front of a search for one NPU, and of hand-designed networks, on another NPU.

    python -m experiments.worth_it.on_u85 [--front front_long_2.csv --out u85_2.csv]
    python -m experiments.worth_it.on_u85 --front front_colour.csv
        --baselines colour_baselines.csv --channels 3 --out u85_colour.csv

Vela compiles the networks of a front and of baselines with random weights. Their test accuracies
are known. By default the front is ``front_long.csv``, and the results are in ``u85.csv``.
"""

import argparse
import csv
from pathlib import Path
from typing import Any

from experiments.worth_it.comparison import (
    network,
    npu_latency_ms,
    print_speedups,
    read_verified,
)

_HERE = Path(__file__).parent


def main() -> None:
    """Compile all networks, write the table, and print the speedups."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="ethos_u85_256")
    parser.add_argument("--front", default="front_long.csv")
    parser.add_argument("--baselines", default="baselines_3.csv")
    parser.add_argument("--channels", type=int, default=1)
    parser.add_argument("--out", default="u85.csv")
    arguments = parser.parse_args()
    rows = list[dict[str, Any]]()
    for side, name in (("front", arguments.front), ("baseline", arguments.baselines)):
        path = _HERE / name
        for row in read_verified(path) or read_verified(path, "accuracy"):
            latency_ms = npu_latency_ms(row, arguments.target, arguments.channels)
            rows.append({
                "side": side, "id": row["id"], "space": network(row)[0].name,
                "accuracy": float(row.get("verified_accuracy_int8") or row["accuracy"]),
                "latency_us": round(1e3 * latency_ms, 3),
            })  # fmt: skip
    with (_HERE / arguments.out).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print_speedups(rows)


if __name__ == "__main__":
    main()
