"""Train five hand-designed networks on the images of ``colour_images`` and write their table.

    python -m experiments.worth_it.colour_baselines IMAGES RUNS

RUNS is the folder of the five training runs; complete ones are not repeated. Writes
``colour_baselines.csv``: float32 accuracy on the test split, and latency by Vela.
"""

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiments.worth_it.comparison import npu_latency_ms

_TABLE = Path(__file__).with_suffix(".csv")
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
    rows = list[dict[str, Any]]()
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
        rows.append(_row(space_name, summary))
    with _TABLE.open("w", encoding="utf-8", newline="") as file:
        columns = list(dict.fromkeys(name for row in rows for name in row))
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _row(space_name: str, summary: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a trained network; its options have the space as prefix."""
    accuracy, _, low, high = summary["accuracy_test"]
    row = {"id": summary["id"], "space": space_name}
    row |= {f"{space_name}.{name}": str(option) for name, option in summary["genotype"].items()}
    return row | {
        "accuracy": round(accuracy, 6),
        "accuracy_low": round(low, 6),
        "accuracy_high": round(high, 6),
        "latency_ms": round(npu_latency_ms(row, "npu", 3), 5),
    }


if __name__ == "__main__":
    main()
