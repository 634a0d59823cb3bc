"""Keywords of Python as arguments of the command line: runs from either read alike."""

import os
import re
from collections.abc import Iterator, Mapping

from hwnas.api.literal import in_quotes
from hwnas.errors import ConfigError

#: Options that are mappings themselves; any other mapping holds options.
_MAPPINGS = ("objectives", "table.costs", "table.reference")
_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[A-Za-z_./][\w./+@-]*", re.IGNORECASE)
_IN_KEYS = re.compile(r"[\w/\-\\+.$%*@?|()\[\]{}:=, \t]+", re.ASCII)  # Hydra quotes no keys
_ESCAPED = re.compile(r"[\\()\[\]{}:=, \t]")

Value = object  #: text, a number, a truth value, ``None``, a path, or a list or mapping of these


def as_arguments(keywords: Mapping[str, Value]) -> list[str]:
    """Return keywords as arguments.

    ``train__epochs=3``, ``**{"train.epochs": 3}`` and ``train={"epochs": 3}`` are the same.

    Raises:
        ConfigError: a key of a mapping cannot be an argument.
    """
    return [*_arguments("", keywords)]


def _arguments(prefix: str, keywords: Mapping[str, Value]) -> Iterator[str]:
    for keyword, value in keywords.items():
        name = prefix + str(keyword).replace("__", ".")
        if isinstance(value, Mapping) and name not in _MAPPINGS:
            yield from _arguments(f"{name}.", value)
        else:
            plus = "+" if name == "target" else ""
            yield f"{plus}{name}={_text(value)}"


def _text(value: Value) -> str:
    """Return a value as Hydra reads it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return repr(value)
    if isinstance(value, float):
        return repr(float(value))  # numpy's say their type, too
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(str(key))}: {_text(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    text = os.fsdecode(value) if isinstance(value, os.PathLike) else str(value)
    return text if _PLAIN.fullmatch(text) else in_quotes(text)


def _key(key: str) -> str:
    """Return a key of a mapping as Hydra reads it."""
    if not _IN_KEYS.fullmatch(key):
        raise ConfigError(
            f"{key!r} cannot name anything here: letters from a to z, digits, spaces and "
            "_ - / \\ + . $ % * @ ? | ( ) [ ] { } : = , can be in it; rename it where it is."
        )
    return _ESCAPED.sub(r"\\\g<0>", key)
