"""Gain of 2:4 sparsity in addition to few bits.

python -m experiments.weight_bits.sparsity [--networks 12]

Random networks of ``dense_packed``, and the largest, with random weights, compiled by Vela for an
Ethos-U55-128 and an Ethos-U85-256. sparsity.csv has a row for each.
"""

import argparse
import csv
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from hwnas.core import package
from hwnas.hardware.backends.vela.compiler import compile_tflite
from hwnas.hardware.target import Target, from_facts
from hwnas.models import families, spaces
from hwnas.models.families import annotations
from hwnas.models.graph import Signature
from hwnas.models.int8.quantised_network import random_int8_network
from hwnas.models.int8.tflite import write_tflite

_TARGETS, _BITS, _KINDS = ("npu", "ethos_u85_256"), (8, 4, 3), ("dense", "2:4")
_FIGURES = ("latency_ms", "flash_kib")
_RESULT = Path(__file__).with_suffix(".csv")


def main() -> None:
    """Compile, write the table, and print the remaining latency and flash."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--networks", type=int, default=12)
    asked = parser.parse_args()
    searched = spaces.load_space(spaces.find("dense_packed"))
    choices = {**searched.choices, "weight_sparsity": _KINDS}
    networks = [searched.sample(random.Random(i)) for i in range(asked.networks)]
    both = replace(searched, choices=choices)
    rows = []
    for name in _TARGETS:
        target = _target(name)
        for bits in _BITS:
            for genotype in (*networks, searched.largest()):
                options = searched.assignment(genotype) | {"weight_bits": bits}
                found = [
                    _figures(both, both.genotype({**options, "weight_sparsity": kind}), target)
                    for kind in _KINDS
                ]
                columns = zip(_KINDS, found, strict=True)
                row: dict[str, float | int | str]
                row = {f"{n}, {kind}": of[n] for kind, of in columns for n in _FIGURES}
                rows.append({"target": name, "bits": bits, "network": genotype.id, **row})
            _tell(name, bits, rows)
    with _RESULT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _figures(
    searched: spaces.SearchSpace, genotype: spaces.Genotype, target: Target
) -> dict[str, float]:
    lowered = annotations.lower(families.family_of(searched), searched, genotype, Signature(1, 10))
    figures = compile_tflite(
        write_tflite(random_int8_network(lowered)), lowered, target
    ).cost.figures
    return {name: round(figures[name].value, 5) for name in _FIGURES}


def _target(name: str) -> Target:
    path = package.ROOT / "conf" / "target" / f"{name}.yaml"
    return from_facts(yaml.safe_load(path.read_text(encoding="utf-8")))


def _tell(name: str, bits: int, rows: list[dict[str, float | int | str]]) -> None:
    of = [row for row in rows if (row["target"], row["bits"]) == (name, bits)]
    for figure in _FIGURES:
        left = np.array([float(r[f"{figure}, 2:4"]) / float(r[f"{figure}, dense"]) for r in of])
        median, low, high = np.median(left), left.min(), left.max()
        print(f"{name}, {bits} bits: {figure} {median:.2f} ({low:.2f} to {high:.2f})", flush=True)


if __name__ == "__main__":
    main()
