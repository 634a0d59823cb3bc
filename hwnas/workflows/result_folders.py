"""Exports by their folders, for notebooks; and the verbs that write and prove them."""

import html
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.csv

from hwnas.core import processes
from hwnas.core.errors import RunError, unknown_name
from hwnas.core.progress import Progress
from hwnas.core.run_folder import Row
from hwnas.export import proof_file
from hwnas.hardware.latency_tables.latency_table import LatencyTable
from hwnas.tasks.metrics import quality_names
from hwnas.workflows.config.arguments import as_arguments
from hwnas.workflows.config.compose import compose
from hwnas.workflows.reporter import RecordingReporter

# Tables for notebooks.

_SHOWN = 12  # rows of a table in a notebook


def html_table(table: pa.Table) -> str:
    """Return the first rows of a table as HTML."""
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in table.column_names)
    rows = [
        "".join(f"<td>{html.escape(_cell(value))}</td>" for value in row.values())
        for row in table.slice(0, _SHOWN).to_pylist()
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    left = table.num_rows - _SHOWN
    more = f"<p>{left} more rows</p>" if left > 0 else ""
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{more}"


def html_lines(lines: Iterable[str]) -> str:
    """Return sentences as HTML, a paragraph each."""
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines)


def _cell(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Export(os.PathLike[str]):
    """The folder of a model that is ready for the device."""

    path: Path
    notes: tuple[str, ...] = ()  #: what the export said on the way

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def proof(self) -> Row:
        """What ``proof.json`` says: figures, errors against torch, digests of files."""
        return dict(proof_file.read_proof(self.path))

    @property
    def files(self) -> list[Path]:
        """The files of the folder."""
        return sorted(path for path in self.path.iterdir() if path.is_file())

    def verify(self, **options: Any) -> list[str]:
        """Repeat the proof with the runtimes at hand; return what was found.

        Raises:
            ProofError: something does not hold.
        """
        return verify(self, **options)

    def _repr_html_(self) -> str:
        said = self.proof
        rows = [{"figure": name, "value": values[0]} for name, values in said["figures"].items()]
        heading = f"{said['model']['name']} in {self.path}"
        table = html_table(pa.Table.from_pylist(rows))
        return f"<h4>{html.escape(heading)}</h4>{table}{html_lines(self.notes)}"


def export(
    run: str | os.PathLike[str], *, progress: Progress | None = None, **options: Any
) -> list[Export]:
    """Write models of a search as files for the device, with a proof of what they do.

    Where the same command was cut off, what it had written is returned, too.

    Args:
        run: The search, or its folder.
        progress: Is told of phases.
        options: Of ``python -m hwnas export``: ``pick="knee"``, ``dir="models"``.

    Raises:
        ProofError: a file does not do what it should; its folder is kept.
    """
    processes.tune_process()
    from hwnas.workflows.export import export as write

    given = as_arguments({"run": run, **options})
    quiet = RecordingReporter(progress)
    found = write(compose("export", given), given, quiet, lambda done: None)
    return [Export(path, tuple(quiet.lines)) for path in found]


def compress(
    run: str | os.PathLike[str],
    *,
    pick: str = "knee",
    progress: Progress | None = None,
    **options: Any,
) -> Export:
    """Fit a network of a search into another budget, and write it as ``export`` does.

    Args:
        run: The search, or its folder.
        pick: Which network: an id, or as for ``export``.
        progress: Is told of phases.
        options: Of ``python -m hwnas compress``: ``budget={"flash_kib": 20}``.

    Raises:
        BudgetError: nothing makes it fit.
        ProofError: a file does not do what it should; its folder is kept.
    """
    processes.tune_process()
    from hwnas.workflows.compress import CompressionOutcome
    from hwnas.workflows.compress import compress as fit

    given, found = as_arguments({"run": run, "id": pick, **options}), list[CompressionOutcome]()
    quiet = RecordingReporter(progress)
    fit(compose("compress", given), given, quiet, found.append)
    return Export(found[0].done.path, tuple(quiet.lines))


def verify(
    export: str | os.PathLike[str], *, progress: Progress | None = None, **options: Any
) -> list[str]:
    """Repeat the proof of an export with the runtimes at hand; return what was found.

    Args:
        export: The folder.
        progress: Is told of phases.
        options: Of ``python -m hwnas verify``: ``data=DIR``, ``target="npu"``.

    Raises:
        ProofError: something does not hold.
    """
    processes.tune_process()
    from hwnas.workflows.verify import verify as run

    quiet = RecordingReporter(progress)
    run(compose("verify", as_arguments({"export": export, **options})), quiet)
    return quiet.lines


# Comparisons, trainings and latency tables by their folders, for notebooks.


@dataclass(frozen=True)
class _TableFolder:
    """A folder of tables, and what they say in sentences."""

    path: Path
    sentences: Sequence[str]
    _first: ClassVar[str]  #: the table that says most

    @property
    def tables(self) -> list[str]:
        """The names of its tables."""
        return sorted(path.stem for path in self.path.glob("*.csv"))

    def table(self, name: str = "") -> pa.Table:
        """Return a table; without a name, the one that says most.

        Raises:
            RunError: there is none of that name.
        """
        path = self.path / f"{name or self._first}.csv"
        if not path.exists():
            raise RunError(
                f"{self.path}: {unknown_name('table', name or self._first, self.tables)}"
            )
        return pyarrow.csv.read_csv(path)

    def _repr_html_(self) -> str:
        return f"{html_table(self.table())}{html_lines(self.sentences)}"


class ComparisonResult(_TableFolder):
    """A comparison by its folder; ``indicators`` says most."""

    _first = "indicators"


class PlanResult(_TableFolder):
    """A plan, or a simulation of one, by its folder; ``classes`` says most."""

    _first = "classes"


class ServeCheckResult(_TableFolder):
    """What a server did, against its simulation, by its folder; ``loads`` says most."""

    _first = "loads"


class SplitResult(_TableFolder):
    """A network that was cut in two, by its folder; ``cuts`` says most."""

    _first = "cuts"


@dataclass(frozen=True)
class TrainResult:
    """A trained supernet, or a network that was trained alone, by the folder of its run."""

    path: Path
    summary: Row  #: figures with their intervals, steps, seconds, and where the checkpoint is
    notes: Sequence[str] = ()  #: what the training said on the way

    @property
    def log(self) -> pa.Table:
        """The log of the training; empty where it was trained before."""
        path = self.path / "log.csv"
        return pyarrow.csv.read_csv(path) if path.exists() else pa.table({})

    def _repr_html_(self) -> str:
        found = [
            {"what": name, "value": value[0], "low": value[2], "high": value[3]}
            for name, value in self.summary.items()
            if name.partition("_")[0] in quality_names() and isinstance(value, list)
            and len(value) == 4 and not isinstance(value[0], list)
        ]  # fmt: skip
        return f"{html_table(pa.Table.from_pylist(found))}{html_lines(self.notes)}"


@dataclass(frozen=True)
class ProfileResult:
    """A latency table, and how wrong it is."""

    path: Path
    errors: Mapping[str, Row]  #: by search space, on networks that calibration has not seen
    n_operators: int
    lines: Sequence[str]  #: what else was measured

    @staticmethod
    def of(table: LatencyTable, lines: Sequence[str]) -> "ProfileResult":
        """Return what a table says."""
        errors = {space: found.get("error", {}) for space, found in table.calibration.items()}
        return ProfileResult(table.path, errors, len(table.entries), lines)

    @property
    def operators(self) -> pa.Table:
        """The operators with their latencies."""
        return pyarrow.csv.read_csv(self.path / "operators.csv")

    def _repr_html_(self) -> str:
        return f"{html_table(self.operators)}{html_lines(self.lines)}"
