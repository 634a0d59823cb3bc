"""Metrics, and arithmetic for metrics that are derived from others.

A derived quantity has the source and the interval of the quantity it is computed from: throughput
from a measured latency is measured. Facts of a target, such as a price, are treated as exact: their
error is the same for all networks and does not change their order.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hwnas.core.quantity import Quantities, Quantity


class TargetFacts(Protocol):
    """The properties of a target from which metrics are derived."""

    @property
    def name(self) -> str:
        """Name of the target."""
        ...

    @property
    def batch(self) -> int:
        """Images per inference."""
        ...

    @property
    def power(self) -> object | None:
        """Active power, if energy is modelled as power times latency; else ``None``."""
        ...

    @property
    def facts(self) -> Mapping[str, float]:
        """Numbers of ``target.facts`` by name, such as ``price_usd_per_h``; names have the unit."""
        ...


@dataclass(frozen=True)
class Metric:
    """A metric: label, unit, direction and derivation."""

    name: str  #: column in all files; it ends with the unit
    label: str  #: name in texts, without the unit
    unit: str = ""  #: empty for fractions, and for errors in the unit of the targets
    maximise: bool = False  #: whether higher is better; limits are lower limits then
    perfect: float | None = None  #: best possible value; only quality metrics have one
    worst: float | None = None  #: worst possible value, if there is one
    #: Computes the metric from the quantities in ``needs`` and the target's ``facts``; ``None`` for
    #: metrics of cost models and of tasks.
    derive: Callable[[Quantities, TargetFacts], Quantity] | None = None
    needs: tuple[str, ...] = ()  #: metrics that it is derived from
    #: The cost whose mean over images with early exits this is; known only after evaluation on
    #: images. Empty for other metrics.
    mean_of: str = ""
    #: Numbers that a target must have in ``target.facts``: descriptions by name.
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Label with unit, such as ``latency [ms]``, for axes and table heads."""
        return f"{self.label} [{self.unit}]" if self.unit else self.label

    @property
    def relation(self) -> str:
        """The relation of a limit, ``<=`` for upper limits and ``>=`` for lower limits."""
        return ">=" if self.maximise else "<="

    def best(self, quantity: Quantity) -> float:
        """Return the better end of a quantity's interval, else its value."""
        end = quantity.high if self.maximise else quantity.low
        return quantity.value if end is None else end

    def binding(self, quantity: Quantity) -> float:
        """Return the worse end of a quantity's interval, else its value, to compare with limits."""
        return quantity.lower if self.maximise else quantity.upper

    def violation(self, quantity: Quantity, limit: float) -> float:
        """Return by how much a quantity misses a limit, as a fraction of the limit.

        0 or less if the worse end of its interval meets the limit.
        """
        ratio = self.binding(quantity) / limit
        return 1.0 - ratio if self.maximise else ratio - 1.0


def scale(quantity: Quantity, factor: float) -> Quantity:
    """Return a quantity and its interval times a positive factor; the source stays."""
    low, high = (None if end is None else end * factor for end in (quantity.low, quantity.high))
    return Quantity(quantity.value * factor, quantity.source, low, high)


def divide(number: float, quantity: Quantity) -> Quantity:
    """Return a positive number divided by a positive quantity.

    Where one end of the quantity's interval is 0 or ``None``, the other end of the result is
    ``None``.
    """
    low, high = (number / end if end else None for end in (quantity.high, quantity.low))
    return Quantity(number / quantity.value, quantity.source, low, high)
