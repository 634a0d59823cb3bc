"""Training step of single networks compared with only their forward and backward passes.

    python -m benchmarks.plain_step

The script trains three networks of ``dense_packed`` on digits, as a search does. After each step it
runs only the forward and backward passes of the same network, so that both are measured under the
same load. It prints the median processor times in milliseconds, and their ratio.

To compare two versions of the package, run ``python benchmarks/plain_step.py`` with the folder of
each version in ``PYTHONPATH``, alternately.
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
        step_ms, passes_ms = median(timer.steps[_WARM_UP:]), median(timer.passes[_WARM_UP:])
        print(
            f"{n_macs(graph) / 1e6:5.2f} million MACs: step {step_ms:5.2f} ms, "
            f"forward and backward {passes_ms:5.2f} ms, ratio {step_ms / passes_ms:.2f}"
        )


class _Timer:
    """A ``Progress`` that measures each training step and, after it, the passes of a network."""

    def __init__(self, network: nn.Module, images: Tensor, targets: Tensor):
        self._network, self._images, self._targets = network, images, targets
        self.steps, self.passes = list[float](), list[float]()  #: milliseconds

    @contextmanager
    def phase(
        self, name: str, total: int, done: int = 0, left_s: float = math.inf
    ) -> Iterator[Callable[[int], None]]:
        """Yield an ``advance`` that ends the measurement of a step."""
        start = time.thread_time()

        def advance(n: int) -> None:
            nonlocal start
            end = time.thread_time()
            self.steps.append(1e3 * (end - start))
            self._run_passes()
            start = time.thread_time()
            self.passes.append(1e3 * (start - end))

        yield advance

    def _run_passes(self) -> None:
        for parameter in self._network.parameters():
            parameter.grad = None
        outputs = self._network(self._images)
        torch.autograd.backward(nn.functional.cross_entropy(outputs, self._targets))


if __name__ == "__main__":
    main()
