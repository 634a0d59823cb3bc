"""What ``python -m hwnas`` and ``python -m hwnas <verb> --help`` print."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from hwnas import __version__, content
from hwnas.figure import COLUMNS

#: Config groups of ``search`` by what they are called on the command line.
_GROUPS = {
    "+target=": "targets",
    "budget=": "budgets",
    "dataset=": "data sets",
    "sampler=": "samplers",
}


def overview(verbs: Mapping[str, str]) -> str:
    """Return the list of verbs."""
    lines = [
        f"hwnas {__version__}: hardware-constrained neural architecture search",
        "",
        "usage: python -m hwnas <verb> [option=value ...]",
        "",
        "verbs:",
        *(f"  {verb:<10}{text}" for verb, text in verbs.items()),
        "",
        "Start with:  python -m hwnas search +target=npu",
        "More of a verb:  python -m hwnas <verb> --help",
    ]
    return "\n".join(lines)


def search_help(schema: type) -> str:
    """Return targets, budgets, spaces, data sets and options of ``search``, a line each."""
    lines = [
        "python -m hwnas search +target=<name> [option=value ...]",
        "",
        "Trains a supernet (or reuses it), searches, verifies every member of the Pareto front",
        "from its compiled artefact, and writes runs/search/<time>/.",
    ]
    for option, title in _GROUPS.items():
        folder = content.ROOT / "conf" / option.strip("+=")
        lines += ["", f"{title}:", *_lines(option, content.entries(folder))]
    spaces = content.entries(content.ROOT / "search_spaces")
    lines += ["", "search spaces (a path to a YAML file works too):"]
    lines += _lines("search_space=", spaces)
    lines += ["", f"objectives ('objectives=[accuracy,latency_ms]'): {', '.join(COLUMNS)}"]
    lines += ["", "options with their defaults (data sets set some of them):"]
    lines += [
        f"  {name}={'' if value is None else value}"
        for name, value in options(schema)
        if not name.startswith("target.")  # facts of the device
    ]
    lines += [
        "",
        "examples:",
        "  python -m hwnas search +target=npu budget.latency_ms=0.3 budget.sram_kib=32",
        "  python -m hwnas search +target=npu dataset=fashion_mnist dataset.path=DIR n_trials=600",
        "  python -m hwnas search run.resume=runs/search/<time>",
        "  python -m hwnas search --config-dir mydir +target=myboard",
        "",
        "The configuration is Hydra's: --cfg job prints it, --hydra-help tells more.",
    ]
    return "\n".join(lines)


def options(schema: type, prefix: str = "") -> list[tuple[str, Any]]:
    """Return the dotted names of a schema's values with their defaults."""
    found: list[tuple[str, Any]] = []
    for field in dataclasses.fields(schema):
        name = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(field.type) and isinstance(field.type, type):
            found += options(field.type, f"{name}.")
        else:
            factory = field.default_factory
            default = field.default if factory is dataclasses.MISSING else factory()
            found.append((name, None if default is dataclasses.MISSING else default))
    return found


def _lines(option: str, entries: Mapping[str, str]) -> list[str]:
    width = max(len(name) for name in entries) + len(option) + 2
    return [f"  {option + name:<{width}}{text}" for name, text in entries.items()]
