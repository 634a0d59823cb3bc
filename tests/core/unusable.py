"""Runs that verbs which go on from a finished search cannot use."""

import json
from collections.abc import Callable
from pathlib import Path


def edit(run: Path, key: str, value: object) -> None:
    """Change what the manifest of a run says."""
    path = run / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))


def _without(run: Path, status: str) -> None:
    (run / "front.json").unlink()
    edit(run, "status", status)


#: What is done to a finished search, and what is said of it then.
CHANGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda run: (run / "front.json").unlink(), "has no front yet. Finish it with"),
    (lambda run: _without(run, "nothing fits the budget"), "ended without a front: nothing fits"),
    (lambda run: (run / "manifest.json").unlink(), "it has no manifest.json"),
    (lambda run: edit(run, "checkpoint", "/gone/x/supernet.safetensors"), "is not at /gone"),
    (lambda run: edit(run, "verb", "train"), "is no search that trained networks"),
]
