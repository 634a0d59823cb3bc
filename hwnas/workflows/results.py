"""The result of a search in Python and notebooks, read from its folder."""

import html
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name  # python_api imports this module
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
from matplotlib.figure import Figure

from hwnas.analysis.figures import draw_front, front_figure, read_fronts
from hwnas.core.errors import ConfigError, RunError
from hwnas.core.manifest import Manifest, read_manifest
from hwnas.core.run_folder import to_table
from hwnas.nas.candidates import read_table
from hwnas.nas.run import Run
from hwnas.nas.verified_files import read_front
from hwnas.tasks import recorded_task
from hwnas.tasks.metrics import quality_in
from hwnas.workflows.front_table import FrontTable
from hwnas.workflows.result_folders import Export, html_image, html_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hwnas.workflows.why_sources import WhyReport


@dataclass(frozen=True)
class SearchResult(os.PathLike[str]):
    """A search by its folder, finished or not.

    Raises:
        RunError: the folder is not that of a search.
    """

    path: Path  #: folder of the search
    messages: tuple[str, ...] = ()  #: messages of the command
    storage: str | None = None  #: URL of the database of its study, if it is not in the folder

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
        verified = read_front(self.path)
        if verified is not None and not verified["members"] and "targets" in self.manifest:
            raise RunError(
                f"{self.path} has no network that meets the budgets of all targets. Use "
                ".targets[NAME].front."
            )
        if verified is not None:
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
        if (table := so_far(self.path, self.storage)) is None and (
            table := read_table(self.path)
        ) is None:
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
        return {name: SearchResult(self.path / name, storage=self.storage) for name in names}

    def best(self, **limits: float) -> dict[str, Any]:
        """Return the network on the front with the best metric within limits: values by column.

        As in exports, networks that are not significantly better than a constant answer are left
        out. Example: ``result.best(latency_ms=0.5, flash_kib=100)["id"]``.

        Args:
            limits: Limits by column: upper limits, or lower limits of metrics to be maximised. A
                value equal to its limit is allowed.

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
        fronts = read_fronts(self.path, self.storage)
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
        from hwnas.workflows.config.runs import StoredStudyConfig
        from hwnas.workflows.why import why

        return why(WhyConfig(str(self.path), genotype_id, StoredStudyConfig(self.storage)))

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


def so_far(path: Path, storage: str | None = None) -> pa.Table | None:
    """Return the candidates of an unfinished search, one row each; ``None`` for a finished one.

    Raises:
        RunError: no trial is finished yet, or the study cannot be read.
    """
    run = Run.load(path, "path", storage)
    study = run.whole.study
    if not run.whole.is_running or study is None:
        return None
    run.check_complete()
    summary = study.summary()
    metric = quality_in(summary.objectives)
    rows = [candidate.row(summary.space, metric) for candidate in run.candidates]
    return to_table(rows)
