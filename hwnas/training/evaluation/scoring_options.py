"""How candidates are scored: the options ``scoring.*``, ``trained.*``, and bounds of others."""

from collections.abc import Container
from dataclasses import dataclass, field

from hwnas.core.errors import ConfigError
from hwnas.core.options import bounded, check_bounds, limits

MIN_NETWORKS = 6  #: below, rank correlations have no interval worth printing
ENOUGH = 5  #: networks that had both trainings, before anything is concluded from the short one


@dataclass
class ScoringConfig:
    """How a subnet is scored."""

    #: training images that batch norm is recalibrated on
    n_recalibration: int = bounded("[2, 10_000_000]", 512)
    #: that a candidate is worse than one that costs no more, before reading stops; null:
    #: all validation images are read, always
    confidence: float | None = bounded("[0.5, 1)", 0.99)

    def __post_init__(self) -> None:
        check_bounds(self, "scoring.")


@dataclass
class TrainedConfig:
    """How candidates are trained alone."""

    #: epochs of each training in a row; the last one says the figure
    fidelities: list[int] = field(default_factory=lambda: [1, 4], metadata=limits("[1, 100_000]"))
    #: that a candidate stays worse than one that costs no more, before its training stops
    #: between two fidelities; null: all are trained to the end
    confidence: float | None = bounded("[0.5, 1)", 0.9)

    def __post_init__(self) -> None:
        check_bounds(self, "trained.")
        if not self.fidelities:
            raise ConfigError("trained.fidelities=[] trains nothing: write epochs, as [1,4].")

    def column(self, metric: str, i: int) -> str:
        """Return what the metric after a fidelity is called."""
        return f"{metric}_after_{sum(self.fidelities[: i + 1])}_epochs"

    def n_read(self, metric: str, details: Container[str]) -> int:
        """Return after how many fidelities a candidate was read, by the columns that it has."""
        return sum(self.column(metric, i) in details for i in range(len(self.fidelities)))
