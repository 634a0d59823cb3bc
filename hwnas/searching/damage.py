"""Studies that are damaged, or are none of ours."""

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import SQLAlchemyError

from hwnas.errors import RunError

_FULL = ("disk is full", "No space left", "readonly database")  # nothing is damaged


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Refuse a study that cannot be read, or does not hold what a search keeps in one.

    Args:
        where: It is, in messages.

    Raises:
        RunError: it is so.
    """
    try:
        yield
    except (
        SQLAlchemyError,
        StorageInternalError,
        sqlite3.Error,
        ImportError,
        AssertionError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:  # of Optuna and of what reads attributes; KeyError: there is no such study in it
        if any(words in str(error) for words in _FULL):
            raise
        (reason, *_) = str(error.__cause__ or error).splitlines() or [type(error).__name__]
        raise RunError(f"{where} cannot be read, or holds nothing yet: {reason}") from None


def check_whole(path: Path) -> None:
    """Refuse a file of SQLite that is damaged, without leaving a log beside it.

    Raises:
        sqlite3.Error: it is.
    """
    if not path.exists() or path.with_name(f"{path.name}-wal").exists():
        return
    address = f"file:{quote(str(path.absolute()))}?immutable=1"
    with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
        ((found,), *_) = connection.execute("PRAGMA quick_check(1)")
    if found != "ok":
        raise sqlite3.DatabaseError(found)
