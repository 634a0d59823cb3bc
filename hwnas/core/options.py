"""Which numbers an option may be: said where it is declared, checked whenever it is set.

An interval is written as messages show it: ``[0, 1)`` holds 0 and not 1. ``nan`` and ``inf`` lie in
none.
"""

import dataclasses
import hashlib
import json
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from hwnas.core.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_KEY = "interval"
SEED = "[0, 4294967295]"  #: what random generators take


@dataclass(frozen=True)
class AllowedRange:
    """Numbers between two, and why there are no larger ones."""

    text: str
    why: str = ""

    def __contains__(self, number: float) -> bool:
        low, high = (float(end) for end in self.text[1:-1].split(","))
        above = number >= low if self.text[0] == "[" else number > low
        return above and (number <= high if self.text[-1] == "]" else number < high)

    def __str__(self) -> str:
        return self.text.replace("_", "")


def limits(interval: str, why: str = "") -> dict[str, AllowedRange]:
    """Return the metadata of a field whose numbers lie in an interval."""
    return {_KEY: AllowedRange(interval, why)}


def within(interval: str, default: Any, why: str = "") -> Any:
    """Return a field of a dataclass whose numbers lie in an interval.

    Args:
        interval: As ``[0, 1)``.
        default: Of the field.
        why: It ends where it does; said to those who want more.
    """
    return field(default=default, metadata=limits(interval, why))


def interval_of(declared: "Field[Any]") -> AllowedRange | None:
    """Return the interval of a field, if it has one."""
    found: AllowedRange | None = declared.metadata.get(_KEY)
    return found


def check_bounds(options: Any, prefix: str = "") -> None:
    """Refuse options that lie beyond their intervals.

    Args:
        options: A dataclass.
        prefix: Of their names.

    Raises:
        ConfigError: it says which, what it is and what it may be.
    """
    for declared in fields(options):
        interval = interval_of(declared)
        if interval is None:
            continue
        for name, number in _numbers(f"{prefix}{declared.name}", getattr(options, declared.name)):
            if number not in interval:
                raise ConfigError(refusal(name, number, declared))


def refusal(name: str, value: object, declared: "Field[Any]") -> str:
    """Return why an option of a number is refused."""
    interval = interval_of(declared)
    assert interval is not None
    is_large = isinstance(value, int | float) and value > 1
    why = f": {interval.why}" if is_large and interval.why else ""
    return f"{name} must be {words(declared)}, got {repr(value) if value == '' else value}{why}."


def words(declared: "Field[Any]") -> str:
    """Return what the numbers of a field are, in words."""
    kind = "whole number" if _holds(declared.type, int) else "number"
    several = typing.get_origin(declared.type) in (list, dict)
    return f"{f'{kind}s, each' if several else f'a {kind}'} in {interval_of(declared)}"


def _holds(hint: Any, kind: type) -> bool:
    return hint is kind or any(_holds(part, kind) for part in typing.get_args(hint))


def is_numeric(hint: Any) -> bool:
    """Return whether a field of that type holds numbers."""
    return _holds(hint, int) or _holds(hint, float)


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        yield from ((f"{name}.{key}", number) for key, number in value.items())
    elif isinstance(value, list | tuple):
        yield from ((name, number) for number in value)
    elif value is not None:
        yield name, value


# The options of a verb, as its schema declares them.


@dataclass(frozen=True)
class Option:
    """A value that a schema declares."""

    name: str  #: dotted
    hint: Any  #: its type
    default: Any  #: ``None`` where it has none
    field: "dataclasses.Field[Any]"


def declared(schema: type, prefix: str = "") -> Iterator[Option]:
    """Yield the options of a schema and of those within it."""
    for entry in dataclasses.fields(schema):
        name = f"{prefix}{entry.name}"
        part = _part(entry.type)
        if part is not None:
            yield from declared(part, f"{name}.")
        else:
            factory = entry.default_factory
            default = entry.default if factory is dataclasses.MISSING else factory()
            known = None if default is dataclasses.MISSING else default
            yield Option(name, entry.type, known, entry)


def options(schema: type) -> list[tuple[str, Any]]:
    """Return the dotted names of a schema's values with their defaults."""
    return [(option.name, option.default) for option in declared(schema)]


def _part(hint: Any) -> type | None:
    """Return the schema that a field holds, if it holds one, optional or not."""
    candidates = [hint, *typing.get_args(hint)]
    return next(
        (c for c in candidates if isinstance(c, type) and dataclasses.is_dataclass(c)), None
    )


# What decides an outcome, as digests: equal ones let a run go on and a supernet be used again.

#: Metadata of an option that came when there were runs already: where it says the default, it
#: decides what was decided without it.
LATER = {"later": True}


def decisive(options: "DataclassInstance") -> dict[str, Any]:
    """Return options by name, without those that came later and say the default."""
    values = asdict(options)
    later = [field for field in fields(options) if field.metadata.get("later")]
    unsaid = {field.name for field in later if values[field.name] == _default(field)}
    return {name: value for name, value in values.items() if name not in unsaid}


def digest(content: Any) -> str:
    """Return sixteen hex digits that are equal for equal content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()
