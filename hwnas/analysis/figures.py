"""Figures: fronts, predictions against measurements, layers of a network."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from hwnas.analysis.page.data import OverlaidFront
from hwnas.analysis.search_page import FrontData
from hwnas.core.manifest import Manifest, read_manifest
from hwnas.core.run_folder import Row
from hwnas.nas.front import pareto_front
from hwnas.nas.member import NEAR, Member
from hwnas.tasks.metrics import costs_in, metric_of, quality_in
from hwnas.tasks.metrics.budget import Budget

# Palette of Okabe and Ito, safe for colour blindness.
SEARCHED, VERIFIED, LEFT, DOMINATED, LIMIT = "#0072B2", "#009E73", "#D55E00", "#BBBBBB", "#CC79A7"
NEARBY, FOR_ALL = "#E69F00", "#000000"
OVERLAY = "#8A6D3B"  # as on the page

_LOG_RATIO = 10.0  # of costs, from which their axis is logarithmic, as on the page


class NotebookFigure(Figure):
    """A figure that notebooks display without pyplot."""

    def _repr_png_(self) -> bytes:
        return _png(self)


def read_fronts(path: Path, storage: str | None = None) -> list[FrontData]:
    """Return the results of a search for each target, for figures.

    A target of several has no verified members before the search has ended.

    Args:
        path: Folder of a search, or of one target within a search for several.
        storage: URL of the database of its study, if it is not in the folder.

    Raises:
        RunError: the folder is not that of a search, or no trial is finished yet.
    """
    manifest = read_manifest(path, "path")
    fronts = [_of_target(path, manifest, name, storage) for name in manifest.get("targets", {})]
    return fronts or [_front(path, storage)]


def _of_target(path: Path, manifest: Manifest, target: str, storage: str | None) -> FrontData:
    """Return the results of one of several targets; it has no folder before the search ends."""
    if (path / target / "manifest.json").exists():
        return _front(path / target, storage)
    config = manifest["targets"][target]["config"]
    from hwnas.nas.run import Run  # imported here, as below: a search draws its own front

    run = Run.load(path, "path", storage)
    run.check_complete()
    candidates, budget = run.candidates_for(target), Budget.of(config["budget"])
    title = f"{path.absolute().name} on {target}"
    return FrontData(candidates, [], config["objectives"], budget, title=title)


def _front(path: Path, storage: str | None) -> FrontData:
    from hwnas.analysis import run_fronts

    run = run_fronts.read_run_folder(path, "path", storage)
    title = f"{run.name} on {run.target}" if run.target else run.name
    budget = Budget(run.limits)
    return FrontData(run.candidates, run.members, [*run.directions], budget, title=title)


def front_png(*fronts: FrontData) -> bytes:
    """Return the figure of ``front_figure`` as the content of a PNG file."""
    return _png(front_figure(*fronts))


def front_figure(*fronts: FrontData) -> NotebookFigure:
    """Return a figure with a panel for each argument, as ``draw_front`` draws it."""
    n = len(fronts)
    size = (8, 5) if n == 1 else (6 * n, 5)
    figure = NotebookFigure(figsize=size, dpi=150, layout="constrained")
    all_axes = figure.subplots(1, n, squeeze=False)
    for axes, front in zip(all_axes[0], fronts, strict=True):
        draw_front(axes, front)
    return figure


def draw_front(axes: Axes, front: FrontData) -> None:
    """Draw a front into axes of matplotlib: the metric of the task over the first cost.

    It has the verified points, the same networks as estimated in the search, and the limit of that
    cost. Without verified members it has the searched front. Limits, scale, labels and legend of
    ``axes`` are set.
    """
    candidates, members, beside = front.candidates, front.members, front.beside
    metric, cost = quality_in(front.objectives), costs_in(front.objectives)[0]
    front_candidates = [member.candidate for member in members] or pareto_front(
        candidates, front.objectives
    )
    on_front = {candidate.id for candidate in front_candidates}
    rest = [c for c in candidates if c.state != "infeasible" and c.id not in on_front]
    axes.scatter(
        [c.figures[cost].value for c in rest],
        [c.figures[metric].value for c in rest],
        s=10, color=DOMINATED, label="other candidates (validation)", zorder=1,
    )  # fmt: skip
    searched = [candidate.figures for candidate in front_candidates]
    axes.scatter(
        [f[cost].value for f in searched],
        [f[metric].value for f in searched],
        s=26, facecolors="none", edgecolors=SEARCHED, zorder=3,
        label=f"{'verified networks' if members else 'front'} in the search (validation)",
    )  # fmt: skip
    stayed = [m for m in members if not m.label]
    near = [m for m in members if m.label == NEAR]
    outside = [m for m in members if m.label not in ("", NEAR)]
    for chosen, colour, label in (
        (stayed, VERIFIED, "front, verified (compiled file on the test split, 95 % interval)"),
        (near, NEARBY, f"verified: {NEAR}"),
        (outside, LEFT, "verified: left the front or the budget"),
    ):
        if not chosen:
            continue
        is_main = chosen is stayed
        if is_main:
            _draw_line(axes, chosen, cost)
        values = [m.quality for m in chosen]
        below, above = [v.value - v.lower for v in values], [v.upper - v.value for v in values]
        axes.errorbar(
            [m.figures[cost].value for m in chosen], [v.value for v in values], yerr=[below, above],
            fmt="o", ms=5 if is_main else 3.5, lw=0.8, capsize=2 * is_main, color=colour,
            alpha=1.0 if is_main else 0.4, label=label, zorder=2.5 if is_main else 2,
        )  # fmt: skip
    both = [m for m in members if m.candidate.id in front.for_all]
    if both:
        axes.scatter(
            [m.figures[cost].value for m in both], [m.quality.value for m in both],
            s=90, facecolors="none", edgecolors=FOR_ALL, marker="s", zorder=4,
            label="fits all targets, on the joint front",
        )  # fmt: skip
    if beside is not None:
        _draw_overlay(axes, beside, metric, cost)
    costs = [candidate.figures[cost].value for candidate in (*rest, *front_candidates)]
    costs += [member.figures[cost].value for member in members]
    if beside is not None:
        costs += [point[cost].value for point in beside.points if cost in point]
    if cost in front.budget.limits:
        limit = front.budget.limits[cost]
        axes.axvline(limit, color=LIMIT, ls="--", lw=1.2, label="budget")
        costs.append(limit)
    if costs and 0 < _LOG_RATIO * min(costs) < max(costs):
        _log_scale(axes)
    axes.set_xlabel(metric_of(cost).title)
    axes.set_ylabel(metric_of(metric).title)
    axes.set_title(front.title, fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)


def _draw_line(axes: Axes, members: Sequence[Member], cost: str) -> None:
    """Draw the best verified metric up to each cost."""
    sign = -1.0 if metric_of(cost).maximise else 1.0
    ordered = sorted(members, key=lambda m: sign * m.figures[cost].value)
    best = np.maximum if metric_of(ordered[0].metric).maximise else np.minimum
    y = best.accumulate([m.quality.value for m in ordered])
    x = [m.figures[cost].value for m in ordered]
    axes.step(x, y, where="post", color=VERIFIED, lw=1.4, alpha=0.7, zorder=1.8)


def _log_scale(axes: Axes) -> None:
    """Make the axis of costs logarithmic, with plain numbers."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _draw_overlay(axes: Axes, beside: OverlaidFront, metric: str, cost: str) -> None:
    """Draw the networks of another run, and their best metric up to each cost."""
    sign = -1.0 if metric_of(cost).maximise else 1.0
    places = sorted(
        ((p[cost].value, p[metric].value, p[metric]) for p in beside.points if cost in p),
        key=lambda place: (sign * place[0], place[1]),
    )
    x, y = [place[0] for place in places], [place[1] for place in places]
    best = np.maximum if metric_of(metric).maximise else np.minimum
    axes.step(x, best.accumulate(y), where="post", color=OVERLAY, lw=1, alpha=0.6, zorder=1)
    errors = [[f.value - f.lower for _, _, f in places], [f.upper - f.value for _, _, f in places]]
    axes.errorbar(
        x, y, yerr=errors, fmt="D", ms=5.5, lw=0.6, capsize=1.5, color=OVERLAY, mfc="white",
        alpha=0.8, label=beside.label, zorder=1.5,
    )  # fmt: skip


