"""Tasks of networks, by name.

A package can add a task: an entry point of the group ``hwnas.tasks`` has the task's name and
refers to a class or an object with the methods of ``hwnas.tasks.base.TaskType``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, cast

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.schema import SchemaError

if TYPE_CHECKING:  # help and explanations start without numpy and scipy
    from hwnas.tasks.base import Task, TaskType

GROUP = "hwnas.tasks"  #: of entry points
_BUILT_IN = {
    "classification": EntryPoint(
        "classification", "hwnas.tasks.classification:Classification", GROUP
    ),
    "regression": EntryPoint("regression", "hwnas.tasks.regression:Regression", GROUP),
}


def get(name: str) -> TaskType:
    """Return a task type by name, built-in or from an installed package.

    Raises:
        ConfigError: if there is none of that name, or a package's task cannot be loaded or lacks
            methods.
    """
    if name in _BUILT_IN:
        return cast("TaskType", _BUILT_IN[name].load()())
    points = {point.name: point for point in entry_points(group=GROUP)}
    if name not in points:
        raise ConfigError(unknown_name("task", name, {*_BUILT_IN, *points}))
    subject = f"task={name} ({points[name].value})"
    try:
        loaded = points[name].load()
        kind: Any = loaded() if inspect.isclass(loaded) else loaded
    except Exception as error:  # a plug-in may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"{subject} cannot be loaded: {reason}. Repair or uninstall its package, or choose "
            "another task."
        ) from error
    if missing := [part for part in _members() if getattr(kind, part, None) is None]:
        raise ConfigError(
            f"{subject} is no task: it lacks {', '.join(missing)}. Add what "
            "hwnas.tasks.base.TaskType lists."
        )
    return cast("TaskType", kind)


def plugin_identity(name: str) -> tuple[str, ...]:
    """Return ``(name, package, version)`` of a task from a package; ``()`` for built-in tasks.

    ``(name,)`` if its package is unknown. It enters digests, as the package's code decides what
    networks learn.
    """
    if name in _BUILT_IN:
        return ()
    points = {point.name: point for point in entry_points(group=GROUP)}
    dist = points[name].dist if name in points else None
    return (name,) if dist is None else (name, dist.name, dist.version)


def _members() -> list[str]:
    from hwnas.tasks.base import TaskType

    return [name for name in vars(TaskType) if not name.startswith("_")]


def from_json(raw: Mapping[str, Any]) -> Task:
    """Return the task that ``Task.to_json`` described.

    Raises:
        ConfigError: if there is no such task type, or the content is invalid.
        KeyError: the content has no ``name``.
    """
    try:
        return get(raw["name"]).from_json(raw)
    except SchemaError as problem:
        raise ConfigError(
            f"The task in manifest.json (or in the proof of an export) is invalid: {problem}. "
            "Restore the file."
        ) from None


def recorded_task(manifest: Mapping[str, Any]) -> Task:
    """Return the task in a manifest; without one, as in runs on benchmark tables, classification.

    Raises:
        ConfigError: there is no such task type, or its content is invalid.
    """
    return from_json(manifest.get("task", {"name": "classification", "classes": []}))
