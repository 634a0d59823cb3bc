"""Cascades beside the front of single networks: a table, and a picture."""

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas
from matplotlib.figure import Figure as Drawing

from hwnas.analysis.figures import FOR_ALL, SEARCHED, VERIFIED
from hwnas.analysis.page.html import with_section
from hwnas.analysis.page.model import PageTable, SvgFigure
from hwnas.core.errors import RunError
from hwnas.core.quantity import Quantity
from hwnas.nas.cascades import ENERGY, EXPECTED, LATENCY, Cascade, CascadeStage
from hwnas.nas.early_exits import EarlyExits, ExitNetworkResults
from hwnas.tasks.metrics import metric_of
from hwnas.tasks.predictions import NEVER
from hwnas.training.evaluation.rank_audit import AuditFinding, AuditVerdict

_TITLE = "Cascades"
_ROWS = 24
_Row = TypeVar("_Row")
_SVG_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "hwnas", "font.size": 9}


def cascades_table(cascades: Sequence[Cascade]) -> PageTable:
    """Return the cascades that are on the front, evenly over it."""
    ahead = [cascade for cascade in cascades if cascade.on_front]
    shown = spread(ahead)
    heads = (
        "first", "second", "goes on below", "goes on", "foreseen", "accuracy", "95 %",
        "expected ms", "foreseen ms", "worst ms", "expected mJ", "flash KiB",
    )  # fmt: skip
    note = (
        f"{len(shown)} of {len(ahead)}, on the front with single networks on the test split; all "
        "are in cascades.csv. An image whose largest probability is below the threshold goes on to "
        "the second network. Foreseen: by the half of the validation split that chose no threshold."
    )
    return PageTable(_TITLE, heads, [_cascade_cells(cascade) for cascade in shown], note)


def spread(rows: Sequence[_Row]) -> Sequence[_Row]:
    """Return as many rows as a page lists, evenly over all, both ends included."""
    if len(rows) <= _ROWS:
        return rows
    return [rows[round(i * (len(rows) - 1) / (_ROWS - 1))] for i in range(_ROWS)]


def _cascade_cells(cascade: Cascade) -> list[str]:
    seen, foreseen, worst = cascade.verified, cascade.predicted, cascade.worst
    where = f" ({cascade.way.target})" if cascade.way is not None else ""
    return [
        cascade.first.id,
        f"{cascade.second.id}{where}",
        f"{cascade.threshold:.3f}",
        f"{seen.share.value:.1%}",
        f"{foreseen.share.value:.1%}",
        f"{seen.accuracy.value:.4f}",
        f"±{(seen.accuracy.upper - seen.accuracy.lower) / 2:.3f}",
        number(seen.costs.get(EXPECTED)),
        number(foreseen.costs.get(EXPECTED)),
        number(worst.get(LATENCY)),
        number(seen.costs.get(f"expected_{ENERGY}")),
        number(worst.get("flash_kib")),
    ]


def number(figure: Quantity | None) -> str:
    """Return a figure as a cell has it; empty where there is none."""
    return "" if figure is None else f"{figure.value:.4g}"


LatencyAccuracy = tuple[float, float]  #: latency in ms, accuracy


@dataclass(frozen=True)
class PointSeries:
    """Points that are drawn alike."""

    points: Sequence[LatencyAccuracy]
    label: str
    filled: bool = True


def cascades_figure(stages: Sequence[CascadeStage], cascades: Sequence[Cascade]) -> SvgFigure:
    """Return accuracy over expected latency, of single networks and cascades, on the test split."""
    points = {True: list[LatencyAccuracy](), False: list[LatencyAccuracy]()}
    for cascade in cascades:
        seen = cascade.verified
        points[cascade.on_front].append((seen.costs[EXPECTED].value, seen.accuracy.value))
    single = [(s.latency_ms, float(s.heard["test"].correct.mean())) for s in stages]
    layers = (
        PointSeries(points[False], "cascades as foreseen on the front", filled=False),
        PointSeries(points[True], "cascades on the front"),
    )
    return drawn("Cascades beside single networks", layers, single, "single networks")


def drawn(
    title: str, layers: Sequence[PointSeries], single: Sequence[LatencyAccuracy], label: str
) -> SvgFigure:
    """Return accuracy over expected latency, beside networks that answer alone."""
    with mpl.rc_context(_SVG_STYLE):
        canvas = Canvas(figsize=(8, 4.5), layout="constrained")
        axes = canvas.subplots()
        for layer in layers:
            axes.scatter(
                *_xy(layer.points), s=14, edgecolors=SEARCHED,
                facecolors=SEARCHED if layer.filled else "none", label=layer.label,
            )  # fmt: skip
        axes.scatter(
            *_xy(single), s=34, marker="s", color=VERIFIED, edgecolors=FOR_ALL, label=label
        )
        axes.set_xscale("log")
        axes.set_xlabel(f"expected {metric_of(LATENCY).title}")
        axes.set_ylabel("accuracy, test split")
        axes.grid(alpha=0.25)
        axes.legend(loc="lower right")
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return SvgFigure(title, buffer.getvalue())


