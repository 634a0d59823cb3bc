"""Families of networks; ``get`` finds one by the name that a search space gives.

Beside those that come with hwnas, a package may bring one: its entry point in the group
``hwnas.families`` has the family's name, and leads to a class or an object with the parts of
``Family``. ``experiments/own_family`` is an example.
"""

import inspect
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from hwnas.core.errors import SpaceError, unknown_name
from hwnas.models.families import annotations
from hwnas.models.families.base import Family
from hwnas.models.families.builtin import MBConv, ResNet, ViT
from hwnas.models.spaces import SearchSpace

GROUP = "hwnas.families"  #: of entry points
_BUILT_IN: dict[str, type[Family]] = {"mbconv": MBConv, "resnet": ResNet, "vit": ViT}
_PARTS = [name for name in vars(Family) if not name.startswith("_")]


def get(name: str) -> Family:
    """Return a family by name: one that comes with hwnas, or one of an installed package.

    Raises:
        SpaceError: there is none of that name, or what a package brings under it is no family.
    """
    point = _brought(name)
    if point is not None:
        return _loaded(point)
    if name not in _BUILT_IN:
        raise SpaceError(
            unknown_name("family", name, {*_BUILT_IN, *entry_points(group=GROUP).names})
        )
    return _BUILT_IN[name]()


def family_of(space: SearchSpace) -> Family:
    """Return the family of a space, whose choices it builds networks of.

    Raises:
        SpaceError: there is no such family, or it cannot build what the space lists.
    """
    try:
        family = get(space.family)
    except SpaceError as error:
        raise SpaceError(f"Space '{space.name}': {error}") from None
    annotations.check_annotations(space, family)
    return family


def origin(name: str) -> tuple[str, ...]:
    """Return the package and its version that bring a family; nothing if hwnas itself does."""
    point = _brought(name)
    return () if point is None or point.dist is None else (point.dist.name, point.dist.version)


def _brought(name: str) -> EntryPoint | None:
    """Return the entry point of that name, if an installed package has one.

    Raises:
        SpaceError: the name has another family already.
    """
    points = list(entry_points(group=GROUP, name=name))
    if points and name in _BUILT_IN:
        raise SpaceError(
            f"{_words(points[0])}: '{name}' is a family of hwnas itself. Give yours another name "
            "in [project.entry-points], or uninstall the package."
        )
    if len(points) > 1:
        listed = ", ".join(_words(point) for point in points)
        raise SpaceError(f"Several families are called '{name}'; uninstall all but one: {listed}.")
    return points[0] if points else None


def _loaded(point: EntryPoint) -> Family:
    """Return the family that an entry point leads to.

    Raises:
        SpaceError: it cannot be imported, or lacks something.
    """
    try:
        loaded = point.load()
        family: Any = loaded() if inspect.isclass(loaded) else loaded
    except Exception as error:  # a stranger's module may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise SpaceError(f"{_words(point)} cannot be loaded: {reason}") from error
    if missing := [name for name in _PARTS if getattr(family, name, None) is None]:
        raise SpaceError(
            f"{_words(point)} is no family: it lacks {', '.join(missing)}. A family has "
            f"{', '.join(_PARTS)}; see hwnas.models.families.base.Family."
        )
    found: Family = family
    return found


def _words(point: EntryPoint) -> str:
    package = "" if point.dist is None else f" of package {point.dist.name}"
    return f"Entry point '{point.name} = {point.value}'{package}"
