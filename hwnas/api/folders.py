"""Comparisons, trainings and latency tables by their folders, for notebooks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.csv

from hwnas.api.tables import html_lines, html_table
from hwnas.errors import RunError, unknown
from hwnas.latency_table import LatencyTable
from hwnas.metrics import qualities
from hwnas.results import Row


@dataclass(frozen=True)
class _Tables:
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
            raise RunError(f"{self.path}: {unknown('table', name or self._first, self.tables)}")
        return pyarrow.csv.read_csv(path)

    def _repr_html_(self) -> str:
        return f"{html_table(self.table())}{html_lines(self.sentences)}"


class ComparisonResult(_Tables):
    """A comparison by its folder; ``indicators`` says most."""

    _first = "indicators"


class PlanResult(_Tables):
    """A plan, or a simulation of one, by its folder; ``classes`` says most."""

    _first = "classes"


class ServeCheckResult(_Tables):
    """What a server did, against its simulation, by its folder; ``loads`` says most."""

    _first = "loads"


class SplitResult(_Tables):
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
            if name.partition("_")[0] in qualities() and isinstance(value, list)
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
