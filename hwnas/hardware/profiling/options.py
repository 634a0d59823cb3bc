"""How many networks a profile measures: the options ``networks.*``."""

from dataclasses import dataclass

from hwnas.core.options import bounded, check_bounds


@dataclass
class NetworksConfig:
    """How many whole networks are measured, and what for."""

    fit: int = bounded("[6, 10_000]", 24)  #: to fit the calibration
    interval: int = bounded("[19, 10_000]", 59)  #: to set the width of the interval
    #: to report the error on; neither of the others has seen them
    held_out: int = bounded("[10, 10_000]", 60)

    def __post_init__(self) -> None:
        check_bounds(self, "networks.")


# How operators are compiled for a device: the options ``tuning.*``.


@dataclass
class TuningConfig:
    """How operators are tuned, and how long anything may take."""

    n_plans: int = bounded("[1, 1000]", 6)  #: ways to compile an operator that are tried
    #: of one compilation or measurement; what takes longer is killed
    limit_s: float = bounded("(0, 86_400]", 120.0)

    def __post_init__(self) -> None:
        check_bounds(self, "tuning.")
