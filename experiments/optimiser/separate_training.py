"""Accuracies of networks that are trained separately with each of several optimisers.

python -m experiments.optimiser.separate_training DIR FRONT.csv ID [ID ...] [--optimisers muon sgd]
    [--epochs 20] [--seeds 0] [--label-smoothing 0.1]

DIR contains Fashion-MNIST as Parquet files. FRONT.csv is the front.csv of a search, or a file of
baselines, that contains the IDs. Each training is printed as a row of ``alone.csv``, with float32
accuracies on the validation and the test split. Weights of few bits stay quantised. The script uses
one core: run other IDs in other processes.
"""

import argparse
import csv
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.worth_it.comparison import network
from hwnas.core.progress import NullProgress
from hwnas.models import families
from hwnas.training.data import DatasetConfig, load_data
from hwnas.training.inference import per_sample
from hwnas.training.jobs import TrainingJob
from hwnas.training.options import TrainingConfig
from hwnas.training.supernet import TrainingSetup

DATA: dict[str, Any] = {"name": "fashion_mnist", "validation": 0.1, "flip": True, "shift": 0.036}
RECIPES: dict[str, dict[str, Any]] = {  # with the default learning rate of each
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
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    dataset = DatasetConfig(path=arguments.data, **DATA)
    with arguments.front.open(encoding="utf-8", newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    for row in (rows[name] for name in arguments.ids):
        space, genotype = network(row)
        family = families.family_of(space)
        data = load_data(dataset, family.resolution(space, genotype), NullProgress())
        for seed in arguments.seeds:
            for name in arguments.optimisers:
                train = TrainingConfig(
                    epochs=arguments.epochs,
                    batch_size=128,
                    plain_fraction=0.6,
                    label_smoothing=arguments.label_smoothing,
                    **RECIPES[name],
                )
                with tempfile.TemporaryDirectory() as folder:
                    setup = TrainingSetup(space, family, data, dataset, train, seed, Path(folder))
                    trained, summary = TrainingJob(setup, genotype).trained(NullProgress())
                accuracies = []
                for split in (data.validation, data.test):
                    batches = data.batches(split, setup.resolution(genotype))
                    correct = [per_sample(data.task, trained, *batch) for batch in batches]
                    accuracies.append(f"{np.concatenate(correct).mean():.4f}")
                settings = [row["id"], row["latency_ms"], name, str(arguments.epochs), str(seed)]
                print(",".join([*settings, *accuracies, f"{summary.seconds:.0f}"]), flush=True)


if __name__ == "__main__":
    main()
