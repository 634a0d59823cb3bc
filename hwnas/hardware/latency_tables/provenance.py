"""What a latency table was measured with, and whether that is what there is here."""

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
    find,
    folder,
    is_table,
    load_table,
    setting,
)
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.target import facts as target_facts

#: Facts of a device that decide figures; the second only where a target runs on an accelerator.
_DEVICE, _ACCELERATOR = ("remote", "cpu", "flags_digest"), ("gpu", "driver")


def facts(target: Target, remote: Remote) -> dict[str, Any]:
    """Return everything that decides a table's figures."""
    device = {"remote": remote.key} if remote.tracker else device_of(target)
    backend = backends.get(target.runtime)
    found: dict[str, Any] = {
        "device": device,
        "versions": {name: backends.version(name) for name in backend.fingerprint_packages},
        "target": target_facts(target),
        "hwnas": __version__,
    }
    if modules := backend.schedules.get(target.dtype):  # a change of these changes what plans mean
        found["schedules"] = _digest(modules)
    return found


def device_of(target: Target) -> dict[str, Any]:
    """Return what this machine is, with what else a target runs on.

    Raises:
        ConfigError: that is not there.
    """
    backend = backends.get(target.runtime)
    others = backends.resolve_reference(backend.devices, backend)(target) if backend.devices else {}
    return {**machine.describe(), **others}


def _digest(modules: Sequence[str]) -> str:
    """Return a digest of what modules define, wherever among them and in whatever order."""
    defined = sorted({code for module in modules for code in _definitions(module)})
    return hashlib.sha256("\n".join(defined).encode()).hexdigest()[:16]


def _definitions(module: str) -> list[str]:
    """Return what a module defines, without comments, docstrings and layout."""
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
    """Return in words how a table's machine and versions differ from those here."""
    found = []
    there, this = recorded.get("device", {}), here["device"]
    for name in (*_DEVICE, *_ACCELERATOR):
        if there.get(name) != this.get(name):
            found.append(f"{name} {there.get(name)} there, {this.get(name)} here")
    for name, version in here["versions"].items():
        if (other := recorded.get("versions", {}).get(name)) != version:
            found.append(f"{name} {other} there, {version} here")
    if recorded.get("schedules") != here.get("schedules"):
        found.append("other schedules of operators")
    settings = backends.get(here["target"]["runtime"]).name
    for name in (settings, "meter"):
        if recorded.get("target", {}).get(name) != here["target"].get(name):
            found.append(f"another target.{name}")
    return found


def here(target: Target, remote: Remote, roots: Iterable[Path]) -> LatencyTable | None:
    """Return the first table under any of ``roots`` that was measured on this machine.

    Raises:
        TableError: one that lies before it is damaged.
    """
    facts_here = facts(target, remote)
    for root in roots:
        for path in _places(target, root, facts_here):
            if is_table(path) and not differences(
                (table := load_table(path)).provenance, facts_here
            ):
                return table
    return None


def related(target: Target, remote: Remote, roots: Iterable[Path]) -> LatencyTable | None:
    """Return another device's table from which one of this machine can follow.

    It is of the same architecture, and plans of operators mean the same.
    """
    facts_here = facts(target, remote)
    for path in (folder(target, root) for root in roots):
        if is_table(path) and _follows((table := load_table(path)).provenance, facts_here):
            return table
    return None


def _follows(there: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Return whether facts are of another device of the same kind."""
    theirs, ours = (
        (found.get("schedules"), found.get("device", {}).get("architecture"))
        for found in (there, here)
    )
    return theirs == ours and bool(differences(there, here))


def _places(target: Target, root: Path, facts_here: Mapping[str, Any]) -> list[Path]:
    """Return where a table of this machine may be: of its own name, where another has the usual."""
    usual = folder(target, root)
    device, settings = facts_here["device"], backends.get(target.runtime).name
    known = [
        [device.get(n) for n in _DEVICE] + [device[n] for n in _ACCELERATOR if n in device],
        facts_here["versions"],
        facts_here.get("schedules"),
        [facts_here["target"].get(name) for name in (settings, "meter")],
    ]
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
    return [usual.with_name(f"{usual.name}-{digest[:8]}"), usual]


def open_table(
    target: Target, remote: Remote, roots: list[Path], allow_other_machine: bool, command: str
) -> LatencyTable:
    """Return the table of a target.

    Raises:
        TableError: there is none, it is damaged, or it is foreign and that is not accepted.
    """
    if (own := here(target, remote, roots)) is not None:
        return own
    path = find(target, roots)
    if path is None:
        raise TableError(
            f"Target '{target.name}' has no latency table for {setting(target)} in "
            f"{', '.join(map(str, roots))}. cost=measured times each candidate instead. "
            f"Measure one with: {command}"
        )
    table = load_table(path)
    differing = differences(table.provenance, facts(target, remote))
    if not allow_other_machine:
        raise TableError(
            f"Latency table {path} was not measured here: {'; '.join(differing)}. Measure your own "
            f"with: {command}   or say cost=measured, which times each candidate instead, or "
            "table.allow_other_machine=true and have its figures labelled."
        )
    table.from_another_machine = "; ".join(differing)
    return table


def own_table(target: Target, remote: Remote, root: Path, shipped: Path) -> LatencyTable:
    """Return the table that new measurements go into: what fits of those there are, or a new one.

    Where a table of another machine or of other versions has the usual place, it gets one beside.
    """
    facts_here = facts(target, remote)
    beside, usual = _places(target, root, facts_here)
    own = beside if is_table(usual) else usual
    known = here(target, remote, [root, shipped])
    if known is None:
        return LatencyTable(own, provenance=facts_here)
    if known.path not in (beside, usual):
        known.path = own
    return known
