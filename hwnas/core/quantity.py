"""Quantities: a value with its 95 % interval and its source."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

QuantitySource = Literal["measured", "compiler-estimate", "table", "modelled"]
SOURCES: tuple[QuantitySource, ...] = get_args(QuantitySource)
Quantities = Mapping[str, "Quantity"]
QuantityRow = tuple[float, QuantitySource, float | None, float | None]  #: the form in files

#: Half-width of the central 95 % interval of a normal distribution, in standard deviations.
NORMAL_95 = 1.959963984540054
_TINY = 1e-300


@dataclass(frozen=True)
class Quantity:
    """A value with its source and, if known, its 95 % interval.

    The unit is that of the metric, which its name has: ``latency_ms``.
    """

    value: float  #: best estimate
    source: QuantitySource  #: how the value was obtained
    low: float | None = None  #: lower end of the interval; ``None`` if unknown
    high: float | None = None  #: upper end of the interval; ``None`` if unknown or unbounded

    @property
    def upper(self) -> float:
        """The upper end of the interval, else the value; it is compared with upper limits."""
        return self.value if self.high is None else self.high

    @property
    def lower(self) -> float:
        """The lower end of the interval, else the value; it is compared with lower limits."""
        return self.value if self.low is None else self.low

    @property
    def std(self) -> float:
        """The standard deviation implied by the interval; 0 unless both ends are known."""
        if self.low is None or self.high is None:
            return 0.0
        return (self.high - self.low) / (2 * NORMAL_95)

    @property
    def log_widths(self) -> tuple[float, float]:
        """Natural logarithms of value / lower end, and of upper end / value, both at least 0.

        One is 0 if its end is unknown. The first is infinite if the lower end is 0 or less.
        """
        value = max(self.value, _TINY)
        below = math.inf if self.lower <= 0 else math.log(value / self.lower)
        return max(0.0, below), max(0.0, math.log(max(self.upper, _TINY) / value))

    def columns(self, name: str) -> dict[str, float | str | None]:
        """Return the columns ``name``, ``name_low``, ``name_high`` and ``name_source``.

        The ends are ``None`` if the quantity has no interval.
        """
        return {
            name: self.value,
            f"{name}_low": self.low,
            f"{name}_high": self.high,
            f"{name}_source": self.source,
        }

    def to_json(self) -> list[float | str | None]:
        """Return the JSON list ``[value, source, low, high]``."""
        return [self.value, self.source, self.low, self.high]


def from_log_widths(value: float, source: QuantitySource, below: float, above: float) -> Quantity:
    """Return a quantity with an interval from ``below`` and ``above``.

    They are as in :attr:`Quantity.log_widths`. If both are 0, there is no interval; if ``above`` is
    infinite, ``high`` is ``None``. The value is positive.
    """
    if below == above == 0:
        return Quantity(value, source)
    high = None if math.isinf(above) else value * math.exp(above)
    return Quantity(value, source, value * math.exp(-below), high)


def sum_of(parts: Sequence[Quantity]) -> Quantity:
    """Return the sum of quantities with its interval; ``modelled`` if their sources differ.

    Errors of measurements are independent: their half-widths add in quadrature. Predictions are
    of the same model, so that their errors have the same sign: their half-widths add up. Parts
    without an interval count as exact; without any interval the sum has none.
    """
    sources = {part.source for part in parts}
    value = sum(part.value for part in parts)
    source: QuantitySource = sources.pop() if len(sources) == 1 else "modelled"
    if all(part.low is None and part.high is None for part in parts):
        return Quantity(value, source)

    def half_width(widths: Sequence[float]) -> float:
        pairs = list(zip(parts, widths, strict=True))
        predicted = sum(width for part, width in pairs if part.source != "measured")
        return math.hypot(predicted, *(w for part, w in pairs if part.source == "measured"))

    below = half_width([part.value - part.lower for part in parts])
    above = half_width([part.upper - part.value for part in parts])
    return Quantity(value, source, value - below, value + above)


def quantities_from_json(rows: Mapping[str, QuantityRow]) -> dict[str, Quantity]:
    """Return the quantities by name; ``rows`` has the lists of ``Quantity.to_json``."""
    return {name: Quantity(*values) for name, values in rows.items()}
