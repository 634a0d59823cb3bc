"""The options of a verb, as its schema declares them."""

import dataclasses
import typing
from typing import Any


def options(schema: type, prefix: str = "") -> list[tuple[str, Any]]:
    """Return the dotted names of a schema's values with their defaults."""
    found: list[tuple[str, Any]] = []
    for field in dataclasses.fields(schema):
        name = f"{prefix}{field.name}"
        part = _part(field.type)
        if part is not None:
            found += options(part, f"{name}.")
        else:
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            found.append((name, None if default is dataclasses.MISSING else default))
    return found


def _part(hint: Any) -> type | None:
    """Return the schema that a field holds, if it holds one, optional or not."""
    candidates = [hint, *typing.get_args(hint)]
    return next(
        (c for c in candidates if isinstance(c, type) and dataclasses.is_dataclass(c)), None
    )
