"""Division of a source into training, validation and test split."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from sklearn.model_selection import train_test_split

from hwnas import tasks
from hwnas.core.errors import ConfigError, DataError
from hwnas.tasks.base import Targets
from hwnas.training.data.splits import ImageRows
from hwnas.training.options import DatasetConfig

SPLIT_SEED = 0  #: splits belong to the data set and do not depend on the seed of a run
_MIN_IMAGES = 2  # of a split, for an interval of the mean error


def divide(
    where: str, targets: Mapping[str, Targets], names: tuple[str, ...], config: DatasetConfig
) -> dict[str, tuple[str, ImageRows]]:
    """Return the source split and the rows of each split.

    Missing splits are made from ``train`` with a fixed seed, stratified by class.

    Raises:
        ConfigError: a fraction is set for a split that the source has.
        DataError: there are too few images.
    """
    missing = [name for name in ("test", "validation") if name not in targets]
    for name in {"test", "validation"}.difference(missing):
        if (fraction := _fraction(config, name)) != _fraction(DatasetConfig(""), name):
            raise ConfigError(
                f"dataset.{name}={fraction:g} has no effect: {where} has a {name} split. Remove it."
            )
    rows = np.arange(len(targets["train"]))
    strata = None
    if missing:
        kind = tasks.get(config.task)
        strata = kind.strata(where, targets["train"], names, len(missing) + 1)
    found = {name: (name, np.arange(len(targets[name]))) for name in targets}
    _check_sizes(where, len(rows), missing, config, 1 if strata is None else len(set(strata)))
    for name in missing:
        rows, part = train_test_split(
            rows,
            test_size=_fraction(config, name),
            stratify=None if strata is None else strata[rows],
            random_state=SPLIT_SEED,
        )
        found[name] = ("train", part)
    if not tasks.get(config.task).categorical:
        _check_intervals(where, {name: len(part) for name, (_, part) in found.items()}, missing)
    return found | {"train": ("train", rows)}


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
            if name in drawn and n_left > _MIN_IMAGES:
                share = math.ceil(100 * _MIN_IMAGES / n_left) / 100
                remedy = f"Set dataset.{name}={share:g} or more"
            raise DataError(
                f"{where}: the {name} split has {n} image{'s' * (n != 1)}; the interval of a mean "
                f"error needs {_MIN_IMAGES}. {remedy}."
            )
        n_left -= n * (name in drawn)
