"""Cascades beside the front of single networks: a table, and a picture."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from hwnas.figure import Figure
from hwnas.metrics import column
from hwnas.report.explorer import Picture, Table
from hwnas.report.plot import FOR_ALL, SEARCHED, VERIFIED
from hwnas.searching.cascades import ENERGY, EXPECTED, LATENCY, Cascade, Stage

_TITLE = "Cascades"
_ROWS = 24
_Row = TypeVar("_Row")
_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "hwnas", "font.size": 9}


def table(cascades: Sequence[Cascade]) -> Table:
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
    return Table(_TITLE, heads, [_cells(cascade) for cascade in shown], note)


def spread(rows: Sequence[_Row]) -> Sequence[_Row]:
    """Return as many rows as a page lists, evenly over all, both ends included."""
    if len(rows) <= _ROWS:
        return rows
    return [rows[round(i * (len(rows) - 1) / (_ROWS - 1))] for i in range(_ROWS)]


def _cells(cascade: Cascade) -> list[str]:
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


def number(figure: Figure | None) -> str:
    """Return a figure as a cell has it; empty where there is none."""
    return "" if figure is None else f"{figure.value:.4g}"


Point = tuple[float, float]  #: latency in ms, accuracy


@dataclass(frozen=True)
class Layer:
    """Points that are drawn alike."""

    points: Sequence[Point]
    label: str
    filled: bool = True


def picture(stages: Sequence[Stage], cascades: Sequence[Cascade]) -> Picture:
    """Return accuracy over expected latency, of single networks and cascades, on the test split."""
    points = {True: list[Point](), False: list[Point]()}
    for cascade in cascades:
        seen = cascade.verified
        points[cascade.on_front].append((seen.costs[EXPECTED].value, seen.accuracy.value))
    single = [(s.latency_ms, float(s.heard["test"].correct.mean())) for s in stages]
    layers = (
        Layer(points[False], "cascades as foreseen on the front", filled=False),
        Layer(points[True], "cascades on the front"),
    )
    return drawn("Cascades beside single networks", layers, single, "single networks")


def drawn(title: str, layers: Sequence[Layer], single: Sequence[Point], label: str) -> Picture:
    """Return accuracy over expected latency, beside networks that answer alone."""
    with mpl.rc_context(_STYLE):
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
        axes.set_xlabel(f"expected {column(LATENCY).title}")
        axes.set_ylabel("accuracy, test split")
        axes.grid(alpha=0.25)
        axes.legend(loc="lower right")
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return Picture(title, buffer.getvalue())


def _xy(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
