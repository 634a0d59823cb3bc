"""Latency of the front of a search for one NPU, and of hand-designed networks, on another NPU.

    python -m experiments.worth_it.on_u85 [--front front_long_2.csv --out u85_2.csv]

Vela compiles the networks of a front and of ``baselines_3.csv`` with random weights. Their test
accuracies are known. By default the front is ``front_long.csv``, and the results are in
``u85.csv``.
"""

import argparse
import csv
from pathlib import Path
from typing import Any

import yaml

from experiments.worth_it.comparison import network, print_speedups, read_verified
from hwnas.core import package
from hwnas.hardware.backends.vela.compiler import compile_tflite
from hwnas.hardware.target import from_facts
from hwnas.models import families
from hwnas.models.families import annotations
from hwnas.models.graph import Signature
from hwnas.models.int8.quantised_network import random_int8_network
from hwnas.models.int8.tflite import write_tflite

_HERE = Path(__file__).parent


def main() -> None:
    """Compile all networks, write the table, and print the speedups."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="ethos_u85_256")
    parser.add_argument("--front", default="front_long.csv")
    parser.add_argument("--out", default="u85.csv")
    arguments = parser.parse_args()
    target_file = package.ROOT / "conf" / "target" / f"{arguments.target}.yaml"
    target = from_facts(yaml.safe_load(target_file.read_text(encoding="utf-8")))
    rows = list[dict[str, Any]]()
    for side, name in (("front", arguments.front), ("baseline", "baselines_3.csv")):
        for row in read_verified(_HERE / name):
            space, genotype = network(row)
            signature = Signature(1, 10)
            lowered = annotations.lower(families.family_of(space), space, genotype, signature)
            cost = compile_tflite(write_tflite(random_int8_network(lowered)), lowered, target).cost
            rows.append({
                "side": side, "id": row["id"], "space": space.name,
                "accuracy": float(row["verified_accuracy_int8"]),
                "latency_us": round(1e3 * cost.figures["latency_ms"].value, 3),
            })  # fmt: skip
    with (_HERE / arguments.out).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print_speedups(rows)


if __name__ == "__main__":
    main()
