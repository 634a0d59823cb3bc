"""Files that are read again: each has a type, and one reader that words what is wrong."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from hwnas.core.errors import HwnasError
from hwnas.core.safe_read import MOST_JSON, MOST_YAML, CorruptFileError, from_json, from_yaml, text
from hwnas.core.schema import SchemaError, fitted

T = TypeVar("T")


def read_json(
    kind: type[T],
    path: Path,
    error: type[HwnasError],
    called: str = "",
    *,
    newest: int | None = None,
) -> T:
    """Return the content of a JSON file as its type.

    Args:
        kind: What it must be: see ``schema``.
        path: The file.
        error: What is raised.
        called: How messages name the file; default: its path.
        newest: The largest ``format`` that is read; ``None``: such files have none.

    Raises:
        FileNotFoundError: there is none.
        HwnasError: of the class that was given: it is damaged, not of that type, or of a newer
            format.
    """
    return _read(kind, path, error, called, lambda: from_json(text(path, MOST_JSON)), newest)


def read_yaml(
    kind: type[T],
    path: Path,
    error: type[HwnasError],
    called: str = "",
    *,
    newest: int | None = None,
) -> T:
    """Return the content of a YAML file as its type; as ``read_json``."""
    return _read(kind, path, error, called, lambda: from_yaml(text(path, MOST_YAML)), newest)


def parsed(kind: type[T], said: str, error: type[HwnasError], called: str) -> T:
    """Return what a text of JSON says as its type; as ``read_json``."""
    try:
        return cast(T, fitted(kind, from_json(said)))
    except (CorruptFileError, SchemaError) as problem:
        raise error(f"{called} cannot be read: {problem}.") from None


def as_json(content: Any) -> bytes:
    """Return content as JSON that others read, too: numbers that are none become ``null``."""
    return (json.dumps(_finite(content), indent=2, allow_nan=False) + "\n").encode()


def _finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _read(
    kind: type[T],
    path: Path,
    error: type[HwnasError],
    called: str,
    content_of: Callable[[], Any],
    newest: int | None,
) -> T:
    try:
        content = content_of()
        if newest is not None:  # first: a newer format may have other fields
            check_format(content, newest)
        return cast(T, fitted(kind, content))
    except (CorruptFileError, SchemaError) as problem:
        raise error(f"{called or path} cannot be read: {problem}.") from None


def check_format(content: Any, newest: int, *, oldest: int = 1) -> int:
    """Return the format of a file's content: 1 where it says none.

    Raises:
        Unfit: this version does not read it.
    """
    said = content.get("format", 1) if isinstance(content, dict) else 1
    if isinstance(said, bool) or not isinstance(said, int):
        raise SchemaError(f"'format' is {said!r}; allowed: a whole number")
    if not oldest <= said <= newest:
        age = "a newer" if said > newest else "an earlier"
        formats = str(newest) if oldest == newest else f"{oldest} to {newest}"
        raise SchemaError(
            f"format {said} is that of {age} version of hwnas; this one reads {formats}"
        )
    return said
