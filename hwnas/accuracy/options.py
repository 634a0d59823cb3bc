"""How candidates are scored: the options ``scoring.*``, ``trained.*``, and bounds of others."""

from collections.abc import Container
from dataclasses import dataclass, field

from hwnas.errors import ConfigError

MIN_NETWORKS = 6  #: below, rank correlations have no interval worth printing
ENOUGH = 5  #: networks that had both trainings, before anything is concluded from the short one
#: What can be known of a network before any training: its sizes, and scores of its initial weights.
FEATURES = ("params", "macs", "synflow", "naswot")


@dataclass
class ScoringConfig:
    """How a subnet is scored."""

    n_recalibration: int = 512  #: training images that batch norm is recalibrated on
    #: that a candidate is worse than one that costs no more, before reading stops; null:
    #: all validation images are read, always
    confidence: float | None = 0.99

    def __post_init__(self) -> None:
        if self.n_recalibration < 2:
            raise ConfigError("scoring.n_recalibration must be at least 2.")
        if self.confidence is not None and not 0.5 <= self.confidence < 1:
            raise ConfigError(
                f"scoring.confidence must lie in [0.5, 1), got {self.confidence}; null reads "
                "everything."
            )


@dataclass
class TrainedConfig:
    """How candidates are trained alone."""

    #: epochs of each training in a row; the last one says the figure
    fidelities: list[int] = field(default_factory=lambda: [1, 4])
    #: that a candidate stays worse than one that costs no more, before its training stops
    #: between two fidelities; null: all are trained to the end
    confidence: float | None = 0.9

    def __post_init__(self) -> None:
        if not self.fidelities or min(self.fidelities) < 1:
            raise ConfigError(
                f"trained.fidelities needs epochs of at least 1, got {list(self.fidelities)}."
            )
        if self.confidence is not None and not 0.5 <= self.confidence < 1:
            raise ConfigError(
                f"trained.confidence must lie in [0.5, 1), got {self.confidence}; null stops none."
            )

    def column(self, metric: str, i: int) -> str:
        """Return what the metric after a fidelity is called."""
        return f"{metric}_after_{sum(self.fidelities[: i + 1])}_epochs"

    def n_read(self, metric: str, details: Container[str]) -> int:
        """Return after how many fidelities a candidate was read, by the columns that it has."""
        return sum(self.column(metric, i) in details for i in range(len(self.fidelities)))
