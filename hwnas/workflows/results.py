"""The result of a search in Python and notebooks, read from its folder."""

import html
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name  # python_api imports this module
from typing import TYPE_CHECKING, Any, final

import pyarrow as pa
import pyarrow.csv
from matplotlib.figure import Figure
from pyarrow import compute

from hwnas.analysis.figures import draw_front, front_figure, read_fronts
from hwnas.core.errors import ConfigError, RunError, unknown_name
from hwnas.core.manifest import Manifest, read_manifest
from hwnas.core.run_folder import to_table
from hwnas.nas.candidates import read_table
from hwnas.nas.front import left_out_message
from hwnas.nas.run import Run
from hwnas.nas.verified_files import read_front
from hwnas.tasks import recorded_task
from hwnas.tasks.metrics import cost_names, is_better, metric_of, quality_in, quality_names
from hwnas.workflows.result_folders import Export, html_image, html_lines, html_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hwnas.workflows.why_sources import WhyReport


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
        quality = next(name for name in self._columns if _metric(name) in quality_names())
        sign = 1 if metric_of(_metric(quality)).maximise else -1
        return max(rows, key=lambda row: sign * row[quality])

    def _repr_html_(self) -> str:
        titles = [_title(name, names[0]) for name, names in self._columns.items()]
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
        elif column in cost_names() and column not in _SIZES:
            columns[plain] = [name]
    return columns


def _first_known(table: pa.Table, names: list[str]) -> pa.ChunkedArray:
    """Return, for each network, the first value that is not null."""
    return compute.coalesce(*(table[name] for name in names)) if len(names) > 1 else table[names[0]]


def _title(name: str, file_column: str) -> str:
    """Return the heading of a column, with unit, dtype and split."""
    plain = name.removesuffix("_low").removesuffix("_high")
    if not _is_figure(plain):
        return name.replace("_", " ")
    title = metric_of(_metric(plain)).title
    target = name.rpartition(".")[0]
    if _metric(plain) in quality_names() and file_column.startswith("verified_"):
        dtype = "int8" if "_int8" in file_column else "float32"
        title += f" ({dtype}, test)" if name == plain else ""
    end = {"_low": ", lower", "_high": ", upper"}.get(name.removeprefix(plain), "")
    return f"{target} {title}{end}".strip()


