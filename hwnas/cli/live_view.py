"""The table below the progress bars of a search: one row per target, and one for all targets."""

from collections.abc import Sequence
from typing import final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hwnas.nas.candidates import Candidate
from hwnas.nas.search_progress import SearchProgress, SearchView, Snapshot
from hwnas.tasks.metrics import costs_in, format_value, metric_of, quality_in
from hwnas.workflows.reporter import FinishedTrials

_WORDS = (
    "hypervolume: the front's share of the box between a perfect metric at no cost and the worst "
    "that counts: a budget's limit, else the worst so far"
)


@final
class LiveView:
    """Follows a study; a ``Note``. It reads what the search keeps, and changes nothing.

    Args:
        study: Whose candidates only become more; a later one may stand before an earlier one.
        views: What is looked at.
    """

    def __init__(self, study: FinishedTrials, views: Sequence[SearchView]):
        self._study, self._views = study, views
        self._standings = [SearchProgress(view.objectives, view.limits) for view in views]
        self._trials: set[int] = set()
        self._snapshots = [search_progress.snapshot() for search_progress in self._standings]

    def look(self) -> bool:
        """Take in the trials that were finished since; return whether there are any."""
        new = [c for c in self._study.candidates if c.trial not in self._trials]
        if not new:
            return False
        self._trials.update(candidate.trial for candidate in new)
        for view, search_progress in zip(self._views, self._standings, strict=True):
            search_progress.add(view.seen(candidate) for candidate in new)
        self._snapshots = [search_progress.snapshot() for search_progress in self._standings]
        return True

    def line(self) -> str:
        """Return how the search stands in one line."""
        parts = []
        for view, snapshot in zip(self._views, self._snapshots, strict=True):
            cells = dict(zip(_heads(view), _cells(view, snapshot), strict=True))
            words = ", ".join(f"{head} {cell}" for head, cell in cells.items() if cell)
            parts.append(f"{view.name}: {words}" if view.name else words)
        return "; ".join(parts)

    def panel(self) -> RenderableType:
        """Return how the search stands as a table, and what its hypervolume is."""
        names = [view.name for view in self._views]
        heads = _heads(self._views[0])
        heads = ["", *heads] if any(names) else heads
        table = Table(*heads, box=box.SIMPLE_HEAD, show_edge=False, header_style="dim")
        for part in table.columns[:-1]:
            part.justify = "right"
        for view, snapshot in zip(self._views, self._snapshots, strict=True):
            table.add_row(*([view.name] if any(names) else []), *_cells(view, snapshot))
        return Group(table, Text(_WORDS, style="dim"))


def _heads(view: SearchView) -> list[str]:
    of = metric_of(quality_in(view.objectives))
    best = f"{'highest' if of.maximise else 'lowest'} {of.label}"
    return ["feasible", "front", "newest", "hypervolume", best]


def _cells(view: SearchView, snapshot: Snapshot) -> list[str]:
    share = snapshot.hypervolume
    return [
        f"{snapshot.feasible:.0%}" if snapshot.n else "",
        str(snapshot.n_front),
        "" if snapshot.newest is None else f"trial {snapshot.newest}",
        "" if share is None else f"{share:.4f}",
        "none yet" if snapshot.highest is None else _figures(view, snapshot.highest),
    ]


def _figures(view: SearchView, member: Candidate) -> str:
    metric, names = quality_in(view.objectives), costs_in(view.objectives)
    words = [f"{member.figures[name].value:.4g} {_unit(name)}" for name in names]
    return f"{format_value(metric, member.figures[metric].value)} at {', '.join(words)}"


def _unit(name: str) -> str:
    """Return the unit, and what it is of where that does not say it."""
    found = metric_of(name)
    return found.unit if found.unit in ("ms", "mJ") else f"{found.unit} {found.label}"
