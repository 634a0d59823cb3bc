"""Where a finished run says that its supernets are kept."""

from collections.abc import Mapping
from pathlib import Path

from hwnas.errors import RunError
from hwnas.space import Space
from hwnas.supernets import TrainingSetup


def checkpoints(recorded: str | Mapping[str, str], space: Space) -> dict[str, Path]:
    """Return where a manifest says that the supernet of each space is kept.

    Args:
        recorded: ``checkpoint`` of the manifest; of several spaces by name.
        space: What was searched.
    """
    if isinstance(recorded, str):
        return {only.name: Path(recorded) for only in space.members}
    return {name: Path(path) for name, path in recorded.items()}


def folder_of(recorded: str | Mapping[str, str]) -> Path:
    """Return the folder of all supernets of a manifest's ``checkpoint``."""
    first = recorded if isinstance(recorded, str) else next(iter(recorded.values()))
    return Path(first).parent.parent


def check_kept(setup: TrainingSetup, kept: Path) -> None:
    """Refuse to go on where the supernet of a finished run would have to be trained again.

    Raises:
        RunError: it is not where the run left it, or this version would train another one.
    """
    if setup.train.epochs and (setup.checkpoint().path != kept or not kept.is_file()):
        raise RunError(
            f"The supernet of the run is not at {kept} as this version would train it; start from "
            "the folder in which the search was started, with the same versions and data."
        )
