"""The options of a verb, as its schema declares them."""

import dataclasses
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """A value that a schema declares."""

    name: str  #: dotted
    hint: Any  #: its type
    default: Any  #: ``None`` where it has none
    field: "dataclasses.Field[Any]"


def declared(schema: type, prefix: str = "") -> Iterator[Option]:
    """Yield the options of a schema and of those within it."""
    for field in dataclasses.fields(schema):
        name = f"{prefix}{field.name}"
        part = _part(field.type)
        if part is not None:
            yield from declared(part, f"{name}.")
        else:
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            known = None if default is dataclasses.MISSING else default
            yield Option(name, field.type, known, field)


def options(schema: type) -> list[tuple[str, Any]]:
    """Return the dotted names of a schema's values with their defaults."""
    return [(option.name, option.default) for option in declared(schema)]


def _part(hint: Any) -> type | None:
    """Return the schema that a field holds, if it holds one, optional or not."""
    candidates = [hint, *typing.get_args(hint)]
    return next(
        (c for c in candidates if isinstance(c, type) and dataclasses.is_dataclass(c)), None
    )