def _xy(points: Sequence[LatencyAccuracy]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


# An audit as a picture, and as a section of a run's page.

_GROUP_STYLES = (
    ("front", VERIFIED, "members of the front"),
    ("space", SEARCHED, "random networks"),
)


def audit_png(
    findings: Sequence[AuditFinding], verdict: AuditVerdict, epochs: int, metric: str
) -> bytes:
    """Return a PNG: the metric trained alone over that in the supernet, with intervals."""
    label = metric_of(metric).title
    figure = Drawing(figsize=(7, 5.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    for group, colour, name in _GROUP_STYLES:
        chosen = [f for f in findings if f.subject.group == group]
        x = [f.supernet.value for f in chosen]
        y = [f.mean_alone for f in chosen]
        axes.errorbar(
            x, y, xerr=_ends([f.supernet for f in chosen]),
            yerr=_ends([f.alone[0] for f in chosen]), fmt="o", ms=5, lw=0.8, capsize=2,
            color=colour, label=name, zorder=3,
        )  # fmt: skip
        for f in chosen:
            for other in f.alone[1:]:
                axes.plot(f.supernet.value, other.value, "x", ms=5, color=colour, zorder=4)
    low = min(*axes.get_xlim(), *axes.get_ylim())
    high = max(*axes.get_xlim(), *axes.get_ylim())
    axes.plot([low, high], [low, high], color="#999999", lw=0.8, ls="--", zorder=1)
    axes.annotate("equal", (low, low), xytext=(4, 12), textcoords="offset points", color="#777777")
    axes.set_xlabel(f"{label} in the supernet (validation split)")
    axes.set_ylabel(f"{label} trained alone, {epochs} epochs (validation split)")
    axes.set_title(
        f"Kendall's tau {verdict.kendall}, Spearman's rho {verdict.spearman}", fontsize=10
    )
    axes.legend(loc="lower right", frameon=False, title="bars: 95 %; crosses: another seed")
    axes.grid(color="#eeeeee")
    axes.set_axisbelow(True)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _ends(figures: Sequence[Quantity]) -> list[list[float]]:
    below = [f.value - (f.value if f.low is None else f.low) for f in figures]
    above = [(f.value if f.high is None else f.high) - f.value for f in figures]
    return [below, above]


def with_audit(page: str, png: bytes, words: Sequence[str]) -> str:
    """Return a run's page with the section of an audit, in place of an earlier one.

    Raises:
        RunError: it is no page of a run.
    """
    picture = base64.b64encode(png).decode()
    lines = "".join(f'<p class="note">{html.escape(line)}</p>' for line in words)
    section = (
        f"<h2>Audit of the supernet</h2>{lines}"
        f'<img alt="trained alone over in the supernet" width="760" '
        f'src="data:image/png;base64,{picture}">'
    )
    audited = with_section(page, "audit", section)
    if audited is None:
        raise RunError("report.html is no page of a search; the files in audit/ are complete.")
    return audited


# What leaving early comes to, beside networks that run to the end: a table, and a picture.


def exits_table(found: Sequence[EarlyExits]) -> PageTable:
    """Return the thresholds that are on the front of all networks, evenly over it."""
    ahead = sorted(
        (each for each in found if each.on_front),
        key=lambda each: each.verified.costs[EXPECTED].value,
    )
    shown = spread(ahead)
    heads = (
        "network", "thresholds", "leave at", "accuracy", "95 %", "at the end", "expected ms",
        "95 %", "foreseen ms", "worst ms", "expected mJ",
    )  # fmt: skip
    note = (
        f"{len(shown)} of {len(ahead)}, on the front of all members with exits on the test split; "
        "all are in exits.csv. An image leaves at the first exit whose largest probability reaches "
        "its threshold. Foreseen: by the half of the validation split that chose no threshold."
    )
    return PageTable("Early exits", heads, [_exit_cells(each) for each in shown], note)


def _exit_cells(each: EarlyExits) -> list[str]:
    seen, network = each.verified, each.network
    latency = seen.costs[EXPECTED]
    thresholds = ("never" if t >= NEVER else f"{t:.3f}" for t in each.thresholds)
    return [
        network.id,
        ", ".join(thresholds),
        ", ".join(f"{share.value:.1%}" for share in seen.left),
        f"{seen.accuracy.value:.4f}",
        f"±{(seen.accuracy.upper - seen.accuracy.lower) / 2:.3f}",
        f"{network.accuracy('test'):.4f}",
        number(latency),
        f"{latency.lower:.4g} to {latency.upper:.4g}",
        number(each.predicted.costs[EXPECTED]),
        number(network.costs[LATENCY]),
        number(seen.costs.get(f"expected_{ENERGY}")),
    ]


def exits_figure(networks: Sequence[ExitNetworkResults], found: Sequence[EarlyExits]) -> SvgFigure:
    """Return accuracy over expected latency on the test split, leaving early and at the end."""
    points = {True: list[LatencyAccuracy](), False: list[LatencyAccuracy]()}
    for each in found:
        seen = each.verified
        points[each.on_front].append((seen.costs[EXPECTED].value, seen.accuracy.value))
    ends = [(n.costs[LATENCY].value, n.accuracy("test")) for n in networks]
    layers = (
        PointSeries(points[False], "leaving early", filled=False),
        PointSeries(points[True], "leaving early, on the front"),
    )
    return drawn("Leaving early, beside running to the end", layers, ends, "running to the end")
