"""Files that are never half written, and folders that one process at a time works in."""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from hwnas.core.errors import LockedError, RunError

LOCK = ".lock"  #: the file by which a folder is locked
_BUILDING = ".building"


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically and durably: at any moment it is the old or the new one."""
    write_by(path, lambda temporary: temporary.write_bytes(content))


def write_by(path: Path, writer: Callable[[Path], object]) -> None:
    """Have something write a file under a temporary name; then it gets its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        writer(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())  # or, after a loss of power, the new name may hold nothing
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def digest(path: Path) -> str:
    """Return the sha256 of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make(folder: Path) -> list[Path]:
    """Make a folder; return what was made, so that it can be removed again, the inmost first."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return made


def check_place(folder: Path, option: str) -> None:
    """Refuse what can be no folder to write into; nothing is left of the try.

    Raises:
        RunError: it says of which option it is.
    """
    try:
        remove_empty(make(folder))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise RunError(f"{option}={folder} cannot be a folder: {reason}.") from None


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders, the inmost first, as long as nothing is in them."""
    with contextlib.suppress(OSError):  # something is in it: others write beside
        for folder in folders:
            folder.rmdir()


def lock(folder: Path) -> IO[str]:
    """Lock a folder until the returned file is closed or the process ends, however it ends.

    Raises:
        LockedError: another process has it.
    """
    file = (folder / LOCK).open("w", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise LockedError(
            f"Another process is working in {folder}. Wait for it, or use another folder."
        ) from None
    return file


def check_new(folder: Path, option: str) -> None:
    """Refuse a folder in which something is, and what can be none.

    Raises:
        RunError: it says of which option it is.
    """
    check_place(folder, option)
    if folder.is_dir() and any(folder.iterdir()):
        raise RunError(f"{option}={folder} is not empty: choose another folder, or remove it.")


@contextlib.contextmanager
def whole(folder: Path, *, beside: bool) -> Iterator[Path]:
    """Give a folder to write into; it gets its name when all is written, or is removed.

    Args:
        folder: Its name; nothing is there, or an empty folder.
        beside: Whether what killed processes left in folders beside it is removed, too.
    """
    building = folder.absolute().with_name(f".{folder.name}"[:200] + _BUILDING)
    made = make(building)
    for left in building.parent.glob(f".*{_BUILDING}") if beside else ():
        with contextlib.suppress(LockedError), lock(left):  # or another process builds there
            if left != building:
                shutil.rmtree(left)
    with lock(building):
        try:
            for entry in {*building.iterdir()} - {building / LOCK}:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            yield building
            (building / LOCK).unlink()
            os.rename(building, folder)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            remove_empty(made[1:])
            raise
