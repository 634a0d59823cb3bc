"""How many networks a profile measures: the options ``networks.*``."""

from dataclasses import dataclass

from hwnas.errors import ConfigError


@dataclass
class NetworksConfig:
    """How many whole networks are measured, and what for."""

    fit: int = 24  #: to fit the calibration
    interval: int = 59  #: to set the width of the interval
    held_out: int = 60  #: to report the error on; neither of the others has seen them

    def __post_init__(self) -> None:
        if self.fit < 6 or self.interval < 19 or self.held_out < 10:
            raise ConfigError(
                "networks.fit must be at least 6, networks.interval 19, networks.held_out 10."
            )
