"""HTML page of a plan: serving by hour, margins, bottlenecks, cost by part."""

import io
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hwnas.analysis.comparison_figures import COLOURS, Pictures
from hwnas.analysis.page.data import Page, PageTable, SvgFigure
from hwnas.analysis.page.html import render
from hwnas.core.run_folder import Row
from hwnas.fleet.plan import DeploymentPlan

_STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "hwnas", "text.parse_math": False, "font.size": 9,
    "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": "#e8e8e8", "legend.frameon": False, "legend.fontsize": 8,
}  # fmt: skip
_TITLES = {
    "serving": "Requests served by each model and device, by hour",
    "margins": "Margins of each class to its limits",
    "front": "Cost of less carbon, higher accuracy or shorter latencies",
}
_NOTES = {
    "serving": "Requests/s of each model on each device, with spikes; escalated requests count at "
    "both models.",
    "margins": "Left: simulated 99th percentile / limit, with 95 % intervals over seeds. "
    "Right: fraction of late requests. Dashed: limits. Hours with a spike are shown with it.",
    "front": "Each mark is the cheapest plan within one tightened limit; lines reach down to the "
    "lower bound of its cost. All were simulated and corrected like the plan (larger mark).",
}
_MAX_COLOURS = 9  # models on devices with a separate colour
_HOURS = "hour"


def plan_figures(plan: DeploymentPlan, tables: Mapping[str, Sequence[Row]]) -> dict[str, Pictures]:
    """Return the figures of a plan by name: ``serving``, ``margins`` and, if any, ``front``.

    Each is a dict from format (``png``, ``svg``) to the content of the file. ``tables`` has the
    rows of the plan's CSV files, by name of the file without ``.csv``.
    """
    with mpl.rc_context(_STYLE):
        result = {
            "serving": _render(_serving_figure(plan)),
            "margins": _render(_margins_figure(plan, tables)),
        }
        if len(rows := tables.get("plans", ())) > 1:
            result["front"] = _render(_front_figure(rows))
        return result


def plan_page(
    plan: DeploymentPlan,
    tables: Mapping[str, Sequence[Row]],
    sentences: Sequence[str],
    figures: Mapping[str, Pictures],
) -> str:
    """Return the HTML page of a plan.

    Args:
        plan: The plan.
        tables: Rows of its CSV files, by name of the file without ``.csv``.
        sentences: Findings at the top of the page.
        figures: Result of ``plan_figures``.
    """
    titles = {
        "decisions": "Changes and their reasons",
        "plans": "The plan and non-dominated alternatives: cost, carbon, accuracy, latency",
        "limits": "First bottlenecks if demand grows",
        "costs": "Cost by part", "failures": "Failures", "classes": "Classes by hour",
        "spikes": "Classes in hours with spikes",
        "sketches": "Effect of buying a device", "pools": "Pools",
        "hours": "Machines, money and energy by hour", "models": "Figures of the models",
    }  # fmt: skip
    return render(
        Page(
            "hwnas: fleet plan",
            [],
            findings=sentences,
            tables=[_table(title, tables[name], name)
                    for name, title in titles.items() if tables.get(name)],
            pictures=[SvgFigure(_TITLES[name], formats["svg"].decode(), _NOTES[name])
                      for name, formats in figures.items()],
            facts=[("objective", plan.objective), ("unit", plan.unit)],
        )
    )  # fmt: skip


def _table(title: str, rows: Sequence[Row], name: str) -> PageTable:
    """Return rows as a table without ends of intervals and empty columns."""
    every = dict.fromkeys(key for row in rows for key in row)
    columns = [key for key in every
               if not key.endswith(("_low", "_high")) and any(row.get(key) not in (None, "")
                                                              for row in rows)]  # fmt: skip
    cells = [[_cell(row.get(key)) for key in columns] for row in rows]
    heads = [key.replace("_", " ") for key in columns]
    return PageTable(title, heads, cells, f"With all intervals: {name}.csv.")


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _render(figure: Figure) -> Pictures:
    result = {}
    for kind in ("png", "svg"):
        file = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(file, format=kind, dpi=160, metadata=metadata)
        result[kind] = file.getvalue()
    return result


