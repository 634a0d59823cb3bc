"""Provenance of latency tables: device and versions, compared with those of this machine."""

import ast
import hashlib
import importlib.util
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hwnas.core import machine
from hwnas.core.errors import TableError
from hwnas.core.package import __version__
from hwnas.hardware import backends
from hwnas.hardware.latency_tables.latency_table import (
    LatencyTable,
    find_table,
    is_table,
    load_table,
    table_folder,
    table_name,
)
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.target import facts as target_facts

#: Device facts that affect latencies; the second group only for accelerators.
_DEVICE, _ACCELERATOR = ("remote", "cpu", "flags_digest"), ("gpu", "driver")


def provenance_facts(target: Target, remote: Remote) -> dict[str, Any]:
    """Return what affects latencies measured now, as ``provenance.json`` of a table records it.

    Keys: ``device`` (``device_facts`` of this machine, or ``remote``, the key of a remote device),
    ``versions`` (by package), ``target`` (its fields), ``hwnas`` (version) and, if operators have
    compilation plans, ``schedules`` (digest of the code that defines their meaning).

    Raises:
        ConfigError: see ``device_facts``.
    """
    device = {"remote": remote.key} if remote.tracker else device_facts(target)
    backend = backends.get(target.runtime)
    result: dict[str, Any] = {
        "device": device,
        "versions": {name: backends.version(name) for name in backend.fingerprint_packages},
        "target": target_facts(target),
        "hwnas": __version__,
    }
    if modules := backend.schedules.get(target.dtype):  # their code defines the meaning of plans
        result["schedules"] = _digest(modules)
    return result


def device_facts(target: Target) -> dict[str, Any]:
    """Return the facts of ``core.machine.describe``, and those of the target's accelerator.

    For example ``gpu`` and ``driver`` for NVIDIA GPUs; nothing is added for CPUs.

    Raises:
        ConfigError: the accelerator is not found, or a package of the backend is not installed.
    """
    backend = backends.get(target.runtime)
    if not backend.devices:
        return machine.describe()
    return {**machine.describe(), **backends.resolve_reference(backend.devices, backend)(target)}


def decisive_facts(target: Target, remote: Remote) -> dict[str, Any]:
    """Return the facts of the device that affect latencies; ``None`` if one does not apply.

    Raises:
        ConfigError: see ``device_facts``.
    """
    device = provenance_facts(target, remote)["device"]
    return {name: device.get(name) for name in (*_DEVICE, *_ACCELERATOR)}


def _digest(modules: Sequence[str]) -> str:
    """Return a digest of all definitions in some modules, in any order."""
    defined = sorted({code for module in modules for code in _definitions(module)})
    return hashlib.sha256("\n".join(defined).encode()).hexdigest()[:16]


def _definitions(module: str) -> list[str]:
    """Return the definitions of a module, without comments, docstrings and layout."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(
            node
        ):
            node.body = node.body[1:] or [ast.Pass()]
    imports = (ast.Import, ast.ImportFrom)
    return [ast.unparse(node) for node in tree.body if not isinstance(node, imports)]


def differences(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return how a table's device, versions and settings differ from those here, one text each.

    Empty if the table is valid here.

    Args:
        recorded: ``LatencyTable.provenance``.
        here: Result of ``provenance_facts``.
    """
    messages = []
    recorded_device, device = recorded.get("device", {}), here["device"]
    for name in (*_DEVICE, *_ACCELERATOR):
        if recorded_device.get(name) != device.get(name):
            there, now = (facts.get(name) or "none" for facts in (recorded_device, device))
            values = f"{there} in the table, {now} here"
            messages.append(f"{name}: {values}")
    for name, version in here["versions"].items():
        if (other := recorded.get("versions", {}).get(name)) != version:
            messages.append(f"{name}: {other or 'none'} in the table, {version} here")
    if recorded.get("schedules") != here.get("schedules"):
        messages.append("its compilation plans are of another version of hwnas")
    for name in _settings(here):
        if recorded.get("target", {}).get(name) != here["target"].get(name):
            messages.append(f"different target.{name}")
    return messages


def _settings(here: Mapping[str, Any]) -> list[str]:
    """Return the fields of a target that affect measured latencies.

    The clock of a remote device is known from the target only.
    """
    clock = ["clock_mhz"] * ("remote" in here["device"])
    return [backends.get(here["target"]["runtime"]).name, "meter", *clock]


