"""How the weights of one network are finished."""

from dataclasses import dataclass

from hwnas.errors import ConfigError


@dataclass
class FinishingConfig:
    """How the weights of one network are finished."""

    epochs: int = 4  #: of each training: fine-tuning, after pruning, for int8; 0: none
    alpha: float = 0.5  #: share of the loss on what a teacher answers
    prune: float = 0.0  #: fraction of the channels that is taken out; 0: none
    max_int8_drop: float = 0.5  #: points (of accuracy, or hundredths of the error of guessing) that
    #: int8 may lose before it is trained for
    rate: float = 0.1  #: of the learning rate that trains from scratch

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise ConfigError(f"epochs must not be negative, got {self.epochs}.")
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"alpha must lie in [0, 1], got {self.alpha}.")
        if not 0 <= self.prune < 1:
            raise ConfigError(f"prune must lie in [0, 1), got {self.prune}.")
        if not self.max_int8_drop >= 0:
            raise ConfigError(f"max_int8_drop must not be negative, got {self.max_int8_drop}.")
        if self.prune and not self.epochs:
            raise ConfigError("prune needs training afterwards: set epochs, which is 0.")


@dataclass
class FinishConfig:
    """How a search finishes what it verifies."""

    #: of each member's training; 0: none; default: train.epochs, or 4 from a supernet's weights
    epochs: int | None = None
    alpha: float = 0.5  #: share of the loss on what the network that answers best says; 0: none
    rate: float | None = None  #: of the learning rate; default: 1, or 0.1 from a supernet's weights
    max_int8_drop: float = 0.5  #: points (of accuracy, or hundredths of the error of guessing) that
    #: int8 may lose before it is trained for
    probability: float = 0.2  #: of being on the front, from which a candidate is finished
    n_least: int = 12  #: candidates that are finished, however improbable
    minutes: float | None = None  #: after which no other member is begun

    def __post_init__(self) -> None:
        if not 0 < self.probability <= 1:
            raise ConfigError(f"finish.probability must lie in (0, 1], got {self.probability}.")
        if self.n_least < 1:
            raise ConfigError(f"finish.n_least must be at least 1, got {self.n_least}.")
        if self.minutes is not None and not self.minutes > 0:
            raise ConfigError(f"finish.minutes must be above 0, got {self.minutes}.")
        if self.rate is not None and not self.rate > 0:
            raise ConfigError(f"finish.rate must be above 0, got {self.rate}.")
        _ = self.of_one(1, 1.0)

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
