"""Text options: their values are taken literally on the command line.

In Hydra's grammar for values, ``#``, ``{``, ``=``, ``~`` or a letter such as ``ü`` have a meaning
or are rejected. That grammar is for numbers, mappings and sweeps. Values of options that are
declared as texts (paths, names, ids, URLs) and lists of texts are quoted for Hydra here, whatever
they contain:

- a value in Hydra's quotes is the text inside; ``null`` is no value;
- ``[a,b]`` is a list if the option takes one; an element with a comma must be quoted;
- with ``-m``, commas outside quotes and lists separate runs.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException

from hwnas.core import options as bounds
from hwnas.core import package
from hwnas.core.database import redact
from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.options import Option, iter_options
from hwnas.workflows.config import SCHEMAS

_PART = re.compile(
    r"""\s*('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\[.*?\]|[^,]*?)\s*(?:,|$)""", re.DOTALL
)
_SWEEP = re.compile(r"(choice|range|interval|glob|shuffle|sort)\(.*\)", re.DOTALL)
#: Options that name one of several configurations.
_GROUPS = ("budget", "dataset", "sampler", "task", "target")
_GROUP_NAME = re.compile(rf"\+{{0,2}}({'|'.join(_GROUPS)})\.name=(.*)", re.DOTALL)
_NUMBER = re.compile(r"(?![01]$)[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)
_MISSING = "???"  # OmegaConf's mark of a missing value


def in_quotes(text: str) -> str:
    """Return a text in single quotes, escaped as Hydra's grammar requires."""
    return "'" + re.sub(r"(\\*)('|\Z)", lambda m: 2 * m[1] + ("\\'" if m[2] else ""), text) + "'"


def quoted(text: str) -> str:
    """Return a text in single quotes, escaped so that Hydra and OmegaConf take it literally."""
    text = f"./{text}" if text == _MISSING else text
    return in_quotes(re.sub(r"(\\*)\$\{", r"\1\1\\${", text))


def quoted_if_needed(text: str) -> str:
    """Return a text as an argument on the command line, in quotes if necessary."""
    is_plain = (
        text == text.strip() not in ("", "null") and text[0] not in "'\"[" and "," not in text
    )
    return text if is_plain else in_quotes(text)


def text_of(value: str) -> str:
    """Return the text of a value without Hydra's quotes; without valid quotes the value itself."""
    if value[:1] not in ("'", '"') or len(value) < 2:
        return value
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(f"key={value}").value()
    except HydraException:
        return value
    return parsed if isinstance(parsed, str) else value


def sets_option(arguments: Sequence[str], key: str, text: str) -> bool:
    """Return whether one of the arguments sets option ``key`` to ``text``, in quotes or not."""
    parted = (argument.partition("=") for argument in arguments)
    return any(name.lstrip("+") == key and text_of(value) == text for name, _, value in parted)


def with_groups(arguments: Sequence[str]) -> list[str]:
    """Return arguments with ``dataset.name=images`` written as ``dataset=images``, if it is a file.

    This is so for all groups. The name alone would leave out the other options of the file.
    """
    folders = [package.ROOT / "conf", *package.without_folders(arguments)[1]]

    def rewritten(argument: str) -> str:
        if (match := _GROUP_NAME.fullmatch(argument)) is None:
            return argument
        group, value = match.groups()
        known = {path.stem for folder in folders for path in folder.glob(f"{group}/*.yaml")}
        is_file = any(text_of(part) in known for part in _parts(value))
        return f"{'+' * (group == 'target')}{group}={value}" if is_file else argument

    result = list[str]()
    for argument in arguments:
        new = rewritten(argument)
        if new == argument or new not in result:
            result.append(new)
    return result


def for_hydra(key: str, value: str, *, swept: bool = False) -> str:
    """Return the value of an option in Hydra's syntax.

    Args:
        key: The option.
        value: The value as written by the user.
        swept: Whether commas separate the values of several runs (``-m``).

    Raises:
        ConfigError: the value is empty, not valid Unicode, or a number instead of true or false.
    """
    kind = _kinds().get(key)
    if key in _switches() and any(_NUMBER.fullmatch(part) for part in _parts(value)):
        raise ConfigError(f"{key} must be true or false, got {value}.")
    if kind is None or (swept and _SWEEP.fullmatch(value)):
        return value
    return ",".join(_read(key, part, kind) for part in (_parts(value) if swept else [value]))


def _parts(value: str) -> list[str]:
    """Return the parts between commas outside quotes and lists."""
    parts, place = list[str](), 0
    while (match := _PART.match(value, place)) is not None:
        parts.append(match[1])
        place = match.end()
        if not match[0].endswith(","):
            break
    return parts


@dataclass(frozen=True)
class _OptionType:
    """The type of an option's value."""

    one: bool
    several: bool
    empty: bool = False
    is_group: bool = False


def _read(key: str, value: str, kind: _OptionType) -> str:
    if value == "null" and not kind.is_group:
        return value
    if kind.several and value[:1] == "[" and value[-1:] == "]":
        return f"[{','.join(_checked_text(key, part) for part in _parts(value[1:-1]) if part)}]"
    if not kind.one:
        return value  # Hydra reports that it is no list
    if not text_of(value) and not kind.empty:
        raise ConfigError(f"{key}= is empty: write {key}=VALUE, or leave it out.")
    return _checked_text(key, value)


def _checked_text(key: str, value: str) -> str:
    text = text_of(value)
    if "\0" in text or not _is_unicode(text):
        raise ConfigError(
            f"{key} is not valid UTF-8 text; rename the file, or make a link with another name."
        )
    return quoted(text)


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= sign <= "\udfff" for sign in text)


