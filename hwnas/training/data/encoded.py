"""Encoded images with targets, before they are split and decoded."""

import io
import math
import os
import struct
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from hwnas.core import safe_read
from hwnas.core.errors import DataError
from hwnas.tasks.base import Targets
from hwnas.training.data.augmentation import CropParameters

#: Splits of a source; ``train`` always exists.
SPLITS = ("train", "validation", "test")
MAX_BYTES = 256 << 20  #: of an image file
_MAX_PATH = 255  # characters that are shown


class EncodedImages(Protocol):
    """The encoded images of one split, read on demand by any thread."""

    def __len__(self) -> int: ...

    def read(self, row: int) -> bytes:
        """Return the content of an image file.

        Raises:
            DataError: it is missing or cannot be read.
        """
        ...

    def where(self, row: int) -> str:
        """Return the data set and the file or row of an image, for messages."""
        ...


@dataclass(frozen=True)
class ImageSource:
    """Encoded images and targets by split."""

    images: Mapping[str, EncodedImages]
    targets: Mapping[str, Targets]
    names: tuple[str, ...]  #: names of the network outputs: classes or values
    notes: tuple[str, ...] = ()  #: messages to the user about how the source was read


@final
class ImageFiles:
    """Images in separate files."""

    def __init__(self, where: str, paths: Sequence[Path]):
        self._where, self._paths = where, paths

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, row: int) -> bytes:
        """Return the content of a file, of at most 256 MiB.

        Raises:
            DataError: it is missing, too large or cannot be read.
        """
        try:
            return safe_read.read_bytes(self._paths[row], MAX_BYTES)
        except FileNotFoundError:
            message = f"{self.where(row)} was not found. Restore it, or repeat the command."
            raise DataError(message) from None
        except safe_read.CorruptFileError as problem:
            message = f"{self.where(row)} cannot be read: {problem}. Replace or remove it."
            raise DataError(message) from None

    def where(self, row: int) -> str:
        """Return the data set and the path of a file."""
        return f"{self._where}: {self._paths[row]}"


@final
class ImageColumn:
    """Images in a memory-mapped Arrow column of structs with bytes or a path.

    Args:
        where: Start of messages.
        column: The column.
        folders: Folders that may hold the images. Relative paths start at the first.
    """

    def __init__(self, where: str, column: Any, folders: Sequence[Path]):
        self._where, self._folders = where, [Path(os.path.abspath(folder)) for folder in folders]
        self._chunks = [(chunk.field("bytes"), chunk.field("path")) for chunk in column.chunks]
        self._ends = np.cumsum([len(chunk) for chunk in column.chunks]).tolist()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, row: int) -> bytes:
        """Return the content of an image: the bytes in the table, or else of the file it names.

        Raises:
            DataError: the row has no image, or its file is missing, outside ``folders``, too large
                or cannot be read.
        """
        i = bisect_right(self._ends, row)
        contents, paths = self._chunks[i]
        inside = row - (self._ends[i] - len(contents))
        content, path = contents[inside].as_py(), paths[inside].as_py()
        if content is None and path is None:
            raise DataError(f"{self.where(row)} has no image. Remove the row, or add its image.")
        if content is not None:
            return bytes(content)
        file = Path(os.path.normpath(self._folders[0] / path))
        if "://" in path:
            raise DataError(
                f"{self.where(row)}: {path} is no path of a file. Extract archives, and download "
                "remote images."
            )
        if not any(map(file.is_relative_to, self._folders)):
            problem = f"is outside the folder of the data set, {self._folders[0]}. Move it there"
        else:
            try:
                return safe_read.read_bytes(file, MAX_BYTES)
            except FileNotFoundError:
                problem = "was not found. Replace it, or remove the row"
            except (OSError, safe_read.CorruptFileError) as error:
                problem = f"cannot be read: {error}. Replace it, or remove the row"
        if len(path) > _MAX_PATH or not file.suffix:
            raise DataError(
                f"{self.where(row)} holds the text '{path[:40]}', which is no path of an "
                "image. Decode base64 text, and store the bytes of the image files."
            )
        raise DataError(f"{self.where(row)}: {file} {problem}.")

    def where(self, row: int) -> str:
        """Return the data set and the row of an image."""
        return f"{self._where} row {row}"


# Decoding of one image to the shape of its data set.

