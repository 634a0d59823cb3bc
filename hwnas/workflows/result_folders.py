"""Results of verbs: what the command line prints, the Python API returns and notebooks show."""

import base64
import html
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name  # python_api imports this module
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv

from hwnas.core.errors import RunError, unknown_name
from hwnas.core.run_folder import Row
from hwnas.export import proof_file
from hwnas.tasks.metrics import quality_names

if TYPE_CHECKING:
    from hwnas.export.prove import ProofEvidence
    from hwnas.hardware.latency_tables.latency_table import LatencyTable
    from hwnas.workflows.profile_layers import LatencyBreakdown

_MAX_ROWS = 12  # of a table in a notebook


def html_table(table: pa.Table) -> str:
    """Return the first 12 rows of a table as HTML."""
    headers = "".join(f"<th>{html.escape(name)}</th>" for name in table.column_names)
    rows = [
        "".join(f"<td>{html.escape(_cell(value))}</td>" for value in row.values())
        for row in table.slice(0, _MAX_ROWS).to_pylist()
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    n_more = table.num_rows - _MAX_ROWS
    more = f"<p>{n_more} more rows</p>" if n_more > 0 else ""
    return f"<table><thead><tr>{headers}</tr></thead><tbody>{body}</tbody></table>{more}"


def html_lines(lines: Iterable[str]) -> str:
    """Return messages as HTML paragraphs."""
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines)


def html_image(path: Path) -> str:
    """Return a PNG file as an HTML image; empty if the file does not exist."""
    if not path.exists():
        return ""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{path.stem}" style="max-width:40em" src="data:image/png;base64,{data}">'


def _cell(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class FolderResult(os.PathLike[str]):
    """Result of a verb that writes tables and messages into a folder."""

    path: Path  #: the folder
    messages: Sequence[str]  #: the results as sentences
    rows: Mapping[str, Sequence[Row]] = field(repr=False)  #: rows of each table, by its name
    main_table: str  #: name of the table that notebooks show
    files: Sequence[str] = ()  #: names of the files and folders in ``path``

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def tables(self) -> list[str]:
        """Names of the tables, which are the CSV files of the folder without suffix."""
        return sorted(path.stem for path in self.path.glob("*.csv"))

    def table(self, name: str = "") -> pa.Table:
        """Return a table by its name, a name of ``tables``; without a name ``main_table``.

        Raises:
            RunError: there is no table of that name; tables without rows are not written.
        """
        path = self.path / f"{name or self.main_table}.csv"
        if not path.exists():
            raise RunError(f"{self.path}: {unknown_name('table', path.stem, self.tables)}")
        return pyarrow.csv.read_csv(path)

    def _repr_html_(self) -> str:
        return f"{html_table(self.table())}{html_lines(self.messages)}"


@dataclass(frozen=True)
class Export(os.PathLike[str]):
    """The folder of the exported files of one network."""

    path: Path  #: the folder
    messages: tuple[str, ...] = ()  #: messages of the command
    #: results of the proof; ``None`` if an earlier command exported the network
    evidence: "ProofEvidence | None" = field(default=None, repr=False)

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def proof(self) -> Row:
        """Content of ``proof.json``, with costs, errors, checks and SHA-256 of files.

        Raises:
            RunError: the folder is no export, or its proof is damaged.
        """
        return dict(proof_file.read_proof(self.path))

    @property
    def files(self) -> list[Path]:
        """Paths of the files in the folder, without those in subfolders, sorted."""
        return sorted(path for path in self.path.iterdir() if path.is_file())

    def verify(self, **options: Any) -> list[str]:
        """Repeat the checks with the installed runtimes; return the results as sentences.

        Args:
            options: Options of ``hwnas verify``.

        Raises:
            ProofError: a check fails, or a file has changed.
        """
        verify: Callable[..., list[str]] = resolve_name("hwnas.workflows.python_api:verify")
        return verify(self, **options)

    def _repr_html_(self) -> str:
        proof = self.proof
        rows = [{"figure": name, "value": values[0]} for name, values in proof["figures"].items()]
        heading = f"{proof['model']['name']} in {self.path}"
        table = html_table(pa.Table.from_pylist(rows))
        return f"<h4>{html.escape(heading)}</h4>{table}{html_lines(self.messages)}"


Line = tuple[str, str, str]  #: label, value and interval of a metric, as text


@dataclass(frozen=True)
class TrainResult:
    """The result of ``train``: a trained supernet or network, and its run folder."""

    path: Path  #: the run folder
    title: str  #: heading of ``figures``
    metric: str  #: name of the metric
    #: label, value and 95 % interval as text; a median has the range in place of the interval
    figures: Sequence[Line]
    summary: Row  #: content of ``summary.json``: metrics with intervals, steps, seconds, checkpoint
    messages: Sequence[str] = ()  #: messages of the command

    @property
    def log(self) -> pa.Table:
        """Log of the training, with ``step``, ``lr``, losses and metrics; empty if untrained."""
        path = self.path / "log.csv"
        return pyarrow.csv.read_csv(path) if path.exists() else pa.table({})

    def _repr_html_(self) -> str:
        figures = [
            {"figure": name, "value": value[0], "low": value[2], "high": value[3]}
            for name, value in self.summary.items()
            if name.partition("_")[0] in quality_names() and isinstance(value, list)
            and len(value) == 4 and not isinstance(value[0], list)
        ]  # fmt: skip
        return f"{html_table(pa.Table.from_pylist(figures))}{html_lines(self.messages)}"


@dataclass(frozen=True)
class ProfileResult:
    """A latency table with its errors, or the files of the other uses of ``profile``."""

    path: Path  #: folder of the latency table, the layers or the kit, or the device file
    messages: Sequence[str] = ()  #: the results as sentences
    table: "LatencyTable | None" = field(default=None, repr=False)  #: ``None`` for other uses
    layers: "LatencyBreakdown | None" = None  #: latency by operator, with ``genotype=``

    @property
    def errors(self) -> dict[str, Row]:
        """Errors on networks left out of the fit, by search space; empty for other uses.

        Keys: ``n`` (networks) and ``table``, a dict of errors as fractions, such as ``mape``. If
        all operators were measured, also ``macs`` (errors of a prediction from MACs) and
        ``drifted`` (networks with a disturbed measurement).
        """
        calibration = self.table.calibration if self.table is not None else {}
        return {space: known.get("error", {}) for space, known in calibration.items()}

    @property
    def operators(self) -> pa.Table:
        """Operators of the latency table with their latencies, as in ``operators.csv``.

        Raises:
            FileNotFoundError: the result is of another use of ``profile``.
        """
        return pyarrow.csv.read_csv(self.path / "operators.csv")

    def _repr_html_(self) -> str:
        table = "" if self.table is None else html_table(self.operators)
        return f"{table}{html_lines(self.messages)}"
