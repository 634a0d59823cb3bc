"""Schemas of options: allowed ranges, iteration, descriptions (``#:`` comments), fingerprints.

Ranges are written as in messages: ``[0, 1)`` contains 0 and not 1. No range contains ``nan`` or
``inf``.
"""

import ast
import dataclasses
import functools
import hashlib
import json
import sys
import typing
from collections.abc import Iterator
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwnas.core.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_KEY = "interval"
SEED = "[0, 4294967295]"  #: range of seeds of random generators


@dataclass(frozen=True)
class AllowedRange:
    """A range of numbers, with the reasons for its ends."""

    text: str  #: such as ``[0, 1)``
    reason: str = ""  #: why numbers above the range are not allowed; ``""``: not stated
    below: str = ""  #: what to do instead of a number below the range; ``""``: not stated

    def __contains__(self, number: float) -> bool:
        low, high = (float(end) for end in self.text[1:-1].split(","))
        above = number >= low if self.text[0] == "[" else number > low
        return above and (number <= high if self.text[-1] == "]" else number < high)

    def __str__(self) -> str:
        return self.text.replace("_", "")


def limits(text: str, reason: str = "", below: str = "") -> dict[str, AllowedRange]:
    """Return the ``metadata`` of a dataclass field with an allowed range, such as ``[0, 1)``."""
    return {_KEY: AllowedRange(text, reason, below)}


def bounded(
    text: str, default: Any, reason: str = "", digest_key: str = "", below: str = ""
) -> Any:
    """Return a dataclass field with an allowed range.

    Args:
        text: The range, for example ``[0, 1)``.
        default: Default of the field.
        reason: Reason for the upper end of the range, for messages.
        digest_key: Earlier name of a renamed option: digests keep it, and so do not change.
        below: What to do instead of a number below the range, for messages.
    """
    metadata = {**limits(text, reason, below), "digest_key": digest_key}
    return field(default=default, metadata=metadata)


def allowed_range(declared: "Field[Any]") -> AllowedRange | None:
    """Return the allowed range of a field; ``None`` if it has none."""
    interval: AllowedRange | None = declared.metadata.get(_KEY)
    return interval


def check_bounds(options: Any, prefix: str = "") -> None:
    """Check that the numbers in the fields of a dataclass are in their ranges.

    Each number of a list or mapping is checked. ``None`` and nested dataclasses are not.

    Args:
        options: A dataclass instance.
        prefix: Prefix of the option names in messages.

    Raises:
        ConfigError: if an option is out of its range.
    """
    for declared in fields(options):
        interval = allowed_range(declared)
        if interval is None:
            continue
        for name, number in _numbers(f"{prefix}{declared.name}", getattr(options, declared.name)):
            if number not in interval:
                raise ConfigError(range_message(name, number, declared))


def range_message(name: str, value: object, declared: "Field[Any]") -> str:
    """Return the error message for a numeric option that is out of its range.

    It gives the reason for the upper end of the range if the value is above 1, else the one for
    the lower end.
    """
    interval = allowed_range(declared)
    assert interval is not None
    reason = ""
    if isinstance(value, int | float):
        reason = interval.reason if value > 1 else interval.below
    shown = repr(value) if value == "" else value
    return f"{name} must be {describe_range(declared)}, got {shown}{f': {reason}' * bool(reason)}."


def describe_range(declared: "Field[Any]") -> str:
    """Return the type and range of a numeric field as text: ``a whole number in [1, 64]``."""
    kind = "whole number" if _holds(declared.type, int) else "number"
    several = typing.get_origin(declared.type) in (list, dict)
    return f"{f'{kind}s, each' if several else f'a {kind}'} in {allowed_range(declared)}"


def _holds(hint: Any, kind: type) -> bool:
    return hint is kind or any(_holds(part, kind) for part in typing.get_args(hint))


def is_numeric(hint: Any) -> bool:
    """Return True if a type is numeric or contains numbers."""
    return _holds(hint, int) or _holds(hint, float)


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        yield from ((f"{name}.{key}", number) for key, number in value.items())
    elif isinstance(value, list | tuple):
        yield from ((name, number) for number in value)
    elif value is not None:
        yield name, value


