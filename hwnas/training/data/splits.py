"""Images and targets of one split: in memory, or decoded on demand."""

import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hwnas.core import machine
from hwnas.core.errors import DataError
from hwnas.tasks.base import Targets
from hwnas.training.data.augmentation import AugmentationParameters, CropParameters
from hwnas.training.data.encoded import UNREADABLE, EncodedImages, ImageShape, decode

T = TypeVar("T")
ImageRows = NDArray[np.int64]

_CHUNK = 16  # images that a thread decodes at a time
_AHEAD = 2  # batches
UNCHANGED = AugmentationParameters()


class DataSplit(Protocol):
    """Images and targets of one split."""

    @property
    def targets(self) -> Tensor:
        """Class indices ``(N,)``, or values ``(N, n)``."""
        ...

    def __len__(self) -> int: ...

    @property
    def side(self) -> int:
        """Height and width of all images, in pixels."""
        ...

    def take(self, index: Tensor, changes: AugmentationParameters = UNCHANGED) -> "InMemorySplit":
        """Return the images at ``index``, with augmentations."""
        ...

    def content(self) -> Iterator[bytes]:
        """Yield bytes that identify images and targets; ``digest`` hashes them."""
        ...


@final
@dataclass(frozen=True)
class InMemorySplit:
    """Images ``(N, H, W, C)`` in uint8 and targets ``(N,)`` or ``(N, n)``."""

    images: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the values: torch would put tensors into shared memory, which may be small."""
        return _in_memory, (self.images.numpy(), self.targets.numpy())

    @property
    def side(self) -> int:
        """Height and width of all images, in pixels."""
        return self.images.shape[1]

    def take(self, index: Tensor, changes: AugmentationParameters = UNCHANGED) -> "InMemorySplit":
        """Return the images at ``index``, with augmentations."""
        return InMemorySplit(changes.apply(self.images[index]), self.targets[index])

    def content(self) -> Iterator[bytes]:
        """Yield the bytes of images and targets."""
        yield self.images.numpy().tobytes()
        yield self.targets.numpy().tobytes()


def _in_memory(images: NDArray[np.uint8], targets: NDArray[np.generic]) -> InMemorySplit:
    return InMemorySplit(torch.from_numpy(images), torch.from_numpy(targets))


@dataclass(frozen=True)
class Decoder:
    """Decodes images to one shape, in several threads."""

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
            encoded: Encoded images.
            rows: Indices into ``encoded``.
            crops: Crop of each image; default: the largest central square.
            advance: Called with the number of images decoded since the last call.

        Raises:
            DataError: an image is missing or damaged.
        """
        side, channels = self.shape.side, self.shape.channels
        pixels = np.empty((len(rows), side, side, channels), np.uint8)

        def fill(start: int) -> int:
            part = rows[start : start + _CHUNK]
            for i, row in enumerate(part.tolist(), start):
                pixels[i] = self._decode_one(encoded, row, crops and crops.select(i))
            return len(part)

        for n in self.threads.map(fill, range(0, len(rows), _CHUNK)):
            advance(n)
        return torch.from_numpy(pixels)

    def _decode_one(
        self, encoded: EncodedImages, row: int, crop: CropParameters | None
    ) -> NDArray[np.uint8]:
        try:
            return decode(encoded.read(row), self.shape, crop)
        except UNREADABLE as error:
            message = f"{encoded.where(row)} is damaged: {error}. Replace or remove it."
            raise DataError(message) from None


@final
@dataclass(frozen=True)
class StreamedSplit:
    """Encoded images, decoded on demand; crops are taken from the whole image."""

    encoded: EncodedImages
    rows: ImageRows  #: indices into ``encoded``, ``(N,)``
    targets: Tensor
    hashes: NDArray[np.uint8]  #: of the encoded images, ``(N, bytes)``
    decoder: Decoder

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_bytes(self) -> int:
        """Size of the decoded images, in bytes."""
        return len(self) * self.decoder.shape.n_bytes

    @property
    def side(self) -> int:
        """Height and width of all images, in pixels."""
        return self.decoder.shape.side

    def take(self, index: Tensor, changes: AugmentationParameters = UNCHANGED) -> InMemorySplit:
        """Return the images at ``index``, with augmentations; crops precede resizing.

        Raises:
            DataError: an image is missing or damaged.
        """
        images = self.decoder.decode(self.encoded, self.rows[index.numpy()], changes.crops)
        images = replace(changes, crops=None).apply(images)
        return InMemorySplit(images, self.targets[index])

    def in_memory(self, advance: Callable[[int], None]) -> InMemorySplit:
        """Return the decoded split.

        Args:
            advance: Called with the number of images decoded since the last call.

        Raises:
            DataError: an image is missing or damaged.
        """
        images = self.decoder.decode(self.encoded, self.rows, advance=advance)
        return InMemorySplit(images, self.targets)

    def content(self) -> Iterator[bytes]:
        """Yield the hashes of the encoded images, the decoded shape and the targets."""
        yield self.hashes.tobytes()
        yield repr(self.decoder.shape).encode()
        yield self.targets.numpy().tobytes()


