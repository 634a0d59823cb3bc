"""Verdict and table of what a front costs against a baseline at equal accuracy."""

from dataclasses import dataclass

from hwnas.analysis.fronts import Array, Objective
from hwnas.analysis.page.data import PageTable
from hwnas.analysis.speedup import AccuracyLevel, AccuracyRange, CostRatio, Speedup
from hwnas.tasks.metrics import is_metric, metric_of

_ROUNDING = 1e-9  # of a ratio


@dataclass(frozen=True)
class FrontLabels:
    """Names of the two fronts in messages."""

    lead: str  #: begin of the verdict, before a colon
    front: str = "the front"
    baseline: str = "the baseline"


def speedup_verdict(speedup: Speedup, labels: FrontLabels, *, briefly: bool = False) -> list[str]:
    """Return a line on how much cheaper the front is at equal accuracy.

    A second line has the ranges of quality and cost of both fronts, unless ``briefly``.
    """
    for front, name in ((speedup.front, labels.front), (speedup.baseline, labels.baseline)):
        if not len(front):
            return [f"{labels.lead}: {name} has no network that fits its budget."]
    ranges = [] if briefly else [_ranges(speedup, labels)]
    if speedup.range is None:
        return [
            f"{labels.lead}: {labels.front} reaches no {speedup.quality.title} of "
            f"{labels.baseline}.",
            *ranges,
        ]
    return [_ratio_verdict(speedup, speedup.range, labels), *ranges]


def plain_verdict(speedup: Speedup, labels: FrontLabels, larger: int) -> str:
    """Return in one sentence whether a front is better than another one; empty if unknown.

    Args:
        speedup: Costs of the fronts at equal accuracy.
        labels: Names of the two fronts.
        larger: 1 or -1 if the hypervolume of the front, or of the baseline, is significantly
            larger, else 0.
    """
    if speedup.range is None:
        return ""
    mean, first, second = _cheaper(speedup.range.mean, labels)
    larger = larger if first == labels.front else -larger
    at = _at_equal(speedup)
    ratio = f"{ratio_text(mean.value)} times as {_adjective(speedup.cost)}"
    if mean.interval is None:
        return f"{first} is {ratio} as {second} {at}. There are no intervals: this is not tested."
    ratio += f" {at}{_plain_interval(mean)}"
    if mean.interval[0] <= 1:
        if not larger:
            return f"No significant difference: {first} is {ratio} as {second}."
        best, other = (first, second) if larger > 0 else (second, first)
        return (
            f"{best} is better than {other}: its front dominates a larger share of the objective "
            f"space. Costs {at} are not significantly different: {first} is {ratio}."
        )
    if larger < 0:
        return (
            f"Neither is better everywhere: {first} is {ratio}, but the front of {second} "
            "dominates a larger share of the objective space."
        )
    return f"{first} is better than {second}: {ratio}."


def device_verdict(speedup: Speedup, labels: FrontLabels) -> str:
    """Return in one sentence how networks on two devices compare; empty if unknown.

    Args:
        speedup: Costs of the fronts at equal accuracy.
        labels: Names of the two devices.
    """
    if speedup.range is None:
        return ""
    mean, first, second = _cheaper(speedup.range.mean, labels)
    text = (
        f"On {first} the networks are {ratio_text(mean.value)} times as "
        f"{_adjective(speedup.cost)} as on {second}, {_at_equal(speedup)}{_plain_interval(mean)}"
    )
    is_equal = mean.interval is not None and mean.interval[0] <= 1
    return f"{text}: not significantly different." if is_equal else f"{text}."


def _cheaper(mean: CostRatio, labels: FrontLabels) -> tuple[CostRatio, str, str]:
    """Return a ratio of at least 1, and the names of the cheaper and of the other front."""
    if mean.value >= 1:
        return mean, labels.front, labels.baseline
    ends = mean.interval and (1 / mean.interval[1], 1 / mean.interval[0])
    return CostRatio(1 / mean.value, ends), labels.baseline, labels.front


def _at_equal(speedup: Speedup) -> str:
    return f"at equal {speedup.quality.title.partition(' [')[0]}"


def _plain_interval(mean: CostRatio) -> str:
    return (
        "" if mean.interval is None else f" (95 %: {' to '.join(map(ratio_text, mean.interval))})"
    )


def quality_amount(speedup: Speedup, value: float) -> str:
    """Return a quality as ``Speedup`` stores it as text, in the original direction with unit."""
    return amount(speedup.quality, speedup.signed(value))


def amount(objective: Objective, value: float) -> str:
    """Return a value as text with its unit.

    Fractions have four decimals, other qualities four significant digits, costs three.
    """
    if objective.maximise and abs(value) <= 1:
        return f"{value:.4f}"
    is_quality = is_metric(objective.name) and metric_of(objective.name).perfect is not None
    return f"{value:.{4 if is_quality else 3}g} {objective.unit}".rstrip()


