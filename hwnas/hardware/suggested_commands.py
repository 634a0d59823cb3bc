"""Commands that messages suggest as the next step."""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from hwnas.core import package
from hwnas.core.errors import ConfigError
from hwnas.core.schema import SchemaError
from hwnas.core.typed_files import read_yaml
from hwnas.hardware import backends
from hwnas.hardware.target import Target, from_facts

#: Fields of a target that affect measurements, in addition to the section of its runtime.
_DECIDING = (
    *("runtime", "dtype", "threads", "batch", "batches", "thread_counts"),
    *("meter", "meter_channel"),
)
#: Folders of ``--config-dir`` in this process.
_CONFIG_FOLDERS: dict[str, None] = {}
_UNSET: tuple[object, ...] = (None, "", [], {}, "none")


def register_config_folders(folders: Iterable[str]) -> None:
    """Remember the folders of ``--config-dir`` for this process.

    Suggested commands that use a file in one of them get ``--config-dir FOLDER``.
    """
    _CONFIG_FOLDERS.update(dict.fromkeys(folders))


def suggested_command(verb: str, target: Target, *words: str) -> str:
    """Return the command line ``hwnas VERB +target=NAME ...`` for a target, quoted for a shell.

    Options that affect measurements are included where they differ from the target's file: the one
    in a folder of ``--config-dir``, else the shipped one. All that are set are included if there is
    no file. ``words`` are added at the end.
    """
    section = backends.get(target.runtime).name
    known = _facts(target, section)
    file = _file_options("target", target.name)
    try:
        usual = _facts(from_facts(file), section) if file else None
    except (SchemaError, ConfigError):  # its values are valid once Hydra has converted them
        usual = None
    changed = changed_options("target", known, usual)
    options = [f"+target={target.name}", *changed, *words]
    return shlex.join(["hwnas", verb, *_folders(options), *options])


def _folders(options: Iterable[str]) -> list[str]:
    """Return ``--config-dir`` flags for the folders that contain the files of these options."""
    named = [option.lstrip("+").partition("=")[::2] for option in options]
    files = [Path(group, f"{name}.yaml") for group, name in named if "/" not in f"{group}{name}"]
    used = [f for f in _CONFIG_FOLDERS if any(Path(f, file).is_file() for file in files)]
    return [word for folder in used for word in ("--config-dir", folder)]


def changed_options(
    group: str, known: Mapping[str, Any], usual: Mapping[str, Any] | None
) -> list[str]:
    """Return options ``GROUP.NAME=VALUE`` for the values in ``known`` that differ from ``usual``.

    If ``usual`` is ``None``, for all values in ``known`` that are set (not ``None``, empty or
    ``none``).
    """
    if usual is None:
        usual = {name: value for name, value in known.items() if value in _UNSET}
    changed = {n: value for n, value in known.items() if n not in usual or usual[n] != value}
    return [f"{group}.{name}={_option_value(value)}" for name, value in changed.items()]


def shipped_options(group: str, name: str) -> dict[str, Any]:
    """Return the content of ``conf/GROUP/NAME.yaml`` in the package; empty if there is none."""
    path = Path(package.ROOT, "conf", group, f"{name}.yaml")
    return read_yaml(dict[str, Any], path, ConfigError) if path.is_file() else {}


def _file_options(group: str, name: str) -> dict[str, Any]:
    """Return the options of a file, in a folder of ``--config-dir`` or shipped, with its defaults.

    Empty if there is none.
    """
    paths = (Path(folder, group, f"{name}.yaml") for folder in _CONFIG_FOLDERS)
    path = next(filter(Path.is_file, paths), None)
    if path is None:
        return shipped_options(group, name)
    given, merged = read_yaml(dict[str, Any], path, ConfigError), dict[str, Any]()
    for base in given.pop("defaults", ()):
        if base not in ("_self_", name):
            merged = _merge(merged, _file_options(group, str(base)))
    return _merge(merged, given)


def _merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return two mappings merged by their keys at all levels; values of the second replace."""
    inner = {
        name: _merge(first[name], value)
        for name, value in second.items()
        if isinstance(value, Mapping) and isinstance(first.get(name), Mapping)
    }
    return {**first, **second, **inner}


def inherited_models(target: Target) -> str:
    """Return which of a target's models equal those of a shipped target: ``power of cpu``.

    Models are its roofline, energy and power; ``defaults: [NAME]`` in a target file copies them
    silently. Empty if none is equal, or the target itself is shipped.
    """
    if shipped_options("target", target.name):
        return ""
    models, source, n_most = list[str](), "", 0
    for path in sorted(Path(package.ROOT, "conf", "target").glob("*.yaml")):
        shipped = from_facts(shipped_options("target", path.stem))
        same = [
            name
            for name in ("roofline", "energy", "power")
            if (model := getattr(target, name)) is not None and model == getattr(shipped, name)
        ]
        n_equal = sum(getattr(target, f.name) == getattr(shipped, f.name) for f in fields(target))
        if (len(same), n_equal) > (len(models), n_most):
            models, source, n_most = same, path.stem, n_equal
    return f"{' and '.join(models)} of {source}" if models else ""


def _facts(target: Target, section: str) -> dict[str, Any]:
    """Return the fields of a target that affect measurements, by option name."""
    settings = getattr(target, section, None)
    options = {} if settings is None else dict(_flat_options(section, asdict(settings)))
    return {name: getattr(target, name) for name in _DECIDING} | options


def _flat_options(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat_options(f"{prefix}.{name}", value)
        else:
            yield f"{prefix}.{name}", value


def _option_value(value: object) -> str:
    """Return a value as it is written in an option."""
    if isinstance(value, list):
        return f"[{','.join(map(_option_value, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
