"""Loads a data set: its splits, and where its images are kept."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.model_selection import train_test_split

from hwnas import tasks
from hwnas.core import machine
from hwnas.core.errors import ConfigError, DataError
from hwnas.core.progress import Progress
from hwnas.tasks.base import Targets, TaskType
from hwnas.training.data.arrays import SUFFIX, read_arrays
from hwnas.training.data.encoded import UNREADABLE, EncodedImages, ImageShape, ImageSource, header
from hwnas.training.data.folders import is_image_folder, read_folder
from hwnas.training.data.hub import EMBEDDED, read_table
from hwnas.training.data.image_data import ImageData
from hwnas.training.data.splits import (
    DataSplit,
    Decoder,
    ImageRows,
    InMemorySplit,
    StreamedSplit,
    threads,
)
from hwnas.training.options import DatasetConfig

# Equal files in different splits: what was learned from one is no answer to the other.

_HALVES = np.dtype([("first", "u8"), ("second", "u8")])


def shared(hashes: Mapping[str, NDArray[np.uint8]], where: Callable[[str, int], str]) -> list[str]:
    """Return in sentences how many images of other splits are images of ``train``, too.

    Args:
        hashes: By split, of what each image's file holds, ``(N, 16)``.
        where: Says which image that of a split is, by its place there.
    """
    train, *others = (
        np.ascontiguousarray(hashes[name]).view(_HALVES).ravel()
        for name in ("train", "validation", "test")
    )
    found = []
    for name, own in zip(("validation", "test"), others, strict=True):
        same = np.flatnonzero(np.isin(own, train))
        if len(same):
            first = int(np.flatnonzero(train == own[same[0]])[0])
            found.append(
                f"{len(same)} of {len(own)} {name} images are training images, too, for example "
                f"{where(name, int(same[0]))} and {where('train', first)}: accuracies are too high "
                "by what is known by heart."
            )
    return found


_SPLIT_SEED = 0  # the splits are part of the data set: they never follow the run's seed
_GREY = ("1", "L", "LA")
_LEAST_OF_VALUES = 2  # images of a split whose mean error has an interval
_SHARE = 0.25  # of the machine's memory, that decoded images may take
_SAMPLED = 4096  # streamed training images that mean and standard deviation are taken of
_HASH_BYTES = 16
_GIB = 1 << 30
_CHUNK = 64  # images that a thread looks at, at a time


def load_data(config: DatasetConfig, max_resolution: int, progress: Progress) -> ImageData:
    """Load a data set; images of different or of large sizes are resized to ``max_resolution``.

    Raises:
        DataError: it cannot be found, is not images with targets of the task, or has too few.
    """
    kind = tasks.get(config.task)
    if config.hub_id is None and config.path is None:
        return _image_data(config, *_embedded(config, kind), [])
    where = f"Data set '{config.path or config.hub_id}'"
    if config.path is not None and Path(config.path).suffix == SUFFIX:
        return _arrays(where, config, kind)
    source = _open(where, config, kind)
    encoded, changes = _encoded(where, source, config, max_resolution, progress)
    splits, kept = _kept(encoded, config.in_memory, progress)
    return _image_data(config, splits, source.names, [*changes, kept])


def _image_data(
    config: DatasetConfig,
    splits: Mapping[str, DataSplit],
    names: tuple[str, ...],
    notes: Sequence[str],
) -> ImageData:
    mean, std = _normalisation(splits["train"])
    task = tasks.get(config.task).task(names, splits["train"].targets.numpy())
    return ImageData(config.name, **splits, task=task, mean=mean, std=std, notes=tuple(notes))


def _embedded(
    config: DatasetConfig, kind: TaskType
) -> tuple[dict[str, DataSplit], tuple[str, ...]]:
    if config.name not in EMBEDDED:
        raise ConfigError(
            f"dataset={config.name} needs dataset.path=DIR (Parquet files or image folders) "
            "or dataset.hub_id=OWNER/NAME."
        )
    found = EMBEDDED[config.name]()
    if config.task != found.task:
        raise ConfigError(f"dataset={config.name} is for {found.task}: say task={found.task}.")
    where = f"Data set '{config.name}'"
    targets, names = kind.targets(where, {"train": found.targets.tolist()}, found.names)
    return _in_memory(where, found.images, targets, names, config)[0], names


def _arrays(where: str, config: DatasetConfig, kind: TaskType) -> ImageData:
    path = Path(str(config.path)).expanduser()
    if not path.exists():
        raise DataError(f"{where}: there is no such file or folder.")
    images, targets, names, notes = read_arrays(where, path, kind)
    splits, rows = _in_memory(where, images, targets, names, config)
    hashes = _table([_hash(image.tobytes()) for image in images])
    own = {split: hashes[part] for split, part in rows.items()}
    told = shared(own, lambda split, i: f"image {rows[split][i]}")
    return _image_data(config, splits, names, [*notes, *(f"{where}: {line}" for line in told)])


def _in_memory(
    where: str,
    images: NDArray[np.uint8],
    targets: Mapping[str, Targets],
    names: tuple[str, ...],
    config: DatasetConfig,
) -> tuple[dict[str, DataSplit], dict[str, ImageRows]]:
    """Return the splits of images ``(N, H, W, C)`` that are in memory, and the rows of each."""
    whole = InMemorySplit(torch.from_numpy(images), torch.from_numpy(targets["train"]))
    rows = {name: part for name, (_, part) in _divided(where, targets, names, config).items()}
    return {name: whole.take(torch.from_numpy(part)) for name, part in rows.items()}, rows


def _open(where: str, config: DatasetConfig, kind: TaskType) -> ImageSource:
    path = None if config.path is None else Path(config.path).expanduser()
    if path is not None and not path.exists():
        raise DataError(f"{where}: there is no such file or folder.")
    if path is not None and not (path.is_dir() or path.is_file()):
        raise DataError(f"{where} is neither a file nor a folder.")
    if path is not None and path.is_dir() and is_image_folder(where, path):
        return read_folder(where, path, config.test_split, kind)
    return read_table(where, config, path, kind)


def _divided(
    where: str, targets: Mapping[str, Targets], names: tuple[str, ...], config: DatasetConfig
) -> dict[str, tuple[str, ImageRows]]:
    """Return for each split from which split of the source it comes, and its rows there.

    What the source lacks is split off from ``train``, the same way every time; every part has its
    share of each of the task's strata.
    """
    missing = [name for name in ("test", "validation") if name not in targets]
    rows = np.arange(len(targets["train"]))
    strata = None
    if missing:
        kind = tasks.get(config.task)
        strata = kind.strata(where, targets["train"], names, len(missing) + 1)
    found = {name: (name, np.arange(len(targets[name]))) for name in targets}
    for name in missing:
        try:
            rows, part = train_test_split(
                rows,
                test_size=config.test if name == "test" else config.validation,
                stratify=None if strata is None else strata[rows],
                random_state=_SPLIT_SEED,
            )
        except ValueError as error:
            raise DataError(f"{where} is too small to split: {error}") from error
        found[name] = ("train", part)
    if not tasks.get(config.task).categorical:
        _check_intervals(where, {name: len(part) for name, (_, part) in found.items()}, missing)
    return found | {"train": ("train", rows)}


def _check_intervals(where: str, sizes: Mapping[str, int], drawn: Sequence[str]) -> None:
    """Refuse splits whose mean error would have no interval: how errors vary, two images tell.

    Args:
        where: What errors begin with.
        sizes: Of the splits; of ``train`` before others are drawn from it.
        drawn: The splits that are drawn from it, ``test`` before ``validation``.
    """
    n_left = sizes["train"]
    for name in ("test", "validation"):
        if (n := sizes[name]) < _LEAST_OF_VALUES:
            cure = f"give it {_LEAST_OF_VALUES} or more"
            if name in drawn and n_left > _LEAST_OF_VALUES:
                share = math.ceil(100 * _LEAST_OF_VALUES / n_left) / 100
                cure = f"say dataset.{name}={share:g} or more"
            raise DataError(
                f"{where}: the {name} split has {n} image{'s' * (n != 1)}; the interval of a mean "
                f"error takes {_LEAST_OF_VALUES}: {cure}."
            )
        n_left -= n * (name in drawn)


@dataclass
class _Survey:
    """What the headers of images say."""

    sizes: set[tuple[int, int]] = field(default_factory=set)
    modes: set[str] = field(default_factory=set)


def _encoded(
    where: str, source: ImageSource, config: DatasetConfig, max_resolution: int, progress: Progress
) -> tuple[dict[str, StreamedSplit], list[str]]:
    """Return the splits, none of them decoded, and what was done to the images."""
    divided = _divided(where, source.targets, source.names, config)
    pool, survey = threads(), _Survey()
    hashes = {
        name: _surveyed(name, images, survey, pool, progress)
        for name, images in source.images.items()
    }
    shape, notes = _shape(where, survey, max_resolution)
    notes += _shared(where, source, hashes, divided)
    decoder = Decoder(shape, pool)
    return {
        name: StreamedSplit(
            source.images[origin],
            rows,
            torch.from_numpy(source.targets[origin][rows]),
            hashes[origin][rows],
            decoder,
        )
        for name, (origin, rows) in divided.items()
    }, notes


def _shared(
    where: str,
    source: ImageSource,
    hashes: Mapping[str, NDArray[np.uint8]],
    divided: Mapping[str, tuple[str, ImageRows]],
) -> list[str]:
    """Return what there is to say of images that are in several splits."""

    def of(split: str, i: int) -> str:
        origin, rows = divided[split]
        return source.images[origin].where(int(rows[i])).removeprefix(f"{where}: ")

    own = {split: hashes[origin][rows] for split, (origin, rows) in divided.items()}
    return [f"{where}: {line}" for line in shared(own, of)]


def _surveyed(
    name: str, images: EncodedImages, survey: _Survey, pool: ThreadPoolExecutor, progress: Progress
) -> NDArray[np.uint8]:
    """Look at the header of every image; return hashes of what they hold, ``(N, bytes)``."""

    def look(start: int) -> list[bytes]:
        found = []
        for row in range(start, min(start + _CHUNK, len(images))):
            content = images.read(row)
            picture = _header(images, row, content)
            survey.sizes.add(picture.size)
            survey.modes.add(picture.mode)
            found.append(_hash(content))
        return found

    hashes: list[bytes] = []
    with progress.phase(f"Check {name} images", len(images)) as advance:
        for part in pool.map(look, range(0, len(images), _CHUNK)):
            hashes += part
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
        reason = "what is there is none" if "BytesIO" in str(error) else error
        raise DataError(f"{images.where(row)} is not an image: {reason}.") from None
    if picture.mode[0] in "IF":
        raise DataError(
            f"{images.where(row)} is an image of mode {picture.mode}, which is not supported; "
            "convert all images to 8 bits."
        )
    return picture


def _shape(where: str, survey: _Survey, max_resolution: int) -> tuple[ImageShape, list[str]]:
    """Return what images are decoded to: their own size where all agree, are square and small."""
    (width, height), n = min(survey.sizes), len(survey.sizes)
    keep = n == 1 and width == height <= 2 * max_resolution
    shape = ImageShape(
        width if keep else max_resolution, "L" if survey.modes <= set(_GREY) else "RGB"
    )
    notes = []
    if not keep:
        sizes = f"of {n} sizes" if n > 1 else f"of {width}x{height} pixels"
        notes.append(
            f"{where}: images {sizes} are resized to {shape.side}x{shape.side} pixels: the shorter "
            "side, then the centre is cropped."
        )
    if shape.mode == "RGB" and not survey.modes.isdisjoint(_GREY):
        modes = ", ".join(sorted(survey.modes))
        notes.append(f"{where}: images of the modes {modes} are all converted to RGB.")
    return shape, notes


def _kept(
    splits: Mapping[str, StreamedSplit], in_memory: bool | None, progress: Progress
) -> tuple[dict[str, DataSplit], str]:
    """Decode the splits that are kept in memory, and say which are.

    What is read most often comes first: validation is, once a candidate.
    """
    limit = _SHARE * machine.memory_bytes()
    left = {None: limit, True: float("inf"), False: 0.0}[in_memory]
    kept: dict[str, DataSplit] = {}
    words = []
    for name in ("validation", "test", "train"):
        split = splits[name]
        fits = split.n_bytes <= left
        if fits:
            left -= split.n_bytes
            with progress.phase(f"Decode {name} images", len(split)) as advance:
                kept[name] = split.in_memory(advance)
        else:
            kept[name] = split
        how = "in memory" if fits else "streamed"
        words.append(f"{name} {how} ({len(split)} images, {split.n_bytes / _GIB:.2f} GiB)")
    reason = (
        f"a share of {_SHARE:g} of the machine's memory is {limit / _GIB:.1f} GiB"
        if in_memory is None
        else f"dataset.in_memory={str(in_memory).lower()}"
    )
    return kept, f"Decoded images: {', '.join(words)}; {reason}."


def _normalisation(train: DataSplit) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of the channels: of all images, or of a fixed sample."""
    if not isinstance(train, InMemorySplit):
        order = np.random.default_rng(_SPLIT_SEED).permutation(len(train))
        train = train.take(torch.from_numpy(np.sort(order[:_SAMPLED])))
    n_channels, levels = train.images.shape[-1], np.arange(256)
    counts = np.zeros((n_channels, 256))  # of each value: pixels as floats take 8 times the memory
    for part in torch.split(train.images, _SAMPLED):
        for c in range(n_channels):
            counts[c] += np.bincount(part[..., c].numpy().ravel(), minlength=256)
    n = counts.sum(axis=1)
    mean = counts @ levels / n
    std = np.sqrt((counts * (levels - mean[:, None]) ** 2).sum(axis=1) / n)
    return tuple((mean / 255).tolist()), tuple(np.maximum(std / 255, 1e-3).tolist())
