"""Comparison of the front of a search with hand-designed networks (baselines)."""

import csv
import statistics
from pathlib import Path
from typing import Any

import yaml

from hwnas.core import package
from hwnas.hardware.backends.vela.compiler import compile_tflite
from hwnas.hardware.target import from_facts
from hwnas.models import families, spaces
from hwnas.models.families import annotations
from hwnas.models.graph import Signature
from hwnas.models.int8.quantised_network import random_int8_network
from hwnas.models.int8.tflite import write_tflite
from hwnas.models.spaces import Genotype, SearchSpace


def print_speedups(rows: list[dict[str, Any]]) -> None:
    """Print the speedup of the front at the accuracy of each non-dominated baseline.

    Args:
        rows: Networks with ``side`` (``front`` or ``baseline``), ``space``, ``accuracy`` and
            ``latency_us``.
    """
    front = [row for row in rows if row["side"] == "front"]
    baselines = [row for row in rows if row["side"] == "baseline"]
    speedups = []
    for baseline in sorted(baselines, key=lambda row: row["accuracy"]):
        accuracy, latency_us = baseline["accuracy"], baseline["latency_us"]
        if any(b["accuracy"] >= accuracy and b["latency_us"] < latency_us for b in baselines):
            continue
        title = f"{accuracy:.4f} {baseline['space']}: {latency_us} us"
        candidates = [row for row in front if row["accuracy"] >= accuracy]
        if not candidates:
            print(f"{title}; not reached")
            continue
        fastest = min(candidates, key=lambda row: row["latency_us"])
        speedups.append(latency_us / fastest["latency_us"])
        print(
            f"{title}; {fastest['accuracy']:.4f} {fastest['latency_us']} us; "
            f"speedup {speedups[-1]:.2f}"
        )
    print(f"geometric mean {statistics.geometric_mean(speedups):.2f}, minimum {min(speedups):.2f}")


def read_verified(path: Path, accuracy: str = "verified_accuracy_int8") -> list[dict[str, str]]:
    """Return the rows of a ``front.csv`` that have a verified accuracy in the given column."""
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row.get(accuracy)]


def network(row: dict[str, str]) -> tuple[SearchSpace, Genotype]:
    """Return the search space and the genotype of a row of ``front.csv``.

    In rows of baselines, ``space`` is the name of the baseline and the prefix of its options.
    """
    baseline = row.get("space", "")
    if baseline:
        name, prefix = f"baselines/{baseline}", f"{baseline}."
    elif "head.width" in row:
        name, prefix = "cpu_small", ""
    else:
        name, prefix = "dense_packed" if "weight_bits" in row else "dense_small", ""
    space = spaces.load_space(spaces.find(name))
    assignment = {
        choice: option
        for choice, options in space.choices.items()
        for option in options
        if str(option) == row.get(prefix + choice)
    }
    return space, space.genotype(assignment)


def npu_latency_ms(row: dict[str, str], target_name: str, n_channels: int = 1) -> float:
    """Return the latency by Vela of the network of a row, with random weights and ten outputs."""
    path = package.ROOT / "conf" / "target" / f"{target_name}.yaml"
    target = from_facts(yaml.safe_load(path.read_text(encoding="utf-8")))
    space, genotype = network(row)
    signature = Signature(n_channels, 10)
    lowered = annotations.lower(families.family_of(space), space, genotype, signature)
    file = write_tflite(random_int8_network(lowered))
    return compile_tflite(file, lowered, target).cost.figures["latency_ms"].value
