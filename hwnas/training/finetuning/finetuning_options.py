"""Options for fine-tuning single networks and the candidates of a search."""

from dataclasses import dataclass, field

from hwnas.core.errors import ConfigError
from hwnas.core.options import ADDED_AFTER_RELEASE, bounded, check_bounds, limits


@dataclass
class FinetuningConfig:
    """Options for fine-tuning one network."""

    #: epochs of each training: fine-tuning, after pruning, for int8; 0: none
    epochs: int = bounded("[0, 100_000]", 4)
    alpha: float = bounded("[0, 1]", 0.5)  #: weight of the distillation loss
    prune: float = bounded("[0, 1)", 0.0)  #: fraction of the channels to remove; 0: none
    #: maximum int8 loss without int8 training: in points of accuracy, or in percent of the error
    #: of a constant prediction
    max_int8_drop: float = bounded("[0, 1000]", 0.5)
    rate: float = bounded("(0, 1000]", 0.1)  #: factor of the learning rate from scratch
    #: bits of weights by operator, fewer than 8
    bits: dict[str, int] = field(default_factory=dict, metadata=limits("[2, 8]"))
    #: epochs of each training after fine-tuning; default: ``epochs``
    later_epochs: int | None = bounded("[0, 100_000]", None)

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.prune and not self.later:
            raise ConfigError(
                f"prune={self.prune} needs training afterwards: set epochs=1 or more."
            )

    @property
    def later(self) -> int:
        """Epochs of each training after fine-tuning."""
        return self.epochs if self.later_epochs is None else self.later_epochs


@dataclass
class FinishConfig:
    """Options for fine-tuning the candidates of a search."""

    #: epochs per network; 0: none; default: train.epochs, or 4 from a supernet's weights
    epochs: int | None = bounded("[0, 100_000]", None)
    #: weight of the distillation loss, with the best network as teacher; 0: none
    alpha: float = bounded("[0, 1]", 0.5)
    #: factor of the learning rate; default: 1, or 0.1 from a supernet's weights
    rate: float | None = bounded("(0, 1000]", None)
    #: maximum int8 loss without int8 training: in points of accuracy, or in percent of the error
    #: of a constant prediction
    max_int8_drop: float = bounded("[0, 1000]", 0.5)
    #: minimum probability of being on the front for a candidate to be fine-tuned
    probability: float = bounded("(0, 1]", 0.2)
    #: candidates that are fine-tuned whatever their probability
    min_candidates: int = bounded("[1, 1_000_000]", 12, digest_key="n_least")
    #: maximum number of candidates per target; default: as many as ``minutes`` allow, or without
    #: ``minutes`` a fifth of the scored ones, but at least ``min_candidates``
    max_candidates: int | None = field(
        default=None, metadata={**limits("[1, 1_000_000]"), **ADDED_AFTER_RELEASE}
    )
    #: time limit over all resumes: trainings that would hardly end in time are not started, except
    #: the teacher's and that of one network per target
    minutes: float | None = bounded("(0, 525_600]", None)

    def __post_init__(self) -> None:
        check_bounds(self, "finish.")

    def max_networks(self, n_scored: int, *, is_limited: bool) -> int:
        """Return the maximum number of candidates to be fine-tuned per target.

        Args:
            n_scored: Number of scored candidates.
            is_limited: Whether there is a time limit.
        """
        if self.max_candidates is not None:
            return self.max_candidates
        return n_scored if is_limited else max(self.min_candidates, n_scored // 5)

    def of_one(self, epochs: int, rate: float) -> FinetuningConfig:
        """Return the options for fine-tuning one network.

        Args:
            epochs: Number of epochs, if the option is not set.
            rate: Factor of the learning rate, if the option is not set.
        """
        return FinetuningConfig(
            epochs=epochs if self.epochs is None else self.epochs,
            alpha=self.alpha,
            max_int8_drop=self.max_int8_drop,
            rate=rate if self.rate is None else self.rate,
        )
