"""Verdict and table of what a front costs against a baseline at equal accuracy."""

from dataclasses import dataclass
from math import inf

from hwnas.analysis.fronts import Array, Objective
from hwnas.analysis.indicators import QUALITY
from hwnas.analysis.page.data import PageTable
from hwnas.analysis.speedup import AccuracyLevel, AccuracyRange, CostRatio, Speedup
from hwnas.tasks.metrics import is_metric, metric_of


@dataclass(frozen=True)
class FrontLabels:
    """Names of the two fronts in messages."""

    lead: str  #: first words of the verdict, before a colon
    front: str = "the front"
    baseline: str = "the baseline"


def speedup_verdict(speedup: Speedup, labels: FrontLabels, *, briefly: bool = False) -> list[str]:
    """Return a line with the ratios of the baseline's cost to the front's at equal accuracy.

    A second line has the ranges of quality and cost of both fronts, unless ``briefly`` or a front
    is empty. If they have no accuracy in common or one is empty, the first line states that.
    """
    for front, name in ((speedup.front, labels.front), (speedup.baseline, labels.baseline)):
        if not len(front):
            return [f"{labels.lead}: {name} has no network that fits its budget."]
    ranges = [] if briefly else [_ranges(speedup, labels)]
    if speedup.range is None:
        return [
            f"{labels.lead}: no network of {labels.front} reaches the worst "
            f"{speedup.quality.title} of {labels.baseline}.",
            *ranges,
        ]
    return [_ratio_verdict(speedup, speedup.range, labels), *ranges]


def plain_verdict(speedup: Speedup, labels: FrontLabels, larger: int) -> str:
    """Return in one sentence whether a front is better than the baseline.

    The text is empty if they have no accuracy in common. Without intervals there is no test.

    A front is better if it is significantly cheaper at equal accuracy, has a significantly larger
    hypervolume, and does not reach a significantly lower accuracy.

    Args:
        speedup: Costs of the fronts at equal accuracy.
        labels: Names of the two fronts.
        larger: 1 or -1 if the hypervolume of the front, or of the baseline, is significantly
            larger, else 0.
    """
    if speedup.range is None:
        return ""
    mean, first, second = _ratio_and_names(speedup.range.mean, labels)
    gain, higher = _gain(speedup, speedup.range, labels)
    if first != labels.front:
        larger, higher = -larger, -higher
    condition = _at_equal(speedup)
    ratio = f"{ratio_text(mean.value)} times as {_adjective(speedup.cost)}"
    if mean.interval is None:
        return (
            f"{first} is {ratio} as {second} {condition}{gain}. There are no intervals: this is "
            "not tested."
        )
    ratio += f" {condition}{_plain_interval(mean)}"
    if mean.interval[0] <= 1:
        text = _not_cheaper(first, second, larger, "" if higher else _name(speedup.quality))
        return f"{text}{first} is {ratio}{gain}."
    if not larger:
        return f"No significant difference in hypervolume; {first} is {ratio}{gain}."
    if larger > 0 and higher >= 0:
        return f"{first} is better than {second}: {ratio}{gain}."
    but = f", but {second} has a significantly larger hypervolume" * (larger < 0)
    return f"Neither is better everywhere: {first} is {ratio}{but}{gain}."


def _not_cheaper(first: str, second: str, larger: int, equal_quality: str) -> str:
    """Return the begin of the verdict on fronts of which neither is significantly cheaper.

    ``equal_quality`` is the name of the quality if it is not significantly higher either.
    """
    if not larger and equal_quality:
        return (
            f"Neither is significantly better in hypervolume, cost or {equal_quality}. Estimate: "
        )
    if not larger:
        return "No significant difference in hypervolume or cost: "
    best, other = (first, second) if larger > 0 else (second, first)
    return (
        f"{best} has a significantly larger hypervolume than {other}; no significant difference in "
        "cost: "
    )


def device_verdict(speedup: Speedup, labels: FrontLabels) -> str:
    """Return in one sentence on which of two devices networks are cheaper at equal accuracy.

    The text is empty if the fronts have no accuracy in common.

    Args:
        speedup: Costs of the fronts at equal accuracy.
        labels: Names of the two devices.
    """
    if speedup.range is None:
        return ""
    mean, first, second = _ratio_and_names(speedup.range.mean, labels)
    gain, _ = _gain(speedup, speedup.range, labels)
    text = (
        f"On {first} the networks are {ratio_text(mean.value)} times as "
        f"{_adjective(speedup.cost)} as on {second}, {_at_equal(speedup)}{_plain_interval(mean)}"
    )
    is_equal = mean.interval is not None and mean.interval[0] <= 1
    return f"{text}{': not significantly different' * is_equal}{gain}."


def _ratio_and_names(mean: CostRatio, labels: FrontLabels) -> tuple[CostRatio, str, str]:
    """Return a ratio of at least 1, and the names of the cheaper and of the other front."""
    if mean.value >= 1:
        return mean, labels.front, labels.baseline
    ends = None
    if mean.interval is not None:  # 0: no accuracy in common
        low, high = (1 / end if end else inf for end in reversed(mean.interval))
        ends = low, high
    return CostRatio(1 / mean.value, ends), labels.baseline, labels.front


