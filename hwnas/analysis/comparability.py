"""Checks whether runs can be compared: data, units, and options within groups."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hwnas.analysis.fronts import Array, ComparedRun, Objective
from hwnas.core.errors import RunError
from hwnas.tasks.metrics import is_metric, metric_of


def check_data(runs: Sequence[ComparedRun], *, allow_mixed: bool) -> list[str]:
    """Check that runs are of the same data; return sentences on differing targets and budgets.

    Raises:
        RunError: images, splits or image sizes differ, and ``allow_mixed`` is False.
    """
    notes = []
    known = {run.data: run.name for run in reversed(runs) if run.data is not None}
    if len(known) > 1:
        (first, second, *_) = sorted(known.values())
        if not allow_mixed:
            raise RunError(
                f"{first} and {second} were not scored on the same images (other data, splits or "
                "image size): their metrics are not comparable. Set allow_mixed=true to compare "
                "them anyway."
            )
        notes.append(
            "Runs on different data, splits or image sizes are mixed: their metrics are not "
            "comparable."
        )
    silent = [run.name for run in runs if run.data is None]
    if silent and len(runs) > 1:
        notes.append(f"Data unknown, may differ: {listed(silent)}.")
    notes += [f"{run.name}: {note}." for run in runs for note in run.notes]
    targets = [*dict.fromkeys(run.target for run in runs if run.target is not None)]
    if len(targets) > 1:
        notes.append(f"Costs are of different targets: {listed(targets)}.")
    budgets = {tuple(sorted(run.limits.items())) for run in runs}
    if len(budgets) > 1:
        notes.append("The runs had different budgets; each front is within its own.")
    return notes


def check_units(
    runs: Sequence[ComparedRun], objectives: Sequence[Objective], true_front: Array | None
) -> None:
    """Check that accuracies have the same unit in all runs, and in the true front ``(n, m)``.

    Raises:
        RunError: some are in per cent (a value is above 1), others have fractions.
    """
    for i, name in enumerate(o.name for o in objectives):
        if not is_metric(name) or metric_of(name).perfect != 1:
            continue
        names: dict[bool, str] = {}
        for run in runs:
            if values := [p.figures[name].value for p in run.scored if name in p.figures]:
                names.setdefault(max(values) > 1, run.name)
        if true_front is not None:
            names.setdefault(float(true_front[:, i].max()) > 1, "true_front")
        if len(names) > 1:
            raise RunError(
                f"The units of {name} differ: per cent in {names[True]}, a fraction in "
                f"{names[False]}. Convert the values of one of them."
            )


def listed(names: Iterable[str], most: int = 6) -> str:
    """Return at most ``most`` names as text, as ``a, b and 3 more``."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def check_groups(runs: Sequence[ComparedRun], group_by: str | None) -> list[str]:
    """Return remarks on options that differ within groups, or between them besides ``group_by``.

    Seeds and options of ``run`` and ``study`` are ignored. Without ``group_by`` the list is empty.
    """
    if group_by is None:
        return []
    values: dict[str, dict[str, set[str]]] = {}
    for run in runs:
        for key in sorted(option_keys(run.config)):
            if not isinstance(option_value(run.config, key), Mapping) and not _is_aside(key):
                of_key = values.setdefault(key, {})
                of_key.setdefault(run.group, set()).add(str(option_value(run.config, key)))
    within = [key for key, groups in values.items() if any(len(v) > 1 for v in groups.values())]
    between = [
        key
        for key, groups in values.items()
        if key not in within
        and not f"{key}.".startswith(f"{group_by}.")
        and len({frozenset(v) for v in groups.values()}) > 1
    ]
    notes = []
    if within:
        notes.append(f"Runs of one group differ in more than the seed: {listed(within)}.")
    if between:
        notes.append(f"Groups differ in more than {group_by}: {listed(between)}.")
    return notes


def _is_aside(key: str) -> bool:
    """Return whether a key has no influence on results."""
    return key.split(".")[0] in ("seed", "run", "study")


def option_value(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of an option such as ``budget.latency_ms``."""
    value: Any = config
    for part in key.split("."):
        value = value[part]
    return value


def option_keys(config: Mapping[str, Any], prefix: str = "") -> set[str]:
    """Return the names of all options at all levels, as ``budget`` and ``budget.latency_ms``."""
    keys = set()
    for name, value in config.items():
        keys.add(f"{prefix}{name}")
        if isinstance(value, Mapping):
            keys |= option_keys(value, f"{prefix}{name}.")
    return keys
