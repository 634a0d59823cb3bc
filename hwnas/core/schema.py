"""Validation of file contents by types, with errors that name the path of the invalid value.

Types are those of JSON, ``list``, ``tuple``, ``dict``, ``Literal``, unions, ``TypedDict`` and
dataclasses; ``Annotated`` adds bounds. Unknown fields are refused unless the type is annotated
with ``OPEN``. Numbers must be finite.
"""

import csv
import dataclasses
import functools
import io
import json
import math
import sys
import types
from collections.abc import Callable, Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,  # fmt: skip
)

from hwnas.core.errors import unknown_name

MAX_DEPTH = 32  #: nested objects and lists in values of type ``Any``
_MAX_SHOWN = 60  # characters of a value in a message

OPEN = "open"  #: annotation of a TypedDict that allows unknown fields


@dataclasses.dataclass(frozen=True)
class NumberBounds:
    """Allowed range of a number, or of the length of a text, list or object."""

    minimum: float = -math.inf  #: smallest number or length
    maximum: float = math.inf  #: largest number or length
    exclusive: bool = False  #: refuse ``minimum`` itself

    def __str__(self) -> str:
        """The bounds as text."""
        low = f"above {self.minimum:g}" if self.exclusive else f"at least {self.minimum:g}"
        ends = [low] * (self.minimum > -math.inf)
        ends += [f"at most {self.maximum:g}"] * (self.maximum < math.inf)
        return " and ".join(ends)

    def check(self, value: Any, at: str) -> None:
        """Check a value.

        Args:
            value: A number, or a text, list or object, whose length is checked.
            at: Name of the value in messages.

        Raises:
            SchemaError: if the number or length is out of bounds.
        """
        is_number = isinstance(value, (int, float))
        size = value if is_number else len(value)
        if not self.minimum <= size <= self.maximum or (self.exclusive and size == self.minimum):
            shown, unit = (_shorten(value), "") if is_number else (f"{size} long", "a length of ")
            raise SchemaError(f"{at} is {shown}; allowed: {unit}{self}")


COUNT = NumberBounds(0, 1e15)
POSITIVE = NumberBounds(0, exclusive=True)
FRACTION = NumberBounds(0, 1)

Count = Annotated[int, COUNT]
Size = Annotated[int, NumberBounds(1, 1e9)]
Positive = Annotated[float, POSITIVE]
Fraction = Annotated[float, FRACTION]


class SchemaError(ValueError):
    """A value is not of its type; the message says where, the value, and what is allowed."""


def validate(kind: Any, value: Any, at: str = "") -> Any:
    """Return a value converted to a type: dataclasses are created, and int becomes float.

    Args:
        kind: The type.
        value: Content of a JSON or YAML file.
        at: Path of the value in the file, for messages.

    Raises:
        SchemaError: if the value is not of the type.
    """
    if (special := _SPECIAL.get(get_origin(kind) or kind)) is not None:
        return special(get_args(kind), value, at)
    if not isinstance(value, _json_type(kind)) or (isinstance(value, bool) and kind is not bool):
        raise _mismatch(value, at, _type_name(kind))
    return _convert(kind, value, at)


def _check_annotated(args: tuple[Any, ...], value: Any, at: str) -> Any:
    if OPEN in args:
        return _record(args[0], value, at, is_open=True)
    result = validate(args[0], value, at)
    for bound in args[1:]:
        if result is not None:
            bound.check(result, _location(at))
    return result


def _literal(args: tuple[Any, ...], value: Any, at: str) -> Any:
    if not isinstance(value, str) or value not in args:
        raise _mismatch(value, at, " or ".join(map(str, args)))
    return value


def _anything(args: tuple[Any, ...], value: Any, at: str) -> Any:
    _check_plain(value, at, MAX_DEPTH)
    return value


def _convert(kind: Any, value: Any, at: str) -> Any:
    """Return a value of the matching JSON type converted to its type."""
    origin, args = get_origin(kind) or kind, get_args(kind)
    if origin is float:
        if not abs(value) <= sys.float_info.max:
            raise _mismatch(value, at, "a finite number")
        return float(value)
    if origin is tuple:
        if args[-1] is not Ellipsis:
            return _tuple(args, value, at)
        return tuple(validate(args[0], item, f"{at}[{i}]") for i, item in enumerate(value))
    if origin is list:
        return [validate(args[0], item, f"{at}[{i}]") for i, item in enumerate(value)]
    if origin is dict:
        return {
            validate(args[0], name, f"{at}, a key"): validate(args[1], item, _join(at, name))
            for name, item in value.items()
        }
    return _record(kind, value, at) if _json_type(kind) is dict else value


def _tuple(args: tuple[Any, ...], value: list[Any], at: str) -> tuple[Any, ...]:
    if len(value) != len(args):
        raise _mismatch(value, at, f"a list of {len(args)}")
    return tuple(
        validate(kind, item, f"{at}[{i}]")
        for i, (kind, item) in enumerate(zip(args, value, strict=True))
    )


