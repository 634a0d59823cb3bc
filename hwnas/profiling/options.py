"""How many networks a profile measures: the options ``networks.*``."""

from dataclasses import dataclass

from hwnas.bounds import check, within


@dataclass
class NetworksConfig:
    """How many whole networks are measured, and what for."""

    fit: int = within("[6, 10_000]", 24)  #: to fit the calibration
    interval: int = within("[19, 10_000]", 59)  #: to set the width of the interval
    #: to report the error on; neither of the others has seen them
    held_out: int = within("[10, 10_000]", 60)

    def __post_init__(self) -> None:
        check(self, "networks.")
