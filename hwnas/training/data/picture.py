"""Decodes one image to the shape that a data set has."""

import io
import math
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hwnas.training.data.augment import Crops

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
class Shape:
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


def decode(content: bytes, shape: Shape, crop: Crops | None = None) -> NDArray[np.uint8]:
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
