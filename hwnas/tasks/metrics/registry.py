"""The metrics that there are, by name: of hwnas itself, and of installed packages."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.tasks.metrics import builtin
from hwnas.tasks.metrics.metric import Metric

GROUP = "hwnas.metrics"  #: of entry points

#: The costs that every cost model says. They have columns in all files of results, known or not.
GIVEN = ("latency_ms", "energy_mj", "sram_kib", "flash_kib", "macs_m", "params_m")
_FIRST = ("accuracy", "mae", *GIVEN)  # in the order of columns; others follow by name


@functools.cache  # installed packages stay what they are while a process runs
def known() -> Mapping[str, Metric]:
    """Return all metrics by name, in the order of columns.

    Raises:
        ConfigError: what a package brings is no metric, or its name is taken.
    """
    found: dict[str, Metric] = {}
    for metric in (*_ordered(_built_in()), *_ordered(map(_loaded, entry_points(group=GROUP)))):
        if metric.name in found:
            raise ConfigError(
                f"Two metrics are called '{metric.name}'; uninstall the package that brings one "
                f"(entry points in the group {GROUP})."
            )
        found[metric.name] = metric
    return found


def column(name: str) -> Metric:
    """Return the metric of a column; ``npu.latency_ms`` is the latency on the target ``npu``.

    Raises:
        ConfigError: there is no such metric.
    """
    target, _, plain = name.rpartition(".")
    if plain not in known():
        raise ConfigError(unknown_name("metric", plain, known()))
    found = known()[plain]
    return replace(found, label=f"{target} {found.label}") if target else found


def is_known(name: str) -> bool:
    """Return whether a column is of a metric, of a target or of the only one."""
    return name.rpartition(".")[2] in known()


def costs() -> tuple[str, ...]:
    """Return the names of the metrics that do not say how good answers are."""
    return tuple(name for name, metric in known().items() if metric.perfect is None)


def means(names: Iterable[str]) -> list[str]:
    """Return which of the names are of means over images that leave early."""
    return [name for name in names if column(name).mean_of]


def _ordered(metrics: Iterable[Metric]) -> list[Metric]:
    def place(metric: Metric) -> tuple[int, str]:
        name = metric.name
        return (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)

    return sorted(metrics, key=place)


def _built_in() -> Iterator[Metric]:
    return (value for value in vars(builtin).values() if isinstance(value, Metric))


def _loaded(point: EntryPoint) -> Metric:
    """Return the metric that an entry point leads to.

    Raises:
        ConfigError: it cannot be imported, or is none of that name.
    """
    package = "" if point.dist is None else f" of package {point.dist.name}"
    words = f"Entry point '{point.name} = {point.value}'{package}"
    try:
        metric: Any = point.load()
    except Exception as error:  # a stranger's module may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{words} cannot be loaded: {reason}") from error
    if not isinstance(metric, Metric):
        raise ConfigError(f"{words} is no metric; see hwnas.tasks.metrics.metric.Metric.")
    if metric.name != point.name:
        raise ConfigError(f"{words} is the metric '{metric.name}': give both the same name.")
    return metric


# Which metric says how good answers are: that of a task, which has a perfect value.


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
