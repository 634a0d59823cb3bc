"""Benchmark tables: accuracy and costs of every network of a space, to evaluate samplers.

A table is a Parquet or CSV file with a column for each choice, one for the accuracy and one for
each cost, and a row for each combination of options, for example NAS-Bench-201.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hwnas.core.errors import CompileError, TableError, short_reason, unknown_name
from hwnas.core.pareto import hypervolume, non_dominated
from hwnas.core.quantity import Quantity
from hwnas.hardware.costs.cost_model import Cost
from hwnas.models.spaces import Genotype, Option, SearchSpace
from hwnas.nas.options import BenchmarkConfig
from hwnas.tasks.base import Incumbent, Score
from hwnas.tasks.metrics import maximise_flags, metric_of

Array = NDArray[np.float64]
_ABOVE_ZERO = ("latency_ms", "energy_mj")


@final
class Benchmark:
    """A table as search space, evaluator and cost model; ``load_benchmark`` reads it.

    Args:
        space: Search space of the rows.
        rows: Row number by options, in the order of ``space.choices``.
        names: Names of the columns of ``values``: ``accuracy``, then costs.
        values: Accuracy and costs of each row, ``(n_rows, 1 + n_costs)``.
    """

    max_cost_queries: int | None = None  #: ``None``: samplers may read any number of costs

    def __init__(
        self,
        space: SearchSpace,
        rows: Mapping[tuple[Option, ...], int],
        names: Sequence[str],
        values: Array,
    ):
        self.space, self._rows = space, rows
        self.names = tuple(names)
        self.values = values
        self._maximise = maximise_flags(names)

    def row(self, genotype: Genotype) -> int | None:
        """Return the row number of a genotype; ``None`` if it is not in the table."""
        options = genotype.to_dict()
        return self._rows.get(tuple(options[name] for name in self.space.choices))

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        """Return the accuracy in the table, without an interval; ``incumbent`` is ignored.

        Raises:
            AssertionError: the genotype is not in the table.
        """
        row = self.row(genotype)
        assert row is not None
        return Score(Quantity(float(self.values[row, 0]), "table"))

    def cost(self, genotype: Genotype) -> Cost:
        """Return the costs in the table, by name such as ``latency_ms``.

        Raises:
            CompileError: the genotype is not in the table.
        """
        row = self.row(genotype)
        if row is None:
            raise CompileError("The table has no row for this genotype.")
        values = self.values[row, 1:].tolist()
        figures = zip(self.names[1:], values, strict=True)
        return Cost({name: Quantity(value, "table") for name, value in figures})

    def fitting(self, limits: Mapping[str, float]) -> NDArray[np.intp]:
        """Return the indices of the rows that meet all limits, in ascending order.

        Args:
            limits: Limits by name of the cost: upper ones, or lower ones of maximised costs.

        Raises:
            ValueError: the table lacks a cost that has a limit.
        """
        fits = np.ones(len(self.values), bool)
        for name, limit in limits.items():
            values, metric = self.values[:, self.names.index(name)].tolist(), metric_of(name)
            fits &= [metric.violation(Quantity(value, "table"), limit) <= 0 for value in values]
        return np.flatnonzero(fits)

    def share(
        self,
        genotypes: Sequence[Genotype],
        config: BenchmarkConfig,
        limits: Mapping[str, float] | None = None,
    ) -> float:
        """Return the hypervolume of genotypes divided by that of the exact front, in [0, 1].

        NaN if no row meets the limits, or the exact hypervolume is 0.

        Args:
            genotypes: Genotypes that meet the limits; those not in the table are left out.
            config: ``config.reference`` has the reference point by objective; default of each: the
                worst value of the rows that meet the limits.
            limits: Limits as of ``fitting``; the exact front is that of the rows that meet them.
        """
        values = self.values[self.fitting(limits or {})]
        if not len(values):
            return math.nan
        worst = np.where(self._maximise, values.min(axis=0), values.max(axis=0)).tolist()
        reference = [config.reference.get(n, w) for n, w in zip(self.names, worst, strict=True)]
        rows = [row for genotype in genotypes if (row := self.row(genotype)) is not None]
        exact = self._volume(values[non_dominated(values, self._maximise)], reference)
        return self._volume(self.values[rows], reference) / exact if exact else math.nan

    def _volume(self, values: Array, reference: Sequence[float]) -> float:
        sign = np.where(self._maximise, -1.0, 1.0)
        inside = (sign * values < sign * np.asarray(reference)).all(axis=1)
        return hypervolume(values[inside], reference, self._maximise) if inside.any() else 0.0


def load_benchmark(config: BenchmarkConfig) -> Benchmark:
    """Return the table that ``benchmark.path`` and the other options describe.

    Raises:
        TableError: the file cannot be read, has no rows, lacks a column or has one twice, has
            two rows of a genotype or an invalid value, or lacks a combination of options
            (unless ``config.partial``).
    """
    path = Path(config.path)
    table = _read(path)
    columns_of = dict.fromkeys(config.costs.values(), "costs") | {config.accuracy: "accuracy"}
    for name, option in (columns_of | dict.fromkeys(config.genotype, "genotype")).items():
        if name not in table.column_names:
            problem = unknown_name("column", name, table.column_names)
            raise TableError(f"{path}, benchmark.{option}: {problem}")
    if len({*table.column_names}) < table.num_columns:
        twice = next(n for n in table.column_names if table.column_names.count(n) > 1)
        raise TableError(f"{path}: column '{twice}' occurs twice. Rename or remove one.")
    if table.num_rows == 0:
        raise TableError(f"{path} has no rows. It needs one for each combination of options.")
    columns = [_options(path, name, table[name]) for name in config.genotype]
    names = ("accuracy", *config.costs)
    sources = (config.accuracy, *config.costs.values())
    values = np.stack(
        [_numbers(path, n, s, table[s]) for n, s in zip(names, sources, strict=True)], axis=1
    )
    keys = list(zip(*columns, strict=True))
    first: dict[tuple[Option, ...], int] = {}
    for i, key in enumerate(keys):
        if first.setdefault(key, i) != i:
            raise TableError(
                f"{path}: rows {first[key]} and {i} (from 0) have the same genotype, "
                f"{_choices_text(config.genotype, key)}; repeated rows: "
                f"{len(keys) - len({*keys})}. Keep one row of each genotype, for example "
                "with the mean."
            )
    choices = {
        n: _sorted_options(column) for n, column in zip(config.genotype, columns, strict=True)
    }
    total = math.prod(len(options) for options in choices.values())
    if total > len(keys) and not config.partial:
        raise TableError(
            f"{path}: {total - len(keys):,} of {total:,} combinations of options are missing"
            f"{_example(choices, first)}. Complete it, or set benchmark.partial=true to treat "
            "them as infeasible."
        )
    space = SearchSpace(path.name.partition(".")[0], "table", choices, {})
    return Benchmark(space, first, names, values)


def _read(path: Path) -> pa.Table:
    if path.exists() and not path.is_file():
        raise TableError(f"benchmark.path={path} is not a file. Give a Parquet or CSV file.")
    try:
        if path.name.endswith((".csv", ".csv.gz")):
            return pyarrow.csv.read_csv(path)
        return pq.read_table(path)
    except FileNotFoundError:
        raise TableError(
            f"benchmark.path={path}: file not found. Give a Parquet or CSV file."
        ) from None
    except (OSError, pa.ArrowException) as error:
        reason = short_reason(error)
        kind = "CSV" if path.name.endswith((".csv", ".csv.gz")) else "Parquet"
        raise TableError(
            f"benchmark.path={path} cannot be read as {kind}: {reason.rstrip('.')}. Files named "
            ".csv or .csv.gz are read as CSV, all others as Parquet."
        ) from None


def _options(path: Path, name: str, column: pa.ChunkedArray) -> list[Option]:
    values = column.to_pylist()
    for i, value in enumerate(values):
        if value is None or value == "" or value != value:
            raise TableError(
                f"{path}: row {i} (from 0) has no '{name}'. Add the option, or remove the row and "
                "set benchmark.partial=true."
            )
    return [
        v if isinstance(v, (int, float)) and not isinstance(v, bool) else str(v) for v in values
    ]


def _numbers(path: Path, metric: str, name: str, column: pa.ChunkedArray) -> Array:
    try:
        values = np.array(column.cast(pa.float64()).fill_null(math.nan).to_pylist(), np.float64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # texts, lists
        raise TableError(
            f"{path}: column '{name}' must have numbers, but its type is {column.type}."
        ) from None
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise TableError(
            f"{path}: '{name}' is {values[bad[0]]} in row {bad[0]} (from 0), and not finite in "
            f"{len(bad)} of {len(values)} rows. Remove them and set benchmark.partial=true."
        )
    least = np.flatnonzero(values <= 0) if metric in _ABOVE_ZERO else np.array([], int)
    if len(least):
        raise TableError(
            f"{path}: column '{name}' is {values[least[0]]:g} in row {least[0]} (from 0). Allowed: "
            "above 0. Correct it, or remove the row and set benchmark.partial=true."
        )
    return values


def _sorted_options(column: Sequence[Option]) -> tuple[Option, ...]:
    """Return the sorted options of a choice."""
    return tuple(sorted({*column}))


def _example(
    choices: Mapping[str, tuple[Option, ...]], known: Mapping[tuple[Option, ...], int]
) -> str:
    """Return the first missing combination as text."""
    key = next(key for key in itertools.product(*choices.values()) if key not in known)
    return f", for example {_choices_text(list(choices), key)}"


def _choices_text(names: Sequence[str], key: tuple[Option, ...]) -> str:
    return " ".join(f"{name}={option}" for name, option in zip(names, key, strict=True))
