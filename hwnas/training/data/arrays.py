"""Images and targets as arrays in an ``.npz`` file, for data passed from Python.

``images`` and ``targets`` are the training split; splits that the file lacks are made from it. A
validation or test split has the same arrays with the prefix ``validation_`` or ``test_``.
``names`` has the names of the classes.
"""

import hashlib
import io
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.core import files
from hwnas.core.errors import ConfigError
from hwnas.core.safe_read import MAX_ARRAY_BYTES, CorruptFileError, array_names, read_npz
from hwnas.tasks.base import Targets, TaskType
from hwnas.training.options import ARRAYS_SUFFIX

ARGUMENT = "dataset"  #: of the Python API, for messages
CHANNELS = (1, 3)  #: allowed numbers of channels
_MIN_SIDE = 8  # pixels of the shorter side of images that are not square
_MAX_ASPECT = 4  # of the sides: the central square has a quarter of the pixels
_PREFIXES = {"train": "", "validation": "validation_", "test": "test_"}  # of arrays, by split

SplitArrays = tuple[NDArray[Any], NDArray[Any]]  #: images and targets


@dataclass(frozen=True)
class ArrayData:
    """Square images ``(N, side, side, C)`` in uint8 and targets, by split (``train``, ...)."""

    images: Mapping[str, NDArray[np.uint8]]
    targets: Mapping[str, Targets]
    names: tuple[str, ...]  #: names of the network outputs: classes or values
    notes: tuple[str, ...]  #: messages to the user about conversions
    size: tuple[int, int]  #: width and height before images were cropped


def write_arrays(splits: Mapping[str, SplitArrays], names: Sequence[str], folder: Path) -> Path:
    """Return the path of a file of images and targets, named by their hash; write it if missing.

    Args:
        splits: Images and targets by split: ``train``, ``validation`` and ``test``. Images are
            uint8, ``(N, H, W)`` or ``(N, H, W, C)`` with ``C`` 1 or 3. Targets are classes
            ``(N,)``, as integers or strings, or values ``(N,)`` or ``(N, n)``.
        names: Names of the classes; empty if targets are the names.
        folder: Folder of the file.

    Raises:
        ConfigError: types or shapes differ from these.
    """
    _check(splits)
    hashed, arrays = hashlib.sha256(), dict[str, NDArray[Any]]()
    for split, (images, targets) in splits.items():
        prefix = _PREFIXES[split]
        arrays |= {f"{prefix}images": images, f"{prefix}targets": targets}
        shapes = repr((images.shape, targets.shape, targets.dtype.str))
        hashed.update(prefix.encode() + shapes.encode())
        hashed.update(images.tobytes())
        hashed.update(targets.tobytes())
    if names:
        arrays["names"] = np.array(names, np.str_)
        hashed.update(repr([*names]).encode())
    path = folder / f"{hashed.hexdigest()[:16]}{ARRAYS_SUFFIX}"
    if (n_bytes := sum(array.nbytes for array in arrays.values())) > MAX_ARRAY_BYTES:
        raise ConfigError(
            f"dataset: the arrays have {n_bytes / 2**30:.1f} GiB. Allowed: {MAX_ARRAY_BYTES >> 30} "
            "GiB. Store the images as files or Parquet, and set dataset.path to their folder."
        )
    if not path.exists():
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, **arrays)
        folder.mkdir(parents=True, exist_ok=True)
        # Other processes may write the same data.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".writing-") as own:
            files.write_file(Path(own, path.name), content.getvalue())
            Path(own, path.name).replace(path)
    return path


def read_arrays(path: Path, kind: TaskType) -> ArrayData:
    """Return the images and targets of a file; images are cropped to the central square.

    Args:
        path: File as written by ``write_arrays``.
        kind: Type of the task, which converts the targets.

    Raises:
        ConfigError: the file cannot be read, or has missing, unknown or invalid arrays.
        DataError: the targets are not those of the task.
    """
    pairs = {s: (f"{prefix}images", f"{prefix}targets") for s, prefix in _PREFIXES.items()}
    try:
        present = {*array_names(path)}
        content = read_npz(path, [name for name in _array_names(pairs) if name in present])
    except (OSError, CorruptFileError) as error:
        message = (
            f"{path} cannot be read as arrays 'images' and 'targets': {error}. Write it again with "
            "numpy.savez, or pass the arrays from Python: hwnas.search(dataset=(images, labels))."
        )
        raise ConfigError(message) from None
    needed = {name for split, pair in pairs.items() for name in pair if split == "train"}
    needed |= {name for pair in pairs.values() if {*pair} & present for name in pair}
    if needed - present or present - {*_array_names(pairs)}:
        raise ConfigError(
            f"{path} has the arrays {', '.join(sorted(present)) or 'none'}. Allowed: images and "
            "targets; the same of a split with test_ or validation_ in front; names of classes."
        )
    splits = {
        split: (content[images], content[targets])
        for split, (images, targets) in pairs.items()
        if images in content
    }
    _check(splits)
    raw = {split: targets for split, (_, targets) in splits.items()}
    if kind.categorical:
        raw = {split: _labels(split, targets) for split, targets in raw.items()}
    given = [*map(str, content["names"].tolist())] if "names" in content else None
    values = {split: targets.tolist() for split, targets in raw.items()}
    targets, names = kind.targets(ARGUMENT, values, given)
    height, width = splits["train"][0].shape[1:3]
    images, notes = _central_squares({split: images for split, (images, _) in splits.items()})
    return ArrayData(images, targets, names, notes, (width, height))


