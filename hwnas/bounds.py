"""Which numbers an option may be: said where it is declared, checked whenever it is set.

An interval is written as messages show it: ``[0, 1)`` holds 0 and not 1. ``nan`` and ``inf`` lie in
none.
"""

import typing
from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any

from hwnas.errors import ConfigError

_KEY = "interval"
SEED = "[0, 4294967295]"  #: what random generators take


@dataclass(frozen=True)
class Interval:
    """Numbers between two, and why there are no larger ones."""

    text: str
    why: str = ""

    def __contains__(self, number: float) -> bool:
        low, high = (float(end) for end in self.text[1:-1].split(","))
        above = number >= low if self.text[0] == "[" else number > low
        return above and (number <= high if self.text[-1] == "]" else number < high)

    def __str__(self) -> str:
        return self.text.replace("_", "")


def limits(interval: str, why: str = "") -> dict[str, Interval]:
    """Return the metadata of a field whose numbers lie in an interval."""
    return {_KEY: Interval(interval, why)}


def within(interval: str, default: Any, why: str = "") -> Any:
    """Return a field of a dataclass whose numbers lie in an interval.

    Args:
        interval: As ``[0, 1)``.
        default: Of the field.
        why: It ends where it does; said to those who want more.
    """
    return field(default=default, metadata=limits(interval, why))


def interval_of(declared: "Field[Any]") -> Interval | None:
    """Return the interval of a field, if it has one."""
    found: Interval | None = declared.metadata.get(_KEY)
    return found


def check(options: Any, prefix: str = "") -> None:
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
