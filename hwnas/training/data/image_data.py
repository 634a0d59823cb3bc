"""A data set with its splits, task and normalisation."""

import math
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.nn import functional as F

from hwnas import tasks
from hwnas.core.errors import ConfigError, DataError, counted
from hwnas.core.quantity import Quantity
from hwnas.models.graph import Signature
from hwnas.tasks.base import Targets, Task
from hwnas.training.data.splits import DataSplit, ImageRows, InMemorySplit, digest, prefetched
from hwnas.training.options import DatasetConfig

_BATCH = 256  # images of a streamed split per batch
_MAX_SCALE_RATIO = 3.0  # of standard deviations of regression values without a warning
_MAX_IMBALANCE = 5.0  # ratio of the largest to the smallest class without a warning
_FEW_IMAGES = 5  # images of a class in a split, below which a note warns
_DARK = 32  # largest value of training images, below which a note warns
_MAX_BYTES = 1 << 28  # prepared images of a split in memory per batch
_MAX_SENT_BYTES = 1 << 30  # images in memory that are sent to another process

ImageBatch = tuple[Tensor, Tensor]  #: normalised images ``(N, C, R, R)`` and targets


@dataclass(frozen=True)
class ImageData:
    """A data set. The search uses ``train`` and ``validation``, only verification uses ``test``."""

    name: str
    train: DataSplit
    validation: DataSplit
    test: DataSplit
    task: Task
    #: mean of each channel of the training images, or of a sample if they are streamed, in [0, 1]
    mean: tuple[float, ...]
    std: tuple[float, ...]  #: standard deviation of each channel, in the same unit
    notes: tuple[str, ...] = ()  #: messages to the user about how the data were read
    #: number of image files by width and height; empty for arrays and embedded data sets
    file_sizes: Mapping[tuple[int, int], int] = field(default_factory=dict)
    values: tuple[int, int] = (0, 255)  #: smallest and largest pixel value of the same images

    @property
    def signature(self) -> Signature:
        """Number of input channels, and number of outputs, of a network for these data."""
        return Signature(len(self.mean), self.task.n_outputs)

    def with_metric(self, metric: str) -> "ImageData":
        """Return the data with another quality metric of the task."""
        return replace(self, task=self.task.with_metric(metric))

    def for_training(self, class_weights: str) -> "ImageData":
        """Return the data with a task whose loss has class weights, if these are set.

        Args:
            class_weights: ``none`` or ``balanced``, as in ``train.class_weights``.

        Raises:
            ConfigError: weights are set for a task without classes.
        """
        task = self.task.for_training(is_balanced=class_weights == "balanced")
        return replace(self, task=task)

    @property
    def sendable(self) -> "ImageData | None":
        """The data for another process if they are in memory, at most 1 GiB, else ``None``."""
        splits = (self.train, self.validation, self.test)
        in_memory = [s.images.nbytes for s in splits if isinstance(s, InMemorySplit)]
        fits = len(in_memory) == len(splits) and sum(in_memory) <= _MAX_SENT_BYTES
        return self if fits else None

    @property
    def search_digest(self) -> str:
        """Digest of the training and the validation split, 16 hexadecimal digits."""
        return digest(self.train, self.validation)

    @property
    def digest(self) -> str:
        """Digest of all splits, 16 hexadecimal digits."""
        return digest(self.train, self.validation, self.test)

    @cached_property
    def class_counts(self) -> dict[str, dict[str, int]]:
        """Number of images by name of the split and of the class; empty without classes."""
        if not tasks.get(self.task.name).categorical:
            return {}
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        n, names = self.task.n_outputs, self.task.names
        return {
            split: dict(zip(names, torch.bincount(part.targets, minlength=n).tolist(), strict=True))
            for split, part in splits.items()
        }

    def constant(self, split: str) -> Quantity:
        """Return the metric of a constant answer on a split, given by name.

        The answer is that of the task's ``constant_results``: the majority class, or the median.
        """
        targets = getattr(self, split).targets.numpy()
        return self.task.score(self.task.constant_results(targets))

    def prepare(self, images: Tensor, resolution: int, *, rounded: bool = False) -> Tensor:
        """Return normalised float32 images ``(N, C, R, R)``, in the channels-last memory format.

        Args:
            images: uint8, ``(N, H, W, C)``.
            resolution: Height and width ``R`` of the result, in pixels.
            rounded: True: resized images are rounded to uint8, as on a device.
        """
        x = images.permute(0, 3, 1, 2).to(torch.float32, copy=True)  # modified below
        if x.shape[-1] != resolution or x.shape[-2] != resolution:
            x = F.interpolate(x, (resolution, resolution), mode="bilinear", antialias=True)
            x = x.round_().clamp_(0, 255) if rounded else x
        mean = torch.tensor(self.mean, device=x.device).view(1, -1, 1, 1) * 255
        std = torch.tensor(self.std, device=x.device).view(1, -1, 1, 1) * 255
        return x.sub_(mean).div_(std).to(memory_format=torch.channels_last)

    def n_bytes(self, n: int, resolution: int) -> int:
        """Return the size of ``n`` prepared images, in bytes."""
        return n * len(self.mean) * resolution**2 * 4

    def batches(
        self,
        split: DataSplit,
        resolution: int,
        index: Tensor | None = None,
        *,
        rounded: bool = False,
    ) -> Iterator[ImageBatch]:
        """Yield prepared images and targets of a split, or of its images at ``index``.

        A small split in memory is one batch. Batches of streamed splits are prefetched.
        """
        order = torch.arange(len(split)) if index is None else index
        size = _BATCH
        if isinstance(split, InMemorySplit):
            size = max(_BATCH, _MAX_BYTES // self.n_bytes(1, resolution))
        chunks = torch.split(order, size)

        def batch(i: int) -> ImageBatch:
            part = split.take(chunks[i])
            return self.prepare(part.images, resolution, rounded=rounded), part.targets

        yield from prefetched(split, batch, range(len(chunks)))


def target_notes(data: ImageData) -> list[str]:
    """Return warnings about similar names, imbalanced classes, and splits with few of a class.

    For regression, about values of different scales.
    """
    if not data.class_counts:
        return [*_scale_notes(data.task.names, data.train.targets.numpy())]
    counts = data.class_counts["train"]
    (few, n_few), (many, n_many) = (f(counts.items(), key=itemgetter(1)) for f in (min, max))
    notes = [*_similar_names(counts)]
    if n_many > _MAX_IMBALANCE * n_few:
        notes.append(
            f"Classes are imbalanced: '{many}' has {n_many} training images, '{few}' has {n_few}. "
            f"Always answering '{many}' is right on {n_many / sum(counts.values()):.1%} of them. "
            "Options for such data: train.class_weights=balanced, and in a search "
            "objectives=[balanced_accuracy,latency_ms]."
        )
    return notes + [
        line
        for split in ("validation", "test")
        for line in _split_notes(split, data.class_counts[split])
    ]


def _scale_notes(names: Sequence[str], targets: Targets) -> Iterator[str]:
    """Yield a warning if the mean error of regression hardly depends on some of the values."""
    by_std = sorted(zip(targets.std(axis=0).tolist(), names, strict=True))
    (small, name), (large, other) = by_std[0], by_std[-1]
    if large > _MAX_SCALE_RATIO * small:
        yield (
            f"The values have different scales: the standard deviation of '{name}' is {small:.3g}, "
            f"that of '{other}' {large:.3g}. The error (mae) is the mean over all values and "
            f"hardly depends on '{name}'. Divide each value by its standard deviation, or by the "
            "error that you can accept."
        )


def _similar_names(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield warnings about classes whose names differ in case, blanks or underscores only."""
    groups: dict[str, list[str]] = {}
    for name, n in counts.items():
        words = unicodedata.normalize("NFKC", name).casefold().replace("_", " ").split()
        groups.setdefault(" ".join(words), []).append(f"'{name}' ({n} training images)")
    for similar in groups.values():
        if len(similar) > 1:
            yield (
                f"The classes {_list_text(similar)} differ only in case, blanks or underscores. "
                "They are separate classes: if they mean the same, give them one name."
            )


def _split_notes(split: str, counts: Mapping[str, int]) -> Iterator[str]:
    """Yield warnings about classes that have no or few images in a split."""
    if absent := [f"'{name}'" for name, n in counts.items() if n == 0]:
        yield f"The {split} split has no images of the classes {_list_text(absent)}."
    if few := {name: n for name, n in counts.items() if 0 < n < _FEW_IMAGES}:
        worst, n_worst = min(few.items(), key=itemgetter(1))
        listed = _list_text([f"'{name}' ({n})" for name, n in few.items()])
        yield (
            f"The {split} split has few images of the classes {listed}: one image is "
            f"{100 / sum(counts.values()):.3g} points of accuracy, and {100 / n_worst:.3g} "
            f"points of the recall of '{worst}'; smaller differences cannot be seen. Add "
            f"images, or, if the source has no {split} split, set a larger dataset.{split}."
        )


def _list_text(texts: Sequence[str]) -> str:
    return ", ".join(texts[:5]) + f" and {len(texts) - 5} more" * (len(texts) > 5)


def value_notes(values: tuple[int, int]) -> list[str]:
    """Return a warning if the smallest and the largest value of images show that they are empty."""
    low, high = values
    if low == high:
        return [f"All pixels of the training images have the value {low}: they show nothing."]
    if high < _DARK:
        return [
            f"The training images have values from {low} to {high}; white is 255. If they were "
            "saved without scaling, multiply them: masks of 0 and 1 by 255. A device has to "
            "scale its images the same way."
        ]
    return []


SPLIT_SEED = 0  #: splits belong to the data set and do not depend on the seed of a run
_MIN_IMAGES = 2  # of a split, for an interval of the mean error


def divide(
    where: str, targets: Mapping[str, Targets], names: tuple[str, ...], config: DatasetConfig
) -> dict[str, tuple[str, ImageRows]]:
    """Return, by split, the split of the source that it is taken from, and its rows there.

    Missing splits are made from ``train`` with a fixed seed, stratified by class.

    Raises:
        ConfigError: a fraction is set for a split that the source has.
        DataError: there are too few images.
    """
    missing = [name for name in ("test", "validation") if name not in targets]
    for name in {"test", "validation"}.difference(missing):
        if (fraction := _fraction(config, name)) != _fraction(DatasetConfig(""), name):
            raise ConfigError(
                f"dataset.{name}={fraction:g} has no effect: {where} has a {name} split. Omit the "
                "option."
            )
    rows = np.arange(len(targets["train"]))
    strata = None
    if missing:
        kind = tasks.get(config.task)
        strata = kind.strata(where, targets["train"], names, len(missing) + 1)
    parts = {name: (name, np.arange(len(targets[name]))) for name in targets}
    _check_sizes(where, len(rows), missing, config, 1 if strata is None else len(set(strata)))
    for name in missing:
        stratify = None if strata is None else strata[rows]
        if stratify is not None and (few := np.flatnonzero(np.bincount(stratify) == 1)).size:
            raise DataError(
                f"{where}: after dataset.{missing[0]}={_fraction(config, missing[0]):g}, one image "
                f"of class '{names[few[0]]}' is left for two splits. Set a smaller fraction, or "
                "add images of this class."
            )
        rows, part = train_test_split(
            rows, test_size=_fraction(config, name), stratify=stratify, random_state=SPLIT_SEED
        )
        parts[name] = ("train", part)
    if not tasks.get(config.task).categorical:
        _check_intervals(where, {name: len(part) for name, (_, part) in parts.items()}, missing)
    return parts | {"train": ("train", rows)}


def _fraction(config: DatasetConfig, name: str) -> float:
    return config.test if name == "test" else config.validation


def _check_sizes(
    where: str, n_train: int, missing: Sequence[str], config: DatasetConfig, n_strata: int
) -> None:
    """Refuse stratified splits with fewer images than classes, and name fractions that work."""
    options, n, message = [], n_train, ""
    for name in missing:
        n_part = math.ceil(_fraction(config, name) * n)
        if not message and min(n_part, n - n_part) < n_strata:
            small, n_small = (name, n_part) if n_part < n_strata else ("training", n - n_part)
            message = (
                f"{where} is too small to split: the {small} split would have {n_small} of "
                f"{n_train} images, and each split needs one per class ({n_strata})."
            )
        fraction = _fraction(config, name)
        if not n_strata <= math.ceil(fraction * n) <= n - n_strata:
            fraction = _smallest_fraction(n_strata, n)
        options.append(f"dataset.{name}={fraction:g}")
        n -= math.ceil(fraction * n)
    if message:
        remedy = f"Set {' '.join(options)}." if n >= n_strata else "Add images."
        raise DataError(f"{message} {remedy}")


def _smallest_fraction(n_part: int, n: int) -> float:
    """Return the shortest decimal fraction that makes a part of ``n_part`` of ``n`` images."""
    digits = 2
    while math.ceil(round(n_part / n, digits) * n) != n_part:
        digits += 1
    return round(n_part / n, digits)


def _check_intervals(where: str, sizes: Mapping[str, int], drawn: Sequence[str]) -> None:
    """Refuse splits with too few images for an interval of the mean error.

    Args:
        where: Start of error messages.
        sizes: Images by split; of ``train`` before other splits are made from it.
        drawn: Splits that are made from it, ``test`` before ``validation``.
    """
    n_left = sizes["train"]
    for name in ("test", "validation"):
        if (n := sizes[name]) < _MIN_IMAGES:
            remedy = f"Add images: {_MIN_IMAGES} or more"
            if name in drawn and n_left >= 3 * _MIN_IMAGES:  # three splits
                share = math.ceil(100 * _MIN_IMAGES / n_left) / 100
                remedy = f"Set dataset.{name}={share:g} or more"
            raise DataError(
                f"{where}: the {name} split has {counted(n, 'image')}; the interval of a mean "
                f"error needs {_MIN_IMAGES}. {remedy}."
            )
        n_left -= n * (name in drawn)