def sample(split: DataSplit, n: int) -> InMemorySplit:
    """Return a random sample of at most ``n`` images, always the same, in the split's order."""
    order = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))
    return split.take(order[:n].sort().values)


def threads() -> ThreadPoolExecutor:
    """Return a pool with one thread per available core: PIL decodes without the GIL."""
    return ThreadPoolExecutor(machine.available_cores(), "decode")


def prefetched(split: DataSplit, make: Callable[[int], T], steps: Iterable[int]) -> Iterator[T]:
    """Yield ``make(step)`` for each step in order; a thread prefetches if images are decoded.

    The result of ``make`` must depend on the step alone.
    """
    if isinstance(split, InMemorySplit):
        yield from map(make, steps)
        return
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(1, "prefetch") as thread:
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
    """Return a digest of the images and targets of splits, 16 hexadecimal digits."""
    hashed = hashlib.sha256()
    for split in splits:
        for part in split.content():
            hashed.update(part)
    return hashed.hexdigest()[:16]


_HALVES = np.dtype([("first", "u8"), ("second", "u8")])  # of a hash of 16 bytes
_ORDER = ("train", "validation", "test")
_ADJECTIVES = {"train": "training", "validation": "validation"}


def describe_duplicates(
    hashes: Mapping[str, NDArray[np.uint8]],
    targets: Mapping[str, Targets],
    where: Callable[[str, int], str],
) -> list[str]:
    """Return warnings about images in two splits, and about equal images with other targets.

    Args:
        hashes: Hashes of the image files by split, uint8, ``(N, 16)``.
        targets: Targets by split, ``(N,)`` or ``(N, n_outputs)``.
        where: Returns the location of an image, given split and index.
    """
    keys = {s: np.ascontiguousarray(hashes[s]).view(_HALVES).ravel() for s in _ORDER}
    messages = []
    for other, name in itertools.combinations(_ORDER, 2):
        same = np.flatnonzero(np.isin(keys[name], keys[other]))
        if len(same):
            first = int(np.flatnonzero(keys[other] == keys[name][same[0]])[0])
            messages.append(
                f"{len(same)} of {len(keys[name])} {name} images are {_ADJECTIVES[other]} images, "
                f"too, for example {where(name, int(same[0]))} and {where(other, first)}: metrics "
                "are too high. Remove them from one split."
            )
    places = [(split, i) for split in _ORDER for i in range(len(keys[split]))]
    _, first_of, image = np.unique(
        np.concatenate([keys[s] for s in _ORDER]), return_index=True, return_inverse=True
    )
    everything = np.concatenate([targets[s] for s in _ORDER])
    differs = everything != everything[first_of[image]]
    contradicting = np.flatnonzero(differs.reshape(len(everything), -1).any(axis=1))
    if len(contradicting):
        second = int(contradicting[0])
        first = int(first_of[image[second]])
        n = len(np.unique(image[contradicting]))
        messages.append(
            f"{n} image{'s occur' if n > 1 else ' occurs'} with different labels, for example "
            f"{where(*places[first])} and {where(*places[second])}: keep one of them."
        )
    return messages


def in_memory_splits(
    images: Mapping[str, NDArray[np.uint8]],
    targets: Mapping[str, Targets],
    divided: Mapping[str, tuple[str, ImageRows]],
) -> dict[str, DataSplit]:
    """Return splits in memory, by name.

    Args:
        images: Images ``(N, H, W, C)``, by split of the source.
        targets: Their targets, by split of the source.
        divided: Split of the source and rows there of each split, as returned by ``divide``.
    """
    source = {
        split: InMemorySplit(torch.from_numpy(pixels), torch.from_numpy(targets[split]))
        for split, pixels in images.items()
    }
    return {
        name: source[origin].take(torch.from_numpy(rows))
        for name, (origin, rows) in divided.items()
    }
