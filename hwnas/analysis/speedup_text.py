"""What a front costs against a baseline at equal accuracy, in sentences."""

from collections.abc import Iterator
from dataclasses import dataclass

from hwnas.analysis.fronts import Objective
from hwnas.analysis.page.model import PageTable
from hwnas.analysis.speedup import AccuracyLevel, AccuracyRange, CostAtAccuracy, CostRatio, Speedup
from hwnas.tasks.metrics import is_metric, metric_of

_SAME = 1e-9  # of a ratio: what rounding may add


@dataclass(frozen=True)
class FrontLabels:
    """How sentences call the two sides, and how the first one begins."""

    lead: str
    front: str = "the front"
    baseline: str = "the baseline"


def sentences(found: Speedup, names: FrontLabels, *, briefly: bool = False) -> list[str]:
    """Return by how much the front is cheaper at equal accuracy, or that it is not.

    Then what only one of the two reaches, unless that is to be told ``briefly``.
    """
    if not len(found.front):
        return [f"{names.lead}: {names.front} has no network that fits the budget."]
    if not len(found.baseline):
        return [f"{names.lead}: {names.baseline} has no network that fits its budget."]
    if found.range is None:
        top = quality_amount(found, float(found.front[-1, 0]))
        bottom = quality_amount(found, float(found.baseline[0, 0]))
        return [
            f"{names.lead}: {names.front} reaches no {found.quality.title} of {names.baseline}: "
            f"its {_ends(found)[1]} is {top}, the {_ends(found)[0]} there {bottom}."
        ]
    return [*_range(found, found.range, names), *([] if briefly else _alone(found, names))]


def quality_amount(found: Speedup, value: float) -> str:
    """Return a quality of a comparison with its unit."""
    return amount(found.quality, found.said(value))


def amount(objective: Objective, value: float) -> str:
    """Return a value with its unit: a fraction in four digits after the point.

    Costs are told in three digits, errors and other qualities, by which rows differ least, in four.
    """
    if objective.maximise and abs(value) <= 1:
        return f"{value:.4f}"
    is_quality = is_metric(objective.name) and metric_of(objective.name).perfect is not None
    return f"{value:.{4 if is_quality else 3}g} {objective.unit}".rstrip()


def ratio_text(value: float) -> str:
    """Return a ratio in three digits or so."""
    return f"{value:.2f}" if value < 10 else f"{value:.3g}"


def _range(found: Speedup, whole: AccuracyRange, names: FrontLabels) -> Iterator[str]:
    low, high = whole.lowest.value, whole.highest.value
    span = _span(found, whole)
    if low >= 1 - _SAME and high <= 1 + _SAME:
        yield f"{names.lead}: {span} {names.front} costs the same as {names.baseline}."
        return
    if low >= 1 - _SAME:
        lowest = f"lowest {ratio_text(low)}{_at(found, whole.worst)}{_interval(whole.lowest)}"
        rest = f"{_mean(whole)}{lowest}" if len(whole.places) > 1 else lowest
        how = f"{_times(whole)} {_more(found.cost)}"
        if low <= 1 + _SAME:
            how = f"{_as(found.cost)} or {_more(found.cost)}, {_times(whole)}"
        yield f"{names.lead}: {span} {names.front} is {how} ({rest})."
        if low > 1 + _SAME and whole.lowest.interval is not None and whole.lowest.interval[0] <= 1:
            yield (
                f"Within the intervals it may be no {_more(found.cost)} at some {_quality(found)}."
            )
        return
    where = "at any" if high <= 1 + _SAME else "at every"
    worst = whole.worst
    theirs = amount(found.cost, worst.baseline)
    yield (
        f"{names.lead}: {names.front} is not {_more(found.cost)} {where} {_quality(found)}: at "
        f"{quality_amount(found, worst.quality)} it needs {amount(found.cost, worst.front)}, "
        f"{names.baseline} {theirs}."
    )
    if len(whole.places) > 1:
        lowest = f"lowest {ratio_text(low)}{_interval(whole.lowest)}"
        yield (
            f"{span[0].upper()}{span[1:]} it is {_times(whole)} {_as(found.cost)} "
            f"({_mean(whole)}{lowest})."
        )


