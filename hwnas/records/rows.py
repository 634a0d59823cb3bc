"""Rows of CSV: as many values as the header, which become what types say."""

import csv
import io
from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, get_args, get_origin, get_type_hints

from hwnas.records.schema import OPEN, Unfit, fitted

MOST = 64 << 20  #: bytes of a file
_WORDS = {"True": True, "False": False}


def rows(said: str) -> list[dict[str, str]]:
    """Return the rows of CSV, as text.

    Raises:
        Unfit: a column is there twice, or a row has other columns than the header.
    """
    try:
        reader = csv.DictReader(io.StringIO(said, newline=""), strict=True)
        names = list(reader.fieldnames or ())
        found = list(reader)
    except csv.Error as error:
        raise Unfit(f"not CSV: {error}") from None
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise Unfit(f"column '{twice[:60]}' is there twice")
    for i, row in enumerate(found):
        if None in row or None in row.values():
            raise Unfit(f"row {i} has not {len(names)} values, as the header")
    return found


def typed(kind: Any, row: Mapping[str, str], at: str) -> Any:
    """Return a row as a TypedDict; columns that it does not name are left out.

    Raises:
        Unfit: a value is none of its type.
    """
    hints = get_type_hints(kind, include_extras=True)
    known = {name: _value(hint, row[name]) for name, hint in hints.items() if name in row}
    return fitted(Annotated[kind, OPEN], known, at)


def _value(hint: Any, text: str) -> Any:
    """Return a text as a number or a truth value where one is wanted, and it is one."""
    while get_origin(hint) in (Annotated, NotRequired):
        hint = get_args(hint)[0]
    if hint is bool:
        return _WORDS.get(text, text)
    try:
        return hint(text) if hint in (int, float) else text
    except ValueError:
        return text
