"""Energy of an inference, modelled from what the compiler says is computed and moved."""

from collections.abc import Mapping
from dataclasses import dataclass

from hwnas.errors import ConfigError
from hwnas.figure import Figure


@dataclass
class EnergyModel:
    """Energies per multiply-accumulate and per byte of one technology node, in picojoules.

    Dynamic energy of arithmetic and memory accesses only: no leakage, no clock tree, no CPU.
    """

    technology: str
    source: str
    mac_pj: float
    sram_pj_per_byte: float
    off_chip_pj_per_byte_low: float
    off_chip_pj_per_byte_high: float

    def __post_init__(self) -> None:
        energies = (self.mac_pj, self.sram_pj_per_byte, self.off_chip_pj_per_byte_low)
        if min(energies) <= 0 or self.off_chip_pj_per_byte_high < self.off_chip_pj_per_byte_low:
            raise ConfigError(
                f"Energy model '{self.technology}': energies must be positive, "
                "off_chip_pj_per_byte_low at most off_chip_pj_per_byte_high."
            )

    def energy(
        self, n_macs: int, sram_bytes: int, off_chip_bytes: int
    ) -> tuple[Figure, Mapping[str, float]]:
        """Return the energy in mJ with the interval of the source, and its components in mJ."""
        pj_to_mj = 1e-9
        low, high = self.off_chip_pj_per_byte_low, self.off_chip_pj_per_byte_high
        components = {
            "energy_macs_mj": n_macs * self.mac_pj * pj_to_mj,
            "energy_sram_mj": sram_bytes * self.sram_pj_per_byte * pj_to_mj,
            "energy_off_chip_mj": off_chip_bytes * (low + high) / 2 * pj_to_mj,
        }
        total = sum(components.values())
        spread = off_chip_bytes * (high - low) / 2 * pj_to_mj
        return Figure(total, "modelled", total - spread, total + spread), components