#: Exceptions of PIL for damaged files.
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
    """Size and mode of all decoded images of a data set."""

    side: int  #: height and width, in pixels
    mode: str  #: ``L`` or ``RGB``

    @property
    def channels(self) -> int:
        """Number of channels, 1 or 3."""
        return len(self.mode)

    @property
    def n_bytes(self) -> int:
        """Size of a decoded image, in bytes."""
        return self.side * self.side * self.channels


def header(content: bytes) -> Image.Image:
    """Return an image of which only the header is read.

    Raises:
        One of ``UNREADABLE``: the content is not an image.
    """
    return Image.open(io.BytesIO(content))


#: Operations that undo an EXIF orientation.
_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ROTATED = (
    Image.Transpose.TRANSPOSE,
    Image.Transpose.ROTATE_270,
    Image.Transpose.TRANSVERSE,
    Image.Transpose.ROTATE_90,
)
_PNG_EXIF = (b"eXIf", b"Raw profile type exif")
GREY = ("1", "L", "LA", "La")  #: modes of images without colour
_MODES = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr")


def transpose_of(picture: Image.Image) -> Image.Transpose | None:
    """Return the operation that shows an image upright; ``None`` if it is stored so."""
    if picture.format == "TIFF":  # PIL transposes these itself
        return None
    file = getattr(picture, "fp", None)
    content = file.getvalue() if isinstance(file, io.BytesIO) else b""
    if picture.format == "PNG" and not any(chunk in content for chunk in _PNG_EXIF):
        return None  # ``getexif`` would decode the image to search for EXIF data
    try:
        return _TRANSPOSES.get(picture.getexif().get(ExifTags.Base.Orientation, 1))
    except UNREADABLE:  # damaged EXIF data
        return None


def shown_size(picture: Image.Image) -> tuple[int, int]:
    """Return width and height in pixels, after the operation of ``transpose_of``."""
    width, height = picture.size
    return (height, width) if transpose_of(picture) in _ROTATED else (width, height)


def unsupported(picture: Image.Image) -> str | None:
    """Return the end of a sentence that says why an image is not supported; ``None`` if it is."""
    if picture.mode not in _MODES:
        return f"an image of mode {picture.mode}, which is not supported; convert it to 8-bit RGB"
    # The further images of an MPO file are previews.
    if picture.format != "MPO" and getattr(picture, "is_animated", False):
        return f"a {picture.format} image of several frames; store each frame, or one, as an image"
    return None


def decode(
    content: bytes, shape: ImageShape, crop: CropParameters | None = None
) -> NDArray[np.uint8]:
    """Return an image cropped and resized to ``shape``: uint8, ``(side, side, C)``.

    The default crop is the largest central square. The image is first rotated as its EXIF
    orientation says. JPEG files are decoded at 1/2, 1/4 or 1/8 of their size if that is large
    enough.

    Raises:
        One of ``UNREADABLE``: the image is damaged.
    """
    picture = header(content)
    side, transpose, (width, height) = shape.side, transpose_of(picture), shown_size(picture)
    left, top, w, h = crop.boxes(width, height)[0].tolist() if crop else _centre(width, height)
    smallest = math.ceil(width * side / w), math.ceil(height * side / h)
    picture.draft(picture.mode, smallest if picture.size == (width, height) else smallest[::-1])
    if transpose is not None:
        picture = picture.transpose(transpose)
    x, y = picture.size[0] / width, picture.size[1] / height
    picture = flattened(picture, shape.mode)
    if picture.size != (side, side) or (w, h) != (width, height):
        box = (left * x, top * y, min((left + w) * x, width * x), min((top + h) * y, height * y))
        picture = picture.resize((side, side), Image.Resampling.BILINEAR, box)
    return np.asarray(picture, np.uint8).reshape(side, side, -1)


def flattened(picture: Image.Image, mode: str) -> Image.Image:
    """Return an image of mode ``L`` or ``RGB``; transparent pixels are white."""
    if is_transparent(picture):
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert(mode)


def is_transparent(picture: Image.Image) -> bool:
    """Return whether an image has an alpha channel or a transparent colour."""
    return "A" in picture.getbands() or "transparency" in picture.info


def _centre(width: int, height: int) -> tuple[float, float, int, int]:
    """Return the box of the largest central square."""
    side = min(width, height)
    return (width - side) / 2, (height - side) / 2, side, side
