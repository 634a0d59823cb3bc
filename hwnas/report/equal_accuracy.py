"""What accuracies cost on two fronts, as a table of a page."""

from hwnas.comparison.speedup import Speedup, Step
from hwnas.comparison.speedup_narrative import Names, quality_amount, ratio_text
from hwnas.report.explorer import Table

_NONE = "\u2013"


def title(found: Speedup) -> str:
    """Return the heading of the table."""
    return f"Cost at equal {found.quality.title}"


def table(found: Speedup, names: Names, note: str) -> Table:
    """Return a row for each accuracy of the baseline's members.

    Args:
        found: What is told.
        names: How the two sides are called.
        note: On the file that has all figures.
    """
    quality, cost = found.quality, found.cost
    columns = [
        quality.title,
        f"{cost.title}: {names.baseline}",
        names.front,
        "ratio",
        f"{quality.title} of {names.front} at no more than that cost",
        "difference",
    ]
    text = (
        f"Of each member of {names.baseline} its {quality.title} and cost; what the cheapest "
        f"member of {names.front} costs that is at least as good; the ratio of the two, above 1 "
        f"where {names.front} is cheaper. In brackets: 95 % intervals by bootstrap over the "
        f"members' intervals (an end at 0: {names.front} may not reach it); {_NONE}: not reached. "
        f"{note}"
    )
    return Table(title(found), columns, [_row(found, step) for step in found.steps], text)


def _row(found: Speedup, step: Step) -> list[str]:
    ratio = _NONE
    if step.ratio is not None:
        ratio = ratio_text(step.ratio.value)
        if step.ratio.interval is not None:
            low, high = map(ratio_text, step.ratio.interval)
            ratio += f" ({low} to {high})"
    gain = _NONE
    if step.gain is not None:
        form = "+.4f" if found.quality.maximise else "+.4g"
        gain = f"{found.said(step.gain):{form}}"
        if step.gain_interval is not None:
            low, high = (_NONE if end is None else f"{end:{form}}" for end in found.gains(step))
            gain += f" ({low} to {high})"
    return [
        quality_amount(found, step.quality),
        f"{step.baseline_cost:.4g}",
        _NONE if step.front_cost is None else f"{step.front_cost:.4g}",
        ratio,
        _NONE if step.quality_at_cost is None else quality_amount(found, step.quality_at_cost),
        gain,
    ]
