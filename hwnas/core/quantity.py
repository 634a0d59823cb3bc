"""A figure: one number with its interval and its source."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

QuantitySource = Literal["measured", "compiler-estimate", "table", "modelled"]
SOURCES: tuple[QuantitySource, ...] = get_args(QuantitySource)
Quantities = Mapping[str, "Quantity"]
QuantityRow = tuple[float, QuantitySource, float | None, float | None]  #: as files have it

#: Standard deviations that 95 % of a normal distribution are within, on either side.
NORMAL_95 = 1.959963984540054


@dataclass(frozen=True)
class Quantity:
    """A value with its interval, where one is known, and where it comes from."""

    value: float
    source: QuantitySource
    low: float | None = None
    high: float | None = None

    @property
    def upper(self) -> float:
        """The end of the interval that an upper limit is held against."""
        return self.value if self.high is None else self.high

    @property
    def lower(self) -> float:
        """The end of the interval that a lower limit is held against."""
        return self.value if self.low is None else self.low

    @property
    def std(self) -> float:
        """The standard deviation that an interval of 95 % says; 0 where there is none."""
        if self.low is None or self.high is None:
            return 0.0
        return (self.high - self.low) / (2 * NORMAL_95)

    def columns(self, name: str) -> dict[str, float | str | None]:
        """Return the figure as columns ``name``, ``name_low``, ``name_high``, ``name_source``."""
        return {
            name: self.value,
            f"{name}_low": self.low,
            f"{name}_high": self.high,
            f"{name}_source": self.source,
        }

    def to_json(self) -> list[float | str | None]:
        """Return the figure as a JSON list."""
        return [self.value, self.source, self.low, self.high]


def figures_of(rows: Mapping[str, QuantityRow]) -> dict[str, Quantity]:
    """Return figures by name, of what ``Figure.to_json`` says of each."""
    return {name: Quantity(*values) for name, values in rows.items()}
