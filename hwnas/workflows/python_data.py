"""Data of the user's own, from Python: arrays, or a data set of torch's, kept as a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hwnas.core.errors import DataError
from hwnas.training.data.arrays import write_arrays


class Dataset(Protocol):
    """A data set of torch's that knows its length: pairs of an image and its target."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> tuple[Any, Any]: ...


UserData = tuple[ArrayLike, ArrayLike] | Dataset  #: images and targets


def save_data(data: UserData, folder: Path) -> Path:
    """Return the file that holds images and targets; it is named after their content.

    Runs refer to the file, so that other processes, other commands and later sessions read the
    same. All images are in memory meanwhile.

    Args:
        data: Arrays as ``training.data.arrays.write_arrays`` takes them, or a data set whose images
            are PIL's, arrays ``(H, W[, C])`` in uint8, or tensors ``([C, ]H, W)`` in uint8 or
            in [0, 1].
        folder: Where the file goes.

    Raises:
        DataError: it is of other types or shapes.
    """
    if isinstance(data, tuple):
        if len(data) != 2:
            raise DataError(f"Own data: give dataset=(images, targets), not {len(data)} arrays.")
        return write_arrays(*data, folder)
    pairs = [data[i] for i in range(len(data))]
    if not pairs:
        raise DataError("Own data: the data set has no images.")
    if any(not isinstance(pair, Sequence) or len(pair) != 2 for pair in pairs):
        raise DataError(
            "Own data: give a tuple dataset=(images, targets), or a data set whose items are pairs "
            "of an image and its target."
        )
    images = [_pixels(image) for image, _ in pairs]
    if len({image.shape for image in images}) != 1:
        raise DataError("Own data: images must be of one size; resize them in the data set.")
    targets = [target.tolist() if isinstance(target, Tensor) else target for _, target in pairs]
    return write_arrays(np.stack(images), targets, folder)


def _pixels(image: Any) -> NDArray[np.uint8]:
    """Return an image as ``(H, W[, C])`` in uint8."""
    if not isinstance(image, Tensor):
        # Numbers of a palette are no pixels.
        return np.asarray(image.convert("RGB") if getattr(image, "mode", "") == "P" else image)
    if image.is_floating_point():
        if not 0 <= float(image.min()) <= float(image.max()) <= 1:
            raise DataError(
                "Own data: images in floating point must lie in [0, 1]; leave normalising to hwnas."
            )
        image = (image * 255).round().to(torch.uint8)
    array: NDArray[np.uint8] = (image.movedim(0, -1) if image.ndim == 3 else image).numpy()
    return array
