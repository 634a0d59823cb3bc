"""Data given to the Python API, saved as a file of arrays."""

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Number
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    default_collate,
    default_convert,
)

from hwnas.core.errors import ConfigError
from hwnas.training.data.arrays import ARGUMENT, CHANNELS, SplitArrays, write_arrays
from hwnas.training.data.encoded import GREY, SPLITS, flattened, transpose_of, unsupported
from hwnas.training.data.folders import split_of

_ALLOWED = (
    "Allowed: (images, targets); ((images, targets), (test images, test targets)); a torch Dataset "
    "or DataLoader; a Hugging Face Dataset; a dict of these with the keys train, validation, test."
)
_KEYS = (("image", "img", "pixel_values"), ("label", "labels", "class", "value", "target"))
_N_REPEATED = 10  # items that are read twice, to find random transforms
_PIXELS = "give uint8, whole numbers from 0 to 255, or numbers from 0 to 1, without normalisation"


def save_data(data: Any, folder: Path) -> Path:
    """Save images and targets to a file named after their content; return its path.

    Runs refer to the file, so that other processes, other commands and later sessions read the
    same. All images are in memory during the call.

    Args:
        data: Images with targets, or a training and a test split of these, or a dict of splits.
            A split is a pair of arrays, a torch ``Dataset`` or ``DataLoader``, a Hugging Face
            ``Dataset``, or a list of pairs. Images are arrays ``(N, H, W[, C])`` or
            ``(N, C, H, W)`` with pixels in [0, 255] or [0, 1], or PIL images. Targets are classes
            ``(N,)``, one-hot rows ``(N, n)``, or values ``(N,)`` or ``(N, n)``.
        folder: Folder of the file.

    Raises:
        ConfigError: the data have other types, shapes or pixel values, an item cannot be read or
            has no target, or the splits have different classes.
    """
    parts = _splits(data)
    splits = {split: _arrays(part) for split, part in parts.items()}
    if splits["train"][1].dtype.kind not in "iu":
        return write_arrays(splits, (), folder)
    names = _class_names(parts["train"])
    for split, part in parts.items():
        if names and (others := _class_names(part)) and [*others] != [*names]:
            raise ConfigError(
                f"{ARGUMENT}: the classes of split {split} are {', '.join(others)}, those of train "
                f"{', '.join(names)}. All splits must have the same classes in the same order."
            )
    return write_arrays(splits, names, folder)


def is_by_split(data: object) -> bool:
    """Return whether an object is a dict of data by split, and not of options."""
    return isinstance(data, Mapping) and any(
        split_of(str(name)) in SPLITS and not isinstance(part, str | Number | NoneType)
        for name, part in data.items()
    )


def _splits(data: Any) -> dict[str, Any]:
    """Return the data of each split, the training split first."""
    if is_by_split(data):
        parts: dict[str, Any] = {}
        for name, part in data.items():
            if (split := split_of(str(name))) not in SPLITS or split in parts:
                raise ConfigError(
                    f"{ARGUMENT} has the splits {', '.join(map(repr, data))}. Allowed: each of "
                    "train, validation and test at most once."
                )
            parts[split] = part
        if "train" not in parts:
            raise ConfigError(f"{ARGUMENT} has no split train, only {', '.join(parts)}. Add it.")
        return {split: parts[split] for split in SPLITS if split in parts}
    if isinstance(data, tuple) and all(map(_is_split, data)):
        if len(data) == 2:
            return {"train": data[0], "test": data[1]}
        raise ConfigError(f"{ARGUMENT} is a tuple of {len(data)} data sets. {_ALLOWED}")
    return {"train": data}


def _is_split(part: Any) -> bool:
    """Return whether a part of a tuple is a split by itself, and not images or targets."""
    if isinstance(part, tuple):
        return len(part) == 2 and all(map(_is_array, part)) and _are_images(part[0])
    if isinstance(part, list):
        return bool(part) and isinstance(part[0], tuple | dict)
    return isinstance(part, DataLoader) or (hasattr(part, "__getitem__") and not _is_array(part))


def _are_images(values: Any) -> bool:
    """Return whether this has the dimensions of images; an empty list has none."""
    return np.ndim(values) > 2 if hasattr(values, "ndim") else not values or np.ndim(values[0]) > 1


def _is_array(value: Any) -> bool:
    is_array = isinstance(value, list | tuple | Tensor) or hasattr(value, "__array__")
    return is_array and not _is_table(value)


def _is_table(data: Any) -> bool:
    """Return whether this is a data set of Hugging Face."""
    return hasattr(data, "features") and hasattr(data, "column_names")