@functools.cache
def _switches() -> frozenset[str]:
    """Return the options of all verbs that are true or false."""
    options = (option for schema in SCHEMAS.values() for option in iter_options(schema))
    return frozenset(option.name for option in options if option.hint in (bool, bool | None))


@functools.cache
def _kinds() -> dict[str, _OptionType]:
    """Return the text options of all verbs."""
    kinds = {name: _OptionType(one=True, several=False, is_group=True) for name in _GROUPS}
    for option in (option for schema in SCHEMAS.values() for option in iter_options(schema)):
        one, several = option.hint in (str, str | None, Any), option.hint in (list[str], Any)
        if one or several:
            kinds.setdefault(option.name, _OptionType(one, several, option.default == ""))
    return kinds


def listed(texts: Sequence[str]) -> str:
    """Return texts as the value of a list option on the command line, as ``[a,'b c']``."""
    return f"[{','.join(map(quoted_if_needed, texts))}]"


# Messages for rejected arguments: one sentence that names the option, without Hydra's terms.

_MESSAGES = {
    re.compile(r"Could not append to config\. An item is already at '([\w.]+)'"): (
        "this option exists: write it without +."
    ),
    re.compile(r"Ambiguous value for argument '(.*?)'", re.DOTALL): (
        "commas separate the values of several runs, which need the flag -m; write a list as [A,B]."
    ),
}
_KEY = re.compile(r"[Cc]ould not (?:override|append to config.*?) '?([\w.]+)'?|Key '([^']+)'")


def explain(error: Exception, verb: str, arguments: Sequence[str]) -> str:
    """Return the message for users on an error of Hydra or OmegaConf, without Hydra's terms.

    Args:
        error: The error.
        verb: The verb, or ``tabular``.
        arguments: The user's arguments, which may contain the cause.
    """
    text = str(error.__cause__ or error)  # the cause is more precise
    options = {option.name: option for option in iter_options(SCHEMAS[verb])}
    if (message := _of_grammar(error, text, options, arguments)) is not None:
        return message
    targets = ", ".join(package.entries(package.ROOT / "conf" / "target"))
    if "missing mandatory value: target" in str(error):
        return f"No target. Give one with +target=<name>: {targets}."
    key = _key(error, text)
    if key == "target" and not any(name.startswith("target") for name in options):
        command = "search accuracy=table" if verb == "tabular" else verb
        return f"hwnas {command} has no option target: leave it out."
    if key == "target":
        of_run = f"The verb {verb} uses the target of its run: leave out +target."
        missing = f"The target has no default: write +target=<name>, one of {targets}."
        return of_run if any(a.startswith("+target") for a in arguments) else missing
    if key in options and not _KEY.search(text):
        return _message_on_value(options[key], _last_value(key, arguments))
    return _message_on_option(key, text, options, verb, arguments)


