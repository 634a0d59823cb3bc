"""A target is facts about a device; a budget is what its user allows. Both are Hydra schemas."""

from dataclasses import dataclass

from hwnas.energy import EnergyModel
from hwnas.errors import ConfigError
from hwnas.figure import COSTS, Figures


@dataclass
class Vela:
    """What Arm's Vela compiles for."""

    accelerator: str
    system_config: str
    memory_mode: str
    config: str = "Arm/vela.ini"  #: shipped with Vela, or a path


@dataclass
class Target:
    """Facts about a device and its compiler; never wishes (see ``Budget``)."""

    name: str
    description: str
    clock_mhz: float
    peak_macs_per_cycle: int
    vela: Vela
    energy: EnergyModel
    caveat: str  #: what the compiler's figures leave out, in the words every report repeats
    source: str  #: where the facts above come from

    def __post_init__(self) -> None:
        if self.clock_mhz <= 0 or self.peak_macs_per_cycle <= 0:
            raise ConfigError(
                f"Target '{self.name}': clock_mhz and peak_macs_per_cycle must be positive."
            )


@dataclass
class Budget:
    """Upper limits of a candidate's costs; ``None`` is no limit."""

    name: str = "custom"
    latency_ms: float | None = None
    energy_mj: float | None = None
    sram_kib: float | None = None
    flash_kib: float | None = None
    macs_m: float | None = None
    params_m: float | None = None

    def __post_init__(self) -> None:
        for name, limit in self.limits.items():
            if not limit > 0:
                raise ConfigError(f"budget.{name} must be positive, got {limit}.")

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by column."""
        values = {name: getattr(self, name) for name in COSTS}
        return {name: value for name, value in values.items() if value is not None}

    def violations(self, figures: Figures) -> dict[str, float]:
        """Return, for each limit, how far a candidate is over it as a fraction of the limit.

        Zero or less fits. The upper end of a figure's interval is what must fit.
        """
        return {n: figures[n].upper / limit - 1.0 for n, limit in self.limits.items()}