@dataclass(frozen=True)
class SearchResult(os.PathLike[str]):
    """A search by its folder, finished or not.

    Raises:
        RunError: the folder is not that of a search.
    """

    path: Path  #: folder of the search
    messages: tuple[str, ...] = ()  #: messages of the command

    def __post_init__(self) -> None:
        if self.manifest["verb"] != "search":
            raise RunError(
                f"{self.path} is a folder of 'hwnas {self.manifest['verb']}'. Give the folder of a "
                "search."
            )

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def manifest(self) -> Manifest:
        """Content of ``manifest.json``, with options, versions of packages and status.

        Raises:
            RunError: the file is missing or damaged.
        """
        return read_manifest(self.path, "path")

    @property
    def front(self) -> FrontTable:
        """The front with one row per network; ``front.all`` has every column.

        Raises:
            RunError: the search has no front: it is unfinished, no network meets the budget, or
                none could be compiled.
        """
        listed = self.path / "front.csv"
        if (verified := read_front(self.path)) is not None:
            constant = recorded_task(self.manifest).description.constant
            return FrontTable(to_table(verified["members"]), verified.get("guessing", ()), constant)
        if listed.exists():  # of a benchmark table: there is nothing to verify
            return FrontTable(pyarrow.csv.read_csv(listed))
        status = self.manifest["status"]
        remedy = f"finish it: hwnas.search(resume='{self.path}')"
        if status == "nothing fits the budget":
            remedy = "start a new search with a larger budget"
        raise RunError(
            f"{self.path} has no front: its status is '{status}'. Use .candidates, or {remedy}."
        )

    @property
    def candidates(self) -> pa.Table:
        """All candidates, one row per trial; for an unfinished search, those so far.

        Raises:
            RunError: no trial is finished yet, or the study of an unfinished search is unreadable.
        """
        if (table := so_far(self.path)) is None and (table := read_table(self.path)) is None:
            raise RunError(
                f"{self.path}: no trial is finished yet. Wait for the first one, or continue the "
                f"search: hwnas.search(resume='{self.path}')."
            )
        return table

    @property
    def targets(self) -> dict[str, "SearchResult"]:
        """The results for each target of a search for several, by name of the target.

        Empty for a search for one target.

        Raises:
            RunError: the search is not finished.
        """
        manifest = self.manifest
        names = manifest.get("targets", {})
        if not all((self.path / name / "manifest.json").exists() for name in names):
            raise RunError(
                f"{self.path} has no results of each target yet: its status is "
                f"'{manifest['status']}'. The results so far are in .candidates and .plot()."
            )
        return {name: SearchResult(self.path / name) for name in names}

    def best(self, **limits: float) -> dict[str, Any]:
        """Return the network on the front with the best metric within limits: values by column.

        As in exports, networks that are not significantly better than a constant answer are left
        out. Example: ``result.best(latency_ms=0.5, flash_kib=100)["id"]``.

        Args:
            limits: Limits by column, see :meth:`FrontTable.best`.

        Raises:
            ConfigError: there is no such column, or no network is on the front or within the
                limits.
            RunError: the search has no front yet.
        """
        return self.front.best(limits)

    def plot(self, ax: "Axes | None" = None) -> Figure:
        """Return a figure of candidates and front: the metric over the first cost, by target.

        Args:
            ax: Axes of matplotlib to draw into, for a search with one target.

        Raises:
            ConfigError: ``ax`` is given, and the search has several targets.
            RunError: no trial is finished yet.
        """
        fronts = read_fronts(self.path)
        if ax is None:
            return front_figure(*fronts)
        if len(fronts) > 1:
            raise ConfigError(
                f"plot(ax=...) draws one target, but this search has {len(fronts)}. Use "
                "result.targets[NAME].plot(ax=ax)."
            )
        draw_front(ax, fronts[0])
        ax.legend(fontsize="small")  # inside: the caller's figure may have no room below the axes
        figure = ax.get_figure(root=True)
        assert figure is not None
        return figure

    def why(self, genotype_id: str = "front") -> "WhyReport":
        """Return when and why a candidate was proposed, and which candidates it dominates.

        Args:
            genotype_id: Id of a candidate, or its first digits; ``front`` lists the front.

        Raises:
            ConfigError: no candidate has this id, or several ids start with it.
            RunError: no trial is finished yet.
        """
        from hwnas.workflows.config import WhyConfig
        from hwnas.workflows.why import why

        return why(WhyConfig(str(self.path), genotype_id))

    def export(self, pick: str | list[str] = "knee", **options: Any) -> list[Export]:
        """Write networks as files for the device, check them, and return the exports.

        Args:
            pick: ``knee``, ``most_accurate``, ``fastest``, ``smallest``, ``all``, an id, or an
                expression such as ``accuracy max where latency_ms < 0.5``; or a list of them.
            options: Options of ``hwnas export``, for example ``dir="models"``.

        Raises:
            ProofError: a check fails; the folder is kept.
        """
        export: Callable[..., list[Export]] = resolve_name("hwnas.workflows.python_api:export")
        return export(self, pick=pick, **options)

    def compress(self, pick: str = "knee", **options: Any) -> Export:
        """Compress a network to another budget (fewer weight bits or channels); return the export.

        Args:
            pick: As for ``export``.
            options: Options of ``hwnas compress``, for example ``budget={"flash_kib": 20}``.

        Raises:
            BudgetError: no compression meets the budget.
            ProofError: a check fails; the folder is kept.
        """
        compress: Callable[..., Export] = resolve_name("hwnas.workflows.python_api:compress")
        return compress(self, pick=pick, **options)

    def _repr_html_(self) -> str:
        manifest = self.manifest
        count = f"{manifest.get('n_candidates', 'some')} candidates"
        heading = f"Search in {self.path}: {manifest['status']}, {count}"
        parts = [f"<h4>{html.escape(heading)}</h4>"]
        if (self.path / "front.csv").exists():
            parts += [self.front._repr_html_(), html_image(self.path / "front.png")]
        return "".join([*parts, html_lines(self.messages)])

    def __repr__(self) -> str:
        return f"SearchResult('{self.path}': {self.manifest['status']})"


# Candidates of an unfinished search.


def so_far(path: Path) -> pa.Table | None:
    """Return the candidates of an unfinished search, one row each; ``None`` for a finished one.

    Raises:
        RunError: no trial is finished yet, or the study cannot be read.
    """
    run = Run.load(path, "path")
    study = run.whole.study
    if not run.whole.is_running or study is None:
        return None
    run.check_complete()
    summary = study.summary()
    metric = quality_in(summary.objectives)
    rows = [candidate.row(summary.space, metric) for candidate in run.candidates]
    return to_table(rows)
