"""Options of profiling: ``networks.*`` and ``tuning.*``."""

from dataclasses import dataclass

from hwnas.core.options import bounded, check_bounds


@dataclass
class NetworksConfig:
    """Numbers of networks that a profile measures."""

    fit: int = bounded("[6, 10_000]", 24)  #: networks that calibrate the sum of operators
    interval: int = bounded("[19, 10_000]", 59)  #: networks that set the width of the interval
    #: networks for the reported, held-out error
    held_out: int = bounded("[10, 10_000]", 60)

    def __post_init__(self) -> None:
        check_bounds(self, "networks.")


@dataclass
class TuningConfig:
    """Tuning of operators, and the time limit of calls."""

    n_plans: int = bounded("[1, 1000]", 6)  #: schedules that are tried for each operator
    #: time limit of one compilation or measurement, in seconds
    limit_s: float = bounded("(0, 86_400]", 120.0)

    def __post_init__(self) -> None:
        check_bounds(self, "tuning.")
