"""The metrics that there are, by name: of hwnas itself, and of installed packages."""

import functools
import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from hwnas.errors import ConfigError, unknown
from hwnas.metrics import builtin
from hwnas.metrics.base import Metric

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
        raise ConfigError(unknown("metric", plain, known()))
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
    for module in pkgutil.iter_modules(builtin.__path__, f"{builtin.__name__}."):
        yield importlib.import_module(module.name).METRIC


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
        raise ConfigError(f"{words} is no metric; see hwnas.metrics.base.Metric.")
    if metric.name != point.name:
        raise ConfigError(f"{words} is the metric '{metric.name}': give both the same name.")
    return metric
