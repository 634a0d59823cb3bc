"""The front as a picture."""

import io
from collections.abc import Sequence

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from hwnas.figure import COLUMNS
from hwnas.results import Candidate
from hwnas.search.verify import Member
from hwnas.target import Budget

# Okabe and Ito's palette, which colour-blind people can tell apart.
SEARCHED, VERIFIED, LEFT, DOMINATED, LIMIT = "#0072B2", "#009E73", "#D55E00", "#BBBBBB", "#CC79A7"


def front_png(
    candidates: Sequence[Candidate],
    members: Sequence[Member],
    cost: str,
    budget: Budget,
    title: str,
) -> bytes:
    """Return a PNG of accuracy over one cost: searched points, verified points, budget line."""
    figure, axes = plt.subplots(figsize=(8, 5), dpi=150, layout="constrained")
    on_front = {member.candidate.id for member in members}
    rest = [c for c in candidates if c.state == "complete" and c.id not in on_front]
    axes.scatter(
        [c.figures[cost].value for c in rest],
        [c.figures["accuracy"].value for c in rest],
        s=10, color=DOMINATED, label="dominated (searched)", zorder=1,
    )  # fmt: skip
    searched = [member.candidate.figures for member in members]
    axes.scatter(
        [f[cost].value for f in searched],
        [f["accuracy"].value for f in searched],
        s=26, facecolors="none", edgecolors=SEARCHED, zorder=3,
        label="front as searched (validation, fp32)",
    )  # fmt: skip
    for left, colour, label in (
        (False, VERIFIED, "verified (test, int8, 95 % interval)"),
        (True, LEFT, "verified: left the front or the budget"),
    ):
        chosen = [m.figures for m in members if bool(m.label) is left]
        if not chosen:
            continue
        values = [f["accuracy_int8"] for f in chosen]
        below = [v.value - (v.low if v.low is not None else v.value) for v in values]
        above = [(v.high if v.high is not None else v.value) - v.value for v in values]
        axes.errorbar(
            [f[cost].value for f in chosen], [v.value for v in values], yerr=[below, above],
            fmt="o", ms=4, lw=0.8, capsize=2, color=colour, label=label, zorder=2,
        )  # fmt: skip
    if cost in budget.limits:
        axes.axvline(budget.limits[cost], color=LIMIT, ls="--", lw=1.2, label="budget")
    axes.set_xlabel(COLUMNS[cost].title)
    axes.set_ylabel("accuracy")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, loc="lower right")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    plt.close(figure)
    return buffer.getvalue()
