"""Cascades beside the front of single networks: a table, and a picture."""

import io
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from hwnas.figure import Figure
from hwnas.metrics import column
from hwnas.report.explorer import Picture, Table
from hwnas.report.plot import FOR_ALL, SEARCHED, VERIFIED
from hwnas.searching.cascades import ENERGY, EXPECTED, LATENCY, Cascade, Stage

_TITLE = "Cascades"
_ROWS = 24
_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "hwnas", "font.size": 9}


def table(cascades: Sequence[Cascade]) -> Table:
    """Return the cascades that are on the front, evenly over it."""
    ahead = [cascade for cascade in cascades if cascade.on_front]
    shown = ahead
    if len(ahead) > _ROWS:
        shown = [ahead[round(i * (len(ahead) - 1) / (_ROWS - 1))] for i in range(_ROWS)]
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
        _number(seen.costs.get(EXPECTED)),
        _number(foreseen.costs.get(EXPECTED)),
        _number(worst.get(LATENCY)),
        _number(seen.costs.get(f"expected_{ENERGY}")),
        _number(worst.get("flash_kib")),
    ]


def _number(figure: Figure | None) -> str:
    return "" if figure is None else f"{figure.value:.4g}"


def picture(stages: Sequence[Stage], cascades: Sequence[Cascade]) -> Picture:
    """Return accuracy over expected latency, of single networks and cascades, on the test split."""
    with mpl.rc_context(_STYLE):
        canvas = Canvas(figsize=(8, 4.5), layout="constrained")
        axes = canvas.subplots()
        behind = [c.verified for c in cascades if not c.on_front]
        ahead = [c.verified for c in cascades if c.on_front]
        for seen, colour, filled, label in (
            (behind, SEARCHED, False, "cascades as foreseen on the front"),
            (ahead, SEARCHED, True, "cascades on the front"),
        ):
            axes.scatter(
                [s.costs[EXPECTED].value for s in seen], [s.accuracy.value for s in seen],
                s=14, edgecolors=colour, facecolors=colour if filled else "none", label=label,
            )  # fmt: skip
        axes.scatter(
            [s.latency_ms for s in stages], [s.heard["test"].correct.mean() for s in stages],
            s=34, marker="s", color=VERIFIED, edgecolors=FOR_ALL, label="single networks",
        )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xlabel(f"expected {column(LATENCY).title}")
        axes.set_ylabel("accuracy, test split")
        axes.grid(alpha=0.25)
        axes.legend(loc="lower right")
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return Picture("Cascades beside single networks", buffer.getvalue())
