"""Run folders: creation, locking, resuming and atomic writing."""

import csv
import io
import json
import os
import re
import shlex
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, final

from hwnas.core import database, files
from hwnas.core.errors import HwnasError, RunError, UnfinishedError
from hwnas.core.manifest import FORMAT, Manifest, read_manifest, with_checksum
from hwnas.core.typed_files import to_json_bytes

if TYPE_CHECKING:
    import pyarrow as pa

_MANIFEST = "manifest.json"
_FORMULA = re.compile(r"[=@\t\r]|[+-](?![\d.,]*\s*%?$)")
_STUDY = ("study.db", "study.db-wal", "study.db-shm", "study.db-journal")
#: Files without a digest: they change by reading, or commands do not read them.
_WITHOUT_DIGEST = (_MANIFEST, *_STUDY, "report.html", "front.png")
INPUTS = "inputs"  #: folder of a search with small files that its arguments name
RESUMABLE = ("search", "train")  #: verbs with the option ``run.resume``
_MAX_HEADER_BYTES = 64 << 20  # of a checkpoint
WEIGHTS = "weights"  #: folder of a search with the checkpoints of its networks
Row = dict[str, Any]


@final
class RunFolder:
    """A folder of results, written by one process at a time. Files are written atomically."""

    def __init__(self, path: Path):
        self.path = path
        self._lock: IO[str] | None = None
        self._created: list[Path] = []

    @property
    def study(self) -> Path:
        """Path of the SQLite file of the Optuna study."""
        return self.path / "study.db"

    def create(self, option: str = "run.dir") -> None:
        """Create the folder and lock it.

        Args:
            option: Option that named the folder, for messages.

        Raises:
            RunError: if it cannot be created, already contains a run, or another process has
                locked it.
        """
        files.check_folder_path(self.path, option)
        self._created = files.make_folders(self.path)
        self._lock = files.lock_folder(self.path)
        if (self.path / "manifest.json").exists():
            try:
                verb = read_manifest(self.path, option)["verb"]
            finally:
                self.close()
            if verb not in RESUMABLE:
                raise RunError(
                    f"{self.path} already contains a result of hwnas {verb}. Choose another "
                    f"{option}."
                )
            raise RunError(
                f"{self.path} already contains a run. Resume it with: hwnas resume "
                f"{shlex.quote(str(self.path))}   or choose another {option}."
            )

    def reopen(self) -> Manifest:
        """Lock an existing run and return its manifest.

        Raises:
            RunError: if it is not a run, its manifest cannot be read, or another process has
                locked it.
        """
        manifest = read_manifest(self.path)
        self._lock = files.lock_folder(self.path)
        return manifest

    def close(self) -> None:
        """Release the lock; remove the folder if this process created it and it is empty."""
        if self._lock is None:
            return
        if [entry.name for entry in self.path.iterdir()] == [files.LOCK]:
            (self.path / files.LOCK).unlink()
            files.remove_empty_folders(self._created)
        self._lock.close()
        self._lock = None

    def discard_if_empty(self, *, refused: bool) -> None:
        """Remove the study of a new run that failed if there are no other files.

        Args:
            refused: The user's input was rejected: remove the manifest, too.
        """
        names = {entry.name for entry in self.path.iterdir()} - {files.LOCK}
        if names <= {*_STUDY, *([_MANIFEST] if refused else [])}:
            for name in names:
                (self.path / name).unlink()

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Write the manifest; unless its status is ``running``, with digests of the run's files."""
        ended = {} if manifest["status"] == "running" else {"files": file_digests(self.path)}
        self.write_json(_MANIFEST, {**manifest, **ended})

    def write_json(self, name: str, content: Any) -> Path:
        """Write content as JSON; return the path of the file.

        NaN and infinity become ``null``; ``manifest.json`` also gets its checksum.
        """
        content = with_checksum(content) if name == _MANIFEST else content
        return self.write_bytes(name, to_json_bytes(content))

    def write_csv(self, name: str, rows: Sequence[Row]) -> Path:
        """Write rows as CSV; return the path of the file.

        Texts that spreadsheets would run as formulas (``=1+1``) begin with an apostrophe.
        """
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, _columns(rows), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _without_formula(row[name]) for name in row} for row in rows)
        return self.write_bytes(name, text.getvalue().encode())

    def write_or_remove_csv(self, name: str, rows: Sequence[Row]) -> None:
        """Write rows as CSV; without rows, remove a file of that name, if there is one."""
        if rows:
            self.write_csv(name, rows)
        else:
            (self.path / name).unlink(missing_ok=True)

    def write_parquet(self, name: str, rows: Sequence[Row]) -> Path:
        """Write rows as Parquet; return the path of the file."""
        import pyarrow as pa  # readers of a run folder work without it
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        pq.write_table(to_table(rows), sink)
        return self.write_bytes(name, sink.getvalue().to_pybytes())

    def write_bytes(self, name: str, content: bytes) -> Path:
        """Write a file; return its path."""
        path = self.path / name
        files.write_file(path, content)
        return path