def _of_grammar(
    error: Exception, text: str, options: Mapping[str, Option], arguments: Sequence[str]
) -> str | None:
    """Return why the syntax of arguments is invalid; ``None`` for other errors."""
    if isinstance(error, OverrideParseException):
        return _message_on_syntax(error.override, options)
    if isinstance(error, MissingConfigException):
        return _unknown_config(error, text)
    if text.startswith("Additional config directory"):
        return f"--config-dir {text.split(chr(39))[1]}: no such folder; correct the path."
    if isinstance(error, AssertionError | AttributeError):  # the parent of an option is not set
        return _message_on_missing_part(arguments)
    for pattern, message in _MESSAGES.items():
        if (match := pattern.match(text)) is not None:
            return f"{match[1]}: {message}"
    return None


def _unknown_config(error: MissingConfigException, text: str) -> str:
    """Return the message for an unknown name of a group, in an argument or a file's defaults."""
    group, _, name = str(error.missing_cfg_file).partition("/")
    if error.options is not None:
        message = unknown_name(group, name, error.options)
        if group == "dataset":
            folder = name if Path(name).exists() else "DIR"
            return f"{message} Your own images: dataset=images dataset.path={folder}"
        if group == "target" and "," in name:
            return f"{message} Several targets: '+target=[{name}]'"
        return (
            f"{message} Files of your own: --config-dir DIR (in Python: config_dir=), with "
            f"DIR/{group}/NAME.yaml."
        )
    file = text.partition(":")[0].removeprefix("In ")
    shipped = package.entries(package.ROOT / "conf" / group)
    return f"{file}: {unknown_name('entry of defaults', name, shipped)}"


def _message_on_missing_part(arguments: Sequence[str]) -> str:
    """Return the message for changing an optional part that the target does not have."""
    split = [argument.partition("=") for argument in arguments]
    is_whole_part = {key.strip("+~"): value[:1] == "{" for key, _, value in split}
    within = [
        k
        for k, is_part in is_whole_part.items()
        if k.startswith("target.") and k.count(".") > 1 - is_part
    ]
    parts = ", ".join(
        dict.fromkeys(k if is_whole_part[k] else k.rpartition(".")[0] for k in within)
    )
    if not within:
        given = [key.strip("+~") for key in is_whole_part if key.strip("+~").startswith("target.")]
        return f"{', '.join(given)}: no target is given. Add +target=NAME."
    return (
        f"{', '.join(within)}: the target has no {parts}; give all its values in a target file of "
        "your own (--config-dir DIR +target=NAME)."
    )


def _message_on_syntax(override: str, options: Mapping[str, Option]) -> str:
    """Return the message for an argument with invalid syntax."""
    name, sign, value = override.partition("=")
    key = name.strip("+~ ")
    if not sign or not key:
        return f"{redact(override)!r} is not an option: write OPTION=VALUE."
    if key in options:
        return _message_on_value(options[key], value)
    if key.rpartition(".")[0] in options:  # a mapping of numbers
        return f"{key} must be a number, got {redact(value)}."
    return (
        f"{key}={redact(value)} cannot be read: put values with special characters in quotes, as "
        f"{key}=\"'TEXT'\"."
    )


def _message_on_value(option: Option, value: str | None) -> str:
    """Return the message for an option with an invalid value."""
    got = "" if value is None else f", got {redact(value)}"
    if bounds.allowed_range(option.field) is not None:
        if value is None:  # from a file
            return f"{option.name} must be {bounds.describe_range(option.field)}."
        return bounds.range_message(option.name, _number(value), option.field)
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


def _last_value(key: str, arguments: Sequence[str]) -> str | None:
    """Return the last value of an option as written."""
    values = [a.partition("=")[2] for a in arguments if a.partition("=")[0].strip("+~") == key]
    return values[-1] if values else None


def _key(error: Exception, text: str) -> str:
    """Return the dotted name of the option in an error; empty if there is none."""
    full = re.search(r"full_key: ([\w.]+)", text)
    if full is not None:
        return full[1]
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        return str(error.full_key).partition("[")[0]
    match = _KEY.search(text)
    return (match[1] or match[2]) if match is not None else ""


def _message_on_option(
    key: str, text: str, options: Mapping[str, Option], verb: str, arguments: Sequence[str]
) -> str:
    """Return the message for an unknown option, or for a section used as an option."""
    if inner := [name for name in options if name.startswith(f"{key}.")]:
        return f"{key} has options of its own: write {inner[0]}=VALUE."
    if key or not text.strip():
        from hwnas.workflows.config.suggestions import unknown_option

        return unknown_option(key, verb, _last_value(key, arguments) or "")
    return " ".join(text.partition("See https")[0].split())
