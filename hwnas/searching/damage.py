"""Studies that are damaged, or are none of ours."""

import contextlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import SQLAlchemyError

from hwnas.errors import RunError, causes

_FULL = ("disk is full", "No space left", "readonly database")  # nothing is damaged

#: What Optuna keeps studies in, as far as it is read again.
_TABLES = (
    "studies", "study_directions", "study_user_attributes", "trials", "trial_params",
    "trial_values", "trial_user_attributes", "trial_system_attributes",
)  # fmt: skip


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
        chain = list(causes(error))
        if any(words in str(cause) for cause in chain for words in _FULL):
            raise
        (reason, *_) = str(chain[-1]).splitlines() or [type(error).__name__]
        raise RunError(
            f"{where} cannot be read or written, or holds nothing yet: {reason}"
        ) from None


def check_whole(path: Path) -> None:
    """Refuse a file of SQLite that is damaged, without leaving a log beside it.

    Optuna would make a table anew that is missing, and go on without what was in it.

    Raises:
        sqlite3.Error: it is.
    """
    if not path.exists() or path.with_name(f"{path.name}-wal").exists():
        return
    address = f"file:{quote(str(path.absolute()))}?immutable=1"
    with contextlib.closing(sqlite3.connect(address, uri=True)) as connection:
        ((found,), *_) = connection.execute("PRAGMA quick_check(1)")
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if found != "ok":
        raise sqlite3.DatabaseError(found)
    if tables and (missing := [name for name in _TABLES if name not in tables]):
        raise sqlite3.DatabaseError(f"no such table: {', '.join(missing)}")
