"""The folder of an export: it appears whole or not at all, and says of every file what it held."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hwnas import files
from hwnas.errors import LockedError, ProofError, RunError

PROOF, CARD, SIGNATURE = "proof.json", "MODEL_CARD.md", "proof.sig"
BUILDING = ".hwnas-building"  #: what is not finished, in the folder that exports go into
_GIT = (".git", ".gitattributes", ".gitignore")  # what a repository of models adds
_SHOWN = 5  # files that are named


@contextmanager
def building(root: Path, name: str) -> Iterator[Path]:
    """Give a new folder for ``root/name``, which is there only if ``keep`` was called."""
    folder = root / BUILDING / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(root / BUILDING, ignore_errors=True)


def check_free(root: Path, name: str) -> None:
    """Refuse to export what is there already.

    Raises:
        RunError: there is such a folder.
    """
    if (root / name).exists():
        raise RunError(f"{root / name} is there already: remove it, or choose another dir=DIR.")


def keep(folder: Path, root: Path, name: str) -> Path:
    """Give what was built its name; one of an earlier, failed export is replaced."""
    place = root / name
    if name.endswith(".failed"):
        shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    os.rename(folder, place)
    return place


def sweep(root: Path, *, beside: bool) -> None:
    """Remove what killed exports left in ``root``, which is locked, and in folders beside it."""
    shutil.rmtree(root / BUILDING, ignore_errors=True)
    for left in root.parent.glob(f"*/{BUILDING}") if beside else ():
        try:
            lock = files.lock(left.parent)
        except LockedError:
            continue  # another process builds there
        shutil.rmtree(left)
        if [entry.name for entry in left.parent.iterdir()] == [files.LOCK]:
            shutil.rmtree(left.parent)
        lock.close()


def digests(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file of an export, but its proof and the signature of that."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if name.parts[0] in _GIT or str(name) in (PROOF, SIGNATURE):
            continue
        if path.is_symlink():
            found[str(name)] = "a link"
        elif path.is_file():
            found[str(name)] = files.digest(path)
    return found


def differences(recorded: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Return in words which files are missing, changed or not of the export."""
    missing = [f"{name} is missing" for name in recorded if name not in there]
    changed = [f"{n} was changed" for n, d in recorded.items() if there.get(n, d) != d]
    extra = [f"{name} is not of the export" for name in there if name not in recorded]
    found = missing + changed + extra
    return found[:_SHOWN] + [f"{len(found) - _SHOWN} more"] * (len(found) > _SHOWN)


def check_unchanged(folder: Path, recorded: Mapping[str, str]) -> None:
    """Refuse an export whose files are not those that its proof is of.

    Raises:
        ProofError: it names them.
    """
    if differing := differences(recorded, digests(folder)):
        raise ProofError(f"{folder}: {'; '.join(differing)}.")
