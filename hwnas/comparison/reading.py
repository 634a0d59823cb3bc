"""From what the user names to runs that can be compared, or one line that says why they cannot."""

import glob
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hwnas.comparison import folder, foreign
from hwnas.comparison.fronts import Objective, Run, objectives
from hwnas.errors import ConfigError, RunError, unknown

_WILD = "*?["


def read(
    names: Sequence[str], directions: Mapping[str, str], group_by: str | None
) -> tuple[list[Run], tuple[Objective, ...]]:
    """Read run folders and CSV files.

    Args:
        names: Folders, CSV files, or patterns of them.
        directions: The objectives, ``max`` or ``min`` each; empty: those of the runs.
        group_by: A key of the runs' configurations; ``None``: each run is a group of its own.

    Returns:
        The runs, with different names, and the objectives in which they are compared.

    Raises:
        RunError: one cannot be read.
        ConfigError: they have different objectives, or no such key.
    """
    paths = expanded(names)
    tables = [path for path in paths if not path.is_dir()]
    runs = {path: [folder.read(path)] for path in paths if path.is_dir()}
    chosen = objectives(directions or _common([run for (run,) in runs.values()], tables))
    runs |= {path: foreign.read(path, chosen) for path in tables}
    found = [run for path in paths for run in runs[path]]
    return _grouped(_named(found), group_by), chosen


def expanded(names: Sequence[str]) -> list[Path]:
    """Return folders and files; of what a pattern matches, those that can be read.

    Raises:
        ConfigError: there is none, or one is named twice.
    """
    paths: list[Path] = []
    for name in names:
        if not any(sign in name for sign in _WILD) or Path(name).exists():
            paths.append(Path(name))
            continue
        matched = [Path(match) for match in sorted(glob.glob(name))]
        readable = [p for p in matched if p.suffix == ".csv" or (p / "manifest.json").is_file()]
        if not readable:
            raise ConfigError(f"runs={name}: nothing that matches is a run folder or a CSV file.")
        paths += readable
    for path in paths:
        if not path.exists():
            raise ConfigError(f"runs={path}: there is no such folder or file.")
    places = [path.resolve() for path in paths]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise ConfigError(f"runs={paths[i]} is named twice.")
    return paths


def check_data(runs: Sequence[Run], *, allow_mixed: bool) -> list[str]:
    """Refuse runs that were not scored on the same images; return what is to be said.

    Raises:
        RunError: they are not, and ``allow_mixed`` is not said.
    """
    notes = []
    known = {run.data: run.name for run in reversed(runs) if run.data is not None}
    if len(known) > 1:
        (first, second, *_) = sorted(known.values())
        if not allow_mixed:
            raise RunError(
                f"{first} and {second} were not scored on the same images (other data or splits): "
                "their answers are not comparable. Say allow_mixed=true to compare them still."
            )
        notes.append("Runs on different data or splits are mixed: what they found differs by that.")
    silent = [run.name for run in runs if run.data is None]
    if silent and len(runs) > 1:
        notes.append(f"Whether the data are the same is not known of: {listed(silent)}.")
    notes += [f"{run.name}: {note}." for run in runs for note in run.notes]
    targets = [*dict.fromkeys(run.target for run in runs if run.target is not None)]
    if len(targets) > 1:
        notes.append(f"Costs are those on different targets: {listed(targets)}.")
    budgets = {tuple(sorted(run.limits.items())) for run in runs}
    if len(budgets) > 1:
        notes.append("The runs had different budgets; each front is what fits its own.")
    return notes


def check_units(runs: Sequence[Run]) -> None:
    """Refuse accuracies in per cent beside fractions.

    Raises:
        RunError: there are both.
    """
    most: dict[bool, str] = {}
    for run in runs:
        values = [p.figures["accuracy"].value for p in run.scored if "accuracy" in p.figures]
        if values:
            most.setdefault(max(values) > 1, run.name)
    if len(most) > 1:
        raise RunError(
            f"The units of accuracy differ: per cent in {most[True]}, a fraction in {most[False]}."
        )


def listed(words: Iterable[str], most: int = 6) -> str:
    """Return words as a list: ``a, b and 3 more``."""
    every = list(words)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def check_groups(runs: Sequence[Run], group_by: str | None) -> list[str]:
    """Return what else differs between runs that are grouped, but for seeds and places."""
    if group_by is None:
        return []
    values: dict[str, dict[str, set[str]]] = {}
    for run in runs:
        for key in sorted(_keys(run.config)):
            if not isinstance(_at(run.config, key), Mapping) and not _is_aside(key):
                of_key = values.setdefault(key, {})
                of_key.setdefault(run.group, set()).add(str(_at(run.config, key)))
    within = [key for key, by in values.items() if any(len(v) > 1 for v in by.values())]
    between = [
        key
        for key, by in values.items()
        if key not in within
        and not f"{key}.".startswith(f"{group_by}.")
        and len({frozenset(v) for v in by.values()}) > 1
    ]
    notes = []
    if within:
        notes.append(f"Runs of one group differ in more than the seed: {listed(within)}.")
    if between:
        notes.append(f"Groups differ in more than {group_by}: {listed(between)}.")
    return notes


def _is_aside(key: str) -> bool:
    """Return whether a key decides nothing."""
    return key.split(".")[0] in ("seed", "run", "study")


def _at(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value[part]
    return value


def _common(runs: Sequence[Run], tables: Sequence[Path]) -> Mapping[str, str]:
    """Return the objectives that all runs have."""
    if not runs:
        raise ConfigError(
            f"{tables[0]} does not say what is better: name its columns with "
            "objectives='{accuracy: max, latency_ms: min}'."
        )
    first = runs[0]
    for run in runs:
        if {*run.directions} != {*first.directions}:
            raise ConfigError(
                f"The objectives differ: {', '.join(first.directions)} in {first.name}, "
                f"{', '.join(run.directions)} in {run.name}. Name those that all have with "
                "objectives='{accuracy: max, latency_ms: min}'."
            )
    return first.directions


def _named(runs: Sequence[Run]) -> list[Run]:
    """Return runs with different names: as much of the path as it takes."""
    names = [run.name for run in runs]
    parts = [Path(run.path).absolute().parent.parts for run in runs]
    depth = 0
    while len({*names}) < len(names) and depth < max(map(len, parts)):
        depth += 1
        again = [names.count(name) > 1 for name in names]
        names = [
            f"{parts[i][-depth]}/{name}" if again[i] and depth <= len(parts[i]) else name
            for i, name in enumerate(names)
        ]
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def _grouped(runs: Sequence[Run], group_by: str | None) -> list[Run]:
    found = []
    for run in runs:
        group = run.group
        if not group:
            group = run.name if group_by is None else _value(run, group_by)
        found.append(replace(run, group=group))
    return found


def _value(run: Run, key: str) -> str:
    """Return what a run's configuration says of a key, in a word.

    Raises:
        ConfigError: nothing.
    """
    if not run.config:
        raise ConfigError(
            f"group_by={key}: {run.name} is a CSV file; it says its groups in a column 'group'."
        )
    if key not in (known := _keys(run.config)):
        raise ConfigError(f"group_by: {unknown(f'key of {run.name}', key, known)}")
    value = _at(run.config, key)
    if isinstance(value, Mapping):
        value = value.get("name", ", ".join(f"{k}={v}" for k, v in value.items()))
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return str(value)


def _keys(config: Mapping[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for name, value in config.items():
        found.add(f"{prefix}{name}")
        if isinstance(value, Mapping):
            found |= _keys(value, f"{prefix}{name}.")
    return found
