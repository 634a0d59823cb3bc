"""Options of ``export`` and ``verify``; apart from others, because ``verify`` needs no torch."""

from dataclasses import dataclass, field

from hwnas.errors import ConfigError
from hwnas.target import Remote, Target
from hwnas.timing import TimingConfig


@dataclass
class FinishingConfig:
    """How the weights of one network are finished."""

    epochs: int = 4  #: of each training: fine-tuning, after pruning, for int8; 0: none
    alpha: float = 0.5  #: share of the loss on what the supernet's largest subnet answers
    prune: float = 0.0  #: fraction of the channels that is taken out; 0: none
    max_int8_drop: float = 0.5  #: points of accuracy that int8 may lose before it is trained for

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
class VerifyConfig:
    """What ``python -m hwnas verify`` accepts."""

    export: str = ""  #: the folder of an export
    data: str | None = None  #: where its data set is on this machine; default: as in the proof
    target: Target | None = None  #: a device on which it is measured, too
    timing: TimingConfig = field(default_factory=TimingConfig)
    rpc: Remote = field(default_factory=Remote)
    limit_s: float = 120.0  #: of one measurement; what takes longer is killed

    def __post_init__(self) -> None:
        if not self.export:
            raise ConfigError("verify needs the folder of an export: python -m hwnas verify DIR")
        if self.limit_s <= 0:
            raise ConfigError(f"limit_s must be positive, got {self.limit_s}.")
