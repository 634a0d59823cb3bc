"""A source of encoded images with labels, as it is before it is split and decoded."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import DataError

#: The splits of a source. ``train`` is always there.
SPLITS = ("train", "validation", "test")


class Encoded(Protocol):
    """The encoded images of one split, read when they are asked for, by any thread."""

    def __len__(self) -> int: ...

    def read(self, row: int) -> bytes:
        """Return the content of an image's file."""
        ...

    def where(self, row: int) -> str:
        """Return in words which image this is."""
        ...


@dataclass(frozen=True)
class Source:
    """Encoded images and the indices of their classes, by split."""

    images: Mapping[str, Encoded]
    labels: Mapping[str, NDArray[np.int64]]
    classes: tuple[str, ...]


@final
class Files:
    """Images that are files of their own."""

    def __init__(self, where: str, paths: Sequence[Path]):
        self._where, self._paths = where, paths

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, row: int) -> bytes:
        """Return the content of a file."""
        try:
            return self._paths[row].read_bytes()
        except OSError as error:
            raise DataError(f"{self.where(row)} cannot be read: {error.strerror}.") from None

    def where(self, row: int) -> str:
        """Return the path of a file."""
        return f"{self._where}: {self._paths[row]}"


@final
class Column:
    """Images in a column of Arrow's, which lies in memory-mapped files: structs of bytes and path.

    An image may be given by the path of its file alone.
    """

    def __init__(self, where: str, column: Any):
        self._where = where
        self._chunks = [(chunk.field("bytes"), chunk.field("path")) for chunk in column.chunks]
        self._ends = np.cumsum([len(chunk) for chunk in column.chunks]).tolist()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, row: int) -> bytes:
        """Return the content of an image's file."""
        i = bisect_right(self._ends, row)
        contents, paths = self._chunks[i]
        inside = row - (self._ends[i] - len(contents))
        content, path = contents[inside].as_py(), paths[inside].as_py()
        if content is None and path is None:
            raise DataError(f"{self.where(row)} has no image.")
        try:
            return Path(path).read_bytes() if content is None else bytes(content)
        except OSError as error:
            raise DataError(f"{self.where(row)}: {path} cannot be read: {error}") from None

    def where(self, row: int) -> str:
        """Return the row of an image."""
        return f"{self._where} row {row}"


def indexed(
    where: str, labels: Mapping[str, Sequence[Any]], names: Sequence[str] | None
) -> tuple[dict[str, NDArray[np.int64]], tuple[str, ...]]:
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
    for value in set(labels):
        row = f"{where}, row {labels.index(value)}"
        if value is None:
            raise DataError(f"{row} has no label. Every image needs one.")
        if not isinstance(value, int | str):
            raise DataError(f"{row} has the label {value!r}: must be a whole number or a word.")
        if isinstance(value, str):
            continue
        if value < 0:
            cure = "; if the test split has no labels, give dataset.test_split=validation."
            raise DataError(f"{row} has the label {value}: must not be negative{cure}")
        if names is not None and value >= len(names):
            allowed = f"must lie in 0 to {len(names) - 1}, as there are {len(names)} classes."
            raise DataError(f"{row} has the label {value}: {allowed}")
