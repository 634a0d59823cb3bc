"""The two sides of a comparison: the front of a search, and hand-designed networks."""

import csv
import statistics
from pathlib import Path
from typing import Any

from hwnas.models import spaces
from hwnas.models.spaces import Genotype, SearchSpace


def told(rows: list[dict[str, Any]]) -> None:
    """Print the speed-up of the front at the accuracy of each non-dominated baseline.

    Args:
        rows: With ``side`` (``front`` or ``baseline``), ``space``, ``accuracy`` and ``latency_us``.
    """
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
    print(f"geometric mean {statistics.geometric_mean(ratios):.2f}, minimum {min(ratios):.2f}")


def verified(path: Path, accuracy: str = "verified_accuracy_int8") -> list[dict[str, str]]:
    """Return the rows of a search's ``front.csv`` with verified artefacts."""
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row.get(accuracy)]


def network(row: dict[str, str]) -> tuple[SearchSpace, Genotype]:
    """Return the space and the genotype of a row, of a baseline or of a member of a front."""
    one = row.get("space", "")
    own = "dense_packed" if "weight_bits" in row else "dense_small"
    own = "cpu_small" if "head.width" in row else own
    searched = spaces.load_space(spaces.find(f"baselines/{one}" if one else own))
    prefix = f"{one}." if one else ""
    said = {
        name: option
        for name, options in searched.choices.items()
        for option in options
        if str(option) == row.get(prefix + name)
    }
    return searched, searched.genotype(said)
