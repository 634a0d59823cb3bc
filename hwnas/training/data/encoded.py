"""A source of encoded images with targets, as it is before it is split and decoded."""

import io
import math
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hwnas.core import safe_read
from hwnas.core.errors import DataError
from hwnas.tasks.base import Targets
from hwnas.training.data.augmentation import CropParameters

#: The splits of a source. ``train`` is always there.
SPLITS = ("train", "validation", "test")
MOST = 256 << 20  #: bytes of an image's file


class EncodedImages(Protocol):
    """The encoded images of one split, read when they are asked for, by any thread."""

    def __len__(self) -> int: ...

    def read(self, row: int) -> bytes:
        """Return the content of an image's file."""
        ...

    def where(self, row: int) -> str:
        """Return in words which image this is."""
        ...


@dataclass(frozen=True)
class ImageSource:
    """Encoded images and what is said of them, by split."""

    images: Mapping[str, EncodedImages]
    targets: Mapping[str, Targets]
    names: tuple[str, ...]  #: of what networks answer, such as classes


@final
class ImageFiles:
    """Images that are files of their own."""

    def __init__(self, where: str, paths: Sequence[Path]):
        self._where, self._paths = where, paths

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, row: int) -> bytes:
        """Return the content of a file."""
        try:
            return safe_read.read_bytes(self._paths[row], MOST)
        except FileNotFoundError:
            raise DataError(f"{self.where(row)} is not there.") from None
        except safe_read.CorruptFileError as problem:
            raise DataError(f"{self.where(row)} cannot be read: {problem}.") from None

    def where(self, row: int) -> str:
        """Return the path of a file."""
        return f"{self._where}: {self._paths[row]}"


@final
class ImageColumn:
    """Images in a column of Arrow's, which lies in memory-mapped files: structs of bytes and path.

    An image may be given by the path of its file alone.
    """

    def __init__(self, where: str, column: Any):
        self._where = where
        self._chunks = [(chunk.field("bytes"), chunk.field("path")) for chunk in column.chunks]
        self._ends = np.cumsum([len(chunk) for chunk in column.chunks]).tolist()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, row: int) -> bytes:
        """Return the content of an image's file."""
        i = bisect_right(self._ends, row)
        contents, paths = self._chunks[i]
        inside = row - (self._ends[i] - len(contents))
        content, path = contents[inside].as_py(), paths[inside].as_py()
        if content is None and path is None:
            raise DataError(f"{self.where(row)} has no image.")
        try:
            return safe_read.read_bytes(Path(path), MOST) if content is None else bytes(content)
        except (OSError, safe_read.CorruptFileError) as problem:
            raise DataError(f"{self.where(row)}: {path} cannot be read: {problem}.") from None

    def where(self, row: int) -> str:
        """Return the row of an image."""
        return f"{self._where} row {row}"


# Decodes one image to the shape that a data set has.

#: What PIL's readers raise for damaged files.
UNREADABLE = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    IndexError,
    struct.error,
    Image.DecompressionBombError,
)


@dataclass(frozen=True)
class ImageShape:
    """What all images of a data set are decoded to."""

    side: int  #: height and width
    mode: str  #: ``L`` or ``RGB``

    @property
    def channels(self) -> int:
        """1 or 3."""
        return len(self.mode)  # a letter each

    @property
    def n_bytes(self) -> int:
        """Of a decoded image."""
        return self.side * self.side * self.channels


def header(content: bytes) -> Image.Image:
    """Return an image of which only size and mode are read.

    Raises:
        One of ``UNREADABLE``: it is not an image.
    """
    return Image.open(io.BytesIO(content))


def decode(
    content: bytes, shape: ImageShape, crop: CropParameters | None = None
) -> NDArray[np.uint8]:
    """Return a crop of an image, or else the largest square in its middle, ``(side, side, C)``.

    JPEG is decoded at 1/2, 1/4 or 1/8 of its size where that is no smaller than what is returned.

    Raises:
        One of ``UNREADABLE``: it is damaged.
    """
    picture = header(content)
    side, (width, height) = shape.side, picture.size
    left, top, w, h = crop.boxes(width, height)[0].tolist() if crop else _centre(width, height)
    picture.draft(picture.mode, (math.ceil(width * side / w), math.ceil(height * side / h)))
    x, y = picture.size[0] / width, picture.size[1] / height
    if "A" in picture.getbands() or "transparency" in picture.info:  # what is seen on white
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    picture = picture.convert(shape.mode)
    if picture.size != (side, side) or (w, h) != (width, height):
        box = (left * x, top * y, min((left + w) * x, width * x), min((top + h) * y, height * y))
        picture = picture.resize((side, side), Image.Resampling.BILINEAR, box)
    return np.asarray(picture, np.uint8).reshape(side, side, -1)


def _centre(width: int, height: int) -> tuple[float, float, int, int]:
    """Return the box of the largest square in the middle."""
    side = min(width, height)
    return (width - side) / 2, (height - side) / 2, side, side
