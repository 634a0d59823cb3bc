"""Candidates of a search, and their file ``candidates.parquet``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from hwnas.core.errors import RunError
from hwnas.core.quantity import Quantities, Quantity
from hwnas.core.run_folder import Row
from hwnas.models.spaces import Genotype, Space
from hwnas.models.spaces.union import ROOT
from hwnas.tasks import metrics
from hwnas.training.evaluation.interfaces import ENOUGH

State = Literal["complete", "stopped", "infeasible"]


@dataclass(frozen=True)
class Candidate:
    """A genotype with its quantities, or the reason why it is infeasible."""

    trial: int  #: number of the trial, from 0
    genotype: Genotype
    figures: Quantities  #: metric (if scored) and known costs, by column
    details: Mapping[str, float] = field(default_factory=dict)  #: other numbers, by column
    reason: str = ""  #: why it is infeasible; empty if it is feasible
    stopped: bool = False  #: scoring stopped early, because it is probably dominated
    per_image: bytes = b""  #: results per image, packed by the task; may be empty

    @property
    def id(self) -> str:
        """The genotype's id, hexadecimal digits."""
        return self.genotype.id

    @property
    def state(self) -> State:
        """``infeasible`` with a reason, ``stopped`` if scoring ended early, else ``complete``."""
        if self.reason:
            return "infeasible"
        return "stopped" if self.stopped else "complete"

    def to_json(self) -> Row:
        """Return a dict with the keys ``id``, ``state``, ``reason``, ``figures``, ``details``.

        Trial, genotype and results per image are not included.
        """
        return {
            "id": self.id,
            "state": self.state,
            "reason": self.reason,
            "figures": {name: figure.to_json() for name, figure in self.figures.items()},
            "details": dict(self.details),
        }

    @staticmethod
    def from_json(
        trial: int, genotype: Genotype, raw: Mapping[str, Any], per_image: bytes = b""
    ) -> "Candidate":
        """Return a candidate, given the dict of ``to_json`` and what that does not include."""
        figures = {name: Quantity(*values) for name, values in raw["figures"].items()}
        stopped = raw["state"] == "stopped"
        return Candidate(
            trial, genotype, figures, dict(raw["details"]), raw["reason"], stopped, per_image
        )

    def row(self, space: Space, metric: str) -> Row:
        """Return the candidate as a row by column: identity, choices, quantities, details.

        Inactive choices, and a metric or basic costs that are unknown, are ``None``.

        Args:
            space: Search space of the genotype.
            metric: Name of the metric.
        """
        options = space.assignment(self.genotype)
        row: Row = {"trial": self.trial, "id": self.id, "state": self.state, "reason": self.reason}
        row |= {name: options.get(name) for name in space.choices}
        targets = dict.fromkeys(name.rpartition(".")[0] for name in self.figures if "." in name)
        for name in (metric, *_cost_columns(targets or [""], self.figures)):
            figure = self.figures.get(name)
            absent = dict.fromkeys((name, f"{name}_low", f"{name}_high", f"{name}_source"))
            row |= absent if figure is None else figure.columns(name)
        return row | dict(self.details)


def _cost_columns(targets: Iterable[str], figures: Quantities) -> Iterator[str]:
    """Yield the columns of costs: those of every cost model always, others if known."""
    for target in targets:
        for name in metrics.cost_names():
            column = f"{target}.{name}".lstrip(".")
            if name in metrics.BASE_COSTS or column in figures:
                yield column


# Columns that fine-tuning adds. The column of the metric then holds the posterior estimate.

ON_FRONT = "front_probability"  #: probability of being non-dominated


def read_column(metric: str) -> str:
    """Return the column of the metric as measured in the search, such as ``accuracy_read``."""
    return f"{metric}_read"


def finished(metric: str) -> str:
    """Return the column of the validation metric after fine-tuning: ``accuracy_finished``."""
    return f"{metric}_finished"


def is_enough(n_finished: int) -> bool:
    """Return whether the metric after fine-tuning can be predicted for other networks.

    This needs 5 or more fine-tuned networks.
    """
    return n_finished >= ENOUGH


NAME = "candidates.parquet"
_MAX_ROWS = 10_000_000
_MAX_BYTES = 8 << 30  # decoded
_IDENTITY = ("trial", "id", "state", "reason")
_PARTS = ("", "_source", "_low", "_high")
REMEDY = "To write it again, resume the search: hwnas resume FOLDER"


def read_table(run: Path, names: Sequence[str] | None = None) -> pa.Table | None:
    """Return ``candidates.parquet`` of a search; ``None`` if there is no such file.

    Args:
        run: The folder of the search.
        names: Columns to read; missing ones are ignored. Default: all.

    Raises:
        RunError: the file cannot be read, is too large, or has missing or invalid columns.
    """
    path = run / NAME
    if not path.exists():
        return None
    try:
        with pq.ParquetFile(path) as file:
            _check(file)
            known = file.schema_arrow.names
            return file.read([name for name in known if names is None or name in names])
    except (OSError, pa.ArrowException, ValueError) as error:
        (reason, *_) = str(error).splitlines() or [type(error).__name__]
        raise RunError(f"{path} cannot be read: {reason.rstrip('.')}. {REMEDY}") from None


