"""The state of a search below its progress line: one line per target, and one for all targets."""

from collections.abc import Iterator, Sequence
from typing import final

from rich.console import RenderableType
from rich.text import Text

from hwnas.core.errors import counted
from hwnas.nas.candidates import Candidate
from hwnas.nas.search_progress import SearchProgress, SearchView, Snapshot
from hwnas.tasks.metrics import costs_in, format_value, metric_of, quality_in
from hwnas.workflows.reporter import FinishedTrials


@final
class LiveView:
    """The state of a running search as a ``LiveNote``.

    Args:
        study: Source of the candidates, whose order may change.
        views: Objectives and limits of each target.
    """

    def __init__(self, study: FinishedTrials, views: Sequence[SearchView]):
        self._study, self._views = study, views
        self._standings = [SearchProgress(view.objectives) for view in views]
        self._trials: set[int] = set()
        self._snapshots = [search_progress.snapshot() for search_progress in self._standings]

    def look(self) -> bool:
        """Read the trials that finished since the last call; return whether there are any."""
        new = [c for c in self._study.candidates if c.trial not in self._trials]
        if not new:
            return False
        self._trials.update(candidate.trial for candidate in new)
        for view, search_progress in zip(self._views, self._standings, strict=True):
            search_progress.add(view.view_of(candidate) for candidate in new)
        self._snapshots = [search_progress.snapshot() for search_progress in self._standings]
        return True

    def line(self) -> str:
        """Return the state of the search as one line of text."""
        return "; ".join(self._lines())

    def panel(self) -> RenderableType:
        """Return the state of the search for the terminal, with a line for each target."""
        return Text("\n".join(self._lines()), style="dim")

    def _lines(self) -> Iterator[str]:
        for view, snapshot in zip(self._views, self._snapshots, strict=True):
            prefix = f"{view.name}: " if view.name else ""
            yield prefix + ", ".join(_state(view, snapshot))


def _state(view: SearchView, snapshot: Snapshot) -> Iterator[str]:
    label = metric_of(quality_in(view.objectives)).label
    if snapshot.highest is None:
        yield "no network yet"
    else:
        yield f"best {label} {_figures(view, snapshot.highest)}"
        networks = f"{counted(snapshot.n_front, 'network')}"
        yield f"front {networks} (newest: trial {snapshot.newest})"
    if snapshot.n:
        yield f"{snapshot.feasible:.0%} fit the budget"


def _figures(view: SearchView, member: Candidate) -> str:
    metric, names = quality_in(view.objectives), costs_in(view.objectives)
    costs = [f"{member.figures[name].value:.4g} {_unit(name)}" for name in names]
    return f"{format_value(metric, member.figures[metric].value)} at {', '.join(costs)}"


def _unit(name: str) -> str:
    """Return the unit of a cost, followed by its label unless the unit is ms or mJ."""
    metric = metric_of(name)
    return metric.unit if metric.unit in ("ms", "mJ") else f"{metric.unit} {metric.label}"
