"""How the weights of one network are finished."""

from dataclasses import dataclass, field

from hwnas.core.errors import ConfigError
from hwnas.core.options import ADDED_AFTER_RELEASE, bounded, check_bounds, limits


@dataclass
class FinishingConfig:
    """How the weights of one network are finished."""

    #: of each training: fine-tuning, after pruning, for int8; 0: none
    epochs: int = bounded("[0, 100_000]", 4)
    alpha: float = bounded("[0, 1]", 0.5)  #: share of the loss on what a teacher answers
    prune: float = bounded("[0, 1)", 0.0)  #: fraction of the channels that is taken out; 0: none
    #: points (of accuracy, or hundredths of the error of guessing) that
    #: int8 may lose before it is trained for
    max_int8_drop: float = bounded("[0, 1000]", 0.5)
    rate: float = bounded("(0, 1000]", 0.1)  #: of the learning rate that trains from scratch
    #: of weights, by operator, where they are fewer
    bits: dict[str, int] = field(default_factory=dict, metadata=limits("[2, 8]"))
    #: of the trainings after fine-tuning; default: as many
    later_epochs: int | None = bounded("[0, 100_000]", None)

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.prune and not self.later:
            raise ConfigError("prune needs training afterwards: set epochs, which is 0.")

    @property
    def later(self) -> int:
        """Epochs of each training after fine-tuning."""
        return self.epochs if self.later_epochs is None else self.later_epochs


@dataclass
class FinishConfig:
    """How a search finishes what it verifies."""

    #: of each member's training; 0: none; default: train.epochs, or 4 from a supernet's weights
    epochs: int | None = bounded("[0, 100_000]", None)
    #: share of the loss on what the network that answers best says; 0: none
    alpha: float = bounded("[0, 1]", 0.5)
    #: of the learning rate; default: 1, or 0.1 from a supernet's weights
    rate: float | None = bounded("(0, 1000]", None)
    #: points (of accuracy, or hundredths of the error of guessing) that
    #: int8 may lose before it is trained for
    max_int8_drop: float = bounded("[0, 1000]", 0.5)
    #: of being on the front, from which a candidate is finished
    probability: float = bounded("(0, 1]", 0.2)
    #: candidates that are fine-tuned whatever their probability
    min_candidates: int = bounded("[1, 1_000_000]", 12, digest_key="n_least")
    #: candidates that are trained on for each target; default: as many as ``minutes`` allow, or
    #: without these a fifth of those that were scored
    max_candidates: int | None = field(
        default=None, metadata={**limits("[1, 1_000_000]"), **ADDED_AFTER_RELEASE}
    )
    #: of a run, however often it is resumed: no training is begun that would hardly end within,
    #: but the teacher's and, where a target has no finished network, one's
    minutes: float | None = bounded("(0, 525_600]", None)

    def __post_init__(self) -> None:
        check_bounds(self, "finish.")

    def most(self, n_scored: int) -> int:
        """Return how many candidates are trained on at most, of so many."""
        if self.max_candidates is not None:
            return self.max_candidates
        return n_scored if self.minutes is not None else max(self.min_candidates, n_scored // 5)

    def of_one(self, epochs: int, rate: float) -> FinishingConfig:
        """Return how one network is finished.

        Args:
            epochs: Where none are said.
            rate: Where none is said.
        """
        return FinishingConfig(
            epochs=epochs if self.epochs is None else self.epochs,
            alpha=self.alpha,
            max_int8_drop=self.max_int8_drop,
            rate=rate if self.rate is None else self.rate,
        )
