"""A figure: one number with its interval and its source; and the columns that figures have."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

Source = Literal["measured", "compiler-estimate", "table", "modelled"]
Figures = Mapping[str, "Figure"]

#: Standard deviations that 95 % of a normal distribution are within, on either side.
NORMAL_95 = 1.959963984540054


@dataclass(frozen=True)
class Column:
    """What a figure is: its label for people, its unit, and which direction is better."""

    label: str
    unit: str
    maximise: bool = False

    @property
    def title(self) -> str:
        """Label with unit, for axes and table heads."""
        return f"{self.label} [{self.unit}]" if self.unit else self.label


#: Every figure of a candidate that can be an objective. The names are those of all result files.
COLUMNS: Mapping[str, Column] = {
    "accuracy": Column("accuracy", "", maximise=True),
    "latency_ms": Column("latency", "ms"),
    "energy_mj": Column("energy", "mJ"),
    "sram_kib": Column("SRAM", "KiB"),
    "flash_kib": Column("flash", "KiB"),
    "macs_m": Column("MACs", "millions"),
    "params_m": Column("parameters", "millions"),
}


def column(name: str) -> Column:
    """Return the column of a name; ``npu.latency_ms`` is the latency on the target ``npu``.

    Raises:
        KeyError: there is no such column.
    """
    target, _, plain = name.rpartition(".")
    found = COLUMNS[plain]
    return replace(found, label=f"{target} {found.label}") if target else found


#: The figures that are known before any image is seen.
COSTS = tuple(name for name in COLUMNS if name != "accuracy")


@dataclass(frozen=True)
class Figure:
    """A value with its interval, where one is known, and where it comes from."""

    value: float
    source: Source
    low: float | None = None
    high: float | None = None

    @property
    def upper(self) -> float:
        """The end of the interval that a limit is held against."""
        return self.value if self.high is None else self.high

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


def proportion(successes: float, n: float) -> Figure:
    """Return ``successes / n`` as a measured figure with its 95 % Wilson score interval.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference", 1927,
    https://doi.org/10.1080/01621459.1927.10502953.
    """
    z = NORMAL_95
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Figure(p, "measured", max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half)))
