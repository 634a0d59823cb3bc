"""Reading of JSON and YAML files by their types, and writing of JSON."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from hwnas.core.errors import HwnasError
from hwnas.core.safe_read import (
    MAX_JSON_BYTES,
    MAX_YAML_BYTES,
    CorruptFileError,
    parse_json,
    parse_yaml,
    read_text,
)
from hwnas.core.schema import SchemaError, validate

T = TypeVar("T")


def read_json(
    kind: type[T],
    path: Path,
    error: type[HwnasError],
    called: str = "",
    *,
    newest: int | None = None,
    oldest: int = 1,
) -> T:
    """Return the content of a JSON file converted to its type.

    Args:
        kind: The type: a TypedDict, a dataclass, or one of the others of ``core.schema``.
        path: The file.
        error: Class of the error to raise.
        called: Name of the file in messages; default: its path.
        newest: The newest ``format`` that this version reads; ``None`` for files without a format.
        oldest: The oldest ``format`` that this version reads.

    Raises:
        FileNotFoundError: if there is no such file.
        HwnasError: of class ``error``, if the file is corrupt, not of the type, or of another
            format.
    """
    return _load(
        kind,
        lambda: parse_json(read_text(path, MAX_JSON_BYTES)),
        error,
        called or str(path),
        newest,
        oldest,
    )


def read_yaml(
    kind: type[T],
    path: Path,
    error: type[HwnasError],
    called: str = "",
    *,
    newest: int | None = None,
) -> T:
    """Return the content of a YAML file converted to its type.

    Arguments and errors are those of :func:`read_json`; the oldest ``format`` is 1.
    """
    return _load(
        kind,
        lambda: parse_yaml(read_text(path, MAX_YAML_BYTES)),
        error,
        called or str(path),
        newest,
    )


def parse_json_as(kind: type[T], text: str, error: type[HwnasError], called: str) -> T:
    """Return the content of a JSON text converted to its type; messages name it ``called``.

    Raises:
        HwnasError: of class ``error``, if the text is not JSON or not of the type.
    """
    return _load(kind, lambda: parse_json(text), error, called)


def to_json_bytes(content: Any) -> bytes:
    """Return content as indented UTF-8 JSON; NaN and infinity become ``null``."""
    return (json.dumps(finite(content), indent=2, allow_nan=False) + "\n").encode()


def finite(content: Any) -> Any:
    """Return a copy of nested dicts and lists with ``None`` for NaN and infinity, as JSON needs."""
    if isinstance(content, Mapping):
        return {name: finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _load(
    kind: type[T],
    load: Callable[[], Any],
    error: type[HwnasError],
    called: str,
    newest: int | None = None,
    oldest: int = 1,
) -> T:
    try:
        content = load()
        if newest is not None:  # checked first, as another format may have other fields
            check_format(content, newest, oldest=oldest)
        return cast(T, validate(kind, content))
    except (CorruptFileError, SchemaError) as problem:
        raise error(f"{called} cannot be read: {problem}.") from None


def check_format(content: Any, newest: int, *, oldest: int = 1) -> int:
    """Return the number ``format`` of a file's content; 1 if it has none.

    Raises:
        SchemaError: if the format is not a whole number in the range that this version reads.
    """
    number = content.get("format", 1) if isinstance(content, dict) else 1
    if isinstance(number, bool) or not isinstance(number, int):
        raise SchemaError(f"'format' is {number!r}; allowed: a whole number")
    if not oldest <= number <= newest:
        age, remedy = "an earlier", "Use that version, or create it again"
        if number > newest:
            age, remedy = "a newer", "Update hwnas"
        formats = str(newest) if oldest == newest else f"{oldest} to {newest}"
        raise SchemaError(
            f"format {number} is from {age} version of hwnas; this version reads format {formats}. "
            f"{remedy}"
        )
    return number
