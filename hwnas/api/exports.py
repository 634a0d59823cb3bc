"""Exports and comparisons by their folders, for notebooks."""

import html
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from hwnas.api.tables import html_table
from hwnas.errors import RunError, unknown
from hwnas.export import recorded
from hwnas.latency_table import LatencyTable
from hwnas.metrics import qualities
from hwnas.results import Row


@dataclass(frozen=True)
class Export(os.PathLike[str]):
    """The folder of a model that is ready for the device."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def proof(self) -> Row:
        """What ``proof.json`` says: figures, errors against torch, digests of files."""
        return dict(recorded.read(self.path))

    @property
    def files(self) -> list[Path]:
        """The files of the folder."""
        return sorted(path for path in self.path.iterdir() if path.is_file())

    def verify(self, **options: Any) -> list[str]:
        """Repeat the proof with the runtimes at hand; return what was found.

        Raises:
            ProofError: something does not hold.
        """
        from hwnas.api.verbs import verify

        return verify(self, **options)

    def _repr_html_(self) -> str:
        said = self.proof
        rows = [{"figure": name, "value": values[0]} for name, values in said["figures"].items()]
        heading = f"{said['model']['name']} in {self.path}"
        return f"<h4>{html.escape(heading)}</h4>{html_table(pa.Table.from_pylist(rows))}"


@dataclass(frozen=True)
class ComparisonResult:
    """A comparison by its folder."""

    path: Path
    sentences: Sequence[str]

    @property
    def tables(self) -> list[str]:
        """The names of its tables."""
        return sorted(path.stem for path in self.path.glob("*.csv"))

    def table(self, name: str = "indicators") -> pa.Table:
        """Return a table.

        Raises:
            RunError: there is none of that name.
        """
        path = self.path / f"{name}.csv"
        if not path.exists():
            raise RunError(f"{self.path}: {unknown('table', name, self.tables)}")
        return pyarrow.csv.read_csv(path)

    def _repr_html_(self) -> str:
        words = "".join(f"<p>{html.escape(line)}</p>" for line in self.sentences)
        return f"{html_table(self.table())}{words}"


@dataclass(frozen=True)
class TrainResult:
    """A trained supernet, or a network that was trained alone, by the folder of its run."""

    path: Path
    summary: Row  #: figures with their intervals, steps, seconds, and where the checkpoint is

    @property
    def log(self) -> pa.Table:
        """The log of the training; empty where it was trained before."""
        path = self.path / "log.csv"
        return pyarrow.csv.read_csv(path) if path.exists() else pa.table({})

    def _repr_html_(self) -> str:
        found = [
            {"what": name, "value": value[0], "low": value[2], "high": value[3]}
            for name, value in self.summary.items()
            if name.partition("_")[0] in qualities() and isinstance(value, list)
            and len(value) == 4 and not isinstance(value[0], list)
        ]  # fmt: skip
        return html_table(pa.Table.from_pylist(found))


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
        return html_table(self.operators)
