"""A data set as training, search and verification see it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from hwnas.models.graph import Signature
from hwnas.tasks.base import Task
from hwnas.training.data.splits import DataSplit, InMemorySplit, ahead, digest

_BATCH = 256  # images of a streamed split that are decoded at once
_MOST = 1 << 28  # bytes that prepared images of a split in memory take at once

ImageBatch = tuple[Tensor, Tensor]  #: normalised images ``(N, C, R, R)`` and targets


@dataclass(frozen=True)
class ImageData:
    """A data set. Search reads ``train`` and ``validation``; only verification reads ``test``."""

    name: str
    train: DataSplit
    validation: DataSplit
    test: DataSplit
    task: Task
    mean: tuple[float, ...]  #: per channel, of the training images in [0, 1]
    std: tuple[float, ...]
    notes: tuple[str, ...] = ()  #: what the user should know of how it was read, in sentences

    @property
    def signature(self) -> Signature:
        """What a network for this data reads and answers."""
        return Signature(len(self.mean), self.task.n_outputs)

    @property
    def search_digest(self) -> str:
        """Digest of what search may see: the train and the validation split."""
        return digest(self.train, self.validation)

    @property
    def digest(self) -> str:
        """Digest of all images and targets and of how they are split."""
        return digest(self.train, self.validation, self.test)

    def prepare(self, images: Tensor, resolution: int, *, rounded: bool = False) -> Tensor:
        """Return normalised images ``(N, C, R, R)`` in channels-last order.

        Args:
            images: uint8, ``(N, H, W, C)``.
            resolution: Height and width of what is returned.
            rounded: Whether resized images are uint8 again before they are normalised, as a device
                is given them.
        """
        x = images.permute(0, 3, 1, 2).to(torch.float32, copy=True)  # changed in place below
        if x.shape[-1] != resolution or x.shape[-2] != resolution:
            x = F.interpolate(x, (resolution, resolution), mode="bilinear", antialias=True)
            x = x.round_().clamp_(0, 255) if rounded else x
        mean = torch.tensor(self.mean, device=x.device).view(1, -1, 1, 1) * 255
        std = torch.tensor(self.std, device=x.device).view(1, -1, 1, 1) * 255
        return x.sub_(mean).div_(std).to(memory_format=torch.channels_last)

    def n_bytes(self, n: int, resolution: int) -> int:
        """Return what prepared images take."""
        return n * len(self.mean) * resolution**2 * 4

    def batches(
        self,
        split: DataSplit,
        resolution: int,
        index: Tensor | None = None,
        *,
        rounded: bool = False,
    ) -> Iterator[ImageBatch]:
        """Yield the images of a split, or those at ``index``, prepared, and their targets.

        A small split in memory is one batch; others come in several, decoded ahead of time where
        they are streamed.
        """
        order = torch.arange(len(split)) if index is None else index
        size = _BATCH
        if isinstance(split, InMemorySplit):
            size = max(_BATCH, _MOST // self.n_bytes(1, resolution))
        chunks = torch.split(order, size)

        def batch(i: int) -> ImageBatch:
            part = split.take(chunks[i])
            return self.prepare(part.images, resolution, rounded=rounded), part.targets

        yield from ahead(split, batch, range(len(chunks)))
