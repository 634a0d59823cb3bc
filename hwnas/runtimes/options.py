"""How operators are compiled for a device: the options ``tuning.*``."""

from dataclasses import dataclass

from hwnas.bounds import check, within


@dataclass
class TuningConfig:
    """How operators are tuned, and how long anything may take."""

    n_plans: int = within("[1, 1000]", 6)  #: ways to compile an operator that are tried
    #: of one compilation or measurement; what takes longer is killed
    limit_s: float = within("(0, 86_400]", 120.0)

    def __post_init__(self) -> None:
        check(self, "tuning.")
