"""Evaluate the subnets of a trained supernet on the test split.

    python -m experiments.supernet_fashion_mnist.networks --data DIR --supernets DIR --out FILE

Trains the supernet of `hwnas train dataset=fashion_mnist`, unless it exists. Evaluates the smallest
subnet, the largest subnet and random subnets on the test split. Overrides of the configuration of
`train` can be added at the end of the command.
"""

import argparse
import csv
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from rich.console import Console

from hwnas.cli.console import Phases
from hwnas.core import package
from hwnas.core.quantity import Quantity
from hwnas.models.spaces import Genotype
from hwnas.tasks.intervals import proportion
from hwnas.training import supernet
from hwnas.training.inference import per_sample
from hwnas.workflows import config
from hwnas.workflows.config import TrainConfig

_N_BOOTSTRAP = 10_000  # resamples for the interval of the median


def main() -> None:
    """Evaluate the subnets, write the result of each, and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True, metavar="DIR", help="Fashion-MNIST as Parquet")
    parser.add_argument("--supernets", default="runs/supernets", metavar="DIR")
    parser.add_argument("--n", type=int, default=100, help="random subnets")
    parser.add_argument("--out", required=True, metavar="FILE", help="a CSV file")
    parser.add_argument("overrides", nargs="*", help="overrides of the configuration of train")
    arguments = parser.parse_args()
    config.register("train")
    dataset = ["dataset=fashion_mnist", f"dataset.path={arguments.data}"]
    with initialize_config_dir(str(package.ROOT / "conf"), version_base="1.3"):
        train_config: Any = OmegaConf.to_object(compose("train", dataset + arguments.overrides))
    with Phases(Console()) as phases:
        rows = _evaluate(train_config, Path(arguments.supernets), arguments.n, phases)
    with Path(arguments.out).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    _print_summary(rows)


def _evaluate(
    train_config: TrainConfig, folder: Path, n: int, phases: Phases
) -> list[dict[str, Any]]:
    """Return a row for each subnet; ``folder`` contains the supernets, ``n`` subnets are random."""
    dataset, seed = train_config.dataset, train_config.seed
    space_and_data = supernet.read_space_and_data([train_config.search_space], dataset, phases)
    training = supernet.SupernetTraining(dataset, train_config.train, seed, folder)
    (setup,) = training.setups(*space_and_data).values()
    space, data = setup.space, setup.data
    evaluator = setup.evaluator(setup.trained(phases)[0], train_config.scoring)

    def accuracy(genotype: Genotype) -> Quantity:
        network = evaluator.network(genotype)
        batches = data.batches(data.test, setup.resolution(genotype))
        correct = np.concatenate([per_sample(data.task, network, *batch) for batch in batches])
        return proportion(int(correct.sum()), len(correct))

    rng = random.Random(f"test {seed}")
    subnets = [("smallest", space.smallest()), ("largest", space.largest())]
    subnets += [("random", space.sample(rng)) for _ in range(n)]
    rows = []
    with phases.phase("Evaluate on the test split", len(subnets)) as advance:
        for kind, genotype in subnets:
            row = {"id": genotype.id, "kind": kind, "resolution": setup.resolution(genotype)}
            rows.append(row | accuracy(genotype).columns("accuracy_test"))
            advance(1)
    return rows


def _print_summary(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows[:2]:
        low, high = row["accuracy_test_low"], row["accuracy_test_high"]
        print(f"{row['kind']}: {row['accuracy_test']:.4f} (95 % {low:.4f} to {high:.4f})")
    accuracies = np.array([row["accuracy_test"] for row in rows[2:]])
    resamples = np.random.default_rng(0).choice(accuracies, (_N_BOOTSTRAP, len(accuracies)))
    low, high = np.quantile(np.median(resamples, axis=1), [0.025, 0.975])
    print(
        f"median of {len(accuracies)} random subnets: {np.median(accuracies):.4f} (95 % {low:.4f} "
        f"to {high:.4f}, over networks); from {accuracies.min():.4f} to {accuracies.max():.4f}"
    )
    for resolution in sorted({row["resolution"] for row in rows[2:]}):
        selected = [r["accuracy_test"] for r in rows[2:] if r["resolution"] == resolution]
        print(f"  at {resolution} pixels: {statistics.median(selected):.4f} ({len(selected)})")


if __name__ == "__main__":
    main()
