"""Atomic files and folders, and folders locked by one process at a time."""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from hwnas.core.errors import LockedError, RunError

LOCK = ".lock"  #: name of the lock file of a folder
_BUILDING = ".building"


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically and durably: a crash leaves the old file or the new one.

    Missing folders are created.
    """
    write_file_with(path, lambda temporary: temporary.write_bytes(content))


def write_file_with(path: Path, writer: Callable[[Path], object]) -> None:
    """Call ``writer`` with a temporary path, and rename the file that it writes to ``path``.

    Missing folders are created. An ``OSError`` removes the temporary file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        writer(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())  # or the renamed file may be empty after a power loss
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def link_or_copy(source: Path, target: Path) -> None:
    """Make ``source`` available at ``target``, atomically: a hard link, or a copy on other disks.

    A file at ``target`` is replaced. hwnas never changes files in place, so that a link is as good
    as a copy.
    """

    def link(temporary: Path) -> None:
        temporary.unlink(missing_ok=True)
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)

    if not (target.exists() and target.samefile(source)):
        try:
            write_file_with(target, link)
        except (FileNotFoundError, shutil.SameFileError):
            # Another process makes the same link, with the same temporary name.
            if not target.exists():
                raise


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_folders(folder: Path) -> list[Path]:
    """Create a folder and its parents; return the created ones, the innermost first."""
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return created


def check_folder_path(folder: Path, option: str) -> None:
    """Check that a folder can be created and written to; the check leaves no files behind.

    Raises:
        RunError: if it cannot; the message names ``option``.
    """
    try:
        remove_empty_folders(make_folders(folder))
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise RunError(
            f"{option}={folder} cannot be created: {reason}. Choose another folder."
        ) from None
    if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
        raise RunError(f"{option}={folder} cannot be written to: choose another folder.")


def remove_empty_folders(folders: Iterable[Path]) -> None:
    """Remove folders, given innermost first, until one is not empty."""
    with contextlib.suppress(OSError):  # not empty: another process writes there
        for folder in folders:
            folder.rmdir()


def remove_unused(folder: Path, names: Iterable[str]) -> None:
    """Remove a folder if it has no files but those in ``names``, and then its empty parents."""
    if folder.is_dir() and {entry.name for entry in folder.iterdir()} <= {*names}:
        for entry in folder.iterdir():
            entry.unlink()
        remove_empty_folders([folder, *folder.parents])


def lock_folder(folder: Path) -> IO[str]:
    """Lock a folder until the returned file, its ``.lock``, is closed or the process ends.

    Raises:
        LockedError: if another process holds the lock.
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


def check_new_folder(folder: Path, option: str) -> None:
    """Check that a folder is empty or absent, and that it can be created and written to.

    Raises:
        RunError: if not; the message names ``option``.
    """
    check_folder_path(folder, option)
    place = folder.resolve()
    if place.is_mount() or (place.is_dir() and not os.access(place.parent, os.W_OK | os.X_OK)):
        raise RunError(
            f"{option}={folder} cannot be replaced by a complete folder, as it is a mount point or "
            f"its parent is not writable: choose a folder in it, {option}={folder / 'result'}."
        )
    if folder.is_dir() and any(folder.iterdir()):
        raise RunError(f"{option}={folder} is not empty: choose another folder, or empty this one.")


@contextlib.contextmanager
def atomic_folder(folder: Path, *, remove_stale: bool) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to ``folder`` on success and removed on failure.

    Args:
        folder: The final path: absent or an empty folder. Missing parents are created.
        remove_stale: Also remove temporary folders next to it that killed processes left behind.

    Raises:
        LockedError: if another process is creating the same folder.
    """
    folder = folder.resolve()  # a symbolic link stays
    building = folder.with_name(f".{folder.name}"[:200] + _BUILDING)
    created = make_folders(building)
    for stale in building.parent.glob(f".*{_BUILDING}") if remove_stale else ():
        # Locked: still being written. An error: it belongs to another user.
        with contextlib.suppress(LockedError, OSError), lock_folder(stale):
            if stale != building:
                shutil.rmtree(stale)
    with lock_folder(building):
        try:
            for entry in {*building.iterdir()} - {building / LOCK}:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            yield building
            (building / LOCK).unlink()
            os.rename(building, folder)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            remove_empty_folders(created[1:])
            raise
