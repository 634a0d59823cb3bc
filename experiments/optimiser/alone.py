"""Gain of an optimiser: networks of a front, or baselines, trained separately with each.

python -m experiments.optimiser.alone DIR FRONT.csv ID [ID ...] [--optimisers muon sgd]
    [--epochs 20] [--seeds 0] [--label-smoothing 0.1]

FRONT.csv is the front.csv of a search that contains the IDs; DIR contains Fashion-MNIST as Parquet
files. Each training is printed as a row of ``alone.csv``: accuracies in float32, including weights
of few bits, on the validation and the test split. It uses one core: run other IDs in other
processes.
"""

import argparse
import csv
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.worth_it.sides import network
from hwnas.core.progress import NullProgress
from hwnas.models import families
from hwnas.training.data import DatasetConfig, load_data
from hwnas.training.inference import per_sample
from hwnas.training.jobs import TrainingJob
from hwnas.training.options import TrainingConfig
from hwnas.training.supernet import TrainingSetup

DATA: dict[str, Any] = {"name": "fashion_mnist", "validation": 0.1, "flip": True, "shift": 0.036}
RECIPES: dict[str, dict[str, Any]] = {  # the default rate of each
    "muon": {"optimiser": "muon", "lr": 0.2, "weight_decay": 5e-5},
    "sgd": {"optimiser": "sgd", "lr": 0.3, "weight_decay": 5e-5},
}


def main() -> None:
    """Train the networks, and print the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", metavar="DIR")
    parser.add_argument("front", type=Path, metavar="FRONT.csv")
    parser.add_argument("ids", nargs="+", metavar="ID")
    parser.add_argument("--optimisers", nargs="+", default=["muon", "sgd"], choices=RECIPES)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--label-smoothing", type=float, default=TrainingConfig.label_smoothing)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    asked = parser.parse_args()
    torch.set_num_threads(1)

    dataset = DatasetConfig(path=asked.data, **DATA)
    with asked.front.open(encoding="utf-8", newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    for row in (rows[name] for name in asked.ids):
        space, genotype = network(row)
        family = families.family_of(space)
        data = load_data(dataset, family.resolution(space, genotype), NullProgress())
        for seed in asked.seeds:
            for name in asked.optimisers:
                train = TrainingConfig(
                    epochs=asked.epochs,
                    batch_size=128,
                    plain_fraction=0.6,
                    label_smoothing=asked.label_smoothing,
                    **RECIPES[name],
                )
                with tempfile.TemporaryDirectory() as folder:
                    setup = TrainingSetup(space, family, data, dataset, train, seed, Path(folder))
                    trained, summary = TrainingJob(setup, genotype).trained(NullProgress())
                found = []
                for split in (data.validation, data.test):
                    batches = data.batches(split, setup.resolution(genotype))
                    right = [per_sample(data.task, trained, *batch) for batch in batches]
                    found.append(f"{np.concatenate(right).mean():.4f}")
                about = [row["id"], row["latency_ms"], name, str(asked.epochs), str(seed)]
                print(",".join([*about, *found, f"{summary.seconds:.0f}"]), flush=True)


if __name__ == "__main__":
    main()
