"""Error of costs with random weights compared with trained weights, at 3 to 8 bits.

python -m experiments.weight_bits.stand_in [--networks 50] [--epochs 3]

Random networks of ``dense_packed`` are trained on digits with their bits, calibrated, written and
compiled by Vela. The same networks are compiled with random weights. stand_in.csv has a row for
each.
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
_WITHIN = 0.03
_CALIBRATION = 512  # training images
_RESULT = Path(__file__).with_suffix(".csv")


def main() -> None:
    """Compare, write the table, and print the fraction of networks within 3 %."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--networks", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=3)
    asked = parser.parse_args()
    target_file = package.ROOT / "conf" / "target" / "npu.yaml"
    target = from_facts(yaml.safe_load(target_file.read_text(encoding="utf-8")))
    searched = spaces.load_space(spaces.find("dense_packed"))
    data = DatasetConfig("digits")
    train = TrainingConfig(epochs=asked.epochs, batch_size=64)
    rng, rows = random.Random(0), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as kept:
        setup = TrainingSetup(
            searched,
            families.family_of(searched),
            load_data(data, 28, NullProgress()),
            data,
            train,
            0,
            Path(kept),
        )
        for _ in range(asked.networks):
            genotype = searched.sample(rng)
            lowered = setup.graph(genotype)

            def costs(network: QuantisedNetwork, lowered: Any = lowered) -> Mapping[str, Quantity]:
                return compile_tflite(write_tflite(network), lowered, target).cost.figures

            foretold = costs(random_int8_network(lowered))
            network, _ = TrainingJob(setup, genotype).trained(NullProgress())
            images = setup.data.train.take(torch.arange(_CALIBRATION)).images
            prepared = setup.data.prepare(images, setup.resolution(genotype))
            found = costs(quantise(fold_batch_norm(network), lowered, prepared))
            row: dict[str, Any] = {
                "id": genotype.id,
                "weight_bits": genotype.to_dict()["weight_bits"],
            }
            for name in _FIGURES:
                row |= {f"{name}_stand_in": foretold[name].value, name: found[name].value}
            rows.append(row)
            print(*row.values(), flush=True)
    with _RESULT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    for name in _FIGURES:
        for least in (4, 3):
            some = [row for row in rows if row["weight_bits"] >= least]
            errors = np.array([row[f"{name}_stand_in"] / row[name] - 1 for row in some])
            print(
                f"{name}, {least} to 8 bits: {np.mean(np.abs(errors) <= _WITHIN):.0%} of "
                f"{len(some)} within 3 %; median {np.median(errors):+.1%}, largest "
                f"{errors[np.abs(errors).argmax()]:+.1%}"
            )


if __name__ == "__main__":
    main()