def _span(found: Speedup, whole: AccuracyRange) -> str:
    first, last = whole.places[0].quality, whole.places[-1].quality
    if first == last:
        return f"at {quality_amount(found, first)} {_quality(found)}"
    ends = f"{quality_amount(found, first)} to {quality_amount(found, last)}"
    return f"from {ends} {_quality(found)}"


def _times(whole: AccuracyRange) -> str:
    low, high = ratio_text(whole.lowest.value), ratio_text(whole.highest.value)
    return f"{low} times" if low == high else f"{low} to {high} times"


def _mean(whole: AccuracyRange) -> str:
    return f"geometric mean {ratio_text(whole.mean.value)}{_interval(whole.mean)}; "


def _at(found: Speedup, place: CostAtAccuracy) -> str:
    return f" at {quality_amount(found, place.quality)}"


def _interval(ratio: CostRatio) -> str:
    if ratio.interval is None:
        return ""
    low, high = ratio.interval
    return f", 95 % {ratio_text(low)} to {ratio_text(high)}"


def _ends(found: Speedup) -> tuple[str, str]:
    """Return what the worst and the best quality are called."""
    return ("lowest", "highest") if found.quality.maximise else ("highest", "lowest")


def _beyond(found: Speedup) -> str:
    return "Above" if found.quality.maximise else "Below"


def _quality(found: Speedup) -> str:
    return found.quality.title


def _more(cost: Objective) -> str:
    return "faster" if _is_time(cost) else f"cheaper in {_label(cost)}"


def _as(cost: Objective) -> str:
    return "as fast" if _is_time(cost) else f"as cheap in {_label(cost)}"


def _is_time(cost: Objective) -> bool:
    return cost.name.rpartition(".")[2] in ("latency_ms", "expected_latency_ms")


def _label(cost: Objective) -> str:
    return cost.title.partition(" [")[0]


def _alone(found: Speedup, names: FrontLabels) -> Iterator[str]:
    """Say what only one of the two reaches."""
    mine, theirs = found.front, found.baseline
    (top, price), (their_top, their_price) = mine[-1].tolist(), theirs[-1].tolist()
    high, their_high = (quality_amount(found, value) for value in (top, their_top))
    if their_top > top:
        yield (
            f"{_capital(names.front)} does not reach {their_high}, which {names.baseline} has at "
            f"{amount(found.cost, their_price)}; its {_ends(found)[1]} is {high}."
        )
    elif top > their_top:
        yield (
            f"{_beyond(found)} {their_high} only {names.front} goes on, to {high} at "
            f"{amount(found.cost, price)}."
        )
    (bottom, least), (their_bottom, their_least) = mine[0].tolist(), theirs[0].tolist()
    if least < their_least and bottom < their_bottom:
        yield _below(found, names.front, their_least, (bottom, least))
    elif their_least < least and their_bottom < bottom:
        yield _below(found, names.baseline, least, (their_bottom, their_least))


def _below(found: Speedup, name: str, cost: float, cheapest: tuple[float, float]) -> str:
    quality, least = quality_amount(found, cheapest[0]), amount(found.cost, cheapest[1])
    return f"Below {amount(found.cost, cost)} only {name} has networks, from {quality} at {least}."


def _capital(text: str) -> str:
    """Return a text with a capital, where it begins with an article and not with a name."""
    return f"T{text[1:]}" if text.startswith("the ") else text


# What accuracies cost on two fronts, as a table of a page.

_NONE = "\u2013"


def title(found: Speedup) -> str:
    """Return the heading of the table."""
    return f"Cost at equal {found.quality.title}"


def equal_accuracy_table(found: Speedup, names: FrontLabels, note: str) -> PageTable:
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
    return PageTable(title(found), columns, [_row(found, step) for step in found.steps], text)


def _row(found: Speedup, step: AccuracyLevel) -> list[str]:
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
