"""Error of costs predicted with random weights, for trained weights of 3 to 8 bits.

    python -m experiments.weight_bits.random_weights [--networks 50] [--epochs 3]

The script trains random networks of ``dense_packed`` on digits with their bits, calibrates them,
and compiles them with Vela. It also compiles the same networks with random weights.
``stand_in.csv`` has a row for each network; its columns ``*_stand_in`` are the costs with random
weights.
"""

import argparse
import csv
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from hwnas.core import package
from hwnas.core.progress import NullProgress
from hwnas.core.quantity import Quantity
from hwnas.hardware.backends.vela.compiler import compile_tflite
from hwnas.hardware.target import from_facts
from hwnas.models import families, spaces
from hwnas.models.families.layers import fold_batch_norm
from hwnas.models.int8.quantisation import quantise
from hwnas.models.int8.quantised_network import QuantisedNetwork, random_int8_network
from hwnas.models.int8.tflite import write_tflite
from hwnas.training.data import DatasetConfig, load_data
from hwnas.training.jobs import TrainingJob
from hwnas.training.options import TrainingConfig
from hwnas.training.supernet import TrainingSetup

_FIGURES = ("latency_ms", "flash_kib")
_TOLERANCE = 0.03
_CALIBRATION = 512  # training images
_RESULT = Path(__file__).with_name("stand_in.csv")


def main() -> None:
    """Compare the costs, write the table, and print the fraction of networks within 3 %."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--networks", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    target_file = package.ROOT / "conf" / "target" / "npu.yaml"
    target = from_facts(yaml.safe_load(target_file.read_text(encoding="utf-8")))
    space = spaces.load_space(spaces.find("dense_packed"))
    dataset = DatasetConfig("digits")
    train = TrainingConfig(epochs=arguments.epochs, batch_size=64)
    rng, rows = random.Random(0), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        setup = TrainingSetup(
            space,
            families.family_of(space),
            load_data(dataset, 28, NullProgress()),
            dataset,
            train,
            0,
            Path(folder),
        )
        for _ in range(arguments.networks):
            genotype = space.sample(rng)
            lowered = setup.graph(genotype)

            def costs(network: QuantisedNetwork, lowered: Any = lowered) -> Mapping[str, Quantity]:
                return compile_tflite(write_tflite(network), lowered, target).cost.figures

            random_costs = costs(random_int8_network(lowered))
            network, _ = TrainingJob(setup, genotype).trained(NullProgress())
            images = setup.data.train.take(torch.arange(_CALIBRATION)).images
            prepared = setup.data.prepare(images, setup.resolution(genotype))
            trained_costs = costs(quantise(fold_batch_norm(network), lowered, prepared))
            bits = genotype.to_dict()["weight_bits"]
            row: dict[str, Any] = {"id": genotype.id, "weight_bits": bits}
            for name in _FIGURES:
                row[f"{name}_stand_in"] = random_costs[name].value
                row[name] = trained_costs[name].value
            rows.append(row)
            print(*row.values(), flush=True)
    with _RESULT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for name in _FIGURES:
        for min_bits in (4, 3):
            selected = [row for row in rows if row["weight_bits"] >= min_bits]
            errors = np.array([row[f"{name}_stand_in"] / row[name] - 1 for row in selected])
            print(
                f"{name}, {min_bits} to 8 bits: {np.mean(np.abs(errors) <= _TOLERANCE):.0%} of "
                f"{len(selected)} within 3 %; median {np.median(errors):+.1%}, largest "
                f"{errors[np.abs(errors).argmax()]:+.1%}"
            )


if __name__ == "__main__":
    main()