def prediction_png(networks: Sequence[Row], space: str, title: str) -> bytes:
    """Return a PNG file: predicted latency and MACs over measured latency of held-out networks.

    Args:
        networks: Rows of ``networks.csv`` of a latency table.
        space: Name of the search space whose networks are drawn; at least one must be held out.
        title: Title of the figure.
    """
    rows = [r for r in networks if r["search_space"] == space and r["role"] == "held_out"]
    measured = [float(row["measured_ms"]) for row in rows]
    predicted = [float(row["predicted_ms"]) for row in rows]
    figure = Figure(figsize=(10, 4.6), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    ends = [min(measured), max(measured)]
    left.plot(ends, ends, color=LIMIT, lw=1, label="equal")
    left.fill_between(
        ends, [0.95 * e for e in ends], [1.05 * e for e in ends],
        color=LIMIT, alpha=0.15, lw=0, label="within 5 %",
    )  # fmt: skip
    left.errorbar(
        measured, predicted,
        yerr=[
            [float(r["predicted_ms"]) - float(r["predicted_ms_low"]) for r in rows],
            [float(r["predicted_ms_high"]) - float(r["predicted_ms"]) for r in rows],
        ],
        fmt="o", ms=3, lw=0.6, color=VERIFIED, label="network, 95 % interval",
    )  # fmt: skip
    left.set_ylabel("predicted from the table [ms]")
    right.scatter(measured, [float(row["macs_m"]) for row in rows], s=10, color=SEARCHED)
    right.set_ylabel("MACs [millions]")
    for axes in (left, right):
        axes.set_xlabel("measured whole [ms]")
        axes.locator_params(axis="x", nbins=6)
        axes.grid(alpha=0.25)
    left.legend(fontsize=8)
    figure.suptitle(f"{title}: {len(rows)} held-out networks", fontsize=10)
    return _png(figure)


def layers_png(layers: Sequence[tuple[str, float, str]], title: str) -> bytes:
    """Return a PNG file: a bar chart of the latency of each operator.

    ``layers`` has for each operator its name, its latency in ms and what limits it: ``compute``,
    ``memory``, ``launch``, or empty if unknown.
    """
    colours = {"compute": VERIFIED, "memory": SEARCHED, "launch": DOMINATED, "": VERIFIED}
    height = 1.2 + 0.2 * len(layers)
    figure = Figure(figsize=(8, height), dpi=150, layout="constrained")
    axes = figure.subplots()
    for bound in dict.fromkeys(bound for _, _, bound in layers):
        chosen = [i for i, layer in enumerate(layers) if layer[2] == bound]
        axes.barh(
            chosen, [layers[i][1] for i in chosen], color=colours[bound],
            label=f"bound by {bound}" if bound else None,
        )  # fmt: skip
    axes.set_yticks(range(len(layers)), [name for name, _, _ in layers], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("latency [ms]")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.25, axis="x")
    if any(bound for _, _, bound in layers):
        axes.legend(fontsize=8)
    return _png(figure)


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
