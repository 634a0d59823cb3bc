"""Commands that are named as the next step: they say what a user did that the files do not."""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hwnas.core import package
from hwnas.core.errors import ConfigError
from hwnas.core.typed_files import read_yaml
from hwnas.hardware import backends
from hwnas.hardware.target import Target, from_facts

#: Of targets, beside the section of the runtime: what decides what is measured.
_DECIDING = (
    *("runtime", "dtype", "threads", "batch", "batches", "thread_counts"),
    *("meter", "meter_channel"),
)
#: Folders with files of options of the user's own, as arguments of this process named them.
_OWN: dict[str, None] = {}
_NOTHING: tuple[object, ...] = (None, "", [], {}, "none")


def remember(folders: Iterable[str]) -> None:
    """Have commands name folders of ``--config-dir`` where they name files in them."""
    _OWN.update(dict.fromkeys(folders))


def command(verb: str, target: Target, *words: str) -> str:
    """Return a command for a target, with what its file does not say."""
    section = backends.get(target.runtime).name
    known = _facts(target, section)
    file = file_of("target", target.name)
    usual = _facts(from_facts(file), section) if file else None
    said = differing("target", known, usual)
    options = [f"+target={target.name}", *said, *words]
    return shlex.join(["python", "-m", "hwnas", verb, *_folders(options), *options])


def _folders(options: Iterable[str]) -> list[str]:
    """Return the flags that name the user's own folders in which files of options are."""
    named = [option.lstrip("+").partition("=")[::2] for option in options]
    files = [Path(group, f"{name}.yaml") for group, name in named if "/" not in f"{group}{name}"]
    own = [folder for folder in _OWN if any(Path(folder, file).is_file() for file in files)]
    return [word for folder in own for word in ("--config-dir", folder)]


def differing(group: str, known: Mapping[str, Any], usual: Mapping[str, Any] | None) -> list[str]:
    """Return options for what differs from the usual; all that say something where none is."""
    if usual is None:
        usual = {name: value for name, value in known.items() if value in _NOTHING}
    changed = {n: value for n, value in known.items() if n not in usual or usual[n] != value}
    return [f"{group}.{name}={_word(value)}" for name, value in changed.items()]


def file_of(group: str, name: str) -> dict[str, Any]:
    """Return what the file of that name in a group of options says; nothing if none ships."""
    path = Path(package.ROOT, "conf", group, f"{name}.yaml")
    return read_yaml(dict[str, Any], path, ConfigError) if path.is_file() else {}


def _facts(target: Target, section: str) -> dict[str, Any]:
    """Return what decides figures of a target, by the names that options have behind its own."""
    settings = getattr(target, section, None)
    own = {} if settings is None else dict(_flat(section, asdict(settings)))
    return {name: getattr(target, name) for name in _DECIDING} | own


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}.{name}", value)
        else:
            yield f"{prefix}.{name}", value


def _word(value: object) -> str:
    """Return a value as options say it."""
    if isinstance(value, list):
        return f"[{','.join(map(_word, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
