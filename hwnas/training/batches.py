"""The batch of a step: it follows from the seed and the step's number alone."""

import random
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from hwnas.training.config import TrainingConfig
from hwnas.training.data import Changes, DatasetConfig, ImageData, draw_changes
from hwnas.training.parallel import Processes


@dataclass(frozen=True)
class Material:
    """What is trained on."""

    data: ImageData
    dataset: DatasetConfig


@dataclass(frozen=True)
class Moment:
    """One step of a training; all that is random in it is drawn from here."""

    seed: int
    step: int
    progress: float  #: of the whole training, in [0, 1)

    def rng(self, purpose: str) -> random.Random:
        """Return a generator of this step's own."""
        return random.Random(f"{purpose} {self.seed} {self.step}")

    def generator(self, purpose: str) -> torch.Generator:
        """Return a torch generator of this step's own."""
        return _generator(self.rng(purpose))


@dataclass(frozen=True)
class Batch:
    """Augmented images of one step with what is to be learned about them."""

    images: Tensor  #: ``(N, H, W, C)``, uint8, or float32 in [0, 255] where they are mixed
    labels: Tensor  #: ``(N,)``; of mixed images, of what they show most of
    targets: Tensor  #: ``labels``, or probabilities ``(N, n_classes)`` where images are mixed
    data: ImageData
    #: where the images are as they are in the training split: their places in it, ``(N,)``
    places: Tensor | None = None
    _prepared: dict[int, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch in the memory of a device."""
        return Batch(
            self.images.to(device),
            self.labels.to(device),
            self.targets.to(device),
            self.data,
            self.places,
        )

    def at(self, resolution: int) -> Tensor:
        """Return normalised images ``(N, C, R, R)``."""
        if resolution not in self._prepared:
            self._prepared[resolution] = self.data.prepare(self.images, resolution)
        return self._prepared[resolution]

    def n_right(self, logits: Tensor) -> int:
        """Return how many images a network classifies rightly."""
        return int((logits.argmax(1) == self.labels).sum())


def steps_per_epoch(batch_size: int, n_images: int) -> int:
    """Return the steps of an epoch; images that fill no batch wait for another epoch."""
    return max(1, n_images // batch_size)


def draw(material: Material, config: TrainingConfig, moment: Moment, processes: Processes) -> Batch:
    """Return this process's share of a step's batch; an epoch sees each image at most once.

    The last ``config.unaugmented`` of the steps see images as they are: what was learned from
    changed ones stays, and networks too small for both fit what they will be asked (He et al.,
    "Data Augmentation Revisited", 2019, https://arxiv.org/abs/1909.09148).
    """
    train, n = material.data.train, config.batch_size
    epoch, position = divmod(moment.step, steps_per_epoch(n, len(train)))
    index = _order(moment.seed, epoch, len(train))[position * n : (position + 1) * n]
    n = len(index)
    as_they_are = moment.progress >= 1 - config.unaugmented
    # Drawn for the whole batch, so that each process draws alike.
    changes = (
        Changes()
        if as_they_are
        else draw_changes(n, train.side, material.dataset, moment.generator("augment"))
    )
    own = torch.arange(n)[processes.rows(n)]
    part = train.take(index[own], changes.at(own))
    if as_they_are or not config.mixup:
        places = index[own] if changes.none else None
        return Batch(part.images, part.labels, part.labels, material.data, places)
    other = n - 1 - own
    partner = part.take(other) if len(own) == n else train.take(index[other], changes.at(other))
    share = moment.rng("mixup").betavariate(config.mixup, config.mixup)
    mixed = share * part.images.float() + (1 - share) * partner.images.float()
    n_classes = len(material.data.classes)
    first, second = (F.one_hot(split.labels, n_classes).float() for split in (part, partner))
    targets = share * first + (1 - share) * second
    most = part.labels if share >= 0.5 else partner.labels
    return Batch(mixed, most, targets, material.data)


@lru_cache(1)
def _order(seed: int, epoch: int, n: int) -> Tensor:
    return torch.randperm(n, generator=_generator(random.Random(f"epoch {seed} {epoch}")))


def _generator(rng: random.Random) -> torch.Generator:
    return torch.Generator().manual_seed(rng.getrandbits(62))