def _served_rates(plan: DeploymentPlan) -> tuple[list[int], dict[str, list[float]]]:
    """Return the hours, and the requests/s of each model and device in them."""
    n = plan.n_hours
    result: dict[str, list[float]] = {}
    for hour_plan in plan.hours:
        for route in hour_plan.routes:
            for kind, part in ((route.first, 1.0), (route.second, route.share)):
                if kind is not None:
                    pool_type = plan.kinds[kind]
                    rates = result.setdefault(f"{pool_type.model} on {pool_type.device}", [0.0] * n)
                    for hour in hour_plan.hours:
                        rates[hour] += part * route.rate
    return list(range(n)), result


def _serving_figure(plan: DeploymentPlan) -> Figure:
    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    axes = figure.add_subplot()
    hours, served = _served_rates(plan)
    order = sorted(served, key=lambda name: -sum(served[name]))
    rows = [served[name] for name in order[:_MAX_COLOURS]]
    labels = order[:_MAX_COLOURS]
    if order[_MAX_COLOURS:]:
        rows.append([sum(served[name][h] for name in order[_MAX_COLOURS:]) for h in hours])
        labels.append(f"{len(order) - _MAX_COLOURS} more")
    below = np.zeros(len(hours))
    colours = [*COLOURS, "#999999", "#bbbbbb", "#dddddd"]
    for row, label, colour in zip(rows, labels, colours, strict=False):
        axes.bar(hours, row, 0.9, bottom=below, label=label, color=colour)
        below += np.array(row)
    axes.set_xlabel(_HOURS)
    axes.set_ylabel("requests/s")
    axes.grid(axis="x", visible=False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _margins_figure(plan: DeploymentPlan, tables: Mapping[str, Sequence[Row]]) -> Figure:
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    styles = itertools.product(("-", "--", ":", "-."), COLOURS)
    for name, (style, colour) in zip(plan.classes, itertools.cycle(styles), strict=False):
        both = (*tables["classes"], *tables.get("spikes", ()))
        rows = [*{row["hour"]: row for row in both if row["class"] == name}.values()]
        _line(left, rows, "p99_ms", name, (style, colour), 1 / plan.classes[name].p99_ms)
        _line(right, rows, "late", name, (style, colour), 100.0)
    for axes, title, limit in ((left, "p99 / limit", 1.0), (right, "late requests, %", 1.0)):
        axes.axhline(limit, color="#444444", linestyle="--", linewidth=0.9)
        axes.set_xlabel(_HOURS)
        axes.set_ylabel(title)
        axes.set_ylim(bottom=0)
    left.legend()
    return figure


def _line(
    axes: Axes, rows: Sequence[Row], name: str, label: str, look: tuple[str, str], scale: float
) -> None:
    style, colour = look
    hours = np.array([row["hour"] for row in rows])
    value = np.array([row[name] for row in rows]) * scale
    ends = [np.array([row[name] if row[f"{name}_{end}"] is None else row[f"{name}_{end}"]
                      for row in rows]) * scale for end in ("low", "high")]  # fmt: skip
    reach = [np.maximum(value - ends[0], 0), np.maximum(ends[1] - value, 0)]
    axes.errorbar(
        hours, value, reach, label=label, color=colour, linestyle=style, marker="o", markersize=3,
        linewidth=1, capsize=2,
    )  # fmt: skip


_PANELS = (
    ("carbon_kg_per_day", "kg of CO2 per day", 1.0),
    ("accuracy", "accuracy, lower ends, %", 100.0),
    ("p99_of_limit", "p99 limit / requested limit", 1.0),
)


def _front_figure(rows: Sequence[Row]) -> Figure:
    """Plot plans: cost over carbon, accuracy and latency, by tightened limit."""
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    panels = figure.subplots(1, len(_PANELS), sharey=True)
    kinds = dict.fromkeys(row["varied"] for row in rows)
    for axes, (name, label, scale) in zip(panels, _PANELS, strict=True):
        for kind, colour in zip(kinds, COLOURS, strict=False):
            rows_of_kind = [row for row in rows if row["varied"] == kind]
            x = np.array([row[name] * scale for row in rows_of_kind])
            cost, least = (np.array([row[f"cost_per_day{end}"] for row in rows_of_kind])
                           for end in ("", "_bound"))  # fmt: skip
            axes.errorbar(
                x, cost, [np.maximum(cost - least, 0), np.zeros(len(rows_of_kind))], label=kind,
                color=colour, marker="o", markersize=8 if kind == rows[0]["varied"] else 4,
                linestyle="none", elinewidth=1, capsize=2,
            )  # fmt: skip
        axes.set_xlabel(label)
    panels[0].set_ylabel("$ per day")
    panels[0].legend()
    return figure
