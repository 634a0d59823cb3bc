"""Trainings of small supernets that can be interrupted."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from hwnas.core.progress import NullProgress, Progress
from hwnas.models import families
from hwnas.models.families.base import Supernet
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.training import inference
from hwnas.training.batches import TrainingData
from hwnas.training.checkpoints import Checkpoint
from hwnas.training.data import DatasetConfig, ImageData
from hwnas.training.loop import (
    CheckpointPolicy,
    GradientStep,
    LogRow,
    TrainingJobSpec,
    TrainingLog,
    TrainingSummary,
    train,
)
from hwnas.training.options import TrainingConfig
from hwnas.training.sandwich import Sandwich


class Killed(Exception):
    """Simulated end of the process."""


class KillAfter:
    """A progress that raises ``Killed`` after ``n`` steps."""

    def __init__(self, n: int):
        self._left = n

    @contextmanager
    def phase(
        self, name: str, total: int, done: int = 0, remaining_s: float = math.inf
    ) -> Iterator[Callable[[int], None]]:
        def advance(n: int) -> None:
            self._left -= n
            if self._left == 0:
                raise Killed

        yield advance


class Rows(list[LogRow]):
    """A log in memory."""

    def __call__(self, row: LogRow) -> None:
        self.append(row)

    def flush(self) -> None: ...


def material(data: ImageData) -> TrainingData:
    return TrainingData(data, DatasetConfig("digits", shift=0.125))


class Learner:
    """A supernet trained on small data, always from the equal_tensors initial weights."""

    def __init__(self, space: SearchSpace, data: ImageData, config: TrainingConfig):
        self._space, self._data, self.config = space, data, config
        self._family = families.get(space.family)
        torch.manual_seed(0)
        self.supernet: Supernet = self._family.supernet(space, data.signature)
        self.rows = Rows()

    def resolution(self, genotype: Genotype) -> int:
        return self._family.resolution(self._space, genotype)

    @property
    def sandwich(self) -> Sandwich:
        sandwich = Sandwich(self.supernet, self._space, self.resolution, self.config)
        if self.config.dtype != inference.AUTO:
            sandwich.dtype = self.config.dtype
        return sandwich

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return self.supernet.module.state_dict()

    def train(
        self,
        path: Path,
        progress: Progress | None = None,
        *,
        step: GradientStep | None = None,
        every_s: float = 2.5,
        log: TrainingLog | None = None,
    ) -> TrainingSummary:
        """Train with a clock that advances by one second per reading."""
        ticks, log = iter(range(10**6)), self.rows if log is None else log
        saving = CheckpointPolicy(Checkpoint(path), every_s, lambda: float(next(ticks)), log)
        trainee = TrainingJobSpec(self.supernet.module, step or self.sandwich, self._family.recipe)
        inputs = material(self._data)
        return train(trainee, inputs, self.config, 0, saving, progress or NullProgress())


def equal_tensors(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
