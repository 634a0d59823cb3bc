"""Images and targets of one split: in memory, or decoded when they are asked for."""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hwnas.core import machine
from hwnas.core.errors import DataError
from hwnas.training.data.augmentation import AugmentationParameters, CropParameters
from hwnas.training.data.encoded import UNREADABLE, EncodedImages, ImageShape, decode

T = TypeVar("T")
ImageRows = NDArray[np.int64]

_CHUNK = 16  # images that a thread decodes at a time
_AHEAD = 2  # batches
UNCHANGED = AugmentationParameters()


class DataSplit(Protocol):
    """Images and what is said of each, as the task of the data set has it."""

    @property
    def targets(self) -> Tensor:
        """What is said of each image, ``(N,)`` or ``(N, n)``."""
        ...

    def __len__(self) -> int: ...

    @property
    def side(self) -> int:
        """Height and width of all images."""
        ...

    def take(self, index: Tensor, changes: AugmentationParameters = UNCHANGED) -> "InMemorySplit":
        """Return the images at ``index``, changed for training where ``changes`` are given."""
        ...

    def content(self) -> Iterator[bytes]:
        """Yield what a digest of the split is taken of."""
        ...


@final
@dataclass(frozen=True)
class InMemorySplit:
    """Images ``(N, H, W, C)`` in uint8 and targets ``(N,)`` or ``(N, n)``."""

    images: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def side(self) -> int:
        """Height and width of all images."""
        return self.images.shape[1]

    def take(self, index: Tensor, changes: AugmentationParameters = UNCHANGED) -> "InMemorySplit":
        """Return the images at ``index``, changed."""
        return InMemorySplit(changes.apply(self.images[index]), self.targets[index])

    def content(self) -> Iterator[bytes]:
        """Yield images and targets."""
        yield self.images.numpy().tobytes()
        yield self.targets.numpy().tobytes()


@dataclass(frozen=True)
class Decoder:
    """Decodes the images of a data set to one shape, in several threads."""

    shape: ImageShape
    threads: ThreadPoolExecutor

    def decode(
        self,
        encoded: EncodedImages,
        rows: ImageRows,
        crops: CropParameters | None = None,
        advance: Callable[[int], None] = lambda n: None,
    ) -> Tensor:
        """Return the images of ``rows`` as ``(N, side, side, C)`` in uint8.

        Args:
            encoded: Where they are.
            rows: Their places in ``encoded``.
            crops: What is left of each; where there are none, the largest square in the middle.
            advance: Told how many more images were decoded.

        Raises:
            DataError: an image is damaged.
        """
        side, channels = self.shape.side, self.shape.channels
        pixels = np.empty((len(rows), side, side, channels), np.uint8)

        def fill(start: int) -> int:
            part = rows[start : start + _CHUNK]
            for i, row in enumerate(part.tolist(), start):
                pixels[i] = self._one(encoded, row, crops and crops.of(i))
            return len(part)

        for n in self.threads.map(fill, range(0, len(rows), _CHUNK)):
            advance(n)
        return torch.from_numpy(pixels)

    def _one(
        self, encoded: EncodedImages, row: int, crop: CropParameters | None
    ) -> NDArray[np.uint8]:
        try:
            return decode(encoded.read(row), self.shape, crop)
        except UNREADABLE as error:
            raise DataError(f"{encoded.where(row)} is damaged: {error}") from None


@final
@dataclass(frozen=True)
class StreamedSplit:
    """Images that stay encoded where they are, and are decoded when they are asked for.

    Crops are cut from the whole image; without, the largest square in the middle is seen of it.
    """

    encoded: EncodedImages
    rows: ImageRows  #: of the split's images in ``encoded``, ``(N,)``
    targets: Tensor
    hashes: NDArray[np.uint8]  #: of the encoded images, ``(N, bytes)``
    decoder: Decoder

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_bytes(self) -> int:
        """What the decoded images take."""
        return len(self) * self.decoder.shape.n_bytes

    @property
    def side(self) -> int:
        """Height and width of all images."""
        return self.decoder.shape.side

    def take(self, index: Tensor, changes: AugmentationParameters = UNCHANGED) -> InMemorySplit:
        """Return the images at ``index``, changed; a crop is cut before the image is resized."""
        images = self.decoder.decode(self.encoded, self.rows[index.numpy()], changes.crops)
        images = replace(changes, crops=None).apply(images)
        return InMemorySplit(images, self.targets[index])

    def in_memory(self, advance: Callable[[int], None]) -> InMemorySplit:
        """Return the whole split decoded."""
        images = self.decoder.decode(self.encoded, self.rows, advance=advance)
        return InMemorySplit(images, self.targets)

    def content(self) -> Iterator[bytes]:
        """Yield the hashes of the encoded images, what they are decoded to, and the targets."""
        yield self.hashes.tobytes()
        yield repr(self.decoder.shape).encode()
        yield self.targets.numpy().tobytes()


def some(split: DataSplit, n: int) -> InMemorySplit:
    """Return some images of a split, always the same: files lie in the order of their classes."""
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))
    return split.take(order[:n].sort().values)


def threads() -> ThreadPoolExecutor:
    """Return as many threads as this process may use cores; PIL decodes without Python's lock."""
    return ThreadPoolExecutor(machine.available_cores(), "decode")


def ahead(split: DataSplit, make: Callable[[int], T], steps: Iterable[int]) -> Iterator[T]:
    """Yield ``make(step)`` for each step, in order; computed ahead of time if the split streams.

    What ``make`` returns must follow from the step alone. Where images are in memory it is called
    when its result is asked for: it takes too little time for a thread of its own.
    """
    if isinstance(split, InMemorySplit):
        yield from map(make, steps)
        return
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(1, "ahead") as thread:
        try:
            for step in steps:
                waiting.append(thread.submit(make, step))
                if len(waiting) > _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def digest(*splits: DataSplit) -> str:
    """Return 16 hex digits that stand for the images and targets of splits."""
    found = hashlib.sha256()
    for split in splits:
        for part in split.content():
            found.update(part)
    return found.hexdigest()[:16]
