"""A data set with its splits, task and normalisation."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from hwnas import tasks
from hwnas.models.graph import Signature
from hwnas.tasks.base import Task
from hwnas.training.data.splits import DataSplit, InMemorySplit, ahead, digest

_BATCH = 256  # images of a streamed split per batch
_MAX_BYTES = 1 << 28  # prepared images of a split in memory per batch

ImageBatch = tuple[Tensor, Tensor]  #: normalised images ``(N, C, R, R)`` and targets


@dataclass(frozen=True)
class ImageData:
    """A data set. The search uses ``train`` and ``validation``, only verification uses ``test``."""

    name: str
    train: DataSplit
    validation: DataSplit
    test: DataSplit
    task: Task
    mean: tuple[float, ...]  #: per channel, of the training images in [0, 1]
    std: tuple[float, ...]
    notes: tuple[str, ...] = ()  #: messages about how the data were read

    @property
    def signature(self) -> Signature:
        """Input channels and outputs of a network for these data."""
        return Signature(len(self.mean), self.task.n_outputs)

    @property
    def search_digest(self) -> str:
        """Digest of the training and the validation split."""
        return digest(self.train, self.validation)

    @property
    def digest(self) -> str:
        """Digest of all splits."""
        return digest(self.train, self.validation, self.test)

    @cached_property
    def class_counts(self) -> dict[str, dict[str, int]]:
        """Number of images by split and class; empty for tasks without classes."""
        if not tasks.get(self.task.name).categorical:
            return {}
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        n, names = self.task.n_outputs, self.task.names
        return {
            split: dict(zip(names, torch.bincount(part.targets, minlength=n).tolist(), strict=True))
            for split, part in splits.items()
        }

    def prepare(self, images: Tensor, resolution: int, *, rounded: bool = False) -> Tensor:
        """Return normalised images ``(N, C, R, R)`` in channels-last order.

        Args:
            images: uint8, ``(N, H, W, C)``.
            resolution: Height and width of the result.
            rounded: True: resized images are rounded to uint8, as on a device.
        """
        x = images.permute(0, 3, 1, 2).to(torch.float32, copy=True)  # modified below
        if x.shape[-1] != resolution or x.shape[-2] != resolution:
            x = F.interpolate(x, (resolution, resolution), mode="bilinear", antialias=True)
            x = x.round_().clamp_(0, 255) if rounded else x
        mean = torch.tensor(self.mean, device=x.device).view(1, -1, 1, 1) * 255
        std = torch.tensor(self.std, device=x.device).view(1, -1, 1, 1) * 255
        return x.sub_(mean).div_(std).to(memory_format=torch.channels_last)

    def n_bytes(self, n: int, resolution: int) -> int:
        """Return the size of ``n`` prepared images."""
        return n * len(self.mean) * resolution**2 * 4

    def batches(
        self,
        split: DataSplit,
        resolution: int,
        index: Tensor | None = None,
        *,
        rounded: bool = False,
    ) -> Iterator[ImageBatch]:
        """Yield prepared images and targets of a split, or of its images at ``index``.

        A small split in memory is one batch. Batches of streamed splits are prefetched.
        """
        order = torch.arange(len(split)) if index is None else index
        size = _BATCH
        if isinstance(split, InMemorySplit):
            size = max(_BATCH, _MAX_BYTES // self.n_bytes(1, resolution))
        chunks = torch.split(order, size)

        def batch(i: int) -> ImageBatch:
            part = split.take(chunks[i])
            return self.prepare(part.images, resolution, rounded=rounded), part.targets

        yield from ahead(split, batch, range(len(chunks)))