def _gain(speedup: Speedup, accuracy_range: AccuracyRange, labels: FrontLabels) -> tuple[str, int]:
    """Return which front reaches a higher accuracy, as a clause; empty if both reach the same.

    Also 1 or -1 if that of the front, or of the baseline, is significantly higher, else 0.
    """
    tops = [float(front[-1, QUALITY]) for front in (speedup.front, speedup.baseline)]
    front, baseline = (quality_amount(speedup, top) for top in tops)
    if front == baseline:
        return "", 0
    is_front, ends = tops[0] > tops[1], accuracy_range.gain_interval
    best, values = labels.front, f"{front} against {baseline}"
    if not is_front:
        best, values = labels.baseline, f"{baseline} against {front}"
        ends = ends and (-ends[1], -ends[0])
    quality = f"{'higher' if speedup.quality.maximise else 'lower'} {_name(speedup.quality)}"
    interval, is_significant = "", False
    if ends is not None:
        is_significant = ends[0] > 0
        note = "" if is_significant else ", not significant"
        interval = f" (95 % of the gain: {ends[0]:.4g} to {ends[1]:.4g}{note})"
    sign = (1 if is_front else -1) * is_significant
    return f"; {best} reaches a {quality}, {values}{interval}", sign


def _at_equal(speedup: Speedup) -> str:
    return f"at equal {_name(speedup.quality)}"


def _name(objective: Objective) -> str:
    """Return the title of an objective without its unit."""
    return objective.title.partition(" [")[0]


def _plain_interval(mean: CostRatio) -> str:
    if mean.interval is None:
        return ""
    low, high = mean.interval
    ends = (
        f"{ratio_text(low)} to {ratio_text(high)}" if high < inf else f"at least {ratio_text(low)}"
    )
    return f" (95 %: {ends})"


def direction(cost: Objective, front: str, baseline: str) -> str:
    """Return as text which cost ratio is computed, and what a ratio above 1 means.

    ``front`` and ``baseline`` are the names of the fronts.
    """
    word = "faster" if _adjective(cost) == "fast" else "cheaper"
    return f"{baseline} / {front}, above 1: {front} is {word}"


def quality_amount(speedup: Speedup, value: float) -> str:
    """Return a quality or difference of ``speedup`` as text with unit, in the original direction.

    ``value`` is as ``Speedup`` stores it, see ``Speedup.signed`` and ``amount``.
    """
    return amount(speedup.quality, speedup.signed(value))


def amount(objective: Objective, value: float) -> str:
    """Return a value of an objective as text with its unit.

    Maximised values up to 1 have four decimals and no unit, other qualities four significant
    digits, costs three.
    """
    if objective.maximise and abs(value) <= 1:
        return f"{value:.4f}"
    is_quality = is_metric(objective.name) and metric_of(objective.name).perfect is not None
    return f"{value:.{4 if is_quality else 3}g} {objective.unit}".rstrip()


def ratio_text(value: float) -> str:
    """Return a ratio as text: below 10 with two decimals, else three significant digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.3g}"


def _ratio_verdict(speedup: Speedup, accuracy_range: AccuracyRange, labels: FrontLabels) -> str:
    low, high, worst = accuracy_range.lowest, accuracy_range.highest, accuracy_range.worst
    first, last = (quality_amount(speedup, accuracy_range.levels[i].quality) for i in (0, -1))
    span = f"from {first} to {last}" if first != last else f"at {first}"
    ratios = " to ".join(dict.fromkeys(map(ratio_text, (low.value, high.value))))
    text = (
        f"{labels.lead}: {span} {speedup.quality.title}, {_ratio_name(speedup.cost)} {ratios} "
        f"({direction(speedup.cost, labels.front, labels.baseline)})"
    )
    costs = f"{amount(speedup.cost, worst.front)} against {amount(speedup.cost, worst.baseline)}"
    if len(accuracy_range.levels) == 1:
        return f"{text}{_interval(low)}: {costs}."
    lowest = f"{ratio_text(low.value)}{_interval(low, ' of the lowest at any accuracy')}"
    return (
        f"{text}, geometric mean {ratio_text(accuracy_range.mean.value)}"
        f"{_interval(accuracy_range.mean)}. Lowest: {lowest}, at "
        f"{quality_amount(speedup, worst.quality)}: {costs}."
    )


def _interval(ratio: CostRatio, scope: str = "") -> str:
    if ratio.interval is None:
        return ""
    low, high = ratio.interval
    note = " (not significant)" if low <= 1 <= high and ratio.value != 1 else ""
    return f", 95 %{scope} {ratio_text(low)} to {ratio_text(high)}{note}"


def _adjective(cost: Objective) -> str:
    is_time = cost.name.rpartition(".")[2] in ("latency_ms", "expected_latency_ms")
    return "fast" if is_time else "cheap"


def _ratio_name(cost: Objective) -> str:
    return "speedup" if _adjective(cost) == "fast" else f"ratio of {_name(cost)}"


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
    """Return the title of ``equal_accuracy_table``, as ``Cost at equal accuracy``."""
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
        f"{labels.front} that is at least as good; ratio of the two costs "
        f"({direction(cost, labels.front, labels.baseline)}). In brackets: 95 % intervals of the "
        "row by bootstrap (0: the level may not be reached); the interval of the lowest ratio of "
        "all rows differs, as samples have it at different rows. "
        f"{_NONE}: not reached. {note}"
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