def _array_names(pairs: Mapping[str, tuple[str, str]]) -> Sequence[str]:
    return [*(name for pair in pairs.values() for name in pair), "names"]


def _central_squares(
    images: Mapping[str, NDArray[Any]],
) -> tuple[dict[str, NDArray[np.uint8]], tuple[str, ...]]:
    """Return the central squares ``(N, side, side, C)``, and a note if images were cropped."""
    height, width = images["train"].shape[1:3]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = {
        split: (pixels if pixels.ndim == 4 else pixels[..., None])[
            :, top : top + side, left : left + side
        ]
        for split, pixels in images.items()
    }
    size = f"{ARGUMENT}: images of {width}x{height} pixels"
    note = f"{size} are cropped to {side}x{side}, centred."
    return square, (note,) * (height != width)


def _labels(split: str, targets: NDArray[Any]) -> NDArray[Any]:
    """Return labels ``(N,)`` of one-hot rows or a column."""
    if targets.ndim == 2 and targets.shape[1] > 1:
        if targets.dtype.kind == "U" or not _are_indicators(targets):
            raise ConfigError(
                f"{ARGUMENT}: split '{split}' has labels of shape {targets.shape} that are not "
                "one-hot. Multi-label data are not supported: give one label per image, (N,)."
            )
        return np.asarray(targets.argmax(axis=1))
    return targets.reshape(len(targets))


def _are_indicators(targets: NDArray[Any]) -> bool:
    is_one = targets == 1
    return bool(((targets == 0) | is_one).all() and (is_one.sum(axis=1) == 1).all())


def _check(splits: Mapping[str, SplitArrays]) -> None:
    """Raise ``ConfigError`` for arrays of other types and shapes."""
    shapes = {images.shape[1:] for images, _ in splits.values()}
    if len(shapes) > 1:
        raise ConfigError(
            f"{ARGUMENT}: images of the splits have different shapes: "
            f"{', '.join(map(str, sorted(shapes)))}. Give all images the same height, width and "
            "channels."
        )
    for split, (images, targets) in splits.items():
        subject = f"{ARGUMENT}: split '{split}'" if len(splits) > 1 else ARGUMENT
        if images.dtype != np.uint8 or images.ndim not in (3, 4):
            raise ConfigError(
                f"{subject}: images are {images.dtype} of shape {images.shape}; they must be uint8 "
                "of shape (N, H, W) or (N, H, W, C). hwnas reads images only: convert sensor or "
                "audio data to images first."
            )
        if not images.size:
            raise ConfigError(f"{subject}: there are no images. Give one or more.")
        if images.ndim == 4 and images.shape[3] not in CHANNELS:
            raise ConfigError(
                f"{subject}: images have {images.shape[3]} channels; they must have 1 or 3. "
                "Convert them to greyscale or RGB."
            )
        sides = sorted(images.shape[1:3])
        if sides[0] != sides[1] and (sides[0] < _MIN_SIDE or sides[1] > _MAX_ASPECT * sides[0]):
            raise ConfigError(
                f"{subject}: images of {images.shape[2]}x{images.shape[1]} pixels would be cropped "
                f"to {sides[0]}x{sides[0]}. hwnas reads images only: convert sensor or audio data "
                "to images, and resize images to about a square."
            )
        fits = targets.ndim in (1, 2) and len(targets) == len(images)
        if not fits or targets.dtype.kind not in "biufU":
            raise ConfigError(
                f"{subject}: targets are {targets.dtype} of shape {targets.shape}; they must be "
                f"numbers or strings, one row for each of the {len(images)} images."
            )
