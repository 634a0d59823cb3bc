"""What a verb starts from: the files that its configuration names, and what these set."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from hwnas import content

_PACKAGE = re.compile(r"# @package (\S+)")


def chosen(verb: str) -> dict[str, str]:
    """Return which file of each configuration group a verb takes where none is named."""
    return {
        group: name
        for entry in _read(_conf() / f"{verb}.yaml").get("defaults", [])
        if isinstance(entry, dict)
        for group, name in entry.items()
    }


def values(verb: str) -> dict[str, Any]:
    """Return the options that a verb's own file and those that it takes set, by dotted name."""
    found: dict[str, Any] = {}
    for group, name in chosen(verb).items():
        path = _conf() / group / f"{name}.yaml"
        package = _PACKAGE.match(path.read_text(encoding="utf-8"))
        within = package[1] if package else group
        found |= _flat(_read(path), "" if within == "_global_" else f"{within}.")
    own = _read(_conf() / f"{verb}.yaml")
    own.pop("defaults")
    return found | dict(_flat(own))


def _conf() -> Path:
    return content.ROOT / "conf"


def _read(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    return read


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
