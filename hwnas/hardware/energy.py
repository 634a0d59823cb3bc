"""Models of the energy of an inference: from operations and traffic, or from power and latency."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hwnas.core.errors import ConfigError
from hwnas.core.options import check_bounds, limits
from hwnas.core.quantity import Quantity, from_log_widths

#: Factor of the 95 % interval of a power that is modelled from the load. An H200 took 10 to 77 W
#: (median 28) above idle with 12 networks in batches of 64, modelled with 3.6 to 11 W (6.7) by the
#: data sheet, and 2.3 W (0 to 5.7) with one of batch 1, modelled with 2.0 W
#: (experiments/providers).
_LOAD_ERROR = 8.0


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

    For devices without a meter: energy is power times latency.

    Of a core, the range is the uncertainty: the value is its geometric mean. Of a whole device,
    such as a GPU, the range is from no load to full load, and power is linear in the load.

    Source: linear in the load: Barroso and Hoelzle, "The case for energy-proportional computing",
    IEEE Computer 40(12), 2007.
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

    def energy(
        self, latency: Quantity, threads: int, full_load_ms: float | None = None
    ) -> tuple[Quantity, Mapping[str, float]]:
        """Return the energy in mJ of a latency in ms, and the power in W.

        Errors of power and latency are independent: relative half-widths add in quadrature.

        Args:
            latency: Latency in ms.
            threads: Number of busy cores, unless the power is that of the device.
            full_load_ms: Time that the work takes at the peak rates of the device, in ms; ``None``
                if unknown.
        """
        busy = 1 if self.per_device else threads
        power = math.sqrt(self.active_w_low * self.active_w_high) * busy
        half = math.log(self.active_w_high / self.active_w_low) / 2
        power_widths = half, half
        if self.per_device and full_load_ms is not None:
            load = min(1.0, full_load_ms / latency.value)
            power = self.active_w_low + (self.active_w_high - self.active_w_low) * load
            error = math.log(_LOAD_ERROR)
            power_widths = error, min(error, math.log(self.active_w_high / power))
        below, above = map(math.hypot, power_widths, latency.log_widths)
        return from_log_widths(latency.value * power, "modelled", below, above), {
            "power_active_w": power
        }
