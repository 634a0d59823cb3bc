"""Accuracy of the subnets of a trained supernet on the test split.

    python -m experiments.supernet_fashion_mnist.networks --data DIR --supernets DIR --out FILE

Trains the supernet of `hwnas train dataset=fashion_mnist`, unless it exists, and evaluates its
smallest, its largest and random subnets on the test split. Overrides of the configuration of
`train` may follow.
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

_DRAWS = 10_000  # of networks, for the interval of their median


def main() -> None:
    """Print accuracies on the test split."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True, metavar="DIR", help="Fashion-MNIST as Parquet")
    parser.add_argument("--supernets", default="runs/supernets", metavar="DIR")
    parser.add_argument("--n", type=int, default=100, help="random subnets")
    parser.add_argument("--out", required=True, metavar="FILE", help="a CSV file")
    parser.add_argument("overrides", nargs="*", help="overrides of the configuration of train")
    arguments = parser.parse_args()
    config.register("train")
    words = ["dataset=fashion_mnist", f"dataset.path={arguments.data}"]
    with initialize_config_dir(str(package.ROOT / "conf"), version_base="1.3"):
        found: Any = OmegaConf.to_object(compose("train", [*words, *arguments.overrides]))
    with Phases(Console()) as phases:
        rows = _read(found, Path(arguments.supernets), arguments.n, phases)
    with Path(arguments.out).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    _print(rows)


def _read(found: TrainConfig, kept: Path, n: int, phases: Phases) -> list[dict[str, Any]]:
    read = supernet.read_space_and_data([found.search_space], found.dataset, phases)
    training = supernet.SupernetTraining(found.dataset, found.train, found.seed, kept)
    (setup,) = training.setups(*read).values()
    space, data = setup.space, setup.data
    evaluator = setup.evaluator(setup.trained(phases)[0], found.scoring)

    def accuracy(genotype: Genotype) -> Quantity:
        network = evaluator.network(genotype)
        batches = data.batches(data.test, setup.resolution(genotype))
        answers = np.concatenate([per_sample(data.task, network, *batch) for batch in batches])
        return proportion(int(answers.sum()), len(answers))

    rng = random.Random(f"test {found.seed}")
    chosen = [("smallest", space.smallest()), ("largest", space.largest())]
    chosen += [("random", space.sample(rng)) for _ in range(n)]
    rows = []
    with phases.phase("Read test split", len(chosen)) as advance:
        for kind, genotype in chosen:
            row = {"id": genotype.id, "kind": kind, "resolution": setup.resolution(genotype)}
            rows.append(row | accuracy(genotype).columns("accuracy_test"))
            advance(1)
    return rows


def _print(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows[:2]:
        low, high = row["accuracy_test_low"], row["accuracy_test_high"]
        print(f"{row['kind']}: {row['accuracy_test']:.4f} (95 % {low:.4f} to {high:.4f})")
    accuracies = np.array([row["accuracy_test"] for row in rows[2:]])
    drawn = np.random.default_rng(0).choice(accuracies, (_DRAWS, len(accuracies)))
    low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
    print(
        f"median of {len(accuracies)} random subnets: {np.median(accuracies):.4f} (95 % {low:.4f} "
        f"to {high:.4f}, over networks); from {accuracies.min():.4f} to {accuracies.max():.4f}"
    )
    for resolution in sorted({row["resolution"] for row in rows[2:]}):
        own = [r["accuracy_test"] for r in rows[2:] if r["resolution"] == resolution]
        print(f"  at {resolution} pixels: {statistics.median(own):.4f} ({len(own)})")


if __name__ == "__main__":
    main()
