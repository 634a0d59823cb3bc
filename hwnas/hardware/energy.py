"""Models of the energy of an inference: from operations and traffic, or from power and latency."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hwnas.core.errors import ConfigError
from hwnas.core.options import check_bounds, limits
from hwnas.core.quantity import Quantity, from_log_widths


@dataclass
class EnergyModel:
    """Energies per multiply-accumulate and per byte of one technology node, in picojoules.

    Dynamic energy of arithmetic and memory accesses only: no leakage, clock tree or CPU.
    """

    technology: str  #: technology node of the figures, such as 28 nm
    source: str  #: publication of the figures
    #: energy of one multiply-accumulate, in picojoules
    mac_pj: float = field(metadata=limits("(0, 1e9]"))
    #: energy of one byte read from or written to SRAM, in picojoules
    sram_pj_per_byte: float = field(metadata=limits("(0, 1e9]"))
    #: energy of one byte of off-chip memory, in picojoules: lower end
    off_chip_pj_per_byte_low: float = field(metadata=limits("(0, 1e9]"))
    #: energy of one byte of off-chip memory, in picojoules: upper end
    off_chip_pj_per_byte_high: float = field(metadata=limits("(0, 1e9]"))

    def __post_init__(self) -> None:
        check_bounds(self, "target.energy.")
        if self.off_chip_pj_per_byte_high < self.off_chip_pj_per_byte_low:
            raise ConfigError(
                "target.energy: off_chip_pj_per_byte_low must be at most off_chip_pj_per_byte_high."
            )

    def energy(
        self, n_macs: int, sram_bytes: int, off_chip_bytes: int
    ) -> tuple[Quantity, Mapping[str, float]]:
        """Return the energy in mJ with the interval of the source, and its components in mJ."""
        pj_to_mj = 1e-9
        low, high = self.off_chip_pj_per_byte_low, self.off_chip_pj_per_byte_high
        components = {
            "energy_macs_mj": n_macs * self.mac_pj * pj_to_mj,
            "energy_sram_mj": sram_bytes * self.sram_pj_per_byte * pj_to_mj,
            "energy_off_chip_mj": off_chip_bytes * (low + high) / 2 * pj_to_mj,
        }
        total = sum(components.values())
        half_width = off_chip_bytes * (high - low) / 2 * pj_to_mj
        return Quantity(total, "modelled", total - half_width, total + half_width), components


@dataclass
class PowerModel:
    """Active power of a device above idle, in watts per busy core or for the whole device.

    For devices without a meter: energy is power times latency. The value is at the geometric mean
    of the power range, and the interval covers the range.
    """

    #: active power above idle in watts, lower end
    active_w_low: float = field(metadata=limits("(0, 1e6]"))
    #: active power above idle in watts, upper end
    active_w_high: float = field(metadata=limits("(0, 1e6]"))
    source: str  #: source of the power figures
    per_device: bool = False  #: True if the watts are those of the whole device, such as a GPU

    def __post_init__(self) -> None:
        check_bounds(self, "target.power.")
        if self.active_w_low > self.active_w_high:
            raise ConfigError(
                "target.power: active_w_low must be at most active_w_high, got "
                f"{self.active_w_low:g} and {self.active_w_high:g}."
            )

    def energy(self, latency: Quantity, threads: int) -> tuple[Quantity, Mapping[str, float]]:
        """Return the energy in mJ of a latency in ms, and the power in W.

        Errors of power and latency are independent: relative half-widths add in quadrature.
        """
        busy = 1 if self.per_device else threads
        power = math.sqrt(self.active_w_low * self.active_w_high) * busy
        half = math.log(self.active_w_high / self.active_w_low) / 2
        below, above = (math.hypot(half, width) for width in latency.log_widths)
        return from_log_widths(latency.value * power, "modelled", below, above), {
            "power_active_w": power
        }
