"""Labels as a source has them, words or numbers, become indices of classes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import DataError

Index = NDArray[np.int64]


def indexed(
    where: str, labels: Mapping[str, Sequence[Any]], names: Sequence[str] | None
) -> tuple[dict[str, Index], tuple[str, ...]]:
    """Return labels as indices, and the names of the classes.

    Args:
        where: What errors begin with.
        labels: By split: words or whole numbers, which count from 0 where ``names`` are given.
        names: Of the classes; none: the labels that there are.

    Raises:
        DataError: a label is missing or out of range, there are fewer than two classes, or a split
            has classes that training has not.
    """
    for split, values in labels.items():
        _check(f"{where}: split '{split}'", values, names)
    found = set().union(*map(set, labels.values()))
    ordered = list(range(len(names))) if names else sorted(found, key=lambda v: (str(type(v)), v))
    shown = list(map(str, names or ordered))
    known = set(labels["train"])
    if len(known) < 2:
        (only,) = known
        raise DataError(
            f"{where} holds one class only, '{shown[ordered.index(only)]}'; classification needs "
            "two or more."
        )
    for split, values in labels.items():
        if strange := sorted(map(ordered.index, set(values) - known)):
            listed = ", ".join(f"'{shown[i]}'" for i in strange[:5])
            raise DataError(
                f"{where}: split '{split}' has {len(strange)} classes without any image in split "
                f"'train': {listed}. Splits must have the same classes."
            )
    index = {value: i for i, value in enumerate(ordered)}
    return {
        split: np.array([index[value] for value in values], np.int64)
        for split, values in labels.items()
    }, tuple(shown)


def _check(where: str, labels: Sequence[Any], names: Sequence[str] | None) -> None:
    """Refuse labels that are missing, of a wrong kind or out of range."""
    first: dict[Any, int] = {}
    for i, value in enumerate(labels):
        if not isinstance(value, int | str | None):
            raise DataError(
                f"{where}, row {i} has the label {str(value)[:60]}: must be a whole number or a "
                "word."
            )
        first.setdefault(value, i)
    for value, i in first.items():
        row = f"{where}, row {i}"
        if value is None:
            raise DataError(f"{row} has no label. Every image needs one.")
        if isinstance(value, str):
            continue
        if value < 0:
            cure = "; if the test split has no labels, give dataset.test_split=validation."
            raise DataError(f"{row} has the label {value}: must not be negative{cure}")
        if names is not None and value >= len(names):
            allowed = f"must lie in 0 to {len(names) - 1}, as there are {len(names)} classes."
            raise DataError(f"{row} has the label {value}: {allowed}")


def strata(where: str, labels: Index, classes: Sequence[str], n_parts: int) -> Index:
    """Return the labels, of which every split has its share.

    Raises:
        DataError: a class has fewer images than there are parts.
    """
    counts = np.bincount(labels, minlength=len(classes))
    few = [f"'{name}'" for name, n in zip(classes, counts.tolist(), strict=True) if 0 < n < n_parts]
    if few:
        raise DataError(
            f"{where} is too small to split: it takes at least {n_parts} images of a class, and "
            f"there are fewer of {', '.join(few[:5])}."
        )
    return labels