def _arrays(data: Any) -> SplitArrays:
    """Return images and targets of one split."""
    if isinstance(data, tuple):
        if len(data) != 2:
            raise ConfigError(f"{ARGUMENT} is a tuple of {len(data)} parts. {_ALLOWED}")
        images, targets = data
        is_pictures = isinstance(images, list | tuple)
        return (_stacked_images(images) if is_pictures else _pixels(images)), _targets(targets)
    pairs = [_pair(i, item) for i, item in enumerate(_items(data))]
    return _stacked_images([image for image, _ in pairs]), _targets([target for _, target in pairs])


def _items(data: Any) -> Iterable[Any]:
    """Return the items of a data set, which has a length and an index."""
    if isinstance(data, DataLoader):
        return _loader_items(data)
    is_other = isinstance(data, np.ndarray | Tensor | str | bytes | Mapping) or hasattr(
        data, "iloc"
    )
    if is_other or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise ConfigError(f"{ARGUMENT} is of type {type(data).__name__}. {_ALLOWED}")
    return _read_items(data, range(len(data)))


def _read_items(data: Any, index: Iterable[int]) -> Iterable[Any]:
    for n, i in enumerate(index):
        try:
            item = data[i]
            again = data[i] if n < _N_REPEATED else item
        except Exception as error:  # of the user's code
            reason = f"{type(error).__name__}: {error}".rstrip(": ")  # the text may be empty
            raise ConfigError(
                f"{ARGUMENT}: item {i} cannot be read: {reason}. Correct the data set, or remove "
                "this item."
            ) from error
        if again is not item and not _have_equal_images(_pair(i, item), _pair(i, again)):
            raise ConfigError(
                f"{ARGUMENT}: item {i} has another image when it is read again: the data set "
                "changes images at random. Remove its random transforms: hwnas reads each image "
                "once and changes it in each epoch (dataset.flip, dataset.shift, dataset.crop)."
            )
        yield item


def _have_equal_images(pair: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    first, second = _as_numpy(pair[0]), _as_numpy(other[0])
    return np.array_equal(first, second, equal_nan=first.dtype.kind == "f")


def _loader_items(loader: "DataLoader[Any]") -> Iterable[Any]:
    """Return the items of a loader's data set in its order, or of a subset that it samples."""
    if loader.collate_fn not in (default_collate, default_convert):
        raise ConfigError(
            f"{ARGUMENT} is a DataLoader with its own collate_fn, which would not be used. Do its "
            f"work in the data set, and give that: {ARGUMENT}=loader.dataset."
        )
    data, sampler = loader.dataset, loader.sampler
    if isinstance(sampler, SubsetRandomSampler):
        return _read_items(data, sorted(map(int, sampler.indices)))
    is_whole = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler) and sampler.num_samples == len(sampler.data_source)
    )
    replaces = getattr(sampler, "replacement", False)
    if not is_whole or replaces or type(loader.batch_sampler) not in (BatchSampler, NoneType):
        raise ConfigError(
            f"{ARGUMENT} is a DataLoader with a sampler that may repeat or omit images. Give its "
            f"data set: {ARGUMENT}=loader.dataset."
        )
    return _items(data)


def _pair(i: int, item: Any) -> tuple[Any, Any]:
    """Return image and target of an item: a pair, or a dict with usual keys."""
    if isinstance(item, Mapping):
        matches = [[key for key in keys if key in item] for keys in _KEYS]
        if all(len(keys) == 1 for keys in matches):
            return tuple(item[keys[0]] for keys in matches)
        raise ConfigError(
            f"{ARGUMENT}: item {i} has the keys {', '.join(map(str, item))}; it must have one of "
            f"{', '.join(_KEYS[0])}, and one of {', '.join(_KEYS[1])}. Rename them."
        )
    if not isinstance(item, Sequence) or isinstance(item, str) or len(item) != 2:
        n = f" of {len(item)} values" if isinstance(item, Sequence) else ""
        raise ConfigError(
            f"{ARGUMENT}: item {i} is a {type(item).__name__}{n}; it must be a pair of an image "
            f"and its target. {_ALLOWED}"
        )
    return item[0], item[1]


def _stacked_images(images: Sequence[Any]) -> NDArray[np.uint8]:
    """Return images of one size as ``(N, H, W[, C])``."""
    if not images:
        raise ConfigError(f"{ARGUMENT}: there are no images. Give one or more.")
    pictures = [image for image in images if isinstance(image, Image.Image)]
    mode = "L" if all(picture.mode in GREY for picture in pictures) else "RGB"
    arrays = [_array(i, image, mode) for i, image in enumerate(images)]
    shapes = {array.shape for array in arrays}
    if len(shapes) != 1:
        listed = ", ".join(map(str, sorted(shapes)[:3]))
        raise ConfigError(
            f"{ARGUMENT}: images must have one shape, got {listed}. Resize them, or convert all of "
            "them to greyscale or to RGB."
        )
    stacked = np.stack(arrays)
    return _pixels(stacked, are_tensors=isinstance(images[0], Tensor))


