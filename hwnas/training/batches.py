"""The batch of a step: it follows from the seed and the step's number alone."""

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
    """What is trained on."""

    data: ImageData
    dataset: DatasetConfig


@dataclass(frozen=True)
class StepContext:
    """One step of a training; all that is random in it is drawn from here."""

    seed: int
    step: int  #: counted from epoch 0, which another training may have begun with
    progress: float  #: of this training, in [0, 1)

    def rng(self, purpose: str) -> random.Random:
        """Return a generator of this step's own."""
        return random.Random(f"{purpose} {self.seed} {self.step}")

    def generator(self, purpose: str) -> torch.Generator:
        """Return a torch generator of this step's own."""
        return _generator(self.rng(purpose))

    def seed_layers(self, purpose: str, device: torch.device, rank: int) -> None:
        """Seed what layers draw from by themselves, in a process of several.

        That of the CPU alone, where it trains: for each kind of device that there is not,
        ``torch.manual_seed`` writes down the stack, which takes as long as a layer.
        """
        seed = self.rng(purpose).getrandbits(62) + rank
        seeded = torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed
        seeded(seed)


@dataclass(frozen=True)
class TrainingBatch:
    """Augmented images of one step with what is to be learned about them."""

    images: Tensor  #: ``(N, H, W, C)``, uint8, or float32 in [0, 255] where they are mixed
    targets: Tensor  #: as the data set says them; where images are mixed, nearest to what they show
    loss_targets: Tensor  #: what the task's loss compares outputs with
    data: ImageData
    #: where the images are as they are in the training split: their places in it, ``(N,)``
    places: Tensor | None = None
    _prepared: dict[int, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device) -> "TrainingBatch":
        """Return the batch in the memory of a device."""
        return TrainingBatch(
            self.images.to(device),
            self.targets.to(device),
            self.loss_targets.to(device),
            self.data,
            self.places,
        )

    def at(self, resolution: int) -> Tensor:
        """Return normalised images ``(N, C, R, R)``."""
        if resolution not in self._prepared:
            self._prepared[resolution] = self.data.prepare(self.images, resolution)
        return self._prepared[resolution]

    def loss(self, outputs: Tensor, smoothing: float) -> Tensor:
        """Return the loss of a network's outputs ``(N, n_outputs)``."""
        return self.data.task.loss(outputs, self.loss_targets, smoothing)

    def total(self, outputs: Tensor) -> float:
        """Return the sum of what the task finds of each image."""
        answered = outputs.detach().cpu().numpy()
        return float(self.data.task.per_sample(answered, self.targets.cpu().numpy()).sum())


def steps_per_epoch(batch_size: int, n_images: int) -> int:
    """Return the steps of an epoch; images that fill no batch wait for another epoch."""
    return max(1, n_images // batch_size)


def draw(
    material: TrainingData,
    config: TrainingConfig,
    step_context: StepContext,
    processes: ProcessGroup,
) -> TrainingBatch:
    """Return this process's share of a step's batch; an epoch sees each image at most once.

    The last ``config.plain_fraction`` of the steps see images as they are: what was learned from
    changed ones stays, and networks too small for both fit what they will be asked (He et al.,
    "Data Augmentation Revisited", 2019, https://arxiv.org/abs/1909.09148).
    """
    train, n = material.data.train, config.batch_size
    epoch, position = divmod(step_context.step, steps_per_epoch(n, len(train)))
    index = _order(step_context.seed, epoch, len(train))[position * n : (position + 1) * n]
    n = len(index)
    as_they_are = step_context.progress >= 1 - config.plain_fraction
    # Drawn for the whole batch, so that each process draws alike.
    changes = (
        AugmentationParameters()
        if as_they_are
        else draw_changes(n, train.side, material.dataset, step_context.generator("augment"))
    )
    own = torch.arange(n)[processes.rows(n)]
    part = train.take(index[own], changes.at(own))
    if as_they_are or not config.mixup:
        places = index[own] if changes.none else None
        loss_targets = material.data.task.loss_targets(part.targets)
        return TrainingBatch(part.images, part.targets, loss_targets, material.data, places)
    other = n - 1 - own
    partner = part.take(other) if len(own) == n else train.take(index[other], changes.at(other))
    share = step_context.rng("mixup").betavariate(config.mixup, config.mixup)
    mixed = share * part.images.float() + (1 - share) * partner.images.float()
    targets, loss_targets = material.data.task.mixup_targets(part.targets, partner.targets, share)
    return TrainingBatch(mixed, targets, loss_targets, material.data)


@lru_cache(1)
def _order(seed: int, epoch: int, n: int) -> Tensor:
    return torch.randperm(n, generator=_generator(random.Random(f"epoch {seed} {epoch}")))


def _generator(rng: random.Random) -> torch.Generator:
    return torch.Generator().manual_seed(rng.getrandbits(62))
