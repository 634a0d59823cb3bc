"""Reduction of latency and flash by 2:4 sparsity, with weights of 8, 4 and 3 bits.

    python -m experiments.weight_bits.sparsity [--networks 12]

Vela compiles random networks of ``dense_packed`` and the largest network, with random weights, for
an Ethos-U55-128 and an Ethos-U85-256. ``sparsity.csv`` has a row for each network, target and
number of bits.
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
    """Compile, write the table, and print latency and flash relative to the dense network."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--networks", type=int, default=12)
    arguments = parser.parse_args()
    space = spaces.load_space(spaces.find("dense_packed"))
    choices = {**space.choices, "weight_sparsity": _KINDS}
    networks = [space.sample(random.Random(i)) for i in range(arguments.networks)]
    full_space = replace(space, choices=choices)
    rows = []
    for name in _TARGETS:
        target = _read_target(name)
        for bits in _BITS:
            for genotype in (*networks, space.largest()):
                options = space.assignment(genotype) | {"weight_bits": bits}
                variants = [options | {"weight_sparsity": kind} for kind in _KINDS]
                figures = [_compile(full_space, full_space.genotype(v), target) for v in variants]
                columns = zip(_KINDS, figures, strict=True)
                row: dict[str, float | int | str]
                row = {f"{n}, {kind}": values[n] for kind, values in columns for n in _FIGURES}
                rows.append({"target": name, "bits": bits, "network": genotype.id, **row})
            _print_fractions(name, bits, rows)
    with _RESULT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _compile(
    space: spaces.SearchSpace, genotype: spaces.Genotype, target: Target
) -> dict[str, float]:
    lowered = annotations.lower(families.family_of(space), space, genotype, Signature(1, 10))
    figures = compile_tflite(
        write_tflite(random_int8_network(lowered)), lowered, target
    ).cost.figures
    return {name: round(figures[name].value, 5) for name in _FIGURES}


def _read_target(name: str) -> Target:
    path = package.ROOT / "conf" / "target" / f"{name}.yaml"
    return from_facts(yaml.safe_load(path.read_text(encoding="utf-8")))


def _print_fractions(name: str, bits: int, rows: list[dict[str, float | int | str]]) -> None:
    selected = [row for row in rows if (row["target"], row["bits"]) == (name, bits)]
    for figure in _FIGURES:
        fractions = np.array(
            [float(row[f"{figure}, 2:4"]) / float(row[f"{figure}, dense"]) for row in selected]
        )
        median, low, high = np.median(fractions), fractions.min(), fractions.max()
        print(f"{name}, {bits} bits: {figure} {median:.2f} ({low:.2f} to {high:.2f})", flush=True)


if __name__ == "__main__":
    main()
