"""Files that are never half written, and folders that one process at a time works in."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

from hwnas.errors import LockedError

LOCK = ".lock"  #: the file by which a folder is locked


def write(path: Path, content: bytes) -> None:
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
