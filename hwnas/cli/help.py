"""Output of ``hwnas`` and ``hwnas <verb> --help``."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from hwnas.cli.help_texts import ABOUT, EXAMPLES
from hwnas.core import package as content
from hwnas.core.options import option_defaults
from hwnas.core.package import __version__
from hwnas.hardware import backends
from hwnas.tasks import metrics
from hwnas.tasks.metrics.budget import Budget

# Default configuration files of a verb, and their values.

_PACKAGE = re.compile(r"# @package (\S+)")


def default_groups(verb: str) -> dict[str, str]:
    """Return the default file of each configuration group of a verb."""
    return {
        group: name
        for entry in _read(_conf() / f"{verb}.yaml").get("defaults", [])
        if isinstance(entry, dict)
        for group, name in entry.items()
    }


def values(verb: str) -> dict[str, Any]:
    """Return the values in the configuration files of a verb, by dotted option name."""
    options: dict[str, Any] = {}
    for group, name in default_groups(verb).items():
        path = _conf() / group / f"{name}.yaml"
        package = _PACKAGE.match(path.read_text(encoding="utf-8"))
        within = package[1] if package else group
        options |= _flat(_read(path), "" if within == "_global_" else f"{within}.")
    raw = _read(_conf() / f"{verb}.yaml")
    raw.pop("defaults")
    return options | dict(_flat(raw))


def _conf() -> Path:
    return content.ROOT / "conf"


def _read(path: Path) -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    return raw


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


#: Titles of configuration groups by their prefix on the command line.
_GROUPS = {
    "+target=": "targets",
    "budget=": "budgets",
    "dataset=": "data sets",
    "task=": "tasks",
    "sampler=": "samplers",
}


_WRITING = (
    "Paths, names, ids and URLs are taken as they are written, whatever signs they hold; those in",
    "quotes are what is in the quotes, null is none. [A,B] is a list where several can be given;",
    "elements with a comma need quotes. With -m, commas outside quotes and lists separate runs.",
)


def overview(verbs: Mapping[str, str]) -> str:
    """Return the list of verbs."""
    lines = [
        f"hwnas {__version__}: hardware-constrained neural architecture search",
        "",
        "usage: hwnas <verb> [option=value ...]",
        "",
        "verbs:",
        *(f"  {verb:<13}{text}" for verb, text in verbs.items()),
        "",
        "Start with:  hwnas search +target=npu",
        "More of a verb:  hwnas <verb> --help",
    ]
    return "\n".join(lines)


#: Prefixes of options that are not listed: facts of devices, and options set by data sets.
_HIDDEN = {
    "search": ("target.",),
    "profile": ("target.", "train.", "trained."),
    "train": ("trained.",),
    "verify": ("target.",),
    "split": ("target.",),
}
#: Required arguments.
_FIRST = {
    "search": "+target=<name> ",
    "train": "",
    "profile": "+target=<name> ",
    "why": "run=DIR id=GENOTYPE ",
    "audit": "run=DIR ",
    "compare": "runs='[DIR,DIR]' ",
    "export": "run=DIR ",
    "compress": "run=DIR id=GENOTYPE budget.METRIC=LIMIT ",
    "verify": "DIR ",
    "split": "DIR ",
    "plan": "service=FILE fleet=FILE ",
    "simulate": "plan=DIR ",
    "replan": "plan=DIR telemetry=FILE|URL ",
    "serve-check": "plan=DIR ",
}


def verb_help(verb: str, schema: type) -> str:
    """Return the help of a verb: targets, budgets, spaces, data sets and options."""
    known, chosen = [name for name, _ in option_defaults(schema)], default_groups(verb)
    lines = [f"hwnas {verb} {_FIRST[verb]}[option=value ...]", "", *ABOUT[verb]]
    for option, title in _GROUPS.items():
        group = option.strip("+=")
        if any(f"{name}.".startswith((f"{group}.", f"dataset.{group}.")) for name in known):
            entries = content.entries(content.ROOT / "conf" / group)
            if taken := chosen.get(group):
                entries[taken] += " (default)"
            lines += ["", f"{title}:", *_lines(option, entries)]
    if "search_space" in known:
        lines += _spaces(by_target="target.spaces" in known)
    if "objectives" in known and "cost" in known:
        lines += ["", *_metrics()]
        lines += ["", "target.runtime, with the cost=... that each takes, the default first:"]
        lines += _backends()
    files = ", ".join(f"{group}={name}" for group, name in chosen.items())
    by = f", by {files}; other files set others" if files else ""
    lines += ["", f"options with their defaults{by}:"]
    lines += _options(verb, schema)
    if "target.spaces" in known:
        lines += ["  target.NAME=VALUE: what the file of a target says; --cfg job prints it"]
    lines += ["", "examples:", *(f"  hwnas {example}" for example in _examples(verb))]
    lines += ["", *_WRITING]
    lines += ["The configuration is Hydra's: --cfg job prints it, --hydra-help tells more."]
    return "\n".join(lines)


def _backends() -> list[str]:
    """Return a line for each backend."""
    entries = {f"{d.name} ({', '.join(d.costs)})": d.about for d in backends.known()}
    return _lines("target.runtime=", entries)


def _examples(verb: str) -> list[str]:
    return [*EXAMPLES[verb], *(e for d in backends.known() for e in d.examples.get(verb, ()))]


def _metrics() -> list[str]:
    """Return a line for each metric: objectives and limits of budgets."""
    lines = [
        "metrics: 'objectives=[accuracy,latency_ms]'; but for accuracy and mae, budget.NAME=LIMIT,",
        "too: an upper limit, or a lower one of what is to be maximised:",
    ]
    entries = {}
    for name, metric in metrics.all_metrics().items():
        words = metric.label + f", {metric.unit}" * bool(metric.unit)
        words += "; to be maximised" * metric.maximise
        words += "".join(f"; needs target.facts.{fact}=NUMBER" for fact in metric.facts)
        entries[name] = words
    return [*lines, *_lines("", entries)]


def _spaces(*, by_target: bool) -> list[str]:
    """Return the search spaces, their folders, and the defaults of targets."""
    root = content.ROOT / "search_spaces"
    several = ", or a list: search_space='[A,B]'" if by_target else ""
    lines = ["", f"search spaces (a path to a YAML file works too{several}):"]
    lines += _lines("search_space=", content.entries(root))
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        inner = {f"{folder.name}/{n}": text for n, text in content.entries(folder).items()}
        lines += [f"  search_space={folder.name}  all of:"] if inner and by_target else []
        lines += _lines("search_space=", inner) if inner else []
    if by_target:
        lines += ["  by default those that suit the target:"]
        targets: dict[str, list[str]] = {}
        for path in sorted((content.ROOT / "conf" / "target").glob("*.yaml")):
            named = yaml.safe_load(path.read_text(encoding="utf-8")).get("spaces") or [
                "mbconv_small"
            ]
            targets.setdefault(", ".join(named), []).append(path.stem)
        lines += [f"    {names}: {', '.join(users)}" for names, users in targets.items()]
    return lines


def _options(verb: str, schema: type) -> list[str]:
    """Return a line for each option of a verb, with its default."""
    defaults, hidden = values(verb), _HIDDEN.get(verb, ())
    shown = [(n, defaults.get(n, v)) for n, v in _shown(schema) if not n.startswith(hidden)]
    return [f"  {name}={'' if value is None else value}" for name, value in shown]


def _shown(schema: type) -> list[tuple[str, Any]]:
    """Return options with their defaults; a budget is listed as its possible limits."""
    limits = [("budget.name", Budget.name), *((f"budget.{n}", None) for n in metrics.cost_names())]
    return [
        shown
        for name, value in option_defaults(schema)
        for shown in (limits if name == "budget" else [(name, value)])
    ]


def _lines(option: str, entries: Mapping[str, str]) -> list[str]:
    width = max(len(name) for name in entries) + len(option) + 2
    return [f"  {option + name:<{width}}{text}" for name, text in entries.items()]
