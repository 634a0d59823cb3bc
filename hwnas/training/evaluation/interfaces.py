"""Interfaces of evaluation and fine-tuning, and the options ``scoring.*`` and ``trained.*``."""

from collections.abc import Container
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from hwnas.core.errors import ConfigError
from hwnas.core.options import bounded, check_bounds, limits
from hwnas.models.spaces import Genotype

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hwnas.tasks.base import Incumbent, Score

MIN_NETWORKS = 6  #: minimum number of networks for a useful interval of a rank correlation
ENOUGH = 5  #: minimum number of networks with short and long training for a forecast


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

    #: epochs of successive trainings, by default at most ``train.epochs`` each
    fidelities: list[int] = field(default_factory=lambda: [1, 4], metadata=limits("[1, 100_000]"))
    #: training stops between two fidelities once a candidate is, with this confidence, worse than
    #: a cheaper one; null: all are trained to the end
    confidence: float | None = bounded("[0.5, 1)", 0.9)

    def __post_init__(self) -> None:
        check_bounds(self, "trained.")
        if not self.fidelities:
            raise ConfigError(
                "trained.fidelities=[] trains nothing. Give one or more numbers of epochs, for "
                "example trained.fidelities=[1,4]."
            )

    def column(self, metric: str, i: int) -> str:
        """Return the column of the metric after fidelity ``i``: ``accuracy_after_5_epochs``.

        ``i`` is an index into ``fidelities``; the column has the total number of epochs.
        """
        return f"{metric}_after_{sum(self.fidelities[: i + 1])}_epochs"

    def n_read(self, metric: str, details: Container[str]) -> int:
        """Return the number of completed fidelities of a candidate.

        Args:
            metric: Name of the metric.
            details: Names of its columns, as in ``Candidate.details``.
        """
        return sum(self.column(metric, i) in details for i in range(len(self.fidelities)))


class Evaluator(Protocol):
    """Scores genotypes: estimates the metric of their networks."""

    def score(self, genotype: Genotype, incumbent: "Incumbent | None" = None) -> "Score":
        """Return the task's metric on the validation split, with its 95 % interval.

        Args:
            genotype: Genotype of the network.
            incumbent: Evaluation stops early once the network is significantly worse than this
                one. The metric is predicted then.

        Raises:
            CollapseError: the training of the network collapsed.
        """
        ...


class NetworkProvider(Protocol):
    """Provides networks with the weights that the search evaluated."""

    @property
    def next_epoch(self) -> int:
        """Index of the first epoch of fine-tuning, after those of separate training, else 0."""
        ...

    def extracted(self, genotype: Genotype) -> "nn.Module":
        """Return the plain network with recalibrated batch norm, ready for further training."""
        ...

    def network(self, genotype: Genotype) -> "nn.Module":
        """Return the plain network with batch norm folded."""
        ...

    def calibration_images(self, genotype: Genotype) -> "Tensor":
        """Return normalised training images at the genotype's resolution, ``(N, C, R, R)``."""
        ...

    def origin(self, genotype: Genotype) -> str:
        """Return a text that identifies the training of the weights, for digests."""
        ...
