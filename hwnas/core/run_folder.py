"""Candidates and the run folder: the only place that reads or writes run files."""

import csv
import io
import os
import shlex
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, final

from hwnas.core import database, files
from hwnas.core.errors import HwnasError, RunError
from hwnas.core.manifest import FORMAT, Manifest, read_manifest
from hwnas.core.typed_files import as_json

if TYPE_CHECKING:
    import pyarrow as pa

_MANIFEST = "manifest.json"
_STUDY = ("study.db", "study.db-wal", "study.db-shm", "study.db-journal")
Row = dict[str, Any]


@final
class RunFolder:
    """One folder of results, which one process at a time may write."""

    def __init__(self, path: Path):
        self.path = path
        self._lock: IO[str] | None = None
        self._made: list[Path] = []

    @property
    def study(self) -> Path:
        """The Optuna study."""
        return self.path / "study.db"

    def create(self, option: str = "run.dir") -> None:
        """Make the folder and lock it.

        Args:
            option: By which the user named it.

        Raises:
            RunError: it holds a run already, or another process works in it.
        """
        files.check_place(self.path, option)
        self._made = files.make(self.path)
        self._lock = files.lock(self.path)
        if (self.path / "manifest.json").exists():
            try:
                verb = read_manifest(self.path, "run.dir")["verb"]
            finally:
                self.close()
            raise RunError(
                f"{self.path} holds a run already. Continue it with: python -m hwnas {verb} "
                f"{shlex.quote(f'run.resume={self.path}')}   or choose another run.dir."
            )

    def reopen(self) -> Manifest:
        """Lock an existing run and return its manifest.

        Raises:
            RunError: it is not a run, or another process works in it.
        """
        manifest = read_manifest(self.path)
        self._lock = files.lock(self.path)
        return manifest

    def close(self) -> None:
        """Let others write; a folder that was made and in which nothing was begun is removed."""
        if self._lock is None:
            return
        if [entry.name for entry in self.path.iterdir()] == [files.LOCK]:
            (self.path / files.LOCK).unlink()
            files.remove_empty(self._made)
        self._lock.close()
        self._lock = None

    def forget(self, *, refused: bool) -> None:
        """Remove what a new run left that came to nothing.

        Args:
            refused: Whether nothing but a manifest counts as nothing, too.
        """
        names = {entry.name for entry in self.path.iterdir()} - {files.LOCK}
        if names <= set(_STUDY) or (refused and names == {_MANIFEST}):
            for name in names:
                (self.path / name).unlink()

    def write_json(self, name: str, content: Any) -> Path:
        """Write JSON atomically."""
        return self.write_bytes(name, as_json(content))

    def write_csv(self, name: str, rows: Sequence[Row]) -> Path:
        """Write rows of equal columns as CSV, atomically."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, _columns(rows), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return self.write_bytes(name, text.getvalue().encode())

    def write_parquet(self, name: str, rows: Sequence[Row]) -> Path:
        """Write rows as Parquet, atomically."""
        import pyarrow as pa  # readers of a run folder work without it
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        pq.write_table(table_of(rows), sink)
        return self.write_bytes(name, sink.getvalue().to_pybytes())

    def write_bytes(self, name: str, content: bytes) -> Path:
        """Write a file atomically: it is the old or the new one at any moment."""
        path = self.path / name
        files.write_file(path, content)
        return path


def table_of(rows: Sequence[Row]) -> "pa.Table":
    """Return rows as an Arrow table; a column that a row lacks is null there."""
    import pyarrow as pa

    return pa.table({column: [row.get(column) for row in rows] for column in _columns(rows)})


@contextmanager
def open_run_folder(
    verb: str, directory: str | None, resume: str | None, *, shared: bool = False
) -> Iterator[tuple[RunFolder, Row]]:
    """Give the folder of a new run, or of one to be resumed with its manifest; close it after use.

    Args:
        verb: What is run.
        directory: Where a new run goes; default: ``runs/<verb>/<time>``.
        resume: A run to be resumed.
        shared: Whether others start the same run, perhaps at the same time on the same disk.
    """
    folder = RunFolder(Path(resume or directory or default_path(verb, shared=shared)))
    earlier: Row = {**folder.reopen()} if resume else {}
    if "part_of" in earlier:
        folder.close()
        whole = folder.path.absolute().parent
        raise RunError(f"run.resume={folder.path} is part of {whole}: resume that.")
    if not resume:
        folder.create()
    try:
        yield folder, earlier
    except BaseException as error:
        if not resume:
            folder.forget(refused=isinstance(error, HwnasError))
        raise
    finally:
        folder.close()


def begun(verb: str, arguments: Sequence[str], earlier: Row, config: Any) -> Row:
    """Return what the manifest of every run begins with."""
    public = database.public_arguments(arguments)
    return {
        "format": FORMAT,
        "verb": verb,
        "status": "running",
        "arguments": public,
        "command": f"python -m hwnas {verb} {shlex.join(public)}",
        "started": [*earlier.get("started", []), time.strftime("%Y-%m-%dT%H:%M:%S%z")],
        "config": plain(asdict(config)),
    }


def plain(config: Row) -> Row:
    """Return a configuration as it may be written into files."""
    content: Row = database.public_config(config)
    return content


def check_resumed(
    earlier: Row,
    folder: RunFolder,
    digests: Mapping[str, str],
    n_trials: int,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Refuse to resume a run with other settings than it had.

    Args:
        earlier: The manifest of the run; empty: it is new.
        folder: The run.
        digests: Of what decides the outcome, by name.
        n_trials: How many there will be.
        versions: Of the packages that decide it, where manifests record them: these count, not
            their digest, which in earlier versions was of packages that a run did not use, too.

    Raises:
        RunError: what decides the outcome differs, or trials would be taken away.
    """
    known = earlier.get("versions", {})
    same = bool(versions) and all(known.get(n) == v for n, v in (versions or {}).items())
    for name, digest in earlier.get("digests", {}).items():
        if same and name.rpartition(".")[2] == "versions":
            continue
        if digests.get(name) != digest:
            raise RunError(
                f"run.resume={folder.path}: {name} differs from that of the run. "
                f"Resume with the same settings ({MAY_GROW}), or start a new run."
                + WHY_DIFFERENT.get(name, "")
            )
    recorded = earlier.get("config", {}).get("n_trials", 0)
    if n_trials < recorded:
        raise RunError(
            f"run.resume={folder.path}: n_trials={n_trials} is below the {recorded} of the run; it "
            "may only grow."
        )


#: What is no reason to refuse a run that is resumed, or a study that is joined.
MAY_GROW = "only n_trials, minutes, finish.minutes and finish.n_most may grow"

#: By what differs, why it may though nothing else was said.
WHY_DIFFERENT = {
    "data": " On machines of other memory, images may be in memory here and streamed there: see "
    "the line 'Decoded images', and say dataset.in_memory=true or false.",
    "train": " Before December 2026, networks of the family mbconv were trained with "
    "train.optimiser=sgd where nothing else was said.",
}


def default_path(verb: str, *, shared: bool = False) -> Path:
    """Return ``runs/<verb>/<time>``, which does not exist yet."""
    name = time.strftime("%Y-%m-%d_%H-%M-%S")
    if shared:
        name += f"_{socket.gethostname()}-{os.getpid()}"
    base = Path("runs", verb, name)
    path, n = base, 1
    while path.exists():
        n += 1
        path = base.with_name(f"{base.name}_{n}")
    return path


def _columns(rows: Iterable[Row]) -> list[str]:
    """Return the columns of all rows, in order of appearance."""
    return list(dict.fromkeys(column for row in rows for column in row))