def file_digests(folder: Path) -> dict[str, str]:
    """Return the hexadecimal SHA-256 of each file of a run, by path relative to the folder.

    The manifest, the study, the report, ``front.png``, audits and hidden files are left out. So are
    checkpoints of trainings that may go on, exports, and texts such as a log of the output.
    """
    exports = {path.parent for path in folder.rglob("proof.json")}
    paths = (
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and exports.isdisjoint(path.parents) and not _may_change(path)
    )
    names = (path.relative_to(folder) for path in paths)
    included = (n for n in names if n.name not in _WITHOUT_DIGEST and n.parts[0] != "audit")
    return {
        name.as_posix(): files.file_digest(folder / name)
        for name in included
        if not any(part.startswith(".") for part in name.parts)
    }


def _may_change(path: Path) -> bool:
    """Return whether a file of an ended run is a text, or a checkpoint that is not complete."""
    if path.suffix != ".safetensors" or path.parent.parent.name != WEIGHTS:
        return path.suffix in (".txt", ".log", ".out", ".err")
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > _MAX_HEADER_BYTES:
            return False
        try:
            header = json.loads(file.read(size))
            return not json.loads(header["__metadata__"]["hwnas"]).get("complete", True)
        except (ValueError, KeyError, TypeError):
            return False  # damaged, or written by another program


def damaged_files(
    folder: Path, recorded: Mapping[str, str], names: Iterable[str] = ()
) -> dict[str, str]:
    """Return the damage of missing and changed files of a run, such as ``is missing``, by name.

    Args:
        folder: The folder of the run.
        recorded: The digests in the manifest of the run, see ``file_digests``.
        names: The files to check; those without a digest are ignored; default: all.

    Raises:
        RunError: a recorded name leads out of the folder.
    """
    damaged = {}
    for name in (name for name in names or recorded if name in recorded):
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise RunError(
                f"{folder / _MANIFEST} cannot be read: 'files' has the name {name!r}, which is not "
                "in the folder of the run."
            )
        if not path.is_file():
            damaged[name] = "is missing"
        elif files.file_digest(path) != recorded[name]:
            damaged[name] = "does not have the digest in manifest.json"
    return damaged


def to_table(rows: Sequence[Row]) -> "pa.Table":
    """Return rows as an Arrow table with the columns of all rows; missing values are null."""
    import pyarrow as pa

    return pa.table({column: [row.get(column) for row in rows] for column in _columns(rows)})


@contextmanager
def open_run_folder(
    verb: str, directory: str | None, resume: str | None, *, shared: bool = False
) -> Iterator[tuple[RunFolder, Row]]:
    """Yield the locked folder of a run and its manifest (empty for a new run).

    If the run fails before it has results, a new folder is removed, except after a time limit.

    Args:
        verb: Verb of the run.
        directory: Folder of a new run; default: ``runs/<verb>/<time>``.
        resume: Folder of a run to resume.
        shared: True if other machines may start runs on the same disk at the same time.

    Raises:
        RunError: the folder cannot be created or already contains a run, or the one to resume is
            not a run, is part of another run, or is in use by another process.
    """
    folder = RunFolder(Path(resume or directory or default_path(verb, shared=shared)))
    earlier: Row = {**folder.reopen()} if resume else {}
    if "part_of" in earlier:
        folder.close()
        parent = folder.path.absolute().parent
        raise RunError(
            f"run.resume={folder.path} is part of {parent}, a search for several targets: write "
            f"run.resume={parent}."
        )
    if earlier and earlier["verb"] != verb:
        folder.close()
        raise RunError(
            f"run.resume={folder.path} is a folder of 'hwnas {earlier['verb']}', not of "
            f"'hwnas {verb}'. Name another folder."
        )
    if not resume:
        folder.create()
    try:
        yield folder, earlier
    except BaseException as error:
        if not resume:
            is_kept = isinstance(error, UnfinishedError)
            folder.discard_if_empty(refused=isinstance(error, HwnasError) and not is_kept)
        raise
    finally:
        folder.close()


