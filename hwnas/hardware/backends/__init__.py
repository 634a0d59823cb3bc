"""Backends: what compiles, runs or models networks for a target, one folder each.

An entry point of the group ``hwnas.backends`` has the name that target files say, and leads to a
``Description``: data, which needs no package of the backend. A package of one's own may bring one;
``hwnas.testing`` has the suite that it must pass.
"""

import functools
import importlib.util
import pkgutil
from collections.abc import Mapping
from importlib import metadata
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.hardware.backends.description import ArtefactType, BackendDescription

GROUP = "hwnas.backends"  #: of entry points
_OWN = "hwnas"  #: the package whose backends are always there


def names() -> list[str]:
    """Return what a target's ``runtime`` may be."""
    return sorted(_found())


def get(name: str) -> BackendDescription:
    """Return a backend by the name that targets give.

    Raises:
        ConfigError: there is none of that name, or what a package brings under it is none.
    """
    if (found := _found().get(name)) is None:
        raise ConfigError(unknown_name("runtime", name, names()))
    if isinstance(found, str):
        raise ConfigError(found)
    return found


def known() -> list[BackendDescription]:
    """Return all backends that can be described, each once."""
    found = _found()
    each = [found[name] for name in names()]
    return list({d.name: d for d in each if isinstance(d, BackendDescription)}.values())


def default() -> str:
    """Return what a target's ``runtime`` is that says none."""
    return next((d.name for d in known() if d.default), names()[0])


def lacking(needed: Mapping[str, str]) -> str:
    """Return which packages are not installed, and what brings them; empty if all are.

    Args:
        needed: Distributions by the module that they bring.
    """
    missing = [needed[name] for name in needed if importlib.util.find_spec(name) is None]
    verb = "is" if len(missing) == 1 else "are"
    listed = " ".join(missing)
    return f"{listed} {verb} not installed: pip install {listed}" if missing else ""


def resolve_reference(reference: str, user: BackendDescription) -> Any:
    """Return what a ``module:name`` of a description refers to.

    Raises:
        ConfigError: a package that the backend needs is not installed.
    """
    check_installed(user)
    return pkgutil.resolve_name(reference)


def check_installed(backend: BackendDescription) -> None:
    """Refuse a backend that lacks a package.

    Raises:
        ConfigError: it names the command that installs it.
    """
    if missing := [n for module, n in backend.needs.items() if lacking({module: n})]:
        raise ConfigError(
            f"target.runtime={backend.name} needs {' '.join(missing)}, not installed here: "
            f"{backend.install}"
        )


def artefacts() -> dict[str, ArtefactType]:
    """Return the artefacts that an export may hold by backends, by name."""
    return {artefact.name: artefact for d in known() for artefact in d.artefacts}


def fingerprint_packages(runtime: str, dtype: str) -> list[str]:
    """Return the distributions whose versions decide the figures of a target.

    They are those of its backend and of the one that runs its artefact.
    """
    backend = get(runtime)
    names = [*backend.fingerprint_packages]
    for other in known():
        if backend.dtypes[dtype] in (artefact.name for artefact in other.artefacts):
            names += other.fingerprint_packages
    return list(dict.fromkeys(names))


def version(name: str) -> str:
    """Return the version of a distribution.

    Where others bring its module, such as ``onnxruntime-gpu``, their names and versions.

    Raises:
        PackageNotFoundError: it is not installed.
    """
    found = sorted(_bringing().get(name, {name}))
    if found == [name]:
        return metadata.version(name)
    return ", ".join(f"{other} {metadata.version(other)}" for other in found)


@functools.cache
def _bringing() -> Mapping[str, set[str]]:
    """Return the distributions that bring each module."""
    return {name: {*found} for name, found in metadata.packages_distributions().items()}


def columns() -> dict[str, str]:
    """Return the columns that name files of candidates, by the suffix of the file."""
    return {suffix: name for d in known() for suffix, name in d.columns.items()}


def file_names(runtime: str, dtype: str) -> dict[str, str]:
    """Return the names in exports of a target's files, by suffix."""
    backend = get(runtime)
    own = artefacts()[backend.dtypes[dtype]]
    alike = sorted(backend.artefacts, key=lambda artefact: artefact.dtype == dtype)
    of_all = {s: name for artefact in alike for s, name in artefact.files.items()}
    return {**of_all, **own.files}


def sections() -> dict[str, type]:
    """Return the settings that targets may have for backends, by the name of their section."""
    return {d.name: d.settings for d in known() if d.settings is not None}


@functools.cache
def third_party() -> frozenset[str]:
    """Return the names of backends that other packages bring."""
    return frozenset(point.name for point in entry_points(group=GROUP) if _package(point) != _OWN)


def added_after_release() -> frozenset[str]:
    """Return the names of backends that came when there were runs already."""
    return third_party() | {d.name for d in known() if d.added_after_release}


@functools.cache
def _found() -> Mapping[str, BackendDescription | str]:
    """Return each backend by name, or why it cannot be used."""
    found: dict[str, BackendDescription | str] = {}
    for point in entry_points(group=GROUP):
        found[point.name] = (
            f"Several backends are called '{point.name}'; uninstall all packages but one."
            if point.name in found
            else _loaded(point)
        )
    if not any(_package(point) == _OWN for point in entry_points(group=GROUP)):
        raise ConfigError("hwnas is not installed as it is here: pip install -e .")
    return found


def _loaded(point: EntryPoint) -> BackendDescription | str:
    words = f"Entry point '{point.name} = {point.value}' of package {_package(point)}"
    try:
        found = point.load()
    except Exception as error:  # a stranger's module may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return f"{words} cannot be loaded: {reason}"
    if not isinstance(found, BackendDescription):
        return (
            f"{words} is not a backend: it must be a "
            "hwnas.hardware.backends.description.BackendDescription."
        )
    return found


def _package(point: EntryPoint) -> str:
    return "" if point.dist is None else point.dist.name
