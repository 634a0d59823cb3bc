"""Values that are texts: on the command line they are taken as they are written.

Hydra has a grammar for values, in which ``#``, ``{``, ``=``, ``~`` or a letter such as ``ü`` mean
something or are refused. That grammar is for numbers, mappings and sweeps. Options that are
declared as texts (paths, names, ids, URLs) and lists of texts are put into Hydra's quotes here,
whatever is in them:

- a value in Hydra's own quotes is the text in them; ``null`` is none;
- ``[a,b]`` is a list where the option takes one; an element with a comma is put into quotes;
- with ``-m``, commas separate runs, but for those in quotes and in lists.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hwnas.api.options import declared
from hwnas.config import SCHEMAS
from hwnas.errors import ConfigError

_PART = re.compile(
    r"""\s*('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\[.*?\]|[^,]*?)\s*(?:,|$)""", re.DOTALL
)
_SWEEP = re.compile(r"(choice|range|interval|glob|shuffle|sort)\(.*\)", re.DOTALL)
#: Options that name one of several configurations.
_GROUPS = ("budget", "dataset", "sampler", "task", "target")
_MISSING = "???"  # what OmegaConf reads as a value that is not there


def in_quotes(text: str) -> str:
    """Return a text in Hydra's quotes."""
    return "'" + re.sub(r"(\\*)('|\Z)", lambda m: 2 * m[1] + ("\\'" if m[2] else ""), text) + "'"


def quoted(text: str) -> str:
    """Return a text as Hydra reads it, and OmegaConf after it."""
    text = f"./{text}" if text == _MISSING else text
    return in_quotes(re.sub(r"(\\*)\$\{", r"\1\1\\${", text))


def said(text: str) -> str:
    """Return a text as it is to be written on the command line; that of most is the text."""
    is_plain = (
        text == text.strip() not in ("", "null") and text[0] not in "'\"[" and "," not in text
    )
    return text if is_plain else in_quotes(text)


def text_of(value: str) -> str:
    """Return the text that a value says: what is in Hydra's quotes, if it is in such."""
    if value[:1] not in ("'", '"') or len(value) < 2:
        return value
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(f"key={value}").value()
    except HydraException:
        return value
    return parsed if isinstance(parsed, str) else value


def says(arguments: Sequence[str], key: str, text: str) -> bool:
    """Return whether one of the arguments gives an option a text, in quotes or not."""
    parted = (argument.partition("=") for argument in arguments)
    return any(name.lstrip("+") == key and text_of(value) == text for name, _, value in parted)


def for_hydra(key: str, value: str, *, swept: bool = False) -> str:
    """Return the value of an option so that Hydra reads what was meant.

    Args:
        key: The option.
        value: As it was written.
        swept: Whether commas separate runs.

    Raises:
        ConfigError: it is empty, or cannot be a text.
    """
    kind = _kinds().get(key)
    if kind is None or (swept and _SWEEP.fullmatch(value)):
        return value
    return ",".join(_read(key, part, kind) for part in (_parts(value) if swept else [value]))


def _parts(value: str) -> list[str]:
    """Return what commas separate, but for those in quotes and in lists."""
    found, place = list[str](), 0
    while (match := _PART.match(value, place)) is not None:
        found.append(match[1])
        place = match.end()
        if not match[0].endswith(","):
            break
    return found


@dataclass(frozen=True)
class _Kind:
    """What an option may be."""

    one: bool
    several: bool
    empty: bool = False
    is_group: bool = False


def _read(key: str, value: str, kind: _Kind) -> str:
    if value == "null" and not kind.is_group:
        return value
    if kind.several and value[:1] == "[" and value[-1:] == "]":
        return f"[{','.join(_checked(key, part) for part in _parts(value[1:-1]) if part)}]"
    if not kind.one:
        return value  # Hydra says that it is no list
    if not text_of(value) and not kind.empty:
        raise ConfigError(f"{key}= is empty: write {key}=VALUE, or leave it out.")
    return _checked(key, value)


def _checked(key: str, value: str) -> str:
    text = text_of(value)
    if "\0" in text or not _is_unicode(text):
        raise ConfigError(f"{key} holds what is no text in UTF-8; rename the file, or link to it.")
    return quoted(text)


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= sign <= "\udfff" for sign in text)


@functools.cache
def _kinds() -> dict[str, _Kind]:
    """Return the options that are texts in any verb."""
    found = {name: _Kind(one=True, several=False, is_group=True) for name in _GROUPS}
    for option in (option for schema in SCHEMAS.values() for option in declared(schema)):
        one, several = option.hint in (str, str | None, Any), option.hint in (list[str], Any)
        if one or several:
            found[option.name] = _Kind(one, several, option.default == "")
    return found


def listed(texts: Sequence[str]) -> str:
    """Return texts as a list on the command line."""
    return f"[{','.join(map(said, texts))}]"
