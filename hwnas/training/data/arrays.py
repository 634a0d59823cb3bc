"""Images and labels as arrays in a file of numpy's: data of the user's own, from Python."""

import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwnas import files
from hwnas.errors import DataError
from hwnas.training.data.source import indexed

SUFFIX = ".npz"
_CHANNELS = (1, 3)
_WHERE = "Own data"


def write_arrays(images: ArrayLike, labels: ArrayLike, folder: Path) -> Path:
    """Keep images and labels in a file that is named after their content; return its path.

    Args:
        images: uint8, ``(N, H, W)`` or ``(N, H, W, C)`` with one or three channels.
        labels: ``(N,)``, whole numbers or words.
        folder: Where the file goes.

    Raises:
        DataError: they are of other types or shapes.
    """
    pixels, classes = np.asarray(images), np.asarray(labels)
    _check(_WHERE, pixels, classes)
    found = hashlib.sha256(repr((pixels.shape, classes.dtype.str)).encode())
    found.update(pixels.tobytes())
    found.update(classes.tobytes())
    path = folder / f"{found.hexdigest()[:16]}{SUFFIX}"
    if not path.exists():
        content = io.BytesIO()
        np.savez(content, images=pixels, labels=classes)
        files.write(path, content.getvalue())
    return path


def read_arrays(
    where: str, path: Path
) -> tuple[NDArray[np.uint8], NDArray[np.int64], tuple[str, ...], list[str]]:
    """Return images ``(N, side, side, C)``, indices of classes, their names, and notes.

    Raises:
        DataError: the file does not hold ``images`` and ``labels`` as they should be.
    """
    try:
        with np.load(path, allow_pickle=False) as content:
            pixels, labels = content["images"], content["labels"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        message = f"{where} cannot be read as arrays 'images' and 'labels': {error}"
        raise DataError(message) from None
    _check(where, pixels, labels)
    indices, classes = indexed(where, {"train": labels.tolist()}, None)
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    height, width = pixels.shape[1:3]
    if height == width:
        return pixels, indices["train"], classes, []
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    cropped = pixels[:, top : top + side, left : left + side]
    note = f"{where}: of images of {width}x{height} pixels the middle {side}x{side} are read."
    return cropped, indices["train"], classes, [note]


def _check(where: str, images: NDArray[np.generic], labels: NDArray[np.generic]) -> None:
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise DataError(
            f"{where}: images are {images.dtype} of shape {images.shape}; they must be uint8 "
            "of shape (N, H, W) or (N, H, W, C)."
        )
    if images.ndim == 4 and images.shape[3] not in _CHANNELS:
        raise DataError(f"{where}: images have {images.shape[3]} channels; they must have 1 or 3.")
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iuU":
        raise DataError(
            f"{where}: labels are {labels.dtype} of shape {labels.shape}; they must be whole "
            f"numbers or words, one for each of {len(images)} images."
        )
