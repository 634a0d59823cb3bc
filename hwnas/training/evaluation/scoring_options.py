"""Options ``scoring.*`` and ``trained.*``, and constants of other options."""

from collections.abc import Container
from dataclasses import dataclass, field

from hwnas.core.errors import ConfigError
from hwnas.core.options import bounded, check_bounds, limits

MIN_NETWORKS = 6  #: below, rank correlations have no interval worth printing
ENOUGH = 5  #: minimum number of networks with both trainings for a forecast


@dataclass
class ScoringConfig:
    """Options for scoring subnets."""

    #: training images for batch norm recalibration
    n_recalibration: int = bounded("[2, 10_000_000]", 512)
    #: validation stops early once a candidate is, with this confidence, worse than a cheaper
    #: one; null: all validation images are always read
    confidence: float | None = bounded("[0.5, 1)", 0.99)

    def __post_init__(self) -> None:
        check_bounds(self, "scoring.")


@dataclass
class TrainedConfig:
    """Options for training candidates separately."""

    #: epochs of successive trainings; the metric is that after the last one
    fidelities: list[int] = field(default_factory=lambda: [1, 4], metadata=limits("[1, 100_000]"))
    #: training stops between two fidelities once a candidate is, with this confidence, worse than
    #: a cheaper one; null: all are trained to the end
    confidence: float | None = bounded("[0.5, 1)", 0.9)

    def __post_init__(self) -> None:
        check_bounds(self, "trained.")
        if not self.fidelities:
            raise ConfigError("trained.fidelities=[] trains nothing. Example: [1,4].")

    def column(self, metric: str, i: int) -> str:
        """Return the column of the metric after a fidelity."""
        return f"{metric}_after_{sum(self.fidelities[: i + 1])}_epochs"

    def n_read(self, metric: str, details: Container[str]) -> int:
        """Return the number of completed fidelities, from the candidate's columns."""
        return sum(self.column(metric, i) in details for i in range(len(self.fidelities)))