def _array(i: int, image: Any, mode: str) -> NDArray[Any]:
    if image is None:
        raise ConfigError(f"{ARGUMENT}: image {i} is missing. Add it, or remove its item.")
    if not isinstance(image, Image.Image):
        return _as_numpy(image)
    if (problem := unsupported(image)) is not None:
        raise ConfigError(f"{ARGUMENT}: image {i} is {problem}.")
    if (transpose := transpose_of(image)) is not None:
        image = image.transpose(transpose)
    return np.asarray(flattened(image, mode))


def _pixels(images: Any, *, are_tensors: bool = False) -> NDArray[np.uint8]:
    """Return images in uint8, channels last.

    Args:
        images: An array ``(N, H, W)``, ``(N, H, W, C)`` or ``(N, C, H, W)``.
        are_tensors: Whether the images were tensors, whose channels come first.
    """
    pixels, are_tensors = _as_numpy(images), are_tensors or isinstance(images, Tensor)
    may_be_first = pixels.ndim == 4 and pixels.shape[1] in CHANNELS
    if may_be_first and (are_tensors or pixels.shape[3] not in CHANNELS):
        pixels = np.moveaxis(pixels, 1, 3)
    return np.ascontiguousarray(pixels if pixels.dtype == np.uint8 else _in_uint8(pixels))


def _as_numpy(values: Any) -> NDArray[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values
    return np.asarray(values)


def _in_uint8(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    if pixels.dtype.kind == "b":
        return pixels.astype(np.uint8) * 255
    if pixels.dtype.kind not in "iuf":
        hint = " Stack images of one size with numpy.stack." * (pixels.dtype.kind == "O")
        raise ConfigError(f"{ARGUMENT}: images are of type {pixels.dtype}: {_PIXELS}.{hint}")
    if not pixels.size:
        return pixels.astype(np.uint8)  # refused by its length
    low, high = float(pixels.min()), float(pixels.max())
    if pixels.dtype.kind == "f" and 0 <= low <= high <= 1:
        return (pixels * 255).round().astype(np.uint8)
    if not math.isfinite(low + high):
        row = int(np.flatnonzero(~np.isfinite(pixels).all(axis=tuple(range(1, pixels.ndim))))[0])
        raise ConfigError(
            f"{ARGUMENT}: image {row} has pixels that are NaN or infinite. Replace or remove it."
        )
    is_fraction = pixels.dtype.kind == "f" and bool((pixels % 1).any())
    if not 0 <= low <= high <= 255 or is_fraction:
        kind = f"{pixels.dtype} with fractions" if is_fraction else str(pixels.dtype)
        raise ConfigError(
            f"{ARGUMENT}: images are {kind}, from {low:.4g} to {high:.4g}: {_PIXELS}. "
            "hwnas reads images only: convert sensor or audio data to images first."
        )
    return pixels.astype(np.uint8)


def _targets(targets: Any) -> NDArray[Any]:
    """Return targets as an array of one type."""
    if isinstance(targets, Tensor):
        targets = targets.detach().cpu()
    elif isinstance(targets, list | tuple):
        targets = [t.tolist() if isinstance(t, Tensor | np.ndarray) else t for t in targets]
    # NumPy makes texts of missing values beside texts.
    is_text = isinstance(targets, list) and any(isinstance(target, str) for target in targets)
    try:
        array = np.asarray(targets, object if is_text else None)
    except ValueError:  # of rows of different lengths
        raise ConfigError(
            f"{ARGUMENT}: images have different numbers of labels. Multi-label data are not "
            "supported. Give one label per image."
        ) from None
    if array.dtype.kind != "O":
        return array
    for row, value in enumerate(array.flat):
        if value is None or type(value).__name__ == "NAType" or value != value:  # of pandas; NaN
            image = row * len(array) // array.size  # there may be several values per image
            raise ConfigError(
                f"{ARGUMENT}: image {image} has no target. Add one, or remove the image."
            )
    kinds = {str if isinstance(value, str) else type(value) for value in array.flat}
    return np.asarray(array.tolist()) if len(kinds) == 1 else array


def _class_names(data: Any) -> Sequence[str]:
    """Return the names of classes that a data set has besides its labels, if any."""
    while isinstance(data, DataLoader | Subset):
        data = data.dataset
    if getattr(data, "target_transform", None) is not None:
        return ()  # its names are those of the labels before it
    if _is_table(data):
        key = next((key for key in _KEYS[1] if key in data.features), "")
        return getattr(data.features.get(key), "names", None) or ()
    names = getattr(data, "classes", ())
    is_named = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return names if is_named else ()
