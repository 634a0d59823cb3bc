"""Training batches, determined by the seed and the step number alone."""

import random
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from hwnas.training.data import AugmentationParameters, DatasetConfig, ImageData, draw_changes
from hwnas.training.options import TrainingConfig
from hwnas.training.parallel import ProcessGroup


@dataclass(frozen=True)
class TrainingData:
    """A data set and its options."""

    data: ImageData
    dataset: DatasetConfig


@dataclass(frozen=True)
class StepContext:
    """Seed and position of one training step, from which all its random numbers follow."""

    seed: int
    #: index of the step, from 0; earlier trainings of the same network count
    step: int
    progress: float  #: completed fraction of this training, in [0, 1)

    def rng(self, purpose: str) -> random.Random:
        """Return a Python random generator, seeded from seed, step and the name of a purpose."""
        return random.Random(f"{purpose} {self.seed} {self.step}")

    def generator(self, purpose: str) -> torch.Generator:
        """Return a CPU generator of torch, seeded from seed, step and the name of a purpose."""
        return _generator(self.rng(purpose))

    def seed_layers(self, purpose: str, device: torch.device, rank: int) -> None:
        """Seed torch's global generators, which layers such as dropout sample from.

        Each process, given by its ``rank``, gets another seed.
        On the CPU only the CPU generator is seeded: ``torch.manual_seed`` is slow, because it
        records a stack trace for each kind of device that is missing.
        """
        seed = self.rng(purpose).getrandbits(62) + rank
        seeded = torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed
        seeded(seed)


@dataclass(frozen=True)
class TrainingBatch:
    """Augmented images of one step with their targets."""

    images: Tensor  #: ``(N, H, W, C)``, uint8, or float32 in [0, 255] with mixup
    targets: Tensor  #: targets of the data set; with mixup those of the larger part
    loss_targets: Tensor  #: targets in the form that the task's loss takes
    data: ImageData
    #: indices of the images in the training split, ``(N,)``; ``None`` if augmented or mixed
    rows: Tensor | None = None
    _prepared: dict[int, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device) -> "TrainingBatch":
        """Return the batch on a device."""
        return TrainingBatch(
            self.images.to(device),
            self.targets.to(device),
            self.loss_targets.to(device),
            self.data,
            self.rows,
        )

    def at(self, resolution: int) -> Tensor:
        """Return the images, resized to ``R = resolution`` and normalised: ``(N, C, R, R)``.

        The result is cached.
        """
        if resolution not in self._prepared:
            self._prepared[resolution] = self.data.prepare(self.images, resolution)
        return self._prepared[resolution]

    def loss(self, outputs: Tensor, smoothing: float) -> Tensor:
        """Return the mean loss of a network's outputs ``(N, n_outputs)``, a scalar tensor.

        Args:
            outputs: Outputs of the network.
            smoothing: Label smoothing, in [0, 1).
        """
        return self.data.task.loss(outputs, self.loss_targets, smoothing)

    def total(self, outputs: Tensor) -> float:
        """Return the sum of the results per image, for example the number of correct answers."""
        results = self.data.task.per_sample(
            outputs.detach().cpu().numpy(), self.targets.cpu().numpy()
        )
        return float(results.sum())


def steps_per_epoch(batch_size: int, n_images: int) -> int:
    """Return the number of steps per epoch, at least 1; an incomplete last batch is dropped."""
    return max(1, n_images // batch_size)


def draw(
    material: TrainingData,
    config: TrainingConfig,
    step_context: StepContext,
    processes: ProcessGroup,
) -> TrainingBatch:
    """Return the part of a step's batch that this process trains on.

    An epoch uses each image at most once. The last ``config.plain_fraction`` of the steps use
    images without augmentation and mixup, which suits small networks (He et al., "Data
    Augmentation Revisited", 2019, https://arxiv.org/abs/1909.09148).
    """
    train, n = material.data.train, config.images_per_step
    epoch, position = divmod(step_context.step, steps_per_epoch(n, len(train)))
    index = _order(step_context.seed, epoch, len(train))[position * n : (position + 1) * n]
    n = len(index)
    is_plain = step_context.progress >= 1 - config.plain_fraction
    # Sampled for the whole batch, so that all processes sample the same.
    changes = (
        AugmentationParameters()
        if is_plain
        else draw_changes(n, train.side, material.dataset, step_context.generator("augment"))
    )
    rows = torch.arange(n)[processes.rows(n)]
    part = train.take(index[rows], changes.at(rows))
    if is_plain or not config.mixup:
        originals = index[rows] if changes.none else None
        loss_targets = material.data.task.loss_targets(part.targets)
        return TrainingBatch(part.images, part.targets, loss_targets, material.data, originals)
    other = n - 1 - rows
    partner = part.take(other) if len(rows) == n else train.take(index[other], changes.at(other))
    share = step_context.rng("mixup").betavariate(config.mixup, config.mixup)
    mixed = share * part.images.float() + (1 - share) * partner.images.float()
    targets, loss_targets = material.data.task.mixup_targets(part.targets, partner.targets, share)
    return TrainingBatch(mixed, targets, loss_targets, material.data)


@lru_cache(1)
def _order(seed: int, epoch: int, n: int) -> Tensor:
    return torch.randperm(n, generator=_generator(random.Random(f"epoch {seed} {epoch}")))


def _generator(rng: random.Random) -> torch.Generator:
    return torch.Generator().manual_seed(rng.getrandbits(62))
