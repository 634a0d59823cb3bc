"""Metrics by name: built-in ones, and those of installed packages."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.quantity import Quantity
from hwnas.tasks.metrics import builtin
from hwnas.tasks.metrics.metric import Metric

GROUP = "hwnas.metrics"  #: of entry points

#: Costs that every cost model predicts; result files always have columns for them.
BASE_COSTS = ("latency_ms", "energy_mj", "sram_kib", "flash_kib", "macs_m", "params_m")
# First columns, in order; others follow by name.
_FIRST = ("accuracy", "balanced_accuracy", "macro_f1", "mae", *BASE_COSTS)


@functools.cache  # installed packages do not change while a process runs
def all_metrics() -> Mapping[str, Metric]:
    """Return all metrics by name, in the order of columns.

    Raises:
        ConfigError: if the metric of an installed package is invalid, or its name is taken.
    """
    metrics: dict[str, Metric] = {}
    for metric in (
        *_in_column_order(_built_in_metrics()),
        *_in_column_order(map(_load, entry_points(group=GROUP))),
    ):
        if metric.name in metrics:
            raise ConfigError(
                f"Two metrics are named '{metric.name}'. Uninstall the package that provides one "
                f"of them by an entry point of the group {GROUP}."
            )
        metrics[metric.name] = metric
    return metrics


def metric_of(name: str) -> Metric:
    """Return the metric of a column.

    ``npu.latency_ms`` is the latency on the target ``npu``; its label begins with ``npu``.

    Raises:
        ConfigError: if there is no such metric.
    """
    target, _, plain = name.rpartition(".")
    if plain not in all_metrics():
        raise ConfigError(unknown_name("metric", plain, all_metrics()))
    metric = all_metrics()[plain]
    return replace(metric, label=f"{target} {metric.label}") if target else metric


def is_metric(name: str) -> bool:
    """Return True if a column is a metric, with or without a target as prefix."""
    return name.rpartition(".")[2] in all_metrics()


def cost_names() -> tuple[str, ...]:
    """Return the names of all costs, that is, of metrics without a perfect value."""
    return tuple(name for name, metric in all_metrics().items() if metric.perfect is None)


def expected_costs(names: Iterable[str]) -> list[str]:
    """Return those names that are mean costs of networks with early exits (``mean_of``)."""
    return [name for name in names if metric_of(name).mean_of]


def _in_column_order(metrics: Iterable[Metric]) -> list[Metric]:
    def place(metric: Metric) -> tuple[int, str]:
        name = metric.name
        return (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)

    return sorted(metrics, key=place)


def _built_in_metrics() -> Iterator[Metric]:
    return (value for value in vars(builtin).values() if isinstance(value, Metric))


def _load(point: EntryPoint) -> Metric:
    """Return the metric of an entry point.

    Raises:
        ConfigError: if it cannot be imported, is not a ``Metric`` or has another name.
    """
    package = "" if point.dist is None else f" of package {point.dist.name}"
    subject = f"Entry point '{point.name} = {point.value}'{package}"
    try:
        metric: Any = point.load()
    except Exception as error:  # a plug-in may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"{subject} cannot be loaded: {reason}. Repair or uninstall the package."
        ) from error
    if not isinstance(metric, Metric):
        raise ConfigError(
            f"{subject} is no hwnas.tasks.metrics.Metric, but of type {type(metric).__name__}. "
            "Repair or uninstall the package."
        )
    if metric.name != point.name:
        raise ConfigError(
            f"{subject} refers to the metric '{metric.name}'. Give entry point and metric the same "
            "name."
        )
    return metric


# Quality metrics measure predictions (accuracy, error). Each task has one; it has a perfect value.


def quality_names() -> tuple[str, ...]:
    """Return the names of all quality metrics."""
    return tuple(name for name, metric in all_metrics().items() if metric.perfect is not None)


def quality_in(names: Iterable[str]) -> str:
    """Return the first quality metric (such as ``accuracy``) among the names.

    Raises:
        StopIteration: if there is none.
    """
    return next(name for name in names if name in quality_names())


def costs_in(names: Iterable[str]) -> list[str]:
    """Return those names that are not quality metrics."""
    return [name for name in names if name not in quality_names()]


def maximise_flags(names: Iterable[str]) -> list[bool]:
    """Return for each objective True if it is maximised, and False if it is minimised."""
    return [metric_of(name).maximise for name in names]


def is_better(name: str, first: float, second: float) -> bool:
    """Return True if the first of two values of the metric ``name`` is better; False if equal."""
    return first > second if metric_of(name).maximise else first < second


def format_value(name: str, value: float, form: str = ".4f") -> str:
    """Return a value of a metric as text.

    Args:
        name: Name of the metric.
        value: The value.
        form: Format of fractions, such as ``.4f``. Other values have four significant digits, and
            from 10,000 to 10^9 all digits before the point.
    """
    if metric_of(name).perfect == 1:
        return f"{value:{form}}"
    digits = ".0f" if 1e4 <= abs(value) < 1e9 else ".4g"
    return f"{value:{form.partition('.')[0]}{digits}}"


def format_interval(name: str, figure: Quantity, form: str = ".4f", to: str = " to ") -> str:
    """Return the interval of a metric's value as text; empty if there is none.

    Args:
        name: Name of the metric.
        figure: The value with its interval.
        form: Format of fractions; see ``format_value``.
        to: Text between the ends.
    """
    if figure.low is None or figure.high is None:
        return ""
    return to.join(format_value(name, end, form) for end in (figure.low, figure.high))


def perfect_value(name: str, values: Iterable[float]) -> float:
    """Return the best possible value of a quality metric.

    It is 1 for fractions, but 100 if one of ``values`` is above 1, as they are in per cent then.
    """
    best = metric_of(name).perfect
    assert best is not None
    return 100.0 if best == 1 and max(values, default=0.0) > 1 else best
