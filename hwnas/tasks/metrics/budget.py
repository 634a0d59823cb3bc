"""Budgets: limits of metrics."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.options import AllowedRange
from hwnas.core.quantity import Quantities
from hwnas.tasks.metrics import BASE_COSTS, cost_names, metric_of, quality_names

_LIMIT = AllowedRange("(0, 1e15]")


@dataclass(frozen=True)
class Budget:
    """Limits of costs: upper limits, or lower limits of metrics that are maximised.

    Raises:
        ConfigError: a limit is not of a cost, or not in (0, 1e15].
    """

    limits: Mapping[str, float] = field(default_factory=dict)  #: by metric, in the metric's unit
    name: str = "custom"  #: name of the budget, for records and texts

    def __post_init__(self) -> None:
        for name, limit in self.limits.items():
            _check_cost(name)
            if limit not in _LIMIT:
                raise ConfigError(f"budget.{name} must be a number in {_LIMIT}, got {limit:g}.")

    @staticmethod
    def of(options: Mapping[str, Any]) -> "Budget":
        """Return the budget of options like ``{name: edge, latency_ms: 0.5, sram_kib: null}``.

        Raises:
            ConfigError: if a limit is not of a cost or not a number in (0, 1e15], or the name is
                not text.
        """
        limits = {n: v for n, v in options.items() if n != "name" and v is not None}
        for name, limit in limits.items():
            _check_cost(name)
            if isinstance(limit, bool) or not isinstance(limit, (int, float)):
                raise ConfigError(f"budget.{name} must be a number in {_LIMIT}, got '{limit}'.")
        numbers = {name: float(limit) for name, limit in limits.items()}
        if not isinstance(name := options.get("name", Budget.name), str):
            raise ConfigError(f"budget.name must be text, such as edge, got {name!r}.")
        return Budget(numbers, name)

    def digested(self) -> dict[str, Any]:
        """Return ``name`` and the limits by metric, for digests of the configuration.

        Base costs without a limit are ``None``.
        """
        return {"name": self.name, **dict.fromkeys(BASE_COSTS), **self.limits}

    def __str__(self) -> str:
        """All limits as text; ``none`` without limits."""
        return format_limits(self.limits)

    def violations(self, figures: Quantities) -> dict[str, float]:
        """Return the violation of each limit as a fraction of the limit; see :func:`violations`."""
        return violations(self.limits, figures)

    def met(self, figures: Quantities) -> frozenset[str]:
        """Return a set with the name of the budget if quantities meet it, else an empty set.

        Limits without a quantity count as met.
        """
        return frozenset() if self.exceeded(figures) else frozenset([self.name])

    def exceeded(self, figures: Quantities) -> str:
        """Return the violated limits as text; see :func:`exceeded`."""
        return exceeded(self.limits, figures)


def _check_cost(name: str) -> None:
    if name not in cost_names():
        allowed = [f"budget.{known}" for known in cost_names()]
        if name in quality_names():
            raise ConfigError(
                f"budget.{name}: a budget limits costs only. The front has a network for each "
                f"{name}; choose one by it: hwnas export RUN pick='latency_ms min where {name} "
                f"{'>=' if metric_of(name).maximise else '<='} NUMBER'"
            )
        raise ConfigError(unknown_name("limit", f"budget.{name}", allowed))


def violations(limits: Mapping[str, float], figures: Quantities) -> dict[str, float]:
    """Return by how much quantities miss their limits, as fractions of the limits, by metric.

    Limits without a quantity are left out. 0.1 is 10 % beyond the limit. It is 0 or less if the
    worse end of the quantity's interval meets the limit.
    """
    return {
        name: metric_of(name).violation(figures[name], limit)
        for name, limit in limits.items()
        if name in figures
    }


def exceeded(limits: Mapping[str, float], figures: Quantities) -> str:
    """Return the violated limits as text, such as ``latency_ms 0.62 over budget 0.5``.

    The number is the worse end of the quantity's interval. ``""`` if quantities meet all limits;
    limits without a quantity count as met.
    """
    return "; ".join(
        f"{name} {metric_of(name).binding(figures[name]):.4g} {violated_side(name)} budget "
        f"{limits[name]:g}"
        for name, violation in violations(limits, figures).items()
        if violation > 0
    )


def violated_side(name: str) -> str:
    """Return ``over`` for metrics with an upper limit, ``under`` for those with a lower limit."""
    return "under" if metric_of(name).maximise else "over"


def format_limits(limits: Mapping[str, float]) -> str:
    """Return limits as text: ``latency_ms <= 0.5, throughput_ips >= 100``; ``none`` if empty."""
    return ", ".join(f"{n} {metric_of(n).relation} {v:g}" for n, v in limits.items()) or "none"


def limit_words(name: str, limit: float) -> str:
    """Return a limit with its label and unit: ``latency ≤ 0.5 ms``."""
    metric = metric_of(name)
    return f"{metric.label} {'≥' if metric.maximise else '≤'} {limit:.4g} {metric.unit}".rstrip()


# Limits with units: ``latency=0.5ms`` is ``latency_ms=0.5``.

_BYTES = {
    **{unit: 1024.0**power for power, unit in enumerate(("KiB", "MiB", "GiB"))},
    **{unit: 1000**power / 1024 for power, unit in enumerate(("B", "KB", "MB", "GB"))},
}
#: Units of limits by the unit of their metric, with their size in that unit.
_UNITS: Mapping[str, Mapping[str, float]] = {
    "ms": {"ms": 1.0, "s": 1e3, "us": 1e-3, "µs": 1e-3, "ns": 1e-6},
    "mJ": {"mJ": 1.0, "J": 1e3, "uJ": 1e-3, "µJ": 1e-3, "nJ": 1e-6},
    "KiB": _BYTES,
    "W": {"W": 1.0, "mW": 1e-3, "kW": 1e3},
    "g": {"g": 1.0, "mg": 1e-3, "kg": 1e3},
    "millions": {"M": 1.0, "K": 1e-3, "k": 1e-3, "G": 1e3},
    "images/s": {"/s": 1.0, "fps": 1.0},
}
_ALIASES = {"ram": "sram", "memory": "sram", "rom": "flash"}  # words of data sheets
_QUANTITY = re.compile(r"([-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)\s*([^\d\s,]*)")


def limit_in_unit(name: str, text: str) -> tuple[str, str]:
    """Return the name of a limit's metric, and the limit in the metric's unit, as text.

    Args:
        name: Name of a metric, with or without its unit: ``latency_ms`` or ``latency``.
        text: A number, or several separated by commas, with or without a unit. Other texts, and
            limits of metrics without units, are returned as they are.

    Raises:
        ConfigError: the unit is unknown, neither the name nor the text has one, or the text of a
            name without its unit is no number.
    """
    metric_name = _ALIASES.get(name, name)
    metric = next((m for m in cost_names() if metric_name in (m, short_name(m))), name)
    units = _UNITS.get(metric_of(metric).unit, {}) if metric in cost_names() else {}
    parts = [_QUANTITY.fullmatch(part.strip()) for part in text.split(",")]
    if units and name != metric and text != "null" and not all(parts):
        raise ConfigError(
            f"budget.{name}={text}: allowed is a number with a unit ({', '.join(units)}), such as "
            f"budget.{name}=0.5{next(iter(units))}."
        )
    if not units or not all(parts):
        return (metric if text == "null" else name), text
    return metric, ",".join(_number(name, metric, units, match) for match in parts if match)


def short_name(metric: str) -> str:
    """Return the name of a metric without its unit: ``latency`` for ``latency_ms``.

    Metrics whose limits can only be written in one unit keep their name.
    """
    return metric.rpartition("_")[0] if metric_of(metric).unit in _UNITS else metric


def limit_units(metric: str) -> list[str]:
    """Return the units in which a limit of a metric can be written, the metric's own first.

    Empty if limits are numbers without a unit.
    """
    return [*_UNITS.get(metric_of(metric).unit, {})]


def _number(name: str, metric: str, units: Mapping[str, float], match: re.Match[str]) -> str:
    number, unit = match.groups()
    base_unit = next(u for u, size in units.items() if size == 1.0)
    if not unit and name != metric:
        raise ConfigError(
            f"budget.{name}={number} has no unit. Write budget.{name}={number}{base_unit}, or "
            f"budget.{metric}={number}."
        )
    if units is _BYTES:  # capital letters matter in mJ, not in kb
        unit = next((known for known in units if known.lower() == unit.lower()), unit)
    if unit and unit not in units:
        raise ConfigError(f"budget.{name}: {unknown_name('unit', unit, units)}")
    scale = units[unit or base_unit]
    return number if scale == 1.0 else repr(float(number) * scale)
