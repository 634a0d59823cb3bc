"""Output of ``hwnas``, ``hwnas VERB --help`` and ``hwnas VERB --help GROUP``."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hwnas.cli.help_texts import ABOUT, COMMON, EXAMPLES, GROUPS, USAGE, VALUES, VERBS
from hwnas.core import package
from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.options import Option, allowed_range, iter_options, option_sentences
from hwnas.tasks import metrics
from hwnas.workflows.config import SCHEMAS

# Default configuration files of a verb, and their values.

_PACKAGE = re.compile(r"# @package (\S+)")


def default_groups(verb: str) -> dict[str, str]:
    """Return the name of the default file of each configuration group of a verb, by group."""
    return {
        group: name
        for entry in _read(_conf() / f"{verb}.yaml").get("defaults", [])
        if isinstance(entry, dict)
        for group, name in entry.items()
    }


def values(verb: str) -> dict[str, Any]:
    """Return the values in the default configuration files of a verb, by dotted option name.

    Values that depend on other options (``${...}``) are left out.
    """
    options: dict[str, Any] = {}
    for group, name in default_groups(verb).items():
        options |= group_values(group, name)
    raw = _read(_conf() / f"{verb}.yaml")
    raw.pop("defaults")
    return options | dict(_dotted_values(raw))


def group_values(group: str, name: str) -> dict[str, Any]:
    """Return the values in one file of a configuration group, by dotted option name."""
    path = _conf() / group / f"{name}.yaml"
    match = _PACKAGE.match(path.read_text(encoding="utf-8"))
    within = match[1] if match else group
    return dict(_dotted_values(_read(path), "" if within == "_global_" else f"{within}."))


def _conf() -> Path:
    return package.ROOT / "conf"


def _read(path: Path) -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    return raw


def _dotted_values(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _dotted_values(value, f"{prefix}{key}.")
        elif not str(value).startswith("${"):  # a default that depends on other options
            yield f"{prefix}{key}", value


# Pages.

_WIDTH, _COLUMN = 80, 24
#: Lines of flags, by verb.
_FLAGS = dict.fromkeys(
    ("search", "resume"),
    ("  --all                 list all verified networks, not only those on the front",),
)


def overview() -> str:
    """Return the text of ``hwnas``: the verbs with their summaries."""
    lines = [
        f"hwnas {package.__version__}: hardware-constrained neural architecture search",
        "",
        "usage: hwnas VERB [OPTION=VALUE ...]",
        "",
        "verbs:",
        *(f"  {verb:<13}{text}" for verb, text in VERBS.items()),
        "",
        "Start with:     hwnas search +target=npu",
        "Help of a verb: hwnas VERB --help",
        "Versions:       hwnas --version",
    ]
    return "\n".join(lines)


def verb_help(verb: str, group: str = "") -> str:
    """Return the text of ``hwnas VERB --help``.

    Args:
        verb: Name of the verb.
        group: Empty for the short help; else a section of its options, one option, ``general`` for
            the options without a section, or ``all``.

    Raises:
        ConfigError: the verb has no such section or option.
    """
    if verb == "resume" and group:
        return "\n".join(_group_help("search", group))
    if verb not in SCHEMAS:
        flags = ["options:", *_FLAGS[verb], ""] if verb in _FLAGS else []
        return "\n".join([*_head(verb), "", *flags, *_examples(verb)])
    return "\n".join(_group_help(verb, group) if group else _short_help(verb))


def _head(verb: str) -> list[str]:
    return [f"usage: hwnas {verb} {USAGE[verb]}", "", *textwrap.wrap(ABOUT[verb], _WIDTH)]


def _examples(verb: str) -> list[str]:
    return ["examples:", *(f"  hwnas {example}" for example in EXAMPLES[verb])]


def _short_help(verb: str) -> list[str]:
    sections = _sections(verb)
    common = [*_common(verb)]
    is_complete = verb not in COMMON
    more = ["all"] if is_complete else [*sections, "all"]
    return [
        *_head(verb),
        "",
        "options:" if is_complete else "common options:",
        *(line for option in common for line in option),
        *_FLAGS.get(verb, ()),
        "",
        *_wrap("more: ", f"hwnas {verb} --help {'|'.join(more)}"),
        "",
        *_examples(verb),
    ]


def _wrap(start: str, text: str) -> list[str]:
    wrapped = textwrap.wrap(
        text.replace("|", "| "), _WIDTH - len(start) - 1, break_on_hyphens=False
    )
    lines = [line.replace("| ", "|") for line in wrapped]
    return [start + lines[0], *(" " * len(start) + line for line in lines[1:])]


def _common(verb: str) -> Iterator[list[str]]:
    options = _options(verb)
    for name in [*COMMON.get(verb, options), "json"]:
        yield _lines(name, options.get(name), verb)


def _group_help(verb: str, group: str) -> list[str]:
    options, sentences = _options(verb), _all_sentences(verb)
    sections = _sections(verb)
    if group == "all":
        chosen = sections
    elif group in sections:
        chosen = {group: sections[group]}
    else:
        names = [name for name in options if f"{name}.".startswith(f"{group}.")]
        if not names:
            raise ConfigError(
                f"hwnas {verb} --help: {unknown_name('group', group, [*sections, *options, 'all'])}"
            )
        chosen = {group: names}
    lines = [f"usage: hwnas {verb} {USAGE[verb]}"]
    for section, names in chosen.items():
        title = "" if section in options else sentences.get(section, "").rstrip(".")
        lines += ["", *_wrap("", f"{section}: {title}" if title else f"{section}:")]
        for name in names:
            lines += _lines(name, options[name], verb)
        if section == "budget":
            lines += _metrics()
    return [*lines, "", *textwrap.wrap(_WRITING, _WIDTH)] if group == "all" else lines


_WRITING = (
    "Paths, names, ids and URLs are taken literally; quotes around a value are removed; null is no "
    "value. [A,B] is a list; elements with a comma need quotes. With -m, commas separate runs: "
    "sampler=pareto,nsga2. --config-dir DIR adds your own files of targets, budgets and data sets. "
    "The configuration is Hydra's: --cfg job prints it, and --hydra-help lists its flags."
)


def _options(verb: str) -> dict[str, Option | None]:
    """Return the options of a verb by name; ``None`` for those that are no fields."""
    options: dict[str, Option | None] = {o.name: o for o in iter_options(SCHEMAS[verb])}
    if verb == "search":
        table = iter_options(SCHEMAS["tabular"])
        options |= {o.name: o for o in table if o.name.startswith("benchmark.")}
    others = {"budget.METRIC": "budget", "task": "dataset.task"}
    return options | {name: None for name, known in others.items() if known in options}


def _all_sentences(verb: str) -> dict[str, str]:
    schemas = [SCHEMAS["tabular"]] * (verb == "search") + [SCHEMAS[verb]]
    return {name: text for schema in schemas for name, text in option_sentences(schema).items()}


def _sections(verb: str) -> dict[str, list[str]]:
    """Return the names of options by section; those without a section are ``general``."""
    names, sections = [*_options(verb)], dict[str, list[str]]()
    for name in names:
        first, _, rest = name.partition(".")
        is_section = bool(rest) or f"{name}.METRIC" in names
        sections.setdefault(first if is_section else "general", []).append(name)
    return {"general": sections.pop("general", []), **sections}


def _lines(name: str, option: Option | None, verb: str) -> list[str]:
    """Return the lines of an option: name, placeholder, sentence, default and range."""
    if name == "json":
        value, text = "true", "print the result as one JSON document, messages on stderr"
    else:
        value, text = _description(name, option, verb)
    group = name.removesuffix(".name")
    name = group if group in GROUPS else name
    head = f"  {'+' * (name == 'target')}{name}={value}"
    body = textwrap.wrap(text, _WIDTH - _COLUMN, break_on_hyphens=False, break_long_words=False)
    first = [] if len(head) < _COLUMN - 1 else [head]
    if not first:
        first, body = [f"{head:<{_COLUMN}}{body[0] if body else ''}".rstrip()], body[1:]
    return [*first, *(" " * _COLUMN + line for line in body)]


def _description(name: str, option: Option | None, verb: str) -> tuple[str, str]:
    """Return the placeholder of an option, and its sentence with default and range."""
    default = values(verb).get(name, option.default if option else None)
    group = name.removesuffix(".name") if option is None or name.endswith(".name") else name
    if group in GROUPS and not (name == "target" and verb == "split"):
        value, sentence = GROUPS[group]
        default = default_groups(verb).get(group)
    else:
        value = _placeholder(option) if option else "VALUE"
        sentence = _all_sentences(verb).get(name, "").replace("``", "")
    facts = []
    if default not in (None, "", [], {}, "???") and "default:" not in sentence:
        facts.append(f"default {_value_text(default)}{_unit(name)}")
    if option is not None and (allowed := allowed_range(option.field)) is not None:
        facts.append(_in_words(str(allowed)))
    return value, f"{sentence} [{'; '.join(facts)}]".lstrip() if facts else sentence


def _placeholder(option: Option) -> str:
    for name in (option.name, option.name.rpartition(".")[2]):
        if name in VALUES:
            return VALUES[name]
    kind = str(option.hint)
    for word, placeholder in (("list", "[A,B]"), ("dict", "{A: B}"), ("bool", "true|false"),
                              ("int", "INT"), ("float", "NUMBER")):  # fmt: skip
        if word in kind:
            return placeholder
    return "NAME" if "Any" not in kind else "VALUE"


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_value_text, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


_UNITS = {"ms": "ms", "s": "s", "h": "h", "kib": "KiB", "minutes": "minutes", "seconds": "s"}


def _unit(name: str) -> str:
    """Return the unit in the name of an option, after a space."""
    last = name.rpartition(".")[2].rpartition("_")[2]
    return f" {_UNITS[last]}" if last in _UNITS else ""


def _in_words(allowed: str) -> str:
    """Return a range as words: ``(0, 1]`` is over 0, up to 1."""
    low, high = (part.strip() for part in allowed[1:-1].split(","))
    if allowed[0] == "[" and allowed[-1] == "]":
        return f"{low} to {high}"
    start = f"from {low}" if allowed[0] == "[" else f"over {low}"
    return f"{start}, {'up to' if allowed[-1] == ']' else 'under'} {high}"


def _metrics() -> list[str]:
    names = ", ".join(f"budget.{name}" for name in metrics.cost_names())
    return textwrap.wrap(f"limits: {names}", _WIDTH, initial_indent="  ", subsequent_indent=" " * 4)


def help_words(arguments: Sequence[str]) -> str | None:
    """Return the word after ``--help``, ``""`` if there is none; ``None`` without ``--help``.

    Flags and arguments with ``=`` are not taken for that word.
    """
    flags = [i for i, argument in enumerate(arguments) if argument in ("-h", "--help")]
    if not flags:
        return None
    after = arguments[flags[0] + 1 : flags[0] + 2]
    return after[0] if after and "=" not in after[0] and not after[0].startswith("-") else ""
