"""A budget: what the user of a network allows, as limits of metrics by their names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.options import AllowedRange
from hwnas.core.quantity import Quantities
from hwnas.tasks.metrics import GIVEN, column, costs

_LIMIT = AllowedRange("(0, 1e15]")


@dataclass(frozen=True)
class Budget:
    """Limits of a candidate's costs: upper ones, and lower ones of what is to be maximised."""

    limits: Mapping[str, float] = field(default_factory=dict)
    name: str = "custom"

    def __post_init__(self) -> None:
        for name, limit in self.limits.items():
            if name not in costs():
                allowed = [f"budget.{known}" for known in costs()]
                raise ConfigError(unknown_name("limit", f"budget.{name}", allowed))
            if limit not in _LIMIT:
                raise ConfigError(f"budget.{name} must be a number in {_LIMIT}, got {limit:g}.")

    @staticmethod
    def of(written: Mapping[str, Any]) -> "Budget":
        """Return the budget that ``{name: edge, latency_ms: 0.5, sram_kib: null}`` says.

        Raises:
            ConfigError: a limit is of no metric, is not a number or not positive.
        """
        limits = {n: v for n, v in written.items() if n != "name" and v is not None}
        for name, limit in limits.items():
            if isinstance(limit, bool) or not isinstance(limit, (int, float)):
                raise ConfigError(f"budget.{name} must be a number in {_LIMIT}, got '{limit}'.")
        numbers = {name: float(limit) for name, limit in limits.items()}
        return Budget(numbers, str(written.get("name", Budget.name)))

    def digested(self) -> dict[str, Any]:
        """Return what decides whether two budgets are the same.

        ``GIVEN`` are there whether they are limited or not: as when a budget had these alone, so
        that runs of that time can be resumed.
        """
        return {"name": self.name, **dict.fromkeys(GIVEN), **self.limits}

    def __str__(self) -> str:
        """All limits, in words."""
        return words(self.limits)

    def violations(self, figures: Quantities) -> dict[str, float]:
        """Return, for each limit, how far a candidate is beyond it as a fraction of the limit."""
        return violations(self.limits, figures)

    def met(self, figures: Quantities) -> frozenset[str]:
        """Return the name of the budget if a candidate fits it."""
        return frozenset() if self.exceeded(figures) else frozenset([self.name])

    def exceeded(self, figures: Quantities) -> str:
        """Return which limits a candidate is beyond, in words; empty if it fits."""
        return exceeded(self.limits, figures)


def violations(limits: Mapping[str, float], figures: Quantities) -> dict[str, float]:
    """Return, for each limit of a known figure, how far a candidate is beyond it.

    In fractions of the limit: zero or less fits. The worse end of a figure's interval must fit.
    """
    return {
        name: column(name).violation(figures[name], limit)
        for name, limit in limits.items()
        if name in figures
    }


def exceeded(limits: Mapping[str, float], figures: Quantities) -> str:
    """Return which limits a candidate is beyond, in words; empty if it fits."""
    return "; ".join(
        f"{name} {column(name).binding(figures[name]):.4g} {side(name)} budget {limits[name]:g}"
        for name, by in violations(limits, figures).items()
        if by > 0
    )


def side(name: str) -> str:
    """Return the wrong side of a metric's limit: ``over`` it, or ``under`` it."""
    return "under" if column(name).maximise else "over"


def words(limits: Mapping[str, float]) -> str:
    """Return limits in words: ``latency_ms <= 0.5, throughput_ips >= 100``."""
    return ", ".join(f"{n} {column(n).relation} {v:g}" for n, v in limits.items()) or "none"
