"""Images and targets as arrays in an ``.npz`` file, for data passed from Python."""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwnas.core import files
from hwnas.core.errors import DataError
from hwnas.core.safe_arrays import read_npz
from hwnas.core.safe_read import CorruptFileError
from hwnas.tasks.base import Targets, TaskType

SUFFIX = ".npz"
_CHANNELS = (1, 3)
_WHERE = "Own data"


def write_arrays(images: ArrayLike, targets: ArrayLike, folder: Path) -> Path:
    """Write images and targets to a file named after their content; return its path.

    Args:
        images: uint8, ``(N, H, W)`` or ``(N, H, W, C)`` with one or three channels.
        targets: Classes, ``(N,)``, as whole numbers or words; or values, ``(N,)`` or ``(N, n)``.
        folder: Folder of the file.

    Raises:
        DataError: types or shapes differ from these.
    """
    pixels, values = np.asarray(images), _typed(np.asarray(targets))
    _check(_WHERE, pixels, values)
    hashed = hashlib.sha256(repr((pixels.shape, values.shape, values.dtype.str)).encode())
    hashed.update(pixels.tobytes())
    hashed.update(values.tobytes())
    path = folder / f"{hashed.hexdigest()[:16]}{SUFFIX}"
    if not path.exists():
        content = io.BytesIO()
        np.savez(content, images=pixels, targets=values)
        files.write_file(path, content.getvalue())
    return path


def read_arrays(
    where: str, path: Path, kind: TaskType
) -> tuple[NDArray[np.uint8], Mapping[str, Targets], tuple[str, ...], list[str]]:
    """Return images ``(N, side, side, C)``, targets by split, names of outputs, and notes.

    Raises:
        DataError: the file has no valid arrays ``images`` and ``targets``.
    """
    try:
        content = read_npz(path, ["images", "targets"])
        pixels, raw_targets = content["images"], content["targets"]
    except (OSError, KeyError, CorruptFileError) as error:
        message = f"{where} cannot be read as arrays 'images' and 'targets': {error}"
        raise DataError(message) from None
    _check(where, pixels, raw_targets)
    if kind.categorical and raw_targets.ndim != 1:
        raise DataError(
            f"{where}: targets are of shape {raw_targets.shape}; classes are of shape (N,). "
            "Multi-label data are not supported."
        )
    targets, names = kind.targets(where, {"train": raw_targets.tolist()}, None)
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    height, width = pixels.shape[1:3]
    if height == width:
        return pixels, targets, names, []
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    cropped = pixels[:, top : top + side, left : left + side]
    note = f"{where}: images of {width}x{height} pixels are cropped to {side}x{side}, centred."
    return cropped, targets, names, [note]


def _typed(targets: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return objects of one type, such as words from pandas, as an array of that type."""
    if targets.dtype.kind == "O" and len({type(target) for target in targets.flat}) == 1:
        return np.asarray(targets.tolist())
    return targets


def _check(where: str, images: NDArray[np.generic], targets: NDArray[np.generic]) -> None:
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise DataError(
            f"{where}: images are {images.dtype} of shape {images.shape}; they must be uint8 "
            "of shape (N, H, W) or (N, H, W, C)."
        )
    if not len(images):
        raise DataError(f"{where}: there are no images.")
    if images.ndim == 4 and images.shape[3] not in _CHANNELS:
        raise DataError(f"{where}: images have {images.shape[3]} channels; they must have 1 or 3.")
    fits = targets.ndim in (1, 2) and len(targets) == len(images)
    if not fits or targets.dtype.kind not in "iufU":
        raise DataError(
            f"{where}: targets are {targets.dtype} of shape {targets.shape}; they must be numbers "
            f"or words, one or several for each of {len(images)} images."
        )
