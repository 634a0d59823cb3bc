"""Image-classification data: fixed train, validation and test splits, held in memory."""

import errno
import hashlib
import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.nn import functional as F

from hwnas.errors import ConfigError, DataError
from hwnas.op import Task
from hwnas.progress import Progress

_SPLIT_SEED = 0  # the splits are part of the data set: they never follow the run's seed
_GREY = ("1", "L", "LA")


@dataclass
class DatasetConfig:
    """Where images with labels come from, and which changes of an image keep its label."""

    name: str
    hub_id: str | None = None  #: of the Hugging Face hub
    path: str | None = None  #: a folder or file on this machine; wins over hub_id
    validation: float = 0.1  #: fraction of the training images, where there is no such split
    test: float = 0.2  #: fraction of all images, where there is no such split
    flip: bool = False  #: whether a mirror image has the same label
    shift: float = 0.0  #: largest random shift in training, as a fraction of the image

    def __post_init__(self) -> None:
        for key in ("validation", "test"):
            if not 0 < getattr(self, key) < 1:
                raise ConfigError(f"dataset.{key} must lie between 0 and 1.")
        if not 0 <= self.shift < 0.5:
            raise ConfigError(f"dataset.shift must lie in [0, 0.5), got {self.shift}.")


@dataclass(frozen=True)
class Split:
    """Images ``(N, H, W, C)`` in uint8 and labels ``(N,)`` in int64."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> "Split":
        """Return the images at ``index``."""
        return Split(self.images[index], self.labels[index])


@dataclass(frozen=True)
class ImageData:
    """A data set. Search reads ``train`` and ``validation``; only verification reads ``test``."""

    name: str
    train: Split
    validation: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...]  #: per channel, of the training images in [0, 1]
    std: tuple[float, ...]

    @property
    def task(self) -> Task:
        """What a network for this data reads and answers."""
        return Task(self.train.images.shape[-1], len(self.classes))

    @property
    def search_digest(self) -> str:
        """Digest of what search may see: the train and the validation split."""
        return _digest(self.train, self.validation)

    @property
    def digest(self) -> str:
        """Digest of all images and labels and of how they are split."""
        return _digest(self.train, self.validation, self.test)

    def prepare(self, images: Tensor, resolution: int) -> Tensor:
        """Return normalised images ``(N, C, R, R)`` in channels-last order."""
        x = images.permute(0, 3, 1, 2).float()
        if x.shape[-1] != resolution or x.shape[-2] != resolution:
            x = F.interpolate(x, (resolution, resolution), mode="bilinear", antialias=True)
        mean = torch.tensor(self.mean, device=x.device).view(1, -1, 1, 1) * 255
        std = torch.tensor(self.std, device=x.device).view(1, -1, 1, 1) * 255
        return ((x - mean) / std).to(memory_format=torch.channels_last)


def _digest(*splits: Split) -> str:
    digest = hashlib.sha256()
    for split in splits:
        digest.update(split.images.numpy().tobytes())
        digest.update(split.labels.numpy().tobytes())
    return digest.hexdigest()[:16]


def augment(images: Tensor, config: DatasetConfig, rng: torch.Generator) -> Tensor:
    """Return randomly shifted and, where the data allow, mirrored images ``(N, H, W, C)``."""
    n, h, w, _ = images.shape
    if config.flip:
        mirrored = torch.rand(n, generator=rng) < 0.5
        images = torch.where(mirrored.view(-1, 1, 1, 1), images.flip(2), images)
    reach = round(config.shift * max(h, w))
    if reach:
        padded = F.pad(images, (0, 0, reach, reach, reach, reach))
        offset = torch.randint(0, 2 * reach + 1, (2, n, 1), generator=rng)
        rows = (offset[0] + torch.arange(h)).view(n, h, 1)
        columns = (offset[1] + torch.arange(w)).view(n, 1, w)
        images = padded[torch.arange(n).view(n, 1, 1), rows, columns]
    return images


def load(config: DatasetConfig, max_resolution: int, progress: Progress) -> ImageData:
    """Load a data set; images of different or of large sizes are resized to ``max_resolution``.

    Raises:
        DataError: it cannot be found, or is not images with labels of at least two classes.
    """
    if config.hub_id is None and config.path is None:
        if config.name != "digits":
            raise ConfigError(
                f"dataset={config.name} needs dataset.path=DIR (Parquet files or image folders) "
                "or dataset.hub_id=OWNER/NAME."
            )
        digits = load_digits()
        images = np.round(digits.images * 255 / 16).astype(np.uint8)[..., None]
        parts = {"train": (images, digits.target.astype(np.int64))}
        classes = tuple(map(str, digits.target_names))
    else:
        parts, classes = _read(config, max_resolution, progress)
    if "test" not in parts:
        parts["train"], parts["test"] = _split(config, parts["train"], config.test)
    if "validation" not in parts:
        parts["train"], parts["validation"] = _split(config, parts["train"], config.validation)
    splits = {
        name: Split(torch.from_numpy(images), torch.from_numpy(labels))
        for name, (images, labels) in parts.items()
    }
    pixels = splits["train"].images.numpy().reshape(-1, splits["train"].images.shape[-1])
    return ImageData(
        name=config.name,
        classes=classes,
        mean=tuple(float(m) for m in pixels.mean(axis=0, dtype=np.float64) / 255),
        std=tuple(max(float(s), 1e-3) for s in pixels.std(axis=0, dtype=np.float64) / 255),
        **splits,
    )


Arrays = tuple[NDArray[np.uint8], NDArray[np.int64]]


def _split(config: DatasetConfig, arrays: Arrays, fraction: float) -> tuple[Arrays, Arrays]:
    """Split stratified by class, the same way every time."""
    images, labels = arrays
    try:
        rest, part = train_test_split(
            np.arange(len(labels)), test_size=fraction, stratify=labels, random_state=_SPLIT_SEED
        )
    except ValueError as error:
        raise DataError(f"Data set '{config.name}' is too small to split: {error}") from error
    return (images[rest], labels[rest]), (images[part], labels[part])


def _read(
    config: DatasetConfig, max_resolution: int, progress: Progress
) -> tuple[dict[str, Arrays], tuple[str, ...]]:
    splits = _open(config)
    where = f"Data set '{config.path or config.hub_id}'"
    image_column, label_column = _columns(where, splits["train"])
    encoded = {name: _bytes(where, split, image_column) for name, split in splits.items()}
    side, mode = _common_shape(where, encoded, max_resolution)
    labels, classes = _labels(where, splits, label_column)
    parts = {}
    for name, images in encoded.items():
        pixels = np.empty((len(images), side, side, 1 if mode == "L" else 3), np.uint8)
        with progress.phase(f"Decode {name} images", len(images)) as advance:
            for i, image in enumerate(images):
                pixels[i] = _decode(where, name, i, image, (side, mode))
                advance(1)
        parts[name] = (pixels, labels[name])
    return parts, classes


def _open(config: DatasetConfig) -> dict[str, Any]:
    """Return the splits train and, where there are any, validation and test."""
    import datasets  # slow to import, and not needed for the embedded digits

    datasets.disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it announces each retry
    where = f"Data set '{config.path or config.hub_id}'"
    path = None if config.path is None else Path(config.path).expanduser()
    if path is not None and not path.exists():
        raise DataError(f"{where}: there is no such file or folder.")
    try:
        if path is not None and path.is_file():
            found = datasets.load_dataset("parquet", data_files={"train": str(path)})
        else:
            found = datasets.load_dataset(config.hub_id if path is None else str(path))
    except Exception as error:  # datasets, pyarrow and the hub raise many kinds
        root: BaseException = error
        while (deeper := root.__cause__ or root.__context__) is not None:
            root = deeper
        if isinstance(root, OSError) and root.errno == errno.ENOSPC:
            raise root from None
        # Of the hub the last error says that it is out of reach; of a file the first says why.
        cure = "" if path else " Without a network give local files: dataset.path=DIR."
        reason = " ".join(str(root if path else error).split())[:300]
        raise DataError(f"{where} cannot be read: {reason}.{cure}") from None
    names = ("train", "validation", "test")
    splits = {name: found[name] for name in names if name in found and len(found[name])}
    if "train" not in splits:
        raise DataError(f"{where} has no split 'train', only: {', '.join(found)}.")
    return splits


def _columns(where: str, split: Any) -> tuple[str, str]:
    """Return the names of the image and the label column."""
    import datasets

    images = [n for n, f in split.features.items() if isinstance(f, datasets.Image)]
    images = images or [n for n in split.column_names if n in ("image", "img")]
    labels = [n for n, f in split.features.items() if isinstance(f, datasets.ClassLabel)]
    labels = labels or [n for n in split.column_names if n in ("label", "labels", "class")]
    if not images or not labels:
        raise DataError(
            f"{where} is not images with labels: needs a column 'image' and a column 'label', "
            f"has: {', '.join(split.column_names)}."
        )
    return images[0], labels[0]


def _bytes(where: str, split: Any, column: str) -> list[bytes]:
    """Return the encoded images."""
    import datasets

    try:
        rows = split.cast_column(column, datasets.Image(decode=False))[column]
        return [
            row["bytes"] if row["bytes"] is not None else Path(row["path"]).read_bytes()
            for row in rows
        ]
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{where}: column '{column}' does not hold images: {reason}") from None


def _common_shape(
    where: str, encoded: dict[str, list[bytes]], max_resolution: int
) -> tuple[int, str]:
    """Return side and mode for all images: their own where they agree, are square and small."""
    sizes, modes = set(), set()
    for name, images in encoded.items():
        for i, image in enumerate(images):
            header = _header(where, name, i, image)
            sizes.add(header.size)
            modes.add(header.mode)
    width, height = next(iter(sizes))
    keep = len(sizes) == 1 and width == height and width <= 2 * max_resolution
    if deep := sorted(mode for mode in modes if mode[0] in "IF"):
        raise DataError(f"{where}: images of mode {deep[0]} are not supported; convert to 8 bits.")
    return width if keep else max_resolution, "L" if modes <= set(_GREY) else "RGB"


def _header(where: str, name: str, i: int, image: bytes) -> Image.Image:
    try:
        return Image.open(io.BytesIO(image))
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{where}: row {i} of '{name}' is not an image: {error}") from None


def _decode(
    where: str, name: str, i: int, image: bytes, shape: tuple[int, str]
) -> NDArray[np.uint8]:
    """Return one image as ``(side, side, C)``, resized and cropped to its centre if need be."""
    side, mode = shape
    picture = _header(where, name, i, image)
    try:
        if "A" in picture.getbands() or "transparency" in picture.info:  # what is seen on white
            picture = picture.convert("RGBA")
            picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
        picture = picture.convert(mode)
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{where}: row {i} of '{name}' is damaged: {error}") from None
    if picture.size != (side, side):
        scale = side / min(picture.size)
        size = tuple(max(side, round(length * scale)) for length in picture.size)
        picture = picture.resize((size[0], size[1]), Image.Resampling.BILINEAR)
        left, top = (size[0] - side) // 2, (size[1] - side) // 2
        picture = picture.crop((left, top, left + side, top + side))
    return np.asarray(picture, np.uint8).reshape(side, side, -1)


def _labels(
    where: str, splits: dict[str, Any], column: str
) -> tuple[dict[str, NDArray[np.int64]], tuple[str, ...]]:
    """Return labels as indices, and the names of the classes."""
    raw: dict[str, Sequence[Any]] = {name: list(split[column]) for name, split in splits.items()}
    feature = splits["train"].features[column]
    names = getattr(feature, "names", None)
    values = set().union(*map(set, raw.values()))
    if None in values or not all(isinstance(value, int | str) for value in values):
        raise DataError(f"{where}: column '{column}' must hold whole numbers or words.")
    if len(set(raw["train"])) < 2:
        raise DataError(
            f"{where}: column '{column}' holds one class only; classification needs two or more."
        )
    ordered = list(range(len(names))) if names else sorted(values, key=lambda v: (str(type(v)), v))
    if not values <= set(ordered):
        raise DataError(f"{where}: column '{column}' has labels beyond its {len(ordered)} classes.")
    index = {value: i for i, value in enumerate(ordered)}
    labels = {
        name: np.array([index[value] for value in column_values], np.int64)
        for name, column_values in raw.items()
    }
    return labels, tuple(map(str, names or ordered))
