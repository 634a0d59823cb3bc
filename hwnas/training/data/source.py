"""A source of encoded images with targets, as it is before it is split and decoded."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np

from hwnas.errors import DataError
from hwnas.records import bounded
from hwnas.tasks.base import Targets

#: The splits of a source. ``train`` is always there.
SPLITS = ("train", "validation", "test")
MOST = 256 << 20  #: bytes of an image's file


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
    """Encoded images and what is said of them, by split."""

    images: Mapping[str, Encoded]
    targets: Mapping[str, Targets]
    names: tuple[str, ...]  #: of what networks answer, such as classes


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
            return bounded.content(self._paths[row], MOST)
        except FileNotFoundError:
            raise DataError(f"{self.where(row)} is not there.") from None
        except bounded.Damaged as problem:
            raise DataError(f"{self.where(row)} cannot be read: {problem}.") from None

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
            return bounded.content(Path(path), MOST) if content is None else bytes(content)
        except (OSError, bounded.Damaged) as problem:
            raise DataError(f"{self.where(row)}: {path} cannot be read: {problem}.") from None

    def where(self, row: int) -> str:
        """Return the row of an image."""
        return f"{self._where} row {row}"
