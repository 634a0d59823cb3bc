"""Figures of a comparison for papers: PNG, and SVG with editable text."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from hwnas.analysis.fronts import Array, Objective, ReferenceFrame, RunFront
from hwnas.analysis.indicators import AttainmentSurface
from hwnas.analysis.significance import Ranking
from hwnas.core.run_folder import Row

#: Palette of Okabe and Ito, safe for colour blindness, without yellow.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vP*X<>"
_MAX_LEGEND = 20  # groups
_LOG_RATIO = 10  # of costs, from which their axis is logarithmic
_MAX_INTERVALS = 400  # members with error bars; markers of more are rasterised
_LOG_EVALUATIONS = 100  # ratio of evaluations
_LINES = ("-", "--", ":", "-.")
#: Deterministic output, and text as text.
_STYLE: Any = {  # matplotlib types its keys one by one
    "svg.fonttype": "none",
    "svg.hashsalt": "hwnas",
    "text.parse_math": False,  # names may contain dollars
    "font.size": 9,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e8e8e8",
    "legend.frameon": False,
    "legend.fontsize": 8,
}

Pictures = dict[str, bytes]  #: content of the files by suffix, ``png`` and ``svg``


def fronts(
    compared: Sequence[RunFront],
    frame: ReferenceFrame,
    quality: Objective,
    costs: Sequence[Objective],
) -> Pictures:
    """Return a figure of the fronts of all runs: quality over each cost, with 95 % intervals.

    It has a panel per cost. ``frame`` has the reference point: axes end there if points are beyond
    it. Above 400 points there are no intervals.
    """
    groups = [*dict.fromkeys(front.group for front in compared)]
    alpha = 0.45 if len(compared) > len(groups) else 0.9
    crowded = sum(int(front.mask.sum()) for front in compared) > _MAX_INTERVALS
    with mpl.rc_context(_STYLE):
        figure, panels = _panels(len(costs))
        for axes, cost in zip(panels, costs, strict=True):
            columns = frame.objectives.index(cost), frame.objectives.index(quality)
            for front in compared:
                if len(frame.objectives) == 2:  # steps are bounds of two objectives only
                    points, look = front.members[:, columns], groups.index(front.group)
                    _draw_stairs(axes, points, cost, look, alpha)
                _draw_front(axes, front, columns, groups, alpha=alpha, crowded=crowded)
            _label(axes, cost, quality)
            x, y = np.concatenate([front.members[:, columns] for front in compared]).T
            _end(axes, (cost, x), (quality, y), frame)
        _legend(figure, panels[0], len(groups))
        return _pictures(figure)


def _draw_stairs(axes: Axes, points: Array, cost: Objective, look: int, alpha: float) -> None:
    """Draw the best quality up to each cost (down to it, if the cost is maximised)."""
    x, y = points[np.lexsort((points[:, 1], points[:, 0]))].T
    axes.step(
        x, y, where="pre" if cost.maximise else "post", color=COLOURS[look % len(COLOURS)], lw=0.9,
        alpha=alpha, ls=_LINES[look // len(COLOURS) % len(_LINES)],
    )  # fmt: skip


def _draw_front(
    axes: Axes,
    front: RunFront,
    columns: tuple[int, int],
    groups: Sequence[str],
    *,
    alpha: float,
    crowded: bool,
) -> None:
    look = groups.index(front.group)
    x, y = (front.members[:, column] for column in columns)
    order = np.lexsort((y, x))
    low, high = (ends[front.mask] for ends in (front.low, front.high))
    errors: dict[str, Any] = {}
    for name, column, values in (("xerr", columns[0], x), ("yerr", columns[1], y)):
        ends = np.array([values - low[:, column], high[:, column] - values])[:, order]
        if ends.any() and not crowded:
            errors[name] = ends
    known = axes.get_legend_handles_labels()[1]
    axes.errorbar(
        x[order], y[order], **errors, fmt=_MARKERS[look % len(_MARKERS)],
        ms=2.5 if crowded else 3.5, lw=0.7, capsize=1.5, color=COLOURS[look % len(COLOURS)],
        alpha=alpha, mec="none", rasterized=crowded,
        label=front.group if front.group not in known else None,
    )  # fmt: skip


def attainment(surfaces: Sequence[AttainmentSurface], frame: ReferenceFrame) -> Pictures:
    """Return a figure of the median attainment surface of each group, shaded between quartiles.

    It has a panel per cost. ``frame`` has the reference point: axes end there if points are beyond
    it.
    """
    groups = [*dict.fromkeys(surface.group for surface in surfaces)]
    costs = [*dict.fromkeys(surface.cost for surface in surfaces)]
    with mpl.rc_context(_STYLE):
        figure, panels = _panels(len(costs))
        for axes, cost in zip(panels, costs, strict=True):
            surfaces_of_cost = [surface for surface in surfaces if surface.cost == cost]
            x, y = np.concatenate([s.points for s in surfaces_of_cost]).T
            end = float(x.min() if cost.maximise else x.max())
            for group in groups:
                by_percentile = {s.percentile: s for s in surfaces_of_cost if s.group == group}
                _draw_surface(axes, by_percentile, groups.index(group), end)
            _label(axes, cost, surfaces_of_cost[0].quality)
            _end(axes, (cost, x), (surfaces_of_cost[0].quality, y), frame)
        _legend(figure, panels[0], len(groups), "median; shaded: a quarter to three quarters")
        return _pictures(figure)


def _draw_surface(
    axes: Axes, by_percentile: Mapping[int, AttainmentSurface], look: int, end: float
) -> None:
    """Draw the surfaces of a group from their best cost to ``end``."""
    colour = COLOURS[look % len(COLOURS)]
    line = _LINES[look // len(COLOURS) % len(_LINES)]
    label = f"{by_percentile[50].group} ({by_percentile[50].n_runs} runs)"
    lower, middle, upper = (
        _steps_to_end(by_percentile[percentile], end) for percentile in (75, 50, 25)
    )
    axes.step(*middle.T, where="post", color=colour, lw=1.4, ls=line, label=label)
    if not (len(lower) and len(upper)):
        return
    way = -1 if by_percentile[50].cost.maximise else 1
    grid = np.unique(np.concatenate([lower[:, 0], upper[:, 0]]))[::way]
    y75, y25 = (_stairs(way * grid, way * x, y) for x, y in (lower.T, upper.T))
    axes.fill_between(grid, y75, y25, step="post", color=colour, alpha=0.15, lw=0)


def _steps_to_end(surface: AttainmentSurface, end: float) -> Array:
    """Return a step function ``(k, 2)`` from its best cost to ``end``."""
    points = surface.points[::-1] if surface.cost.maximise else surface.points
    return np.vstack([points, [end, points[-1, 1]]]) if len(points) else points


def _stairs(grid: Array, x: Array, y: Array) -> Array:
    """Return the value of a step function; NaN before its first step."""
    steps = np.searchsorted(x, grid, side="right") - 1
    return np.where(steps >= 0, y[np.maximum(steps, 0)], np.nan)


def convergence(rows: Sequence[Row]) -> Pictures:
    """Return a figure of the hypervolume share over evaluations and, if recorded, over seconds.

    Groups of several runs: the median, shaded between the quartiles, up to the shortest run.
    ``rows`` are those of ``tables.convergence``.
    """
    kinds = [("evaluations", "evaluations (networks scored)")]
    if any(row["seconds"] for row in rows):
        kinds.append(("seconds", "time since the first trial [s]"))
    groups = [*dict.fromkeys(row["group"] for row in rows)]
    with mpl.rc_context(_STYLE):
        figure, panels = _panels(len(kinds))
        for axes, (kind, title) in zip(panels, kinds, strict=True):
            for look, group in enumerate(groups):
                rows_of_group = [
                    row for row in rows if row["group"] == group and row[kind] is not None
                ]
                if rows_of_group:
                    _draw_growth(axes, rows_of_group, kind, look)
            axes.set_xlabel(title)
            axes.set_ylabel("hypervolume share, as searched")
            _stretch(axes, _LOG_EVALUATIONS)
        many = len({row["run"] for row in rows}) > len(groups)
        note = "median over runs; shaded: quartiles" if many else ""
        _legend(figure, panels[0], len(groups), note)
        return _pictures(figure)


def _draw_growth(axes: Axes, rows: Sequence[Row], kind: str, look: int) -> None:
    colour = COLOURS[look % len(COLOURS)]
    runs = []
    for run in dict.fromkeys(row["run"] for row in rows):
        points = [(row[kind], row["hypervolume_share"]) for row in rows if row["run"] == run]
        runs.append(np.array(points, np.float64))
    end = min(run[-1, 0] for run in runs)
    start = max(run[0, 0] for run in runs)
    grid = np.unique(np.concatenate([run[:, 0] for run in runs]))
    grid = grid[(grid >= start) & (grid <= end)]
    shares = np.array([_stairs(grid, run[:, 0], run[:, 1]) for run in runs])
    lower, middle, upper = np.quantile(shares, [0.25, 0.5, 0.75], axis=0)
    label = rows[0]["group"] + f" ({len(runs)} runs)" * (len(runs) > 1)
    line = _LINES[look // len(COLOURS) % len(_LINES)]
    axes.step(grid, middle, where="post", color=colour, lw=1.3, ls=line, label=label)
    if len(runs) > 1:
        axes.fill_between(grid, lower, upper, step="post", color=colour, alpha=0.15, lw=0)


def critical_difference(ranking: Ranking, title: str) -> Pictures:
    """Return a figure of the groups' mean ranks, 1 (the best) on the left.

    Bars connect groups that do not differ significantly. ``title`` is drawn above.

    Source: Demšar, 2006 (see ``significance``).
    """
    order = sorted(range(len(ranking.groups)), key=lambda i: ranking.mean_ranks[i])
    cliques, n = ranking.cliques(), len(order)
    half = (n + 1) // 2
    below = -0.35 - 0.25 * len(cliques)  # where the names begin
    bottom = below - 0.4 * half
    with mpl.rc_context({**_STYLE, "axes.grid": False}):
        figure = Figure(figsize=(6.5, 0.7 * (1.6 - bottom)), dpi=200, layout="constrained")
        axes = figure.subplots()
        axes.set_axis_off()
        axes.set_xlim(1 - 0.4 * n, n + 0.4 * n)
        axes.set_ylim(bottom, 1.5)
        _draw_scale(axes, n, ranking.critical_difference)
        for row, clique in enumerate(cliques):
            ranks = [ranking.mean_ranks[i] for i in clique]
            ends, height = [ranks[0] - 0.03, ranks[-1] + 0.03], -0.25 - 0.25 * row
            axes.plot(ends, [height] * 2, color="#777777", lw=3.5, solid_capstyle="butt")
        for place, i in enumerate(order):
            is_left = place < half
            y = below - 0.4 * (place if is_left else n - 1 - place)
            x = 1 - 0.15 if is_left else n + 0.15
            rank = ranking.mean_ranks[i]
            axes.plot([rank, rank, x], [0, y, y], color=COLOURS[i % len(COLOURS)], lw=1)
            name = f" {ranking.groups[i]} ({rank:.2f}) "
            axes.text(x, y, name, ha="right" if is_left else "left", va="center")
        figure.suptitle(title, fontsize=9)
        return _pictures(figure)


def _draw_scale(axes: Axes, n: int, width: float) -> None:
    """Draw the axis of ranks and the critical difference."""
    axes.plot([1, n], [0, 0], color="black", lw=1)
    for tick in range(1, n + 1):
        axes.plot([tick, tick], [0, 0.12], color="black", lw=1)
        axes.text(tick, 0.18, str(tick), ha="center", va="bottom")
    end, height = min(1 + width, float(n)), 0.85
    axes.plot([1, end], [height] * 2, color="black", lw=1)
    for edge in (1, end):
        axes.plot([edge, edge], [height - 0.08, height + 0.08], color="black", lw=1)
    beyond = ", wider than the axis" if 1 + width > n else ""
    text = f"critical difference {width:.2f}{beyond}"
    axes.text((1 + end) / 2, height + 0.15, text, ha="center", va="bottom")


def _panels(n: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(5.2 * n, 3.8), dpi=200, layout="constrained")
    return figure, list(figure.subplots(1, n, squeeze=False)[0])


def _label(axes: Axes, cost: Objective, quality: Objective) -> None:
    axes.set_xlabel(cost.title)
    axes.set_ylabel(quality.title)
    _stretch(axes, _LOG_RATIO)


def _stretch(axes: Axes, range_: float) -> None:
    """Make the horizontal axis logarithmic if the ratio of its values is above ``range_``."""
    low, high = axes.dataLim.intervalx
    if low <= 0 or high / low <= range_:
        return
    axes.set_xscale("log")
    few = high / low < 100
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
    axes.xaxis.set_major_formatter("{x:g}")  # powers of ten need another font
    axes.xaxis.set_minor_formatter(NullFormatter())


def _end(
    axes: Axes,
    horizontal: tuple[Objective, Array],
    vertical: tuple[Objective, Array],
    frame: ReferenceFrame,
) -> None:
    """End axes at the reference point if values are beyond it."""
    for (objective, values), limits, limit in (
        (horizontal, axes.get_xlim, axes.set_xlim),
        (vertical, axes.get_ylim, axes.set_ylim),
    ):
        end = float(frame.reference[frame.objectives.index(objective)])
        low, high = limits()
        if objective.maximise and values.min() < end < high:
            limit(end, high)
        elif not objective.maximise and values.max() > end > low:
            limit(low, end)


def _legend(figure: Figure, axes: Axes, n: int, title: str = "") -> None:
    """Put a legend below the figure, with as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    if n > _MAX_LEGEND:
        title = "; ".join(filter(None, [title, f"the first {_MAX_LEGEND} of {n}"]))
    for n_columns in range(min(n, 4), 0, -1):
        legend = figure.legend(
            handles[:_MAX_LEGEND], labels[:_MAX_LEGEND], loc="outside lower center",
            ncols=n_columns, title=title or None, title_fontsize=8,
        )  # fmt: skip
        if n_columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()


def _pictures(figure: Figure) -> Pictures:
    """Return the figure as PNG and SVG, without dates."""
    pictures = {}
    for suffix, dates in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=suffix, metadata=dates)
        pictures[suffix] = buffer.getvalue()
    return pictures
