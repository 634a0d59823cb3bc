"""What a latency table was measured with, and whether that is what there is here."""

import ast
import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hwnas import backends, machine
from hwnas.errors import TableError
from hwnas.latency_table import LatencyTable, find, load, setting
from hwnas.target import Remote, Target
from hwnas.target import facts as target_facts
from hwnas.version import __version__


def facts(target: Target, remote: Remote) -> dict[str, Any]:
    """Return everything that decides a table's figures."""
    device = {"remote": remote.key} if remote.tracker else machine.describe()
    backend = backends.get(target.runtime)
    found: dict[str, Any] = {
        "device": device,
        "versions": {name: importlib.metadata.version(name) for name in backend.decisive},
        "target": target_facts(target),
        "hwnas": __version__,
    }
    if backend.schedules:  # a change of these modules changes what plans mean
        source = "".join(map(_code, backend.schedules))
        found["schedules"] = hashlib.sha256(source.encode()).hexdigest()[:16]
    return found


def _code(module: str) -> str:
    """Return what a module does, without its comments, docstrings and layout."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(
            node
        ):
            node.body[0] = ast.Pass()
    return ast.unparse(tree)


def differences(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Return in words how a table's machine and versions differ from those here."""
    found = []
    there, this = recorded.get("device", {}), here["device"]
    for name in ("remote", "cpu", "flags_digest"):
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


def open_table(
    target: Target, remote: Remote, roots: list[Path], accept_foreign: bool, command: str
) -> LatencyTable:
    """Return the table of a target.

    Raises:
        TableError: there is none, it is damaged, or it is foreign and that is not accepted.
    """
    path = find(target, roots)
    if path is None:
        raise TableError(
            f"Target '{target.name}' has no latency table for {setting(target)} in "
            f"{', '.join(map(str, roots))}. cost=measured times each candidate instead. "
            f"Measure one with: {command}"
        )
    table = load(path)
    differing = differences(table.provenance, facts(target, remote))
    if differing and not accept_foreign:
        raise TableError(
            f"Latency table {path} was not measured here: {'; '.join(differing)}. Measure your own "
            f"with: {command}   or say cost=measured, which times each candidate instead, or "
            "table.accept_foreign=true and have its figures labelled."
        )
    table.foreign = "; ".join(differing)
    return table


def own_table(target: Target, remote: Remote, root: Path, shipped: Path) -> LatencyTable:
    """Return the table that new measurements go into: what fits of those there are, or a new one.

    Raises:
        TableError: the one under ``root`` was measured on another machine or with other versions.
    """
    here = facts(target, remote)
    own = root / target.name / setting(target)
    path = find(target, [root])
    if path is not None:
        table = load(path)
        if differing := differences(table.provenance, here):
            raise TableError(
                f"Latency table {path} was measured elsewhere: {'; '.join(differing)}. "
                "Keep it, and choose another folder for yours: table.dir=DIR"
            )
        return table
    other = find(target, [shipped])
    if other is not None:
        table = load(other)
        if not differences(table.provenance, here):
            table.path = own
            return table
    return LatencyTable(own, provenance=here)
