"""Budgets: limits of metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.options import AllowedRange
from hwnas.core.quantity import Quantities
from hwnas.tasks.metrics import BASE_COSTS, cost_names, metric_of

_LIMIT = AllowedRange("(0, 1e15]")


@dataclass(frozen=True)
class Budget:
    """Limits of costs: upper limits, or lower limits of metrics that are maximised."""

    limits: Mapping[str, float] = field(default_factory=dict)
    name: str = "custom"

    def __post_init__(self) -> None:
        for name, limit in self.limits.items():
            if name not in cost_names():
                allowed = [f"budget.{known}" for known in cost_names()]
                raise ConfigError(unknown_name("limit", f"budget.{name}", allowed))
            if limit not in _LIMIT:
                raise ConfigError(f"budget.{name} must be a number in {_LIMIT}, got {limit:g}.")

    @staticmethod
    def of(options: Mapping[str, Any]) -> "Budget":
        """Return the budget of options like ``{name: edge, latency_ms: 0.5, sram_kib: null}``.

        Raises:
            ConfigError: if a limit is not of a metric, or not a positive number.
        """
        limits = {n: v for n, v in options.items() if n != "name" and v is not None}
        for name, limit in limits.items():
            if isinstance(limit, bool) or not isinstance(limit, (int, float)):
                raise ConfigError(f"budget.{name} must be a number in {_LIMIT}, got '{limit}'.")
        numbers = {name: float(limit) for name, limit in limits.items()}
        return Budget(numbers, str(options.get("name", Budget.name)))

    def digested(self) -> dict[str, Any]:
        """Return the content that enters digests; it always has the keys ``BASE_COSTS``."""
        return {"name": self.name, **dict.fromkeys(BASE_COSTS), **self.limits}

    def __str__(self) -> str:
        """All limits as text."""
        return format_limits(self.limits)

    def violations(self, figures: Quantities) -> dict[str, float]:
        """Return the violation of each limit; see ``violations``."""
        return violations(self.limits, figures)

    def met(self, figures: Quantities) -> frozenset[str]:
        """Return the name of the budget if a candidate meets it, else an empty set."""
        return frozenset() if self.exceeded(figures) else frozenset([self.name])

    def exceeded(self, figures: Quantities) -> str:
        """Return the violated limits as text; empty if a candidate meets the budget."""
        return exceeded(self.limits, figures)


def violations(limits: Mapping[str, float], figures: Quantities) -> dict[str, float]:
    """Return the violation of each limit of a known quantity as a fraction of the limit.

    It is 0 or less if the worse end of the quantity's interval meets the limit.
    """
    return {
        name: metric_of(name).violation(figures[name], limit)
        for name, limit in limits.items()
        if name in figures
    }


def exceeded(limits: Mapping[str, float], figures: Quantities) -> str:
    """Return the violated limits as text; empty if a candidate meets the budget."""
    return "; ".join(
        f"{name} {metric_of(name).binding(figures[name]):.4g} {violated_side(name)} budget "
        f"{limits[name]:g}"
        for name, violation in violations(limits, figures).items()
        if violation > 0
    )


def violated_side(name: str) -> str:
    """Return the side of a metric's limit that violates it: ``over`` or ``under``."""
    return "under" if metric_of(name).maximise else "over"


def format_limits(limits: Mapping[str, float]) -> str:
    """Return limits as text: ``latency_ms <= 0.5, throughput_ips >= 100``."""
    return ", ".join(f"{n} {metric_of(n).relation} {v:g}" for n, v in limits.items()) or "none"
