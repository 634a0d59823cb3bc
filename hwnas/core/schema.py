"""What a file may hold, said by types: ``fitted`` refuses what is not of its type, by its path.

Types are those of JSON, ``list``, ``tuple``, ``dict``, ``Literal``, unions, ``TypedDict`` and
dataclasses; ``Annotated`` adds bounds. Fields that no type names are refused but where it is
``OPEN``. No number is infinite or none.
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

from hwnas.core.errors import unknown

DEEPEST = 32  #: objects and lists within one another, where no type says what there is
_SHOWN = 60  # characters of a value

OPEN = "open"  #: says of a TypedDict that there may be more fields: nothing reads them


@dataclasses.dataclass(frozen=True)
class NumberBounds:
    """Least and largest number; of texts, lists and objects: how long they may be."""

    least: float = -math.inf
    most: float = math.inf
    above: bool = False  #: ``least`` itself is refused

    def __str__(self) -> str:
        """The bound in words."""
        low = f"above {self.least:g}" if self.above else f"at least {self.least:g}"
        words = [low] * (self.least > -math.inf) + [f"at most {self.most:g}"] * (
            self.most < math.inf
        )
        return " and ".join(words)

    def check(self, value: Any, at: str) -> None:
        """Refuse what is out of bounds."""
        is_number = isinstance(value, (int, float))
        size = value if is_number else len(value)
        if not (self.least <= size <= self.most) or (self.above and size == self.least):
            shown, what = (_shown(value), "") if is_number else (f"{size} long", "a length of ")
            raise SchemaError(f"{at} is {shown}; allowed: {what}{self}")


COUNT = NumberBounds(0, 1e15)
POSITIVE = NumberBounds(0, math.inf, above=True)
FRACTION = NumberBounds(0, 1)

Count = Annotated[int, COUNT]
Size = Annotated[int, NumberBounds(1, 1e9)]
Positive = Annotated[float, POSITIVE]
Fraction = Annotated[float, FRACTION]


class SchemaError(ValueError):
    """What is there is not of its type: where, what it is, and what is allowed."""


def fitted(kind: Any, value: Any, at: str = "") -> Any:
    """Return a value as its type: dataclasses are made, whole numbers become floats where allowed.

    Raises:
        Unfit: it says where, what is there, and what is allowed.
    """
    if (special := _SPECIAL.get(get_origin(kind) or kind)) is not None:
        return special(get_args(kind), value, at)
    if not isinstance(value, _of_json(kind)) or (isinstance(value, bool) and kind is not bool):
        raise _unfit(value, at, _words(kind))
    return _made(kind, value, at)


def _bounded(args: tuple[Any, ...], value: Any, at: str) -> Any:
    if OPEN in args:
        return _record(args[0], value, at, is_open=True)
    found = fitted(args[0], value, at)
    for bound in args[1:]:
        if found is not None:
            bound.check(found, _named(at))
    return found


def _literal(args: tuple[Any, ...], value: Any, at: str) -> Any:
    if not isinstance(value, str) or value not in args:
        raise _unfit(value, at, " or ".join(map(str, args)))
    return value


def _anything(args: tuple[Any, ...], value: Any, at: str) -> Any:
    _check_plain(value, at, DEEPEST)
    return value


def _made(kind: Any, value: Any, at: str) -> Any:
    """Return a value, of the right type of JSON, as its type."""
    origin, args = get_origin(kind) or kind, get_args(kind)
    if origin is float:
        if not abs(value) <= sys.float_info.max:
            raise _unfit(value, at, "a finite number")
        return float(value)
    if origin is tuple:
        if args[-1] is not Ellipsis:
            return _tuple(args, value, at)
        return tuple(fitted(args[0], item, f"{at}[{i}]") for i, item in enumerate(value))
    if origin is list:
        return [fitted(args[0], item, f"{at}[{i}]") for i, item in enumerate(value)]
    if origin is dict:
        return {
            fitted(args[0], name, f"{at}, a name"): fitted(args[1], item, _joined(at, name))
            for name, item in value.items()
        }
    return _record(kind, value, at) if _of_json(kind) is dict else value


def _tuple(args: tuple[Any, ...], value: list[Any], at: str) -> tuple[Any, ...]:
    if len(value) != len(args):
        raise _unfit(value, at, f"a list of {len(args)}")
    return tuple(
        fitted(kind, item, f"{at}[{i}]")
        for i, (kind, item) in enumerate(zip(args, value, strict=True))
    )


def _record(kind: Any, value: Any, at: str, *, is_open: bool = False) -> Any:
    """Return an object of JSON as a TypedDict, or as a dataclass."""
    if not isinstance(value, dict):
        raise _unfit(value, at, "an object")
    known, required = _fields(kind)
    if lacking := sorted(required - {*value}):
        raise SchemaError(f"{_named(_joined(at, lacking[0]))} is missing")
    for name in value:
        if name not in known and not is_open:
            raise SchemaError(f"{_named(at)}: {unknown('field', str(name), known)}".rstrip("."))
    found = {
        name: fitted(known.get(name, Any), item, _joined(at, name)) for name, item in value.items()
    }
    return found if is_typeddict(kind) else kind(**found)


@functools.cache
def _fields(kind: Any) -> tuple[Mapping[str, Any], frozenset[str]]:
    """Return the fields of a TypedDict or a dataclass, and which must be there."""
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        required: frozenset[str] = kind.__required_keys__
        return hints, required
    fields = dataclasses.fields(kind)
    default = dataclasses.MISSING
    return {field.name: hints[field.name] for field in fields}, frozenset(
        f.name for f in fields if f.default is default and f.default_factory is default
    )


def _one_of(kinds: tuple[Any, ...], value: Any, at: str) -> Any:
    """Return a value as the alternative that is the same in JSON."""
    plain = [_plain(kind) for kind in kinds]
    fitting = [
        kind
        for kind, bare in zip(kinds, plain, strict=True)
        if isinstance(value, _of_json(bare)) and isinstance(value, bool) <= (bare in (bool, Any))
    ]
    if not fitting:
        words = dict.fromkeys(map(_words, plain))
        if _words(float) in words:
            words.pop(_words(int), None)
        raise _unfit(value, at, " or ".join(words))
    return fitted(fitting[0], value, at)


_SPECIAL: dict[Any, Callable[[tuple[Any, ...], Any, str], Any]] = {
    Required: lambda args, value, at: fitted(args[0], value, at),
    NotRequired: lambda args, value, at: fitted(args[0], value, at),
    Annotated: _bounded,
    Any: _anything,
    Literal: _literal,
    Union: _one_of,
    types.UnionType: _one_of,
}


def _plain(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _of_json(kind: Any) -> Any:
    """Return the Python types that values of JSON have where a type is wanted."""
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


def _words(kind: Any) -> str:
    found = _of_json(kind)
    return {
        types.NoneType: "null", bool: "true or false", int: "a whole number", str: "text",
        list: "a list", dict: "an object", object: "anything",
    }.get(found, "a number")  # fmt: skip


def _check_plain(value: Any, at: str, deep: int) -> None:
    if not deep:
        raise SchemaError(f"{_named(at)[:_SHOWN]} is nested more than {DEEPEST} deep")
    if isinstance(value, float) and not math.isfinite(value):
        raise _unfit(value, at, "a finite number")
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            _check_plain(item, _joined(at, name), deep - 1)


def _joined(at: str, name: object) -> str:
    return f"{at}.{name}" if at else str(name)


def _named(at: str) -> str:
    return f"'{at}'" if at else "the whole"


def _unfit(value: Any, at: str, allowed: str) -> SchemaError:
    return SchemaError(f"{_named(at)} is {_shown(value)}; allowed: {allowed}")


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        kind = "an object" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(cast(Any, value))}"
    text = json.dumps(value) if isinstance(value, bool | None) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# Rows of CSV: as many values as the header, which become what types say.

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
        raise SchemaError(f"not CSV: {error}") from None
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SchemaError(f"column '{twice[:60]}' is there twice")
    for i, row in enumerate(found):
        if None in row or None in row.values():
            raise SchemaError(f"row {i} has not {len(names)} values, as the header")
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
