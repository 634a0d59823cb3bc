"""Which metric says how good answers are: that of a task, which has a perfect value."""

from collections.abc import Iterable

from hwnas.metrics.registry import column, known


def qualities() -> tuple[str, ...]:
    """Return the names of the metrics that say how good answers are."""
    return tuple(name for name, metric in known().items() if metric.perfect is not None)


def quality(names: Iterable[str]) -> str:
    """Return which of the names of objectives or figures says how good answers are.

    Raises:
        StopIteration: none does.
    """
    return next(name for name in names if name in qualities())


def paid(names: Iterable[str]) -> list[str]:
    """Return the names of objectives or figures but for the one that says how good answers are."""
    return [name for name in names if name not in qualities()]


def maximised(names: Iterable[str]) -> list[bool]:
    """Return which objectives are to be maximised; the others are to be minimised."""
    return [column(name).maximise for name in names]


def better(name: str, first: float, second: float) -> bool:
    """Return whether the first of two values of a metric is better."""
    return first > second if column(name).maximise else first < second


def shown(name: str, value: float, form: str = ".4f") -> str:
    """Return a value of a metric for people.

    Args:
        name: Of the metric.
        value: To be shown.
        form: Of shares, in fixed decimals; what has a unit, which may be small or large, is shown
            in four digits.
    """
    if column(name).perfect == 1:
        return f"{value:{form}}"
    digits = ".0f" if 1e4 <= abs(value) < 1e9 else ".4g"
    return f"{value:{form.partition('.')[0]}{digits}}"


def perfect(name: str, values: Iterable[float]) -> float:
    """Return the value of a metric that no network betters: 100 where accuracies are per cent."""
    best = column(name).perfect
    assert best is not None
    return 100.0 if best == 1 and max(values, default=0.0) > 1 else best
