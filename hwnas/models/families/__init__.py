"""Families of networks, by name.

A package can add a family: an entry point of the group ``hwnas.families`` has the family's name and
refers to a class or an object with the methods of ``Family``. Example: ``experiments/own_family``.
"""

import functools
import inspect
import sys
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, cast

from hwnas.core.errors import SpaceError, unknown_name
from hwnas.models.families import annotations
from hwnas.models.families.base import MBCONV, RESNET, VIT, Family
from hwnas.models.spaces import SearchSpace

GROUP = "hwnas.families"  #: of entry points
_BUILT_IN: dict[str, Family] = {"mbconv": MBCONV, "resnet": RESNET, "vit": VIT}
_MEMBERS = [name for name in vars(Family) if not name.startswith("_")]


def get(name: str) -> Family:
    """Return a family by name, built-in or from an installed package.

    Raises:
        SpaceError: if not exactly one has that name, or a package's family cannot be imported or
            lacks methods.
    """
    point = _entry_point(name)
    if point is not None:
        return _load(point)
    if name not in _BUILT_IN:
        raise SpaceError(
            unknown_name("family", name, {*_BUILT_IN, *_entry_points(tuple(sys.path)).names})
        )
    return _BUILT_IN[name]


def family_of(space: SearchSpace) -> Family:
    """Return the family of a space after checking the space.

    Raises:
        SpaceError: if there is no such family, or the space is invalid for it.
    """
    try:
        family = get(space.family)
    except SpaceError as error:
        raise SpaceError(f"Space '{space.name}': {error}") from None
    annotations.check_annotations(space, family)
    return family


def plugin_identity(name: str) -> tuple[str, ...]:
    """Return ``(package, version)`` of a family from a package; ``()`` for other names.

    Raises:
        SpaceError: if several families have that name.
    """
    point = _entry_point(name)
    return () if point is None or point.dist is None else (point.dist.name, point.dist.version)


def _entry_point(name: str) -> EntryPoint | None:
    """Return the entry point of a family of an installed package, if there is one.

    Raises:
        SpaceError: if the name is already taken.
    """
    points = list(_entry_points(tuple(sys.path)).select(name=name))
    if points and name in _BUILT_IN:
        raise SpaceError(
            f"{_describe(points[0])}: '{name}' is a family of hwnas. Choose another name in "
            "[project.entry-points], or uninstall the package."
        )
    if len(points) > 1:
        listed = ", ".join(_describe(point) for point in points)
        raise SpaceError(f"Several families are named '{name}'; uninstall all but one: {listed}.")
    return points[0] if points else None


@functools.cache  # reading all packages takes 20 ms, and each digest of a network needs them
def _entry_points(import_path: tuple[str, ...]) -> EntryPoints:
    """Return the entry points of families; ``import_path`` is ``sys.path``."""
    return entry_points(group=GROUP)


def _load(point: EntryPoint) -> Family:
    """Return the family of an entry point.

    Raises:
        SpaceError: if it cannot be imported, or lacks a method.
    """
    try:
        loaded = point.load()
        family: Any = loaded() if inspect.isclass(loaded) else loaded
    except Exception as error:  # a plug-in may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise SpaceError(
            f"{_describe(point)} cannot be loaded: {reason}. Repair or uninstall the package."
        ) from error
    if missing := [name for name in _MEMBERS if getattr(family, name, None) is None]:
        raise SpaceError(
            f"{_describe(point)} is no family: it lacks {', '.join(missing)}. Add what "
            "hwnas.models.families.base.Family lists."
        )
    return cast(Family, family)


def _describe(point: EntryPoint) -> str:
    package = "" if point.dist is None else f" of package {point.dist.name}"
    return f"Entry point '{point.name} = {point.value}'{package}"
