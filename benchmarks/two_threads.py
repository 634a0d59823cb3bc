"""Gain of a second thread for training one network.

python -m benchmarks.two_threads DIR trains networks of ``dense_packed`` on Fashion-MNIST (DIR:
Parquet files) for some steps, with one and two threads interleaved, and prints images per second.
"""

import os

os.environ.setdefault(
    "GOMP_SPINCOUNT", "1000"
)  # as in ``processes.tune_process``, before torch is imported

import inspect
import random
import statistics
import sys
from pathlib import Path

import torch

from hwnas.core import processes
from hwnas.core.progress import NullProgress
from hwnas.models.graph import n_macs
from hwnas.models.spaces import Genotype
from hwnas.training import supernet
from hwnas.training.data import DatasetConfig
from hwnas.training.options import TrainingConfig
from hwnas.training.single_network import StudentNetwork, estimate_seconds
from hwnas.training.supernet import TrainingSetup

_DRAWN, _SHOWN, _TURNS = 40, (10, 20, 30, 35), 5  # of the random networks, by their MACs
_STEPS = 10**6  # steps; the start of a training is not counted


def main() -> None:
    """Time four of forty random networks."""
    processes.tune_process()
    dataset = DatasetConfig("fashion_mnist", path=sys.argv[1])
    space, families, data = supernet.read_space_and_data(["dense_packed"], dataset, NullProgress())
    (member,) = space.members
    train, nowhere = TrainingConfig(), Path("unkept")
    setup = TrainingSetup(member, families[member.name], data, dataset, train, 0, nowhere)

    def macs(genotype: Genotype) -> int:
        return n_macs(setup.graph(genotype))

    drawn = sorted((member.sample(random.Random(s)) for s in range(_DRAWN)), key=macs)
    for genotype in (drawn[i] for i in _SHOWN):
        pairs = [_pair(setup, genotype, (1, 2) if i % 2 else (2, 1)) for i in range(_TURNS)]
        one, two = (statistics.median(pair[n] for pair in pairs) for n in (1, 2))
        gains = sorted(pair[2] / pair[1] for pair in pairs)
        print(
            f"{macs(genotype) / 1e6:6.2f} million MACs: {one:5.0f} and {two:5.0f} images/s, "
            f"{statistics.median(gains):.2f} times as many ({gains[0]:.2f} to {gains[-1]:.2f})",
            flush=True,
        )


def _pair(setup: TrainingSetup, genotype: Genotype, order: tuple[int, int]) -> dict[int, float]:
    """Return images per second by the number of threads, measured in this order."""
    found = {}
    for n_threads in order:
        torch.set_num_threads(n_threads)
        network, resolution = setup.build(genotype), setup.resolution(genotype)
        grids, dtype = setup.grids(network, genotype), setup.dtype(genotype)
        student = StudentNetwork(network, resolution, setup.family.recipe, grids=grids, dtype=dtype)
        estimate = inspect.unwrap(estimate_seconds)  # not limited to one thread
        took = estimate(student, setup.material, setup.train, setup.seed, _STEPS)
        found[n_threads] = _STEPS * setup.train.images_per_step / took
    return found


if __name__ == "__main__":
    main()
