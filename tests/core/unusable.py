"""Runs that the verbs for finished searches refuse."""

import json
from collections.abc import Callable
from pathlib import Path

from hwnas.core.run_folder import RunFolder


def edit(run: Path, key: str, value: object) -> None:
    """Change a field of the manifest of a run, with its checksum."""
    path = run / "manifest.json"
    RunFolder(run).write_json(path.name, json.loads(path.read_text()) | {key: value})


def _remove_front(run: Path, status: str) -> None:
    """Remove the front of a run, also from the list of files in its manifest."""
    (run / "front.json").unlink()
    files = json.loads((run / "manifest.json").read_text()).get("files", {})
    edit(run, "files", {name: digest for name, digest in files.items() if name != "front.json"})
    edit(run, "status", status)


#: Changes of a finished search, with the message of the error.
CHANGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda run: _remove_front(run, "finished"), "has no front yet. Finish it with"),
    (
        lambda run: _remove_front(run, "nothing fits the budget"),
        "ended without a front: nothing fits",
    ),
    (lambda run: (run / "manifest.json").unlink(), "it has no manifest.json"),
    (lambda run: edit(run, "verb", "train"), "is of 'hwnas train'. Give the folder of a search"),
]