@dataclass(frozen=True)
class Option:
    """An option declared by a schema."""

    name: str  #: dotted name, such as ``train.lr``
    hint: Any  #: type of the value
    default: Any  #: default; ``None`` also if it has none
    field: "dataclasses.Field[Any]"  #: the field of the dataclass


def iter_options(schema: type, prefix: str = "") -> Iterator[Option]:
    """Yield the options of a dataclass and of those nested in it, with dotted names."""
    for entry in dataclasses.fields(schema):
        name = f"{prefix}{entry.name}"
        nested = nested_schema(entry.type)
        if nested is not None:
            yield from iter_options(nested, f"{name}.")
        else:
            factory = entry.default_factory
            default = entry.default if factory is dataclasses.MISSING else factory()
            default = None if default is dataclasses.MISSING else default
            yield Option(name, entry.type, default, entry)


def option_defaults(schema: type) -> list[tuple[str, Any]]:
    """Return pairs of dotted name and default of all options, as in ``iter_options``."""
    return [(option.name, option.default) for option in iter_options(schema)]


def nested_schema(hint: Any) -> type | None:
    """Return the dataclass in a field type such as ``Schema | None``; ``None`` if it has none."""
    candidates = [hint, *typing.get_args(hint)]
    return next(
        (c for c in candidates if isinstance(c, type) and dataclasses.is_dataclass(c)), None
    )


#: Metadata of an option added after the first release: it is left out of fingerprints while it has
#: its default, so that older runs can be resumed.
ADDED_AFTER_RELEASE = {"added_after_release": True}


def fingerprint_options(options: "DataclassInstance") -> dict[str, Any]:
    """Return the options that enter digests, by their name in digests.

    Options with ``ADDED_AFTER_RELEASE`` are left out while they have their default.
    """
    values = asdict(options)
    later = [f for f in fields(options) if f.metadata.get("added_after_release")]
    omitted = {f.name for f in later if values[f.name] == _default(f)}
    keys = {f.name: f.metadata.get("digest_key") or f.name for f in fields(options)}
    return {keys[name]: value for name, value in values.items() if name not in omitted}


def digest(content: Any) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of content written as JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def option_sentences(schema: type) -> dict[str, str]:
    """Return the help text of each option and section of a schema, by dotted name.

    The text is the ``#:`` comment beside the field or in the lines above it; for a section without
    one the first line of its class's docstring, for an option without one ``""``.
    """
    return dict(_sentences(schema, ""))


def _sentences(schema: type, prefix: str) -> Iterator[tuple[str, str]]:
    comments = field_comments(schema)
    for entry in fields(schema):
        name, text = f"{prefix}{entry.name}", comments.get(entry.name, "")
        if (section := nested_schema(entry.type)) is None:
            yield name, text
        else:
            yield name, text or (section.__doc__ or "").partition("\n")[0]
            yield from _sentences(section, f"{name}.")


def field_comments(schema: type) -> dict[str, str]:
    """Return the ``#:`` comments of a dataclass or ``TypedDict`` and its bases, by field.

    Fields without a comment are left out.
    """
    comments: dict[str, str] = {}
    for base in reversed(schema.__mro__):
        if base.__module__ in sys.modules:
            comments |= _comments_of_module(base.__module__).get(base.__name__, {})
    return comments


@functools.cache
def _comments_of_module(module: str) -> dict[str, dict[str, str]]:
    """Return the comments of the fields of each class of a module."""
    file = getattr(sys.modules[module], "__file__", None)
    source = "" if file is None else Path(file).read_text(encoding="utf-8")
    lines = source.splitlines()
    return {
        node.name: {
            item.target.id: comment
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            if (comment := _comment(lines, item))  # otherwise that of the base class is used
        }
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }


def _comment(lines: list[str], field: ast.AnnAssign) -> str:
    """Return the comment in the lines of a field, else in the lines above it."""
    inline = [line.partition("#:")[2] for line in lines[field.lineno - 1 : field.end_lineno]]
    above = list[str]()
    for line in reversed(lines[: field.lineno - 1]):
        if not line.strip().startswith("#:"):
            break
        above.insert(0, line.partition("#:")[2])
    return " ".join(part.strip() for part in (inline if any(inline) else above) if part.strip())
