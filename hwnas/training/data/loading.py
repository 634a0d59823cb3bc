"""Loading of data sets: splits, image shape, duplicates, and storage in memory."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from hwnas import tasks
from hwnas.core import machine
from hwnas.core.errors import ConfigError, DataError
from hwnas.core.progress import Progress
from hwnas.tasks.base import TaskType
from hwnas.training.data.arrays import ARGUMENT, read_arrays
from hwnas.training.data.encoded import (
    GREY,
    UNREADABLE,
    EncodedImages,
    ImageShape,
    ImageSource,
    header,
    is_transparent,
    shown_size,
    transpose_of,
    unsupported,
)
from hwnas.training.data.folders import FORMATS, is_image_folder, read_folder
from hwnas.training.data.hub import EMBEDDED, read_table
from hwnas.training.data.image_data import (
    SPLIT_SEED,
    ImageData,
    divide,
    target_notes,
    value_notes,
)
from hwnas.training.data.splits import (
    DataSplit,
    Decoder,
    ImageRows,
    InMemorySplit,
    StreamedSplit,
    describe_duplicates,
    in_memory_splits,
    threads,
)
from hwnas.training.options import DatasetConfig

_MEMORY_FRACTION = 0.25  # of the machine's memory, for decoded images
_N_SAMPLED = 4096  # streamed training images for mean and standard deviation
_HASH_BYTES = 16
_GIB = 1 << 30
_TABLE_OPTIONS = ("test_split", "image_column", "label_column", "in_memory")
_CHUNK = 64  # images per task of a thread


def load_data(config: DatasetConfig, max_resolution: int, progress: Progress) -> ImageData:
    """Return a data set with its splits and task.

    Image files keep their size if all are squares of one size up to twice ``max_resolution`` (in
    pixels); otherwise they are resized to ``max_resolution``. Arrays keep theirs.

    Raises:
        ConfigError: an option does not suit the source, or arrays are invalid.
        DataError: the source is not found, or is no set of images with targets of the task.
    """
    kind = tasks.get(config.task)
    _check_options(config)
    if not (config.is_files or config.is_arrays):
        return _image_data(config, *_embedded_splits(config, kind), [])
    where = f"Data set '{config.path or config.hub_id}'"
    if config.is_arrays:
        return _arrays(config, kind)
    source = _open(where, config, kind)
    encoded, changes, sizes = _streamed_splits(where, source, config, max_resolution, progress)
    splits, memory_note = _decode_fitting(encoded, config.in_memory, progress)
    data = _image_data(config, splits, source.names, [*source.notes, *changes, memory_note])
    return replace(data, file_sizes=sizes)


def _check_options(config: DatasetConfig) -> None:
    """Refuse options that have no effect on a source.

    Raises:
        ConfigError: an option is set that the source does not use.
    """
    if config.name in EMBEDDED:
        kind = f"dataset={config.name} is embedded"
        unused: tuple[str, ...] = ("path", "hub_id", *_TABLE_OPTIONS)
    elif config.is_arrays:
        kind, unused = f"{ARGUMENT} is given as arrays", _TABLE_OPTIONS
    else:
        return
    _check_unused(config, kind, unused)


def _check_unused(config: DatasetConfig, kind: str, unused: Sequence[str]) -> None:
    defaults = DatasetConfig(config.name)
    for name in unused:
        if getattr(config, name) != getattr(defaults, name):
            raise ConfigError(
                f"{kind}: dataset.{name}={getattr(config, name)} has no effect. Omit the option, "
                f"or read own images with dataset=images dataset.path={config.path or 'DIR'}."
            )


def _image_data(
    config: DatasetConfig,
    splits: Mapping[str, DataSplit],
    names: tuple[str, ...],
    notes: Sequence[str],
) -> ImageData:
    notes = [*notes]
    counts = _value_counts(splits["train"])
    mean, std = _normalisation(counts)
    task = tasks.get(config.task).task(names, splits["train"].targets.numpy())
    used = np.flatnonzero(counts.sum(axis=0))
    values = int(used[0]), int(used[-1])
    if len(counts) > 1 and (counts == counts[0]).all():
        notes.append(
            "The channels of the training images are equal: they are grey images stored in colour. "
            "Convert them to grey (mode L) for networks with a single input channel."
        )
    parts = splits["train"], splits["validation"], splits["test"]
    data = ImageData(config.name, *parts, task, mean, std, values=values)
    return replace(data, notes=(*notes, *value_notes(values), *target_notes(data)))


def _embedded_splits(
    config: DatasetConfig, kind: TaskType
) -> tuple[dict[str, DataSplit], tuple[str, ...]]:
    if config.name not in EMBEDDED:
        raise ConfigError(
            f"dataset={config.name} needs dataset.path=DIR (Parquet files or image folders) "
            "or dataset.hub_id=OWNER/NAME."
        )
    data = EMBEDDED[config.name]()
    if config.task != data.task:
        raise ConfigError(f"dataset={config.name} is for {data.task}. Set task={data.task}.")
    where = f"Data set '{config.name}'"
    targets, names = kind.targets(where, {"train": data.targets.tolist()}, data.names)
    divided = divide(where, targets, names, config)
    return in_memory_splits({"train": data.images}, targets, divided), names


def _arrays(config: DatasetConfig, kind: TaskType) -> ImageData:
    path = Path(str(config.path)).expanduser()
    if not path.exists():
        raise DataError(f"dataset.path={path}: no such file or folder. Correct the path.")
    try:
        arrays = read_arrays(path, kind)
        divided = divide(ARGUMENT, arrays.targets, arrays.names, config)
    except DataError as error:  # about an argument of the Python API
        raise ConfigError(str(error)) from None
    hashes = {
        s: _table([_hash(i.tobytes()) for i in images]) for s, images in arrays.images.items()
    }

    def place(split: str, i: int) -> str:
        origin, rows = divided[split]
        return f"{origin} " * (len(hashes) > 1) + f"image {rows[i]}"

    splits = in_memory_splits(arrays.images, arrays.targets, divided)
    by_split = {s: hashes[origin][rows] for s, (origin, rows) in divided.items()}
    targets = {s: arrays.targets[origin][rows] for s, (origin, rows) in divided.items()}
    notes = [f"{ARGUMENT}: {line}" for line in describe_duplicates(by_split, targets, place)]
    data = _image_data(config, splits, arrays.names, [*arrays.notes, *notes])
    return replace(data, file_sizes={arrays.size: sum(map(len, arrays.images.values()))})


def _open(where: str, config: DatasetConfig, kind: TaskType) -> ImageSource:
    path = None if config.path is None else Path(config.path).expanduser()
    if path is not None and not path.exists():
        raise DataError(f"{where}: no such file or folder. Correct dataset.path.")
    if path is not None and not (path.is_dir() or path.is_file()):
        raise DataError(f"{where} is neither a file nor a folder. Set dataset.path to one.")
    if path is not None and path.is_dir() and is_image_folder(where, path):
        _check_unused(config, f"{where} consists of folders", ("image_column", "label_column"))
        return read_folder(where, path, config.test_split, kind)
    return read_table(where, config, path, kind)


@dataclass
class _Survey:
    """Properties found in the headers of images."""

    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)  #: images by their size
    modes: set[str] = field(default_factory=set)
    n_transposed: int = 0  #: images with an EXIF orientation
    n_transparent: int = 0  #: images with transparent pixels


def _streamed_splits(
    where: str, source: ImageSource, config: DatasetConfig, max_resolution: int, progress: Progress
) -> tuple[dict[str, StreamedSplit], list[str], dict[tuple[int, int], int]]:
    """Return the splits without decoding them, notes about conversions, and sizes of images."""
    divided = divide(where, source.targets, source.names, config)
    pool, survey = threads(), _Survey()
    hashes = {
        name: _survey_headers(name, images, survey, pool, progress)
        for name, images in source.images.items()
    }
    shape, notes = _shape(where, survey, max_resolution)
    notes += _duplicate_notes(where, source, hashes, divided)
    decoder = Decoder(shape, pool)
    return (
        {
            name: StreamedSplit(
                source.images[origin],
                rows,
                torch.from_numpy(source.targets[origin][rows]),
                hashes[origin][rows],
                decoder,
            )
            for name, (origin, rows) in divided.items()
        },
        notes,
        dict(survey.sizes),
    )


def _duplicate_notes(
    where: str,
    source: ImageSource,
    hashes: Mapping[str, NDArray[np.uint8]],
    divided: Mapping[str, tuple[str, ImageRows]],
) -> list[str]:
    """Return warnings about images in several splits, or with several targets."""

    def location(split: str, i: int) -> str:
        origin, rows = divided[split]
        return source.images[origin].where(int(rows[i])).removeprefix(f"{where}: ")

    by_split = {split: hashes[origin][rows] for split, (origin, rows) in divided.items()}
    targets = {s: source.targets[origin][rows] for s, (origin, rows) in divided.items()}
    return [f"{where}: {line}" for line in describe_duplicates(by_split, targets, location)]


def _survey_headers(
    name: str, images: EncodedImages, survey: _Survey, pool: ThreadPoolExecutor, progress: Progress
) -> NDArray[np.uint8]:
    """Read the header of every image; return hashes of the contents, ``(N, bytes)``."""

    def read(start: int) -> tuple[list[bytes], list[tuple[int, int]], int, int]:
        hashes, sizes, n_transposed, n_transparent = [], [], 0, 0
        for row in range(start, min(start + _CHUNK, len(images))):
            content = images.read(row)
            picture = _header(images, row, content)
            sizes.append(shown_size(picture))
            survey.modes.add(picture.mode)
            n_transposed += transpose_of(picture) is not None
            n_transparent += is_transparent(picture)
            hashes.append(_hash(content))
        return hashes, sizes, n_transposed, n_transparent

    hashes: list[bytes] = []
    with progress.phase(f"Check {name} images", len(images)) as advance:
        for part, sizes, n_transposed, n_transparent in pool.map(
            read, range(0, len(images), _CHUNK)
        ):
            hashes += part
            survey.sizes.update(sizes)
            survey.n_transposed += n_transposed
            survey.n_transparent += n_transparent
            advance(len(part))
    return _table(hashes)


def _hash(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:_HASH_BYTES]


def _table(hashes: Sequence[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(hashes), np.uint8).reshape(len(hashes), _HASH_BYTES)


def _header(images: EncodedImages, row: int, content: bytes) -> Image.Image:
    try:
        picture = header(content)
    except UNREADABLE as error:
        unknown = f"its format is unknown (known: {FORMATS}; convert HEIC to JPEG)"
        reason = unknown if "BytesIO" in str(error) else error
        message = f"{images.where(row)} is not an image: {reason}. Replace or remove it."
        raise DataError(message) from None
    if (problem := unsupported(picture)) is not None:
        raise DataError(f"{images.where(row)} is {problem}.")
    return picture


def _shape(where: str, survey: _Survey, max_resolution: int) -> tuple[ImageShape, list[str]]:
    """Return the shape of decoded images: the original size if equal, square and small."""
    (width, height), n = min(survey.sizes), len(survey.sizes)
    keep = n == 1 and width == height <= 2 * max_resolution
    shape = ImageShape(
        width if keep else max_resolution, "L" if survey.modes <= set(GREY) else "RGB"
    )
    notes = []
    if not keep:
        sizes = f"of {n} sizes" if n > 1 else f"of {width}x{height} pixels"
        notes.append(
            f"{where}: images {sizes} are resized to {shape.side}x{shape.side} pixels (centre "
            "square)."
        )
    if survey.n_transposed:
        notes.append(
            f"{where}: {survey.n_transposed} images are rotated or mirrored as their EXIF "
            "orientation says."
        )
    if survey.n_transparent:
        notes.append(
            f"{where}: {survey.n_transparent} images have an alpha channel, which is not a channel "
            "of the networks' input: transparent pixels become white."
        )
    if shape.mode == "RGB" and not survey.modes.isdisjoint(GREY):
        modes = ", ".join(sorted(survey.modes))
        notes.append(f"{where}: images of the modes {modes} are converted to RGB.")
    return shape, notes


def _decode_fitting(
    splits: Mapping[str, StreamedSplit], in_memory: bool | None, progress: Progress
) -> tuple[dict[str, DataSplit], str]:
    """Decode splits that fit into memory, the most frequently read first; describe which."""
    limit = _MEMORY_FRACTION * machine.memory_bytes()
    n_free = {None: limit, True: float("inf"), False: 0.0}[in_memory]
    splits_by_name: dict[str, DataSplit] = {}
    parts = []
    for name in ("validation", "test", "train"):
        split = splits[name]
        fits = split.n_bytes <= n_free
        if fits:
            n_free -= split.n_bytes
            with progress.phase(f"Decode {name} images", len(split)) as advance:
                splits_by_name[name] = split.in_memory(advance)
        else:
            splits_by_name[name] = split
        storage = "in memory" if fits else "streamed"
        parts.append(f"{name} {storage} ({len(split)} images, {_size(split.n_bytes)})")
    reason = (
        f"{_MEMORY_FRACTION:.0%} of the machine's memory is {limit / _GIB:.1f} GiB"
        if in_memory is None
        else f"dataset.in_memory={str(in_memory).lower()}"
    )
    return splits_by_name, f"Decoded images: {', '.join(parts)}; {reason}."


def _size(n_bytes: int) -> str:
    """Return a size as text, such as ``512.0 KiB`` or ``1.5 GiB``."""
    power = next((n for n in (3, 2) if n_bytes >= 1024**n), 1)
    return f"{n_bytes / 1024**power:.1f} {'KMG'[power - 1]}iB"


def _value_counts(train: DataSplit) -> NDArray[np.float64]:
    """Return how often each channel has each value, ``(C, 256)``: all images or a fixed sample."""
    if not isinstance(train, InMemorySplit):
        order = np.random.default_rng(SPLIT_SEED).permutation(len(train))
        train = train.take(torch.from_numpy(np.sort(order[:_N_SAMPLED])))
    n_channels = train.images.shape[-1]
    counts = np.zeros((n_channels, 256))  # pixels as floats would take 8 times the memory
    for part in torch.split(train.images, _N_SAMPLED):
        for c in range(n_channels):
            counts[c] += np.bincount(part[..., c].numpy().ravel(), minlength=256)
    return counts


def _normalisation(counts: NDArray[np.float64]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of the channels, from the counts of their values."""
    n, levels = counts.sum(axis=1), np.arange(256)
    mean = counts @ levels / n
    std = np.sqrt((counts * (levels - mean[:, None]) ** 2).sum(axis=1) / n)
    return tuple((mean / 255).tolist()), tuple(np.maximum(std / 255, 1e-3).tolist())