@contextmanager
def resume_hint(path: Path) -> Iterator[None]:
    """Add the command that continues the search in a folder to an interrupt."""
    try:
        yield
    except KeyboardInterrupt:
        if not (path / "manifest.json").exists():
            raise
        command = f"hwnas resume {shlex.quote(str(path))}"
        raise KeyboardInterrupt(f"Nothing is lost. Continue with:\n  {command}") from None


def initial_manifest(verb: str, arguments: Sequence[str], earlier: Row, config: Any) -> Row:
    """Return the fields that manifests of all verbs have when a run starts, without passwords.

    ``earlier`` is the manifest of the run that is resumed; empty for a new run.
    """
    public = database.redact_arguments(arguments)
    return {
        "format": FORMAT,
        "verb": verb,
        "status": "running",
        "arguments": public,
        "command": f"hwnas {verb} {shlex.join(public)}",
        "directory": str(Path.cwd()),
        "started": [*earlier.get("started", []), time.strftime("%Y-%m-%dT%H:%M:%S%z")],
        "config": database.redact_config(asdict(config)),
    }


def check_resumed(
    earlier: Row,
    folder: RunFolder,
    digests: Mapping[str, str],
    versions: Mapping[str, str] | None = None,
) -> None:
    """Check that a run is resumed with the settings with which it was started.

    Args:
        earlier: The manifest of the run; empty for a new run.
        folder: The run.
        digests: Digests of the settings that affect the results, by name.
        versions: Versions of the packages that affect the results, if the run recorded them.
            They are compared instead of their digest.

    Raises:
        RunError: if a setting differs.
    """
    recorded = earlier.get("versions", {})
    same = bool(versions) and all(recorded.get(n) == v for n, v in (versions or {}).items())
    for name, digest in earlier.get("digests", {}).items():
        if same and name.rpartition(".")[2] == "versions":
            continue
        if digests.get(name) != digest:
            shown = _RENAMED.get(name, name)
            may_change = "" if earlier.get("verb") == "train" else f" ({MAY_CHANGE})"
            raise RunError(
                f"run.resume={folder.path}: {shown} differs from that of the run. "
                f"Resume with the same settings{may_change}, or start a new run."
                + DIFFERENCE_HINTS.get(name, "")
            )


_RENAMED = {"train.unaugmented": "train.plain_fraction"}  # options by the names of their digests
#: Options that may change when a run is resumed or a study is joined.
MAY_CHANGE = "only n_trials, minutes, finish.minutes and finish.max_candidates may change"

#: Hints for messages about settings that differ without a change by the user, by digest.
DIFFERENCE_HINTS = {
    "data": " Images may be in memory on one machine and streamed on another: see the line "
    "'Decoded images', and set dataset.in_memory to true or false.",
    "device": " Latencies of one run are measured on one device: continue there.",
}


def default_path(verb: str, *, shared: bool = False) -> Path:
    """Return a path ``runs/<verb>/<local time>`` that does not exist; it is not created.

    With ``shared``, the name includes the host and the process.
    """
    name = time.strftime("%Y-%m-%d_%H-%M-%S")
    if shared:
        name += f"_{socket.gethostname()}-{os.getpid()}"
    base = Path("runs", verb, name)
    path, n = base, 1
    while path.exists():
        n += 1
        path = base.with_name(f"{base.name}_{n}")
    return path


def _without_formula(value: Any) -> Any:
    """Return a value of a CSV file.

    Source: https://owasp.org/www-community/attacks/CSV_Injection.
    """
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def _columns(rows: Iterable[Row]) -> list[str]:
    """Return the columns of all rows, in order of appearance."""
    return list(dict.fromkeys(column for row in rows for column in row))
