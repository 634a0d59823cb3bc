"""What the scripts of a page read of an explorer: plain data, ready for JSON."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.figure import Figure, Figures
from hwnas.metrics import Metric, qualities
from hwnas.report import packing
from hwnas.report.explorer import Beside, Explorer, Point, RunData
from hwnas.report.thinning import thinned
from hwnas.space import Option

_SHOWN = 100_000  # points of a page: more make it slow and large, and show nothing more
_UNKNOWN = Figure(float("nan"), "measured")
Content = dict[str, Any]


def content(explorer: Explorer, n_runs: int) -> Content:
    """Return what the scripts read.

    Args:
        explorer: What is shown.
        n_runs: Of all explorers on the page, which share what a page can hold.
    """
    choices = _Choices([point for run in explorer.runs for point in run.points])
    most = _SHOWN // max(1, n_runs)
    kept = [_kept(run.points, explorer, most) for run in explorer.runs]
    points = [run.points[i] for run, which in zip(explorer.runs, kept, strict=True) for i in which]
    front = [i for i, point in enumerate(points) if point.on_front]
    members = [points[i] for i in front]
    exact = {*explorer.objectives, *explorer.limits}
    label, marked = explorer.marked
    return {
        "n": len(points),
        "columns": [
            {
                "name": name,
                "label": column.label,
                "unit": column.unit,
                "maximise": column.maximise,
                "percent": _is_share(name, points),
                "quality": name in qualities(),
                "objective": name in explorer.objectives,
                "limit": explorer.limits.get(name),
                "searched": _column([p.figures for p in points], name, ends=name in exact),
                "verified": _column([p.verified for p in members], name, ends=True),
            }
            for name, column in explorer.columns.items()
        ],
        "plots": [_plot(explorer.objectives[0], x, explorer.columns)
                  for x in explorer.objectives[1:]],
        "runs": [_run(run, len(which)) for run, which in zip(explorer.runs, kept, strict=True)],
        "ids": packing.ids([point.id for point in points]),
        "trials": packing.floats(
            np.array([np.nan if p.trial is None else p.trial for p in points], np.float64)
        ),
        "stopped": packing.counts(np.array([point.stopped for point in points], np.intp)),
        "front": front,
        "notes": [member.note for member in members],
        "marked": [i for i, member in enumerate(members) if member.id in marked],
        "marks": label,
        "choices": choices.content(explorer.runs, kept),
        "beside": None if explorer.beside is None else _beside(explorer.beside, explorer.columns),
    }  # fmt: skip


def _beside(beside: Beside, columns: Mapping[str, Metric]) -> Content:
    """Return the networks of another run, a column each of what is known of them."""
    return {
        "label": beside.label,
        "n": len(beside.points),
        "columns": [_column(beside.points, name, ends=True) for name in columns],
    }


def _is_share(name: str, points: Sequence[Point]) -> bool:
    """Return whether a column is shown in per cent: of accuracies, those that are not already."""
    plain = name.rpartition(".")[2]
    if plain.startswith("accuracy"):
        return not any(point.figures[name].value > 1 for point in points if name in point.figures)
    return plain.startswith("p_on_")


def _plot(y: str, x: str, columns: Mapping[str, Metric]) -> Content:
    """Return which columns a plot shows: a target may have an accuracy of its own, verified."""
    target, _, _ = x.rpartition(".")
    own = f"{target}.{y}"
    names = list(columns)
    verified = own if target and own in columns else y
    return {"x": names.index(x), "y": names.index(y), "verified": names.index(verified)}


def _run(run: RunData, n_shown: int) -> Content:
    n = len(run.points)
    return {"name": run.name, "group": run.group or run.name, "n": n_shown, "all": n,
            "refused": run.n_refused, "choices": any(p.options for p in run.points)}  # fmt: skip


def _kept(points: Sequence[Point], explorer: Explorer, most: int) -> NDArray[np.intp]:
    """Return which points of a run are shown: its front, and not too many others."""
    if len(points) <= most:
        return np.arange(len(points))
    on_front = np.array([point.on_front for point in points])
    sign = [-1.0 if explorer.columns[name].maximise else 1.0 for name in explorer.objectives]
    values = np.array(
        [[point.figures[name].value for name in explorer.objectives] for point in points]
    ) * np.array(sign)
    others = np.flatnonzero(~on_front)
    n_others = max(0, most - int(on_front.sum()))
    near = others[thinned(values[others], values[on_front], n_others)]
    return np.sort(np.concatenate([np.flatnonzero(on_front), near]))


def _column(figures: Sequence[Figures], name: str, *, ends: bool) -> Content:
    """Return a column of figures, with their intervals if ``ends`` are wanted."""
    found = [each.get(name, _UNKNOWN) for each in figures]
    sources = list(dict.fromkeys(f.source for f in found if f is not _UNKNOWN))
    column: Content = {
        "value": packing.floats(np.array([f.value for f in found], np.float64)),
        "low": packing.floats(np.array([f.low for f in found], np.float64)) if ends else None,
        "high": packing.floats(np.array([f.high for f in found], np.float64)) if ends else None,
        "sources": sources,
    }
    if len(sources) > 1:
        codes = {source: code for code, source in enumerate(sources)}
        column["source"] = packing.counts(
            np.array([codes.get(figure.source, 0) for figure in found], np.intp)
        )
    return column


class _Choices:
    """The choices of all networks: of each its options, and which one a network took."""

    def __init__(self, points: Sequence[Point]):
        pairs = [pair for point in points for pair in point.options]
        self.options = _options(pairs)
        found = [
            (name, option, j, code)
            for j, (name, options) in enumerate(self.options.items())
            for code, option in enumerate(options, 1)
        ]
        index = {(name, option): k for k, (name, option, _, _) in enumerate(found)}
        taken = np.fromiter(map(index.__getitem__, pairs), np.intp, len(pairs))
        columns = np.array([j for _, _, j, _ in found], np.intp)[taken]
        rows = np.repeat(np.arange(len(points)), [len(point.options) for point in points])
        #: ``(n, choices)``: the option from 1, or 0 where the choice is inactive
        self.codes = np.zeros((len(points), len(self.options)), np.intp)
        self.codes[rows, columns] = np.array([code for _, _, _, code in found], np.intp)[taken]

    def content(self, runs: Sequence[RunData], kept: Sequence[NDArray[np.intp]]) -> list[Content]:
        """Return, of each choice, the options of shown points, and counts over all of a run."""
        starts = np.cumsum([0, *(len(run.points) for run in runs)])
        shown = [which + start for which, start in zip(kept, starts, strict=False)]
        rows = np.concatenate([*shown, np.zeros(0, np.intp)])
        return [
            {
                "name": name,
                "options": options,
                "codes": packing.counts(self.codes[rows, j]),
                "all": [
                    np.bincount(self.codes[a:b, j], minlength=len(options) + 1)[1:].tolist()
                    for a, b in itertools.pairwise(starts)
                ],
            }
            for j, (name, options) in enumerate(self.options.items())
        ]


def _options(pairs: Sequence[tuple[str, Option]]) -> dict[str, list[Option]]:
    """Return the options of each choice, numbers before words, smallest first."""
    found: dict[str, list[Option]] = {}
    for name, option in dict.fromkeys(pairs):
        found.setdefault(name, []).append(option)
    return {
        name: sorted(found[name], key=lambda o: (isinstance(o, str), o)) for name in sorted(found)
    }
