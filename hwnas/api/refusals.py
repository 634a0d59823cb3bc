"""Why arguments are refused, in one sentence that names the option; nothing of Hydra's grammar."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from hwnas import bounds, content
from hwnas.api.options import Option, declared
from hwnas.config import SCHEMAS
from hwnas.database import public
from hwnas.errors import unknown

_AMBIGUOUS = re.compile(r"Ambiguous value for argument '(.*?)'", re.DOTALL)
_KEY = re.compile(r"[Cc]ould not (?:override|append to config.*?) '?([\w.]+)'?|Key '([^']+)'")


def explain(error: Exception, verb: str, arguments: Sequence[str]) -> str:
    """Return one sentence for an error of Hydra or OmegaConf.

    Args:
        error: The error.
        verb: Name of the schema.
        arguments: In which the user may have written what is wrong.
    """
    text = str(error.__cause__ or error)  # the cause is the more precise of the two
    options = {option.name: option for option in declared(SCHEMAS[verb])}
    if (said := _of_grammar(error, text, options, arguments)) is not None:
        return said
    targets = ", ".join(content.entries(content.ROOT / "conf" / "target"))
    if "missing mandatory value: target" in str(error):
        return f"No target. Give one with +target=<name>: {targets}."
    key = _key(error, text)
    if key == "target" and not any(name.startswith("target.") for name in options):
        return f"'{verb}' takes no target: leave it out."
    if key == "target":
        return f"The target has no default: write +target=<name>, one of {targets}."
    if key in options and not _KEY.search(text):
        return _not_so(options[key], _written(key, arguments))
    return _other(key, text, options)


def _of_grammar(
    error: Exception, text: str, options: Mapping[str, Option], arguments: Sequence[str]
) -> str | None:
    """Return why arguments cannot be composed, whatever they mean; ``None`` where they can."""
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override, options)
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = str(error.missing_cfg_file).partition("/")
        return unknown(group, name, error.options)
    if text.startswith("Additional config directory"):
        return f"--config-dir: there is no such folder: {text.split(chr(39))[1]}."
    if isinstance(error, AssertionError):  # OmegaConf asserts that what holds an option is there
        return _in_nothing(arguments)
    if (match := _AMBIGUOUS.match(text)) is not None:
        return f"{match[1]}: these are values of several runs, which -m starts; a list is [A,B]."
    return None


def _in_nothing(arguments: Sequence[str]) -> str:
    """Return that a part of the target which it does not have cannot be changed."""
    keys = [argument.partition("=")[0].strip("+~") for argument in arguments]
    within = [key for key in keys if key.startswith("target.") and key.count(".") > 1]
    parts = ", ".join(dict.fromkeys(key.rpartition(".")[0] for key in within))
    return (
        f"{', '.join(within)}: the target has no {parts}; state all of it in a target file of your "
        "own (--config-dir DIR +target=NAME)."
    )


def _unreadable(override: str, options: Mapping[str, Option]) -> str:
    """Return why an argument cannot be read as one."""
    name, sign, value = override.partition("=")
    key = name.strip("+~ ")
    if not sign or not key:
        return f"{public(override)!r} is no option: write OPTION=VALUE."
    if key in options:
        return _not_so(options[key], value)
    if key.rpartition(".")[0] in options:  # of a mapping of numbers
        return f"{key} must be a number, got {public(value)}."
    return f"{key}={public(value)} cannot be read: write {key}='TEXT' for one with special signs."


def _not_so(option: Option, value: str | None) -> str:
    """Return that an option must be something else."""
    got = "" if value is None else f", got {public(value)}"
    if bounds.interval_of(option.field) is not None:
        if value is None:  # of a file
            return f"{option.name} must be {bounds.words(option.field)}."
        return bounds.refusal(option.name, _number(value), option.field)
    return f"{option.name} must be {_words(option.hint)}{got}."


def _words(hint: Any) -> str:
    if hint in (bool, bool | None):
        return "true or false"
    kind = str(hint).partition("[")[0]
    return {"dict": "a mapping as {NAME: VALUE}", "list": "a list as [A,B]"}.get(kind, "one text")


def _number(value: str) -> float | str:
    try:
        return float(value) if "." in value or "e" in value else int(value)
    except ValueError:
        return value


def _written(key: str, arguments: Sequence[str]) -> str | None:
    """Return what was last written of an option."""
    given = [a.partition("=")[2] for a in arguments if a.partition("=")[0].strip("+~") == key]
    return given[-1] if given else None


def _key(error: Exception, text: str) -> str:
    """Return the dotted name of the option that an error is of; empty if it is of none."""
    full = re.search(r"full_key: ([\w.]+)", text)
    if full is not None:
        return full[1]
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        return str(error.full_key).partition("[")[0]
    match = _KEY.search(text)
    return (match[1] or match[2]) if match is not None else ""


def _other(key: str, text: str, options: Mapping[str, Option]) -> str:
    """Return what is left to say: there is no such option, or it has options of its own."""
    if inner := [name for name in options if name.startswith(f"{key}.")]:
        return f"{key} has options of its own: write {inner[0]}=VALUE."
    if key or not text.strip():
        groups = {name.partition(".")[0] for name in options} & {"dataset", "sampler"}
        return unknown("option", key, [*options, *groups])
    return " ".join(text.partition("See https")[0].split())
