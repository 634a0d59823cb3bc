"""Train networks of a wide range of latencies, each separately like a candidate of a search.

python -m experiments.landscape.networks DIR OUT.csv [--minutes 40] [--seed 0]

DIR contains Fashion-MNIST as Parquet files. Each network is a row of ``networks.csv``: choices,
costs, validation accuracy after one and after three epochs, and the training time in seconds. The
script uses one core: run other seeds in other processes.
"""

import argparse
import csv
import itertools
import math
import random
import tempfile
import time
from pathlib import Path

import torch

from hwnas.core.progress import NullProgress
from hwnas.hardware.costs.cost_model import Cost
from hwnas.models.graph import n_macs
from hwnas.models.spaces import Genotype, Space
from hwnas.workflows import components
from hwnas.workflows.components import accuracies
from hwnas.workflows.config.compose import compose

LATENCIES_MS = 0.006, 0.2
MAX_MACS = 9e6  # the training of larger networks takes minutes
COSTS = ("latency_ms", "energy_mj", "sram_kib", "flash_kib")
SMALLEST_FRACTIONS = (0.0, 0.0, 0.3, 0.6, 0.8)  # of choices set to their smallest option
_TRIES = 14  # compiled networks for each trained network


def main() -> None:
    """Train networks until the time limit, and write a row for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", metavar="DIR")
    parser.add_argument("out", type=Path, metavar="OUT.csv")
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, arguments.out.open("a", newline="") as file:
        options = ["+target=npu", "dataset=fashion_mnist", f"dataset.path={arguments.data}"]
        options += [f"run.supernets={folder}", "trained.confidence=null"]
        parts = components.parts(compose("search", options), NullProgress())
        cost_model = components.cost_model(parts, None)
        evaluator = accuracies(parts, NullProgress())
        names = [*parts.space.choices]
        writer = csv.writer(file)
        if file.tell() == 0:
            writer.writerow(["id", *names, *COSTS, "macs", "after_1", "after_3", "seconds"])
        for number in itertools.count():
            if time.monotonic() - start > 60 * arguments.minutes:
                break
            rng = random.Random(f"landscape {arguments.seed} {number}")
            nearest: tuple[float, Genotype, Cost, int] | None = None
            log_latency = rng.uniform(*map(math.log, LATENCIES_MS))
            for _ in range(_TRIES):
                genotype = _sample(parts.space, rng)
                cost, macs = cost_model.cost(genotype), n_macs(parts.networks.lower(genotype))
                if cost.reason or macs > MAX_MACS or parts.config.allowed.exceeded(cost.figures):
                    continue
                distance = abs(math.log(cost.figures["latency_ms"].value) - log_latency)
                if nearest is None or distance < nearest[0]:
                    nearest = distance, genotype, cost, macs
            if nearest is None:
                continue
            _, genotype, cost, macs = nearest
            training_start = time.monotonic()
            details = evaluator.score(genotype).details
            seconds = time.monotonic() - training_start
            assignment = parts.space.assignment(genotype)
            writer.writerow(
                [genotype.id, *(assignment.get(name, "") for name in names)]
                + [f"{cost.figures[name].value:.6g}" for name in COSTS]
                + [macs, *(f"{value:.4f}" for value in details.values()), f"{seconds:.1f}"]
            )
            file.flush()


def _sample(space: Space, rng: random.Random) -> Genotype:
    """Return a random genotype, often close to the smallest one, of any resolution."""
    fraction, any_resolution = rng.choice(SMALLEST_FRACTIONS), rng.random() < 0.6
    return space.genotype(
        {
            name: options[0]
            if rng.random() < fraction and not (any_resolution and name == "resolution")
            else rng.choice(options)
            for name, options in space.choices.items()
        }
    )


if __name__ == "__main__":
    main()
