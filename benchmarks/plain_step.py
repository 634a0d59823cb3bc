"""Training steps of single networks compared with their forward and backward passes alone.

``python -m benchmarks.plain_step`` trains three networks of ``dense_packed`` on digits as a search
does. After each step it runs the same network forward and backward alone, so that both are measured
under the same load. It prints median milliseconds of processor time and their ratio. To compare
with another version of the package, start ``python benchmarks/plain_step.py`` with its folder in
``PYTHONPATH``, alternating between the versions.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import copy
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

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

_STEPS, _WARM_UP, _BATCH = 300, 30, 64
_SEEDS = 180, 157, 800  # networks of 0.06, 0.27 and 1.47 million MACs
_SIGNATURE = Signature(1, 10)


def main() -> None:
    """Time the steps of three networks."""
    processes.tune_process()
    torch.set_num_threads(1)
    dataset = DatasetConfig("digits", validation=0.25, shift=0.125)
    data = load_data(dataset, 28, NullProgress())
    space = spaces.load_space(spaces.find("dense_packed"))
    family = families.family_of(space)
    for genotype in (space.sample(random.Random(seed)) for seed in _SEEDS):
        torch.manual_seed(0)
        network = family.build(space, genotype, _SIGNATURE)
        graph = annotations.lower(family, space, genotype, _SIGNATURE)
        config = TrainingConfig(epochs=-(-_STEPS * _BATCH // len(data.train)), batch_size=_BATCH)
        resolution = family.resolution(space, genotype)
        student = StudentNetwork(
            network, resolution, family.recipe, grids=weight_grids_of(network, graph)
        )
        images = data.prepare(data.train.take(torch.arange(_BATCH)).images, resolution)
        plain = copy.deepcopy(network).train()
        plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        timer = _Timer(plain, images, data.train.targets[:_BATCH])
        with tempfile.TemporaryDirectory() as folder:
            saving = CheckpointPolicy(Checkpoint(Path(folder, "network.safetensors")), every_s=1e9)
            train_network(student, TrainingData(data, dataset), config, 0, saving, timer)
        whole, alone = median(timer.steps[_WARM_UP:]), median(timer.alone[_WARM_UP:])
        print(
            f"{n_macs(graph) / 1e6:5.2f} million MACs: step {whole:5.2f} ms, "
            f"network alone {alone:5.2f} ms, ratio {whole / alone:.2f}"
        )


class _Timer:
    """Progress that measures each step, and passes of a network alone after each step."""

    def __init__(self, network: nn.Module, images: Tensor, targets: Tensor):
        self._network, self._images, self._targets = network, images, targets
        self.steps, self.alone = list[float](), list[float]()  #: milliseconds

    @contextmanager
    def phase(
        self, name: str, total: int, done: int = 0, left_s: float = math.inf
    ) -> Iterator[Callable[[int], None]]:
        """Yield an ``advance`` that ends the measurement of a step."""
        began = time.thread_time()

        def advance(n: int) -> None:
            nonlocal began
            ended = time.thread_time()
            self.steps.append(1e3 * (ended - began))
            self._passes()
            began = time.thread_time()
            self.alone.append(1e3 * (began - ended))

        yield advance

    def _passes(self) -> None:
        for parameter in self._network.parameters():
            parameter.grad = None
        outputs = self._network(self._images)
        torch.autograd.backward(nn.functional.cross_entropy(outputs, self._targets))


if __name__ == "__main__":
    main()