def _record(kind: Any, value: Any, at: str, *, is_open: bool = False) -> Any:
    """Return a JSON object as a TypedDict or a dataclass."""
    if not isinstance(value, dict):
        raise _mismatch(value, at, "an object")
    known, required = _fields(kind)
    if missing := sorted(required - {*value}):
        raise SchemaError(f"{_location(_join(at, missing[0]))} is missing")
    for name in value:
        if name not in known and not is_open:
            raise SchemaError(
                f"{_location(at)}: {unknown_name('field', str(name), known)}".rstrip(".")
            )
    values = {
        name: validate(known.get(name, Any), item, _join(at, name)) for name, item in value.items()
    }
    return values if is_typeddict(kind) else kind(**values)


@functools.cache
def _fields(kind: Any) -> tuple[Mapping[str, Any], frozenset[str]]:
    """Return the types of the fields of a TypedDict or a dataclass, and the required fields."""
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        required: frozenset[str] = kind.__required_keys__
        return hints, required
    fields = dataclasses.fields(kind)
    default = dataclasses.MISSING
    return {field.name: hints[field.name] for field in fields}, frozenset(
        f.name for f in fields if f.default is default and f.default_factory is default
    )


def _union(kinds: tuple[Any, ...], value: Any, at: str) -> Any:
    """Return a value converted to the first alternative of the same JSON type."""
    plain = [_without_annotation(kind) for kind in kinds]
    matching = [
        kind
        for kind, bare in zip(kinds, plain, strict=True)
        if isinstance(value, _json_type(bare)) and isinstance(value, bool) <= (bare in (bool, Any))
    ]
    if not matching:
        names = dict.fromkeys(map(_type_name, plain))
        if _type_name(float) in names:
            names.pop(_type_name(int), None)
        raise _mismatch(value, at, " or ".join(names))
    return validate(matching[0], value, at)


_SPECIAL: dict[Any, Callable[[tuple[Any, ...], Any, str], Any]] = {
    Required: lambda args, value, at: validate(args[0], value, at),
    NotRequired: lambda args, value, at: validate(args[0], value, at),
    Annotated: _check_annotated,
    Any: _anything,
    Literal: _literal,
    Union: _union,
    types.UnionType: _union,
}


def _without_annotation(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _json_type(kind: Any) -> Any:
    """Return the Python type or types of JSON values that match a type."""
    origin = get_origin(kind) or kind
    if kind is None or kind is types.NoneType:
        return types.NoneType
    if origin is Any:
        return object
    if origin in (list, tuple):
        return list
    if origin is float:
        return (int, float)
    return origin if origin in (bool, int, str) else dict if origin is not Literal else str


def _type_name(kind: Any) -> str:
    return {
        types.NoneType: "null", bool: "true or false", int: "a whole number", str: "text",
        list: "a list", dict: "an object", object: "anything",
    }.get(_json_type(kind), "a number")  # fmt: skip


def _check_plain(value: Any, at: str, levels: int) -> None:
    if not levels:
        raise SchemaError(
            f"{_location(at)[:_MAX_SHOWN]} is nested more than {MAX_DEPTH} levels deep"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise _mismatch(value, at, "a finite number")
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            _check_plain(item, _join(at, name), levels - 1)


def _join(at: str, name: object) -> str:
    return f"{at}.{name}" if at else str(name)


def _location(at: str) -> str:
    return f"'{at}'" if at else "the content"


def _mismatch(value: Any, at: str, allowed: str) -> SchemaError:
    return SchemaError(f"{_location(at)} is {_shorten(value)}; allowed: {allowed}")


def _shorten(value: Any) -> str:
    if isinstance(value, (dict, list)):
        kind = "an object" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(cast(Any, value))}"
    text = json.dumps(value) if isinstance(value, bool | None) else repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


# Rows of CSV files.

MAX_CSV_BYTES = 64 << 20
_BOOLEANS = {"True": True, "False": False}


def parse_csv(text: str) -> list[dict[str, str]]:
    """Return the rows of a CSV text, from column to value; all values are text.

    Raises:
        SchemaError: if the text is not CSV, a column is duplicated, or a row has more or fewer
            values than the header.
    """
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        names = list(reader.fieldnames or ())
        rows = list(reader)
    except csv.Error as error:
        raise SchemaError(f"not CSV: {error}") from None
    if len({*names}) < len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise SchemaError(f"column '{duplicate[:60]}' occurs twice")
    for i, row in enumerate(rows):
        if None in row or None in row.values():
            raise SchemaError(
                f"row {i} (from 0, after the header) does not have {len(names)} values, one for "
                "each column"
            )
    return rows


def parse_row(kind: Any, row: Mapping[str, str], at: str) -> Any:
    """Return a row as the TypedDict ``kind``, without other columns.

    Args:
        kind: The TypedDict; numbers and booleans are converted.
        row: Texts by column.
        at: Name of the row, for messages.

    Raises:
        SchemaError: if a value is not of its type, or a required column is missing.
    """
    hints = get_type_hints(kind, include_extras=True)
    known = {name: _value(hint, row[name]) for name, hint in hints.items() if name in row}
    return validate(Annotated[kind, OPEN], known, at)


def _value(hint: Any, text: str) -> Any:
    """Return a text as a number or boolean if the type requires one and the text is one."""
    while get_origin(hint) in (Annotated, NotRequired):
        hint = get_args(hint)[0]
    if hint is bool:
        return _BOOLEANS.get(text, text)
    try:
        return hint(text) if hint in (int, float) else text
    except ValueError:
        return text
