"""An audit as a picture, and as a section of a run's page."""

import base64
import html
import io
from collections.abc import Sequence

from matplotlib.figure import Figure as Drawing

from hwnas.accuracy.audit import Finding, Verdict
from hwnas.errors import RunError
from hwnas.figure import Figure
from hwnas.metrics import column
from hwnas.report.page import with_section
from hwnas.report.plot import SEARCHED, VERIFIED

_STYLE = (("front", VERIFIED, "members of the front"), ("space", SEARCHED, "random networks"))


def audit_png(findings: Sequence[Finding], verdict: Verdict, epochs: int, metric: str) -> bytes:
    """Return a PNG: the metric trained alone over that in the supernet, with intervals."""
    label = column(metric).title
    figure = Drawing(figsize=(7, 5.5), dpi=150, layout="constrained")
    axes = figure.subplots()
    for group, colour, name in _STYLE:
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


def _ends(figures: Sequence[Figure]) -> list[list[float]]:
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
