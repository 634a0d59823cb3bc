"""The front of a search as a table in Python and notebooks."""

from collections.abc import Collection, Mapping
from typing import Any, final

import pyarrow as pa
from pyarrow import compute

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.nas.front import left_out_message
from hwnas.tasks.metrics import cost_names, is_better, metric_of, quality_names
from hwnas.workflows.result_folders import html_lines, html_table

#: Costs that the short table leaves out.
_SIZES = ("macs_m", "params_m")


@final
class FrontTable:
    """A front with one row per network and the columns that are used most.

    Values are those of the compiled files: ``accuracy`` on the test split with its 95 % interval,
    ``latency_ms``, ``energy_mj``, ``sram_kib``, ``flash_kib``. pandas, Polars and pyarrow read it
    as a table; ``front["id"]`` is a column, also one of those that only ``all`` has.

    Args:
        table: All networks that were compiled and evaluated, with all columns.
        at_chance_level: Ids of networks that are not significantly better than a constant answer.
        constant: The constant answer.
    """

    def __init__(
        self, table: pa.Table, at_chance_level: Collection[str] = (), constant: str = ""
    ) -> None:
        self._at_chance_level, self._constant = at_chance_level, constant
        #: all compiled networks, also those that left the front; the columns include choices,
        #: values in the search, sources and ``verified_on_front``
        self.all = table
        is_verified = "verified_on_front" in table.column_names
        self._front = table.filter(table["verified_on_front"]) if is_verified else table
        self._columns = _main_columns(table)
        self.table = pa.table(
            {name: _first_known(self._front, names) for name, names in self._columns.items()}
        )  #: the networks on the front, with the columns that are used most

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return (self.table if name in self._columns else self._front)[name]

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def column_names(self) -> list[str]:
        """Names of the columns of ``table``."""
        return [*self._columns]

    def to_pandas(self) -> Any:
        """Return a data frame of pandas; pandas must be installed."""
        return self.table.to_pandas()

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return one dict per network, with values by column."""
        return [*self.table.to_pylist()]

    def best(self, limits: Mapping[str, float]) -> dict[str, Any]:
        """Return the network on the front with the best metric within limits: values by column.

        As in exports, networks that are not significantly better than a constant answer are left
        out.

        Args:
            limits: Limits by column: upper limits, or lower limits of metrics to be maximised. A
                value equal to its limit is allowed.

        Raises:
            ConfigError: there is no such column, or no network is left on the front or within the
                limits.
        """
        rows = self.to_pylist()
        if not rows:
            raise ConfigError(
                "No network is on the front after verification: verified_on_front is false for all "
                f"{len(self.all)} in front.all. Search again with longer training or a larger "
                "budget."
            )
        rows = [row for row in rows if row["id"] not in self._at_chance_level]
        n_left_out, hint = len(self) - len(rows), ""
        if n_left_out:
            message = left_out_message(n_left_out, len(self), self._constant)
            hint = f" {message} front.table has them."
        if not rows:
            raise ConfigError(f"No network can be chosen.{hint} Search again with longer training.")
        others = list[str]()
        for name, limit in limits.items():
            if name not in self._columns or not _is_figure(name):
                known = [column for column in self._columns if _is_figure(column)]
                raise ConfigError(unknown_name("figure", name, known))
            closest = rows
            rows = [r for r in rows if r[name] == limit or is_better(_metric(name), r[name], limit)]
            if not rows:
                best = max if metric_of(_metric(name)).maximise else min
                among = f" with {' and '.join(others)}" * bool(others)
                raise ConfigError(
                    f"No network of the front is within {name}={limit:g}{among}. The best value"
                    f"{among} is {best(row[name] for row in closest):.4g}: relax a limit."
                    f"{hint}"
                )
            others.append(f"{name}={limit:g}")
        qualities = [name for name in self._columns if _metric(name) in quality_names()]
        sign = 1 if metric_of(_metric(qualities[0])).maximise else -1
        return max(rows, key=lambda row: min(sign * row[name] for name in qualities))

    def _repr_html_(self) -> str:
        titles = [
            _title(name, names[0] if self.all[names[0]].null_count == 0 else "")
            for name, names in self._columns.items()
        ]
        return html_table(self.table.rename_columns(titles)) + html_lines(self._more)

    @property
    def _more(self) -> list[str]:
        """A sentence on the networks that only ``all`` has, if there are any."""
        n = len(self.all) - len(self)
        return [f"Verified networks off the front: {n}, in front.all."] * bool(n)

    def __repr__(self) -> str:
        columns = ", ".join(self._columns)
        return " ".join([f"FrontTable({len(self)} networks, columns: {columns}).", *self._more])


def _metric(name: str) -> str:
    """Return the metric of a column, without target."""
    return name.rpartition(".")[2]


def _is_figure(name: str) -> bool:
    return _metric(name) in (*quality_names(), *cost_names())


def _main_columns(table: pa.Table) -> dict[str, list[str]]:
    """Return the columns of a front that are used most, each with its columns in files."""
    is_verified = any(name.startswith("verified_") for name in table.column_names)
    searched = {_metric(name) for name in table.column_names if not name.startswith("verified_")}
    columns: dict[str, list[str]] = {"id": ["id"]}
    for name in table.column_names:
        plain = name.removeprefix("verified_")
        target, dot, column = plain.rpartition(".")
        metric = column.removesuffix("_int8").removesuffix("_fp32")
        if is_verified and plain == name:
            continue
        if metric in quality_names():
            if metric not in searched:  # no objective: an additional metric of the task
                continue
            for part in ("", "_low", "_high"):
                if name + part in table.column_names:
                    files = columns.setdefault(f"{target}{dot}{metric}{part}", [])
                    files.insert(0 if column.endswith("_int8") else len(files), name + part)
        elif (
            column in cost_names() and column not in _SIZES and table[name].null_count < len(table)
        ):
            columns[plain] = [name]
    return columns


def _first_known(table: pa.Table, names: list[str]) -> pa.ChunkedArray:
    """Return, for each network, the first value that is not null."""
    return compute.coalesce(*(table[name] for name in names)) if len(names) > 1 else table[names[0]]


def _title(name: str, file_column: str) -> str:
    """Return the heading of a column, with unit, dtype and split.

    ``file_column`` is the column of all values in files; empty if networks differ in dtype.
    """
    plain = name.removesuffix("_low").removesuffix("_high")
    if not _is_figure(plain):
        return name.replace("_", " ")
    title = metric_of(_metric(plain)).title
    target = name.rpartition(".")[0]
    if _metric(plain) in quality_names() and name == plain:
        if not file_column:
            title += " (compiled file, test)"
        elif file_column.startswith("verified_"):
            title += f" ({'int8' if '_int8' in file_column else 'float32'}, test)"
    end = {"_low": ", lower", "_high": ", upper"}.get(name.removeprefix(plain), "")
    return f"{target} {title}{end}".strip()