def _check(file: pq.ParquetFile) -> None:
    """Reject columns of a wrong type before they are decoded.

    Raises:
        ValueError: the table is too large, or a column is invalid.
    """
    rows, schema = file.metadata.num_rows, file.schema_arrow
    groups = (file.metadata.row_group(i) for i in range(file.metadata.num_row_groups))
    if rows > _MAX_ROWS:
        raise ValueError(f"it has {rows} rows; allowed: at most {_MAX_ROWS}")
    if (n_bytes := sum(group.total_byte_size for group in groups)) > _MAX_BYTES:
        raise ValueError(f"it has {n_bytes} bytes of data; allowed: at most {_MAX_BYTES}")
    if len({*schema.names}) < len(schema.names):
        raise ValueError("a column name occurs twice")
    if missing := [name for name in _IDENTITY if name not in schema.names]:
        raise ValueError(f"column '{missing[0]}' is missing")
    for name in {n.removesuffix(part) for n in schema.names for part in _PARTS[1:]}:
        present = [f"{name}{part}" in schema.names for part in _PARTS]
        is_figure = metrics.is_metric(name.rpartition(".")[2])
        if is_figure and 1 < sum(present) < len(_PARTS):
            lacking = f"{name}{_PARTS[present.index(False)]}"
            raise ValueError(f"column '{lacking}' is missing")
    known = [name for name in schema.names if f"{name}_source" in schema.names]
    numbers = {name + part for name in known for part in _PARTS} - {f"{n}_source" for n in known}
    texts = {*_IDENTITY[1:], *(f"{name}_source" for name in known)}
    for name in schema.names:
        kind = schema.field(name).type
        allowed = "a number" if name in numbers else "text" if name in texts else ""
        allowed = "a whole number" if name == "trial" else allowed
        if allowed and not _is_type(kind, allowed):
            raise ValueError(f"column '{name}' is of type {kind}; allowed: {allowed}")


def _is_type(kind: pa.DataType, allowed: str) -> bool:
    if pa.types.is_null(kind):
        return True
    if allowed == "text":
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
    is_integer = bool(pa.types.is_integer(kind))
    return is_integer or (allowed == "a number" and bool(pa.types.is_floating(kind)))


def read_candidates(
    run: Path, spaces: Sequence[str], details: Sequence[str] = ()
) -> list[Candidate] | None:
    """Return the candidates in ``candidates.parquet``; ``None`` if there is no such file.

    Args:
        run: The folder of the search.
        spaces: Names of its search spaces.
        details: Columns to read into ``details`` where they have a value. Default: none.

    Raises:
        RunError: the file cannot be read, or does not have the columns of these spaces.
    """
    if (table := read_table(run)) is None:
        return None
    columns: list[str] = table.column_names
    try:
        choices = columns[columns.index("reason") + 1 : columns.index(metrics.quality_in(columns))]
        known = [name for name in columns if f"{name}_source" in columns]
        candidates = _candidates(table.to_pydict(), spaces, sorted(choices), known)
        detail_columns = [name for name in details if name in columns]
        if not detail_columns:
            return candidates
        rows = zip(*(table[name].to_pylist() for name in detail_columns), strict=True)
        return [
            replace(
                c, details={n: v for n, v in zip(detail_columns, row, strict=True) if v is not None}
            )
            for c, row in zip(candidates, rows, strict=True)
        ]
    except (StopIteration, ValueError, KeyError, TypeError):
        raise RunError(
            f"{run / NAME} cannot be read: its columns are not those of candidates in the search "
            f"space {', '.join(spaces)}. {REMEDY}"
        ) from None


def read_columns(run: Path, names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of columns in ``candidates.parquet``, by name; missing ones are left out.

    Empty if there is no such file.

    Raises:
        RunError: as of ``read_table``.
    """
    table = read_table(run, names)
    columns: dict[str, list[Any]] = {} if table is None else table.to_pydict()
    return columns


def _candidates(
    columns: Mapping[str, Sequence[Any]],
    spaces: Sequence[str],
    choices: Sequence[str],
    known: Sequence[str],
) -> list[Candidate]:
    """Return the candidates of a table; by columns, which is faster than by rows."""
    options = zip(*(columns[name] for name in choices), strict=True)
    several = len(spaces) > 1
    space_names = columns[ROOT] if several else [spaces[0]] * len(columns["trial"])
    places = {space: _places(f"{space}." if several else "", choices) for space in spaces}
    figures = [
        _figures(*(columns[f"{name}{part}"] for part in ("", "_source", "_low", "_high")))
        for name in known
    ]
    identity = zip(*(columns[name] for name in ("trial", "state", "reason")), strict=True)
    return [
        Candidate(
            trial,
            Genotype(space, tuple((n, row[i]) for n, i in places[space] if row[i] is not None)),
            {n: figure for n, figure in zip(known, row_figures, strict=True) if figure is not None},
            {},
            reason,
            state == "stopped",
        )
        for (trial, state, reason), space, row, row_figures in zip(
            identity, space_names, options, zip(*figures, strict=True), strict=True
        )
    ]


def _places(prefix: str, choices: Sequence[str]) -> list[tuple[str, int]]:
    """Return the choices of one space by their names in it, with their positions."""
    return [(n.removeprefix(prefix), i) for i, n in enumerate(choices) if n.startswith(prefix)]


def _figures(*parts: Sequence[Any]) -> list[Quantity | None]:
    """Return the quantities of values, sources and interval ends."""
    return [None if part[0] is None else Quantity(*part) for part in zip(*parts, strict=True)]
