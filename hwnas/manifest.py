"""The manifest of a run: what was asked for, and what it came to."""

import json
from pathlib import Path
from typing import Any

from hwnas.errors import RunError, why

Row = dict[str, Any]


def read_manifest(path: Path, option: str = "run.resume") -> Row:
    """Return the manifest of a run folder.

    Args:
        path: The folder.
        option: By which the user named it.

    Raises:
        RunError: the folder is not a run's.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        if not isinstance(manifest["arguments"], list):
            raise ValueError("'arguments' is not a list")
    except FileNotFoundError:
        raise RunError(f"{option}={path}: no manifest.json there, so it is not a run.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{option}={path}: manifest.json cannot be read: {why(error)}") from None
    return dict(manifest)


def weights_of(manifest: Row) -> str:
    """Return what scored candidates in a search (``accuracy=...``), by its manifest."""
    said = manifest.get("config", {}).get("accuracy")
    return str(said or "supernet")  # earlier versions had nothing else, and did not record it
