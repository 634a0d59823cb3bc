"""Print the cost and the accuracy of each export step as a CSV file.

    python experiments/export_fashion_mnist/table.py EXPORT... > steps.csv

Every ``EXPORT`` is the folder of an exported model, or a parent of such folders. The figures come
from the ``proof.json`` of each export.
"""

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def main() -> None:
    """Print a row for each step of each export."""
    rows = [row for name in sys.argv[1:] for row in _steps(Path(name))]
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _steps(root: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(root.rglob("proof.json")):
        proof = json.loads(path.read_text(encoding="utf-8"))
        artefact = proof["artefacts"][proof["own_artefact"]]
        for step in proof["finishing"]["steps"]:
            yield {
                "export": path.parent.parent.parent.name,
                "target": proof["target"]["name"],
                "id": proof["model"]["id"],
                "step": step["step"],
                "epochs": step["epochs"],
                "seconds": round(step["seconds"], 1),
                "accuracy_validation": step["accuracy"][0],
                "accuracy_test_fp32": proof["reference"]["accuracy"][0],
                "accuracy_test_own": artefact["accuracy"][0],
                "latency_ms": proof["figures"]["latency_ms"][0],
                "latency_source": proof["figures"]["latency_ms"][1],
                "flash_kib": proof["figures"]["flash_kib"][0],
                "macs_m": proof["figures"]["macs_m"][0],
            }


if __name__ == "__main__":
    main()
