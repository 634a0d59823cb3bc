"""Studies that are damaged, or are none of ours."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from optuna.exceptions import StorageInternalError
from sqlalchemy.exc import SQLAlchemyError

from hwnas.errors import RunError


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
        (reason, *_) = str(error.__cause__ or error).splitlines() or [type(error).__name__]
        raise RunError(f"{where} cannot be read, or holds nothing yet: {reason}") from None