def matching_table(target: Target, remote: Remote, roots: Iterable[Path]) -> LatencyTable | None:
    """Return a target's table that was measured on its device with the installed versions.

    The device is this machine, or the one of ``remote``. The first of ``roots`` with such a table
    counts; ``None`` if none has one.

    Raises:
        TableError: a table of the target in an earlier folder is damaged.
        ConfigError: see ``device_facts``.
    """
    facts_here = provenance_facts(target, remote)
    for root in roots:
        for path in _candidate_paths(target, root, facts_here):
            if is_table(path) and not differences(
                (table := load_table(path)).provenance, facts_here
            ):
                return table
    return None


def related_table(target: Target, remote: Remote, roots: Iterable[Path]) -> LatencyTable | None:
    """Return a table of a target that can be transferred to its device.

    It is of another device or version, but of the same CPU architecture, and its compilation plans
    have the same meaning. The first of ``roots`` with such a table counts; ``None`` if none has
    one.

    Raises:
        TableError: a table of the target in an earlier folder is damaged.
        ConfigError: see ``device_facts``.
    """
    facts_here = provenance_facts(target, remote)
    for path in (table_folder(target, root) for root in roots):
        if is_table(path) and _is_related((table := load_table(path)).provenance, facts_here):
            return table
    return None


def _is_related(there: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Return whether these are facts of another device of the same architecture."""
    theirs, ours = (
        (facts.get("schedules"), facts.get("device", {}).get("architecture"))
        for facts in (there, here)
    )
    return theirs == ours and bool(differences(there, here))


def _candidate_paths(target: Target, root: Path, facts_here: Mapping[str, Any]) -> list[Path]:
    """Return the folders of this machine's table: a name with a digest, and the usual name."""
    usual = table_folder(target, root)
    device = facts_here["device"]
    known = [
        [device.get(n) for n in _DEVICE] + [device[n] for n in _ACCELERATOR if n in device],
        facts_here["versions"],
        facts_here.get("schedules"),
        [facts_here["target"].get(name) for name in _settings(facts_here)],
    ]
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
    return [usual.with_name(f"{usual.name}-{digest[:8]}"), usual]


def open_table(
    target: Target, remote: Remote, roots: list[Path], allow_other_machine: bool, command: str
) -> LatencyTable:
    """Return the latency table of a target; one of its device is preferred.

    Args:
        target: The target.
        remote: The remote device; without ``tracker``: this machine.
        roots: Folders to search, in order.
        allow_other_machine: Accept a table of another machine or version, if there is no other; it
            has ``from_another_machine`` set.
        command: Command that measures a table, for messages.

    Raises:
        TableError: there is no table, it is damaged, or it is of another machine or version and
            that is not accepted.
        ConfigError: see ``device_facts``.
    """
    if (local := matching_table(target, remote, roots)) is not None:
        return local
    path = find_table(target, roots)
    if path is None:
        raise TableError(
            f"Target '{target.name}' has no latency table for {table_name(target)} in "
            f"{', '.join(map(str, roots))}. cost=measured times each candidate instead. "
            f"Measure one with: {command}"
        )
    table = load_table(path)
    differing = differences(table.provenance, provenance_facts(target, remote))
    if not allow_other_machine:
        raise TableError(
            f"Latency table {path} was measured on another machine or version: "
            f"{'; '.join(differing)}. Measure your own with: {command}   or set cost=measured, "
            "which times each candidate, or table.allow_other_machine=true: results are labelled."
        )
    table.from_another_machine = "; ".join(differing)
    return table


def writable_table(target: Target, remote: Remote, root: Path, shipped: Path) -> LatencyTable:
    """Return the table for new measurements, which is saved in ``root``.

    It has the content of the table of this device in ``root`` or ``shipped`` (the folder of the
    tables in the package), and is empty if there is none. If a table of another device or version
    has its name in ``root``, a digest is added to the name.

    Raises:
        TableError: a table of the target is damaged.
        ConfigError: see ``device_facts``.
    """
    facts_here = provenance_facts(target, remote)
    with_digest, usual = _candidate_paths(target, root, facts_here)
    path = with_digest if is_table(usual) else usual
    known = matching_table(target, remote, [root, shipped])
    if known is None:
        return LatencyTable(path, provenance=facts_here)
    if known.path not in (with_digest, usual):
        known.path = path
    return known
