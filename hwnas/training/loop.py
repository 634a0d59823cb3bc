"""Trains a supernet; every step follows from the seed and its own number alone."""

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hwnas.errors import ConfigError, TrainingError
from hwnas.families.base import Supernet
from hwnas.progress import Progress
from hwnas.space import Genotype, SearchSpace
from hwnas.training import sandwich
from hwnas.training.checkpoint import Checkpoint
from hwnas.training.data import DatasetConfig, ImageData, ahead, draw_changes

_MAX_GRADIENT_NORM = 5.0


@dataclass
class TrainingConfig:
    """How a supernet is trained."""

    epochs: int = 20
    batch_size: int = 128
    lr: float = 0.1  #: peak of the cosine schedule
    momentum: float = 0.9
    weight_decay: float = 5e-5
    warmup: float = 0.05  #: fraction of the steps
    label_smoothing: float = 0.1
    n_random: int = 2  #: random subnets a step, beside the largest and the smallest

    def __post_init__(self) -> None:
        if self.batch_size == 1:
            raise ConfigError("train.batch_size must be at least 2 for batch norm.")
        for key in ("epochs", "batch_size", "lr"):
            if getattr(self, key) <= 0:
                raise ConfigError(f"train.{key} must be positive, got {getattr(self, key)}.")
        for key in ("momentum", "warmup", "label_smoothing"):
            if not 0 <= getattr(self, key) < 1:
                raise ConfigError(f"train.{key} must lie in [0, 1), got {getattr(self, key)}.")
        if self.n_random < 0 or self.weight_decay < 0:
            raise ConfigError("train.n_random and train.weight_decay must not be negative.")


@dataclass(frozen=True)
class Trainee:
    """What is trained: a supernet, its space and how to find a genotype's resolution."""

    supernet: Supernet
    space: SearchSpace
    resolution: Callable[[Genotype], int]


@dataclass(frozen=True)
class Material:
    """What it is trained on."""

    data: ImageData
    dataset: DatasetConfig


@dataclass(frozen=True)
class Saving:
    """Where and how often training state is kept."""

    checkpoint: Checkpoint
    every_s: float = 20.0
    clock: Callable[[], float] = time.monotonic


def n_steps(config: TrainingConfig, n_images: int) -> int:
    """Return the number of steps of a whole training."""
    return config.epochs * max(1, n_images // config.batch_size)


def train(
    trainee: Trainee,
    material: Material,
    config: TrainingConfig,
    seed: int,
    saving: Saving,
    progress: Progress,
) -> None:
    """Train to the end, continuing from the checkpoint if there is one.

    Batches, augmentation and subnets of step ``s`` are drawn from ``(seed, s)``, so that a training
    that was cut off ends with the weights of one that was not.

    Raises:
        TrainingError: the loss is no longer a finite number.
    """
    module = trainee.supernet.module.train()
    optimiser = torch.optim.SGD(
        module.parameters(),
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        nesterov=config.momentum > 0,
    )
    total = n_steps(config, len(material.data.train))
    done = saving.checkpoint.load(module, optimiser)
    saved_at = saving.clock()
    steps = range(done, total)
    batches = ahead(
        material.data.train, lambda step: _batch(material, config.batch_size, seed, step), steps
    )
    with progress.phase("Train supernet", total, done) as advance:
        for step, batch in zip(steps, batches, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = config.lr * _schedule(step / total, config.warmup)
            optimiser.zero_grad()
            loss = _step(trainee, material.data, batch, config, f"subnets {seed} {step}")
            if not math.isfinite(loss):
                raise TrainingError(
                    f"Training collapsed at step {step}: the loss is {loss}. "
                    f"Try a smaller learning rate: train.lr={config.lr / 4:g}"
                )
            sandwich.clip_gradients(trainee.supernet, _MAX_GRADIENT_NORM)
            optimiser.step()
            if step + 1 == total or saving.clock() - saved_at > saving.every_s:
                saving.checkpoint.save(module, optimiser, step + 1)
                saved_at = saving.clock()
            advance(1)


def _schedule(progress: float, warmup: float) -> float:
    """Linear warm-up, then half a cosine down to zero."""
    if progress < warmup:
        return (progress + 1e-3) / (warmup + 1e-3)
    return 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))


def _step(
    trainee: Trainee,
    data: ImageData,
    batch: tuple[Tensor, Tensor],
    config: TrainingConfig,
    key: str,
) -> float:
    """Compute the gradients of one step; return the loss."""
    images, labels = batch
    prepared: dict[int, Tensor] = {}

    def at_resolution(genotype: Genotype) -> Tensor:
        resolution = trainee.resolution(genotype)
        if resolution not in prepared:
            prepared[resolution] = data.prepare(images, resolution)
        return prepared[resolution]

    genotypes = sandwich.draw(trainee.space, config.n_random, random.Random(key))
    return sandwich.step(trainee.supernet, genotypes, at_resolution, labels, config.label_smoothing)


def _batch(material: Material, batch_size: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Return the augmented images and labels of one step; an epoch sees each image at most once."""
    train = material.data.train
    per_epoch = max(1, len(train) // batch_size)
    epoch, position = divmod(step, per_epoch)
    order = torch.randperm(len(train), generator=_generator(seed, epoch, "epoch"))
    index = order[position * batch_size : (position + 1) * batch_size]
    rng = _generator(seed, step, "augment")
    part = train.take(index, draw_changes(len(index), train.side, material.dataset, rng))
    return part.images, part.labels


def _generator(seed: int, number: int, purpose: str) -> torch.Generator:
    draw = random.Random(f"{purpose} {seed} {number}").getrandbits(62)
    return torch.Generator().manual_seed(draw)
