"""The sentences that describe options: the ``#:`` comments of the option dataclasses."""

import ast
import functools
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from hwnas.core.options import nested_schema


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
            if (comment := _comment(lines, item))  # else that of the base class holds
        }
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }


def _comment(lines: list[str], field: ast.AnnAssign) -> str:
    """Return the comment in the lines of a field, else in the lines above it."""
    own = [line.partition("#:")[2] for line in lines[field.lineno - 1 : field.end_lineno]]
    above = list[str]()
    for line in reversed(lines[: field.lineno - 1]):
        if not line.strip().startswith("#:"):
            break
        above.insert(0, line.partition("#:")[2])
    return " ".join(part.strip() for part in (own if any(own) else above) if part.strip())
