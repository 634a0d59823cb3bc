"""How operators are compiled for a device: the options ``tuning.*``."""

from dataclasses import dataclass

from hwnas.errors import ConfigError


@dataclass
class TuningConfig:
    """How operators are tuned, and how long anything may take."""

    n_plans: int = 6  #: ways to compile an operator that are tried
    limit_s: float = 120.0  #: of one compilation or measurement; what takes longer is killed

    def __post_init__(self) -> None:
        if self.n_plans < 1 or self.limit_s <= 0:
            raise ConfigError("tuning.n_plans must be at least 1 and tuning.limit_s positive.")
