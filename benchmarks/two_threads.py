"""Speedup by a second thread for training one network.

    python -m benchmarks.two_threads DIR

The script trains networks of ``dense_packed`` on Fashion-MNIST for some steps, with one and with
two threads, interleaved, and prints images per second. DIR contains the data set as Parquet files.
"""

import os

# As in ``processes.tune_process``; it must be set before torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

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

_N_NETWORKS, _INDICES, _N_PAIRS = 40, (10, 20, 30, 35), 5  # indices in the order of MACs
_STEPS = 10**6  # so many that the start of a training does not count


def main() -> None:
    """Time four of forty random networks, from small to large."""
    processes.tune_process()
    dataset = DatasetConfig("fashion_mnist", path=sys.argv[1])
    space, families, data = supernet.read_space_and_data(["dense_packed"], dataset, NullProgress())
    (member,) = space.members
    train, folder = TrainingConfig(), Path("unused")
    setup = TrainingSetup(member, families[member.name], data, dataset, train, 0, folder)

    def macs(genotype: Genotype) -> int:
        return n_macs(setup.graph(genotype))

    genotypes = sorted((member.sample(random.Random(s)) for s in range(_N_NETWORKS)), key=macs)
    for genotype in (genotypes[i] for i in _INDICES):
        pairs = [_rates(setup, genotype, (1, 2) if i % 2 else (2, 1)) for i in range(_N_PAIRS)]
        rate_1, rate_2 = (statistics.median(pair[n] for pair in pairs) for n in (1, 2))
        speedups = sorted(pair[2] / pair[1] for pair in pairs)
        print(
            f"{macs(genotype) / 1e6:6.2f} million MACs: {rate_1:5.0f} and {rate_2:5.0f} images/s, "
            f"speedup {statistics.median(speedups):.2f} ({speedups[0]:.2f} to {speedups[-1]:.2f})",
            flush=True,
        )


def _rates(setup: TrainingSetup, genotype: Genotype, order: tuple[int, int]) -> dict[int, float]:
    """Return images per second by the number of threads, measured in this order."""
    rates = {}
    for n_threads in order:
        torch.set_num_threads(n_threads)
        network, resolution = setup.build(genotype), setup.resolution(genotype)
        grids, dtype = setup.grids(network, genotype), setup.dtype(genotype)
        student = StudentNetwork(network, resolution, setup.family.recipe, grids=grids, dtype=dtype)
        estimate = inspect.unwrap(estimate_seconds)  # not limited to one thread
        seconds = estimate(student, setup.material, setup.train, setup.seed, _STEPS)
        rates[n_threads] = _STEPS * setup.train.images_per_step / seconds
    return rates


if __name__ == "__main__":
    main()