def ratio_text(value: float) -> str:
    """Return a ratio as text: below 10 with two decimals, else three significant digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.3g}"


def _ratio_verdict(speedup: Speedup, whole: AccuracyRange, labels: FrontLabels) -> str:
    low, high = whole.lowest, whole.highest
    first, last = (quality_amount(speedup, whole.levels[i].quality) for i in (0, -1))
    span = f"from {first} to {last}" if first != last else f"at {first}"
    text = f"{labels.lead}: {span} {speedup.quality.title} {labels.front} is "
    if low.value >= 1 - _ROUNDING and high.value <= 1 + _ROUNDING:
        return f"{text}as {_adjective(speedup.cost)} as {labels.baseline}."
    text += _comparison(speedup.cost, low.value, high.value)
    worst, several = whole.worst, len(whole.levels) > 1
    ratios = " to ".join(dict.fromkeys(map(ratio_text, (low.value, high.value))))
    mean = f"geometric mean {ratio_text(whole.mean.value)}{_interval(whole.mean)}; " * several
    lowest = f"lowest {ratio_text(low.value)}{_interval(low)}"
    at = f"at {quality_amount(speedup, worst.quality)}"
    costs = f"{amount(speedup.cost, worst.front)} against {amount(speedup.cost, worst.baseline)}"
    return f"{text}: {_ratio_name(speedup.cost)} {ratios} ({mean}{lowest}, {at}: {costs})."


def _comparison(cost: Objective, low: float, high: float) -> str:
    word = "faster" if _adjective(cost) == "fast" else "cheaper"
    if low > 1 + _ROUNDING:
        return word
    if low >= 1 - _ROUNDING:
        return f"{word} or equal"
    return f"not {word} {'at any level' if high <= 1 + _ROUNDING else 'everywhere'}"


def _interval(ratio: CostRatio) -> str:
    if ratio.interval is None:
        return ""
    low, high = ratio.interval
    note = " (not significant)" if ratio.value > 1 >= low else ""
    return f", 95 % {ratio_text(low)} to {ratio_text(high)}{note}"


def _adjective(cost: Objective) -> str:
    is_time = cost.name.rpartition(".")[2] in ("latency_ms", "expected_latency_ms")
    return "fast" if is_time else "cheap"


def _ratio_name(cost: Objective) -> str:
    return "speedup" if _adjective(cost) == "fast" else f"ratio of {cost.title.partition(' [')[0]}"


def _ranges(speedup: Speedup, labels: FrontLabels) -> str:
    def ends(front: Array) -> str:
        points = [(quality_amount(speedup, q), amount(speedup.cost, c)) for q, c in front.tolist()]
        return " to ".join(f"{q} at {c}" for q, c in dict.fromkeys((points[0], points[-1])))

    title = speedup.quality.title
    return (
        f"Range of {title}: {labels.front} {ends(speedup.front)}; {labels.baseline} "
        f"{ends(speedup.baseline)}."
    )


_NONE = "\u2013"


def title(speedup: Speedup) -> str:
    """Return the heading of ``equal_accuracy_table``."""
    return f"Cost at equal {speedup.quality.title}"


def equal_accuracy_table(speedup: Speedup, labels: FrontLabels, note: str) -> PageTable:
    """Return a table of costs with a row for each of ``speedup.levels``.

    Args:
        speedup: The comparison.
        labels: Names of the two fronts.
        note: Sentence below the table: which file has all figures.
    """
    quality, cost = speedup.quality, speedup.cost
    columns = [
        quality.title,
        f"{cost.title}: {labels.baseline}",
        labels.front,
        "ratio",
        f"{quality.title} of {labels.front} at no more than that cost",
        "difference",
    ]
    text = (
        f"A row for each member of {labels.baseline}: the cost of the cheapest member of "
        f"{labels.front} that is at least as good; ratio of the two costs (above 1: "
        f"{labels.front} is cheaper). In brackets: 95 % intervals by bootstrap (0: the level may "
        f"not be reached). {_NONE}: not reached. {note}"
    )
    return PageTable(
        title(speedup), columns, [_row(speedup, level) for level in speedup.levels], text
    )


def _row(speedup: Speedup, level: AccuracyLevel) -> list[str]:
    ratio = _NONE
    if level.ratio is not None:
        ratio = ratio_text(level.ratio.value)
        if level.ratio.interval is not None:
            low, high = map(ratio_text, level.ratio.interval)
            ratio += f" ({low} to {high})"
    gain = _NONE
    if level.gain is not None:
        form = "+.4f" if speedup.quality.maximise else "+.4g"
        gain = f"{speedup.signed(level.gain):{form}}"
        if level.gain_interval is not None:
            low, high = (_NONE if end is None else f"{end:{form}}" for end in speedup.gains(level))
            gain += f" ({low} to {high})"
    return [
        quality_amount(speedup, level.quality),
        f"{level.baseline_cost:.4g}",
        _NONE if level.front_cost is None else f"{level.front_cost:.4g}",
        ratio,
        _NONE if level.quality_at_cost is None else quality_amount(speedup, level.quality_at_cost),
        gain,
    ]
