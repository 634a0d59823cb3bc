"""What a training step of one plain network costs beside computing the network.

python -m benchmarks.plain_step trains small networks of ``dense_packed`` on digits for some steps,
as a search does it, and runs the same networks forward and backward alone; it prints milliseconds
of processor time of one thread, the tenth of the steps that took least.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

from hwnas.core import processes
from hwnas.core.progress import NullProgress
from hwnas.models import families, spaces
from hwnas.models.families import annotations
from hwnas.models.graph import Signature, n_macs
from hwnas.models.int8.weight_grids import weight_grids_of
from hwnas.training.batches import TrainingData
from hwnas.training.checkpoints import Checkpoint
from hwnas.training.data import DatasetConfig, load_data
from hwnas.training.loop import CheckpointPolicy
from hwnas.training.options import TrainingConfig
from hwnas.training.single_network import StudentNetwork, train_network

_STEPS, _DRAWN = 200, 40
_SIGNATURE = Signature(1, 10)


def main() -> None:
    """Time the smallest network, and two of forty random ones."""
    processes.tune_process()
    torch.set_num_threads(1)
    dataset = DatasetConfig("digits", validation=0.25)
    data = load_data(dataset, 28, NullProgress())
    found = spaces.load_space(spaces.find("dense_packed"))
    family = families.family_of(found)

    def macs(genotype: spaces.Genotype) -> int:
        return n_macs(family.lower(found, genotype, _SIGNATURE))

    drawn = sorted((found.sample(random.Random(s)) for s in range(_DRAWN)), key=macs)
    for genotype in (found.smallest(), drawn[3], drawn[_DRAWN // 2]):
        torch.manual_seed(0)
        network = family.build(found, genotype, _SIGNATURE)
        lowered = annotations.lower(family, found, genotype, _SIGNATURE)
        config = TrainingConfig(epochs=-(-_STEPS * 64 // len(data.train)), batch_size=64)
        resolution = family.resolution(found, genotype)
        student = StudentNetwork(
            network, resolution, family.recipe, grids=weight_grids_of(network, lowered)
        )
        ends: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            saving = CheckpointPolicy(Checkpoint(Path(folder, "unkept.safetensors")), every_s=1e9)
            train_network(student, TrainingData(data, dataset), config, 0, saving, _Ticks(ends))
        whole = _least([b - a for a, b in pairwise(ends)])
        images = data.prepare(data.train.take(torch.arange(64)).images, resolution)
        alone = _least(_alone(network.train(), images, data.train.targets[:64]))
        print(
            f"{n_macs(lowered) / 1e6:6.3f} million MACs: {whole:5.1f} ms a step, of which the "
            f"network takes {alone:5.1f}: {whole / alone:.2f} times as long"
        )


class _Ticks:
    """Progress that notes when each step ended."""

    def __init__(self, ends: list[float]):
        self._ends = ends

    @contextmanager
    def phase(
        self, name: str, total: int, done: int = 0, left_s: float = math.inf
    ) -> Iterator[Callable[[int], None]]:
        """Give an ``advance`` that notes the processor's milliseconds."""
        yield lambda n: self._ends.append(1e3 * time.process_time())


def _alone(network: nn.Module, images: Tensor, targets: Tensor) -> list[float]:
    """Return milliseconds of forward and backward passes."""
    found = []
    for _ in range(_STEPS):
        began = time.process_time()
        network.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(network(images), targets))
        found.append(1e3 * (time.process_time() - began))
    return found


def _least(times: list[float]) -> float:
    """Return the tenth part of times from below, the first ones left out."""
    kept = sorted(times[20:])
    return kept[len(kept) // 10]


if __name__ == "__main__":
    main()
