"""Train five hand-designed networks on the images of ``colour_images`` and write their table.

    python -m experiments.worth_it.colour_baselines IMAGES RUNS

RUNS is the folder of the five training runs; complete ones are not repeated. Writes
``colour_baselines.csv``: float32 accuracy on the test split, and latency by Vela on two NPUs.
"""

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from hwnas.core import package
from hwnas.hardware.backends.vela.compiler import compile_tflite
from hwnas.hardware.target import from_facts
from hwnas.models import families
from hwnas.models.families import annotations
from hwnas.models.graph import Signature
from hwnas.models.int8.quantised_network import random_int8_network
from hwnas.models.int8.tflite import write_tflite
from hwnas.models.spaces import load_space

_SPACES = package.ROOT / "search_spaces" / "baselines"
_TABLE = Path(__file__).with_suffix(".csv")
_TARGETS = {"latency_ms": "npu", "latency_ms_u85": "ethos_u85_256"}
_NETWORKS = (  # space, width multiplier, stride of the stem
    ("ds_cnn", 0.25, 2),
    ("vgg", 0.5, 2),
    ("vgg", 0.5, 1),
    ("resnet8", 0.5, 1),
    ("resnet8", 1.0, 1),
)


def main() -> None:
    """Train the networks that have no results yet, compile them, and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("images", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--epochs", type=int, default=33)
    arguments = parser.parse_args()
    rows = []
    for space_name, width, stride in _NETWORKS:
        name = f"{space_name}_{width}_s{stride}"
        run = (arguments.runs / name).resolve()
        choices = {"resolution": 28, "width_multiplier": width, "stem.stride": stride}
        if not (run / "summary.json").is_file():
            command = ["train", f"search_space=baselines/{space_name}", "seed=1", f"run.dir={run}"]
            command += [f"genotype={json.dumps(choices)}", f"train.epochs={arguments.epochs}"]
            command += ["dataset=images", f"dataset.path={arguments.images}"]
            subprocess.run([sys.executable, "-m", "hwnas", *command], check=True)
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        rows.append(_row(name, space_name, summary))
    with _TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _row(name: str, space_name: str, summary: dict[str, Any]) -> dict[str, object]:
    """Return the row of a trained network."""
    space = load_space(_SPACES / f"{space_name}.yaml")
    genotype = space.genotype(summary["genotype"])
    lowered = annotations.lower(families.family_of(space), space, genotype, Signature(3, 10))
    file = write_tflite(random_int8_network(lowered))
    accuracy, _, low, high = summary["accuracy_test"]
    row: dict[str, object] = {
        "id": summary["id"],
        "space": name,
        "accuracy": round(accuracy, 6),
        "accuracy_low": round(low, 6),
        "accuracy_high": round(high, 6),
    }
    for column, target_name in _TARGETS.items():
        path = package.ROOT / "conf" / "target" / f"{target_name}.yaml"
        target = from_facts(yaml.safe_load(path.read_text(encoding="utf-8")))
        figures = compile_tflite(file, lowered, target).cost.figures
        row[column] = round(figures["latency_ms"].value, 5)
    return row


if __name__ == "__main__":
    main()
