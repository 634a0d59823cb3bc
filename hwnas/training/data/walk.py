"""Walks folders of strangers: links that lead upwards and files that are none are refused."""

import os
from collections.abc import Iterator
from pathlib import Path

from hwnas.errors import DataError

_DEEPEST = 32  # folders within one another
_SYSTEM = ("/proc", "/sys", "/dev")  # what lies there are no files, and there is no end of them
_MEMORY = "/dev/shm"  # but here, where data are put to be read fast


def files(where: str, path: Path) -> Iterator[Path]:
    """Yield all files of a folder that are not hidden, in an order of their names alone.

    Raises:
        DataError: a link leads to a folder that it lies in, or something is neither file nor
            folder.
    """
    return _files(where, path, ())


def is_hidden(name: str) -> bool:
    """Return whether a file or a folder is left out."""
    return name.startswith((".", "__"))


def _files(where: str, path: Path, above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    said = path.stat()
    own = (said.st_dev, said.st_ino)
    if own in above:
        raise DataError(f"{where}: {path} is a link to a folder that it lies in. Remove it.")
    if len(above) > _DEEPEST:
        raise DataError(f"{where}: {path} lies in more than {_DEEPEST} folders.")
    found = path.resolve()
    if any(map(found.is_relative_to, _SYSTEM)) and not found.is_relative_to(_MEMORY):
        raise DataError(f"{where}: {path} is a folder of the operating system, not of images.")
    folders: list[str] = []
    names: list[str] = []
    with os.scandir(path) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if not (entry.is_dir() or entry.is_file()):
                raise DataError(f"{where}: {entry.path} is neither a file nor a folder. Remove it.")
            (folders if entry.is_dir() else names).append(entry.name)
    yield from (path / name for name in sorted(names))
    for name in sorted(folders):
        yield from _files(where, path / name, (*above, own))
