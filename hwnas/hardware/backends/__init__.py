"""Backends compile, run or model networks for a target; each has a folder.

An entry point of the group ``hwnas.backends`` has the name that target files use and refers to a
``BackendDescription``, which needs no package of the backend. Other packages may add backends;
``hwnas.testing`` has the contract suite.
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

GROUP = "hwnas.backends"  #: group of entry points
_OWN = "hwnas"  #: distribution of the built-in backends


def names() -> list[str]:
    """Return the names of all backends, sorted: the allowed values of ``target.runtime``.

    They include backends that cannot be loaded, which ``get`` refuses.
    """
    return sorted(_backends_by_name())


def get(name: str) -> BackendDescription:
    """Return the description of a backend.

    Raises:
        ConfigError: the name is unknown, several packages register it, or its entry point cannot be
            loaded or does not refer to a ``BackendDescription``.
    """
    if (description := _backends_by_name().get(name)) is None:
        raise ConfigError(unknown_name("runtime", name, names()))
    if isinstance(description, str):
        raise ConfigError(description)
    return description


def known() -> list[BackendDescription]:
    """Return the descriptions of all backends that can be loaded, sorted by name."""
    descriptions = _backends_by_name()
    values = [descriptions[name] for name in names()]
    return list({d.name: d for d in values if isinstance(d, BackendDescription)}.values())


def default() -> str:
    """Return the default of ``target.runtime``: the name of the backend marked ``default``."""
    return next((d.name for d in known() if d.default), names()[0])


def lacking(needed: Mapping[str, str]) -> str:
    """Return a text that names the packages that are not installed, and how to install them.

    Empty if all are installed. ``needed`` has their names for pip, by the module of each.
    """
    missing = [needed[name] for name in needed if importlib.util.find_spec(name) is None]
    verb = "is" if len(missing) == 1 else "are"
    listed = " ".join(missing)
    return f"{listed} {verb} not installed: pip install {listed}" if missing else ""


def resolve_reference(reference: str, user: BackendDescription) -> Any:
    """Import and return the object ``module:name`` of a backend; ``user`` is its description.

    Raises:
        ConfigError: a package in ``user.needs`` is not installed.
    """
    check_installed(user)
    return pkgutil.resolve_name(reference)


def check_installed(backend: BackendDescription) -> None:
    """Check that the packages in ``backend.needs`` are installed.

    Raises:
        ConfigError: one is not; the message has the command that installs it.
    """
    if missing := [n for module, n in backend.needs.items() if lacking({module: n})]:
        raise ConfigError(
            f"target.runtime={backend.name} needs {' '.join(missing)}, not installed here: "
            f"{backend.install}"
        )


def artefacts() -> dict[str, ArtefactType]:
    """Return the artefact types of all backends, by name, such as ``model.int8.onnx``."""
    return {artefact.name: artefact for d in known() for artefact in d.artefacts}


def fingerprint_packages(runtime: str, dtype: str) -> list[str]:
    """Return the names of the packages whose versions affect results, each once.

    These are packages of the backend ``runtime`` and of the backend that runs its artefact of
    ``dtype``.

    Raises:
        ConfigError: the backend is unknown or cannot be loaded.
    """
    backend = get(runtime)
    names = [*backend.fingerprint_packages]
    for other in known():
        if backend.dtypes[dtype] in (artefact.name for artefact in other.artefacts):
            names += other.fingerprint_packages
    return list(dict.fromkeys(names))


def version(name: str) -> str:
    """Return the version of an installed package, such as ``1.23.0``.

    If other packages provide the module ``name``, return their names and versions instead:
    ``onnxruntime-gpu 1.23.0``, separated by commas.

    Raises:
        PackageNotFoundError: the package is not installed.
    """
    packages = sorted(_providers().get(name, {name}))
    if packages == [name]:
        return metadata.version(name)
    return ", ".join(f"{other} {metadata.version(other)}" for other in packages)


@functools.cache
def _providers() -> Mapping[str, set[str]]:
    """Return the distributions that provide each module."""
    return {name: {*packages} for name, packages in metadata.packages_distributions().items()}


def columns() -> dict[str, str]:
    """Return the columns of candidate tables that hold file names, by suffix of the file.

    For example ``{".onnx": "onnx"}``.
    """
    return {suffix: name for d in known() for suffix, name in d.columns.items()}


def file_names(runtime: str, dtype: str) -> dict[str, str]:
    """Return the names of a target's files in an export, by suffix in ``RUN/models``.

    For example ``{".onnx": "model.int8.onnx"}`` for ``RUN/models/ID.onnx``. The last entries are
    the files of ``dtype``, on which results are measured.

    Raises:
        ConfigError: the backend is unknown or cannot be loaded.
    """
    backend = get(runtime)
    artefact = artefacts()[backend.dtypes[dtype]]
    by_dtype = sorted(backend.artefacts, key=lambda artefact: artefact.dtype == dtype)
    names = {s: name for artefact in by_dtype for s, name in artefact.files.items()}
    return {**names, **artefact.files}


def sections() -> dict[str, type]:
    """Return the dataclass of each backend's section in target files, by section name.

    Backends without settings are left out.
    """
    return {d.name: d.settings for d in known() if d.settings is not None}


@functools.cache
def third_party() -> frozenset[str]:
    """Return the names of backends that are registered by packages other than hwnas."""
    return frozenset(point.name for point in entry_points(group=GROUP) if _package(point) != _OWN)


def added_after_release() -> frozenset[str]:
    """Return the names of backends that were added after the first release or by other packages."""
    return third_party() | {d.name for d in known() if d.added_after_release}


@functools.cache
def _backends_by_name() -> Mapping[str, BackendDescription | str]:
    """Return each backend by name, or the reason why it cannot be used."""
    registered: dict[str, BackendDescription | str] = {}
    for point in entry_points(group=GROUP):
        registered[point.name] = (
            f"Several packages register a backend '{point.name}' (entry points of the group "
            f"{GROUP}): uninstall all but one."
            if point.name in registered
            else _load_description(point)
        )
    if not any(_package(point) == _OWN for point in entry_points(group=GROUP)):
        raise ConfigError(
            "The installed package hwnas has no backends: reinstall it, or run pip install -e . in "
            "its clone."
        )
    return registered


def _load_description(point: EntryPoint) -> BackendDescription | str:
    entry = f"Entry point '{point.name} = {point.value}' of package {_package(point)}"
    try:
        description = point.load()
    except Exception as error:  # other packages may raise any exception
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return f"{entry} cannot be loaded: {reason}. Repair or uninstall the package."
    if not isinstance(description, BackendDescription):
        return (
            f"{entry} is not a backend: it must be a "
            "hwnas.hardware.backends.description.BackendDescription. Repair or uninstall the "
            "package."
        )
    return description


def _package(point: EntryPoint) -> str:
    return "" if point.dist is None else point.dist.name
