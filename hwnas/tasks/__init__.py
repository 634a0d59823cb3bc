"""Tasks: what networks are for; ``get`` finds one by the name that a data set or a user gives.

Beside those that come with hwnas, a package may bring one: its entry point in the group
``hwnas.tasks`` has the task's name, and leads to a class or an object with the parts of ``Kind``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Annotated, Any

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.schema import NumberBounds, SchemaError, validate

if TYPE_CHECKING:  # help and explanations start without numpy and scipy
    from hwnas.tasks.base import Task, TaskType

_N_CLASSES = Annotated[int, NumberBounds(1, 1 << 20)]
GROUP = "hwnas.tasks"  #: of entry points
_BUILT_IN = {
    "classification": EntryPoint(
        "classification", "hwnas.tasks.classification:Classification", GROUP
    ),
    "regression": EntryPoint("regression", "hwnas.tasks.regression:Regression", GROUP),
}


def get(name: str) -> TaskType:
    """Return a kind of task by name: one that comes with hwnas, or one of an installed package.

    Raises:
        ConfigError: there is none of that name, or what a package brings under it is none.
    """
    if name in _BUILT_IN:
        built_in: TaskType = _BUILT_IN[name].load()()
        return built_in
    points = {point.name: point for point in entry_points(group=GROUP)}
    if name not in points:
        raise ConfigError(unknown_name("task", name, {*_BUILT_IN, *points}))
    try:
        loaded = points[name].load()
        kind: Any = loaded() if inspect.isclass(loaded) else loaded
    except Exception as error:  # a stranger's module may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"task={name} ({points[name].value}) cannot be loaded: {reason}"
        ) from error
    if missing := [part for part in _parts() if getattr(kind, part, None) is None]:
        raise ConfigError(
            f"task={name} ({points[name].value}) is no task: it lacks {', '.join(missing)}; see "
            "hwnas.tasks.base.TaskType."
        )
    found: TaskType = kind
    return found


def brought(name: str) -> tuple[str, ...]:
    """Return a kind of task with the package and its version that bring it; nothing if hwnas does.

    Its code decides what networks learn.
    """
    if name in _BUILT_IN:
        return ()
    points = {point.name: point for point in entry_points(group=GROUP)}
    dist = points[name].dist if name in points else None
    return (name,) if dist is None else (name, dist.name, dist.version)


def _parts() -> list[str]:
    from hwnas.tasks.base import TaskType

    return [name for name in vars(TaskType) if not name.startswith("_")]


def from_json(raw: Mapping[str, Any]) -> Task:
    """Return the task that ``Task.to_json`` described, by the name that stands beside it.

    Raises:
        ConfigError: there is no such kind of task, or what is said of it is damaged.
    """
    try:
        return get(raw["name"]).from_json(raw)
    except SchemaError as problem:
        raise ConfigError(f"A task is recorded that is none: {problem}.") from None


def of_manifest(record: Mapping[str, Any]) -> Task:
    """Return the task of a run's manifest; earlier versions recorded classes alone."""
    return from_json(record.get("task") or _classes(record.get("classes", [])))


def of_proof(record: Mapping[str, Any]) -> Task:
    """Return the task of an export's proof; earlier versions recorded the number of classes.

    Raises:
        SchemaError: it says neither.
    """
    if (said := record.get("task")) is None:
        n: int = validate(_N_CLASSES, record["model"].get("n_classes"), "model.n_classes")
        said = _classes([str(i) for i in range(n)])
    return from_json(said)


def _classes(names: Sequence[str]) -> dict[str, Any]:
    return {"name": "classification", "classes": list(names)}
