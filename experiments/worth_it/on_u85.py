"""Latency of the front of a search for one NPU, and of hand-designed networks, on another NPU.

python -m experiments.worth_it.on_u85 [--front front_long_2.csv --out u85_2.csv]

Networks of a front, ``front_long.csv``, and of ``baselines_3.csv``, with known test accuracies, are
compiled by Vela with random weights: ``u85.csv``.
"""

import argparse
import csv
from pathlib import Path
from typing import Any

import yaml

from experiments.worth_it.sides import network, told, verified
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
    """Compile all networks, write the table, and print the ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="ethos_u85_256")
    parser.add_argument("--front", default="front_long.csv")
    parser.add_argument("--out", default="u85.csv")
    asked = parser.parse_args()
    file = package.ROOT / "conf" / "target" / f"{asked.target}.yaml"
    target = from_facts(yaml.safe_load(file.read_text(encoding="utf-8")))
    rows = list[dict[str, Any]]()
    for side, name in (("front", asked.front), ("baseline", "baselines_3.csv")):
        for row in verified(_HERE / name):
            searched, genotype = network(row)
            signature = Signature(1, 10)
            lowered = annotations.lower(families.family_of(searched), searched, genotype, signature)
            cost = compile_tflite(write_tflite(random_int8_network(lowered)), lowered, target).cost
            rows.append({
                "side": side, "id": row["id"], "space": searched.name,
                "accuracy": float(row["verified_accuracy_int8"]),
                "latency_us": round(1e3 * cost.figures["latency_ms"].value, 3),
            })  # fmt: skip
    with (_HERE / asked.out).open("w", encoding="utf-8", newline="") as table:
        writer = csv.DictWriter(table, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    told(rows)


if __name__ == "__main__":
    main()
