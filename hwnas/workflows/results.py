"""What a search left in its folder, for notebooks."""

import base64
import html
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name  # python_api imports this module
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv
from matplotlib.figure import Figure

from hwnas.analysis import run_fronts
from hwnas.analysis.figures import FrontPanel, front_figure
from hwnas.analysis.search_page import FrontData
from hwnas.core.errors import RunError
from hwnas.core.manifest import Manifest, read_manifest
from hwnas.core.run_folder import to_table
from hwnas.nas.candidates import read_table
from hwnas.nas.run import Run
from hwnas.nas.verified_files import read_front
from hwnas.tasks.metrics import quality_in, quality_names
from hwnas.tasks.metrics.budget import Budget
from hwnas.workflows.result_folders import Export, html_lines, html_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hwnas.workflows.why_sources import WhyReport


@dataclass(frozen=True)
class SearchResult(os.PathLike[str]):
    """A search by its folder, finished or not.

    Raises:
        RunError: there is no search in the folder.
    """

    path: Path
    messages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.manifest["verb"] != "search":
            raise RunError(f"{self.path} is a run of '{self.manifest['verb']}', not a search.")

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def manifest(self) -> Manifest:
        """What was asked for, by which versions, and what it came to."""
        return read_manifest(self.path, "path")

    @property
    def front(self) -> pa.Table:
        """The front with a row for each network, and columns for choices and figures.

        ``.to_pandas()`` makes a data frame of it, where pandas is installed.

        Raises:
            RunError: the search has no front yet.
        """
        listed = self.path / "front.csv"
        if (verified := read_front(self.path)) is not None:
            return to_table(verified["members"])
        if listed.exists():  # of a benchmark table: there is nothing to verify
            return pyarrow.csv.read_csv(listed)
        raise RunError(f"{self.path} has no front yet: {self.manifest['status']}.")

    @property
    def candidates(self) -> pa.Table:
        """All candidates, a row for each trial; those of now where the search is not finished.

        Raises:
            RunError: no trial is finished yet, or the study of a search that goes on is unreadable.
        """
        if (found := so_far(self.path)) is None and (found := read_table(self.path)) is None:
            raise RunError(f"{self.path}: no trial is finished yet.")
        return found

    @property
    def targets(self) -> dict[str, "SearchResult"]:
        """What a search for several targets found for each, by its name.

        Raises:
            RunError: it has not come to its end yet.
        """
        manifest = self.manifest
        names = manifest.get("targets", {})
        if not all((self.path / name / "manifest.json").exists() for name in names):
            raise RunError(
                f"{self.path} has no results of each target yet: {manifest['status']}. What was "
                "found so far: .candidates, .plot()."
            )
        return {name: SearchResult(self.path / name) for name in names}

    def plot(self) -> "Figure":
        """Return a figure of matplotlib's: the metric over the first cost, a panel a target."""
        return of_search(self.path)

    def why(self, genotype_id: str = "front") -> "WhyReport":
        """Return when and why a candidate was proposed, what it beat, and what beats it.

        Args:
            genotype_id: Of a candidate, or how it begins; ``front`` lists those on the front.
        """
        from hwnas.workflows.config import WhyConfig
        from hwnas.workflows.why import why

        return why(WhyConfig(str(self.path), genotype_id))

    def export(self, pick: str = "knee", **options: Any) -> list[Export]:
        """Write models as files for the device, with a proof of what they do.

        Args:
            pick: ``knee``, ``most_accurate``, ``fastest``, ``smallest``, ``all``, an id, or an
                expression.
            options: Of ``hwnas export``, as ``dir="models"``.

        Raises:
            ProofError: a file does not do what it should; its folder is kept.
        """
        export: Callable[..., list[Export]] = resolve_name("hwnas.workflows.python_api:export")
        return export(self, pick=pick, **options)

    def compress(self, pick: str = "knee", **options: Any) -> Export:
        """Fit a network into another budget: weights of few bits, fewer channels.

        Args:
            pick: As for ``export``.
            options: Of ``hwnas compress``, as ``budget={"flash_kib": 20}``.

        Raises:
            BudgetError: nothing makes it fit.
            ProofError: a file does not do what it should; its folder is kept.
        """
        compress: Callable[..., Export] = resolve_name("hwnas.workflows.python_api:compress")
        return compress(self, pick=pick, **options)

    def _repr_html_(self) -> str:
        manifest = self.manifest
        count = f"{manifest.get('n_candidates', 'some')} candidates"
        heading = f"Search in {self.path}: {manifest['status']}, {count}"
        parts = [f"<h4>{html.escape(heading)}</h4>", *self._picture(), *self._rows()]
        return "".join([*parts, html_lines(self.messages)])

    def _picture(self) -> Iterator[str]:
        if (path := self.path / "front.png").exists():
            drawn = base64.b64encode(path.read_bytes()).decode()
            yield f'<img alt="front" style="max-width:40em" src="data:image/png;base64,{drawn}">'

    def _rows(self) -> Iterator[str]:
        if not (self.path / "front.csv").exists():
            return
        front = self.front
        known = [name for name in front.column_names if _is_shown(name)]
        yield html_table(front.select(known))


def _is_shown(name: str) -> bool:
    """Return whether a column is a figure of its own or an id, and not a choice or an interval."""
    plain = name.removeprefix("verified_").rpartition(".")[2]
    quality = plain.removesuffix("_int8").removesuffix("_fp32") in quality_names()
    return quality or plain in ("id", "latency_ms", "energy_mj")


# Pictures of a search, from its folder.


def of_search(path: Path) -> Figure:
    """Return the metric over the first cost, a panel for each target.

    Raises:
        RunError: it is not the folder of a search, or nothing is finished in it yet.
    """
    manifest = read_manifest(path, "path")
    panels = [_of_target(path, manifest, name) for name in manifest.get("targets", {})]
    return front_figure(*panels or [_panel(path)])


def _of_target(path: Path, manifest: Manifest, target: str) -> FrontPanel:
    """Return the panel of one of several targets; it has no folder before the search ends."""
    if (path / target / "manifest.json").exists():
        return _panel(path / target)
    config = manifest["targets"][target]["config"]
    run = Run.load(path, "path")
    run.check_complete()
    front = FrontData(run.seen_by(target), [], config["objectives"], Budget.of(config["budget"]))
    return FrontPanel(front, f"{path.absolute().name} on {target}")


def _panel(path: Path) -> FrontPanel:
    run = run_fronts.read_run_folder(path, "path")
    title = f"{run.name} on {run.target}" if run.target else run.name
    return FrontPanel(
        FrontData(run.candidates, run.members, [*run.directions], Budget(run.limits)), title
    )


# What a search that goes on, or was cut off, has found so far.


def so_far(path: Path) -> pa.Table | None:
    """Return the candidates in its study, a row each; ``None`` of a search that has ended.

    Raises:
        RunError: no trial is finished yet, or its study cannot be read.
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
