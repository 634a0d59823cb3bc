"""How the weights of one network are finished."""

from dataclasses import dataclass

from hwnas.errors import ConfigError


@dataclass
class FinishingConfig:
    """How the weights of one network are finished."""

    epochs: int = 4  #: of each training: fine-tuning, after pruning, for int8; 0: none
    alpha: float = 0.5  #: share of the loss on what a teacher answers
    prune: float = 0.0  #: fraction of the channels that is taken out; 0: none
    max_int8_drop: float = 0.5  #: points of accuracy that int8 may lose before it is trained for
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
