import dataclasses

import pytest

from hwnas.core.errors import ConfigError
from hwnas.hardware.energy import EnergyModel

MODEL = EnergyModel("test", "none", 0.5, 10.0, 100.0, 300.0)


def test_energy_is_the_sum_of_its_components_with_the_interval_of_the_source() -> None:
    figure, components = MODEL.energy(n_macs=2_000_000, sram_bytes=1000, off_chip_bytes=500)
    assert components["energy_macs_mj"] == pytest.approx(2e6 * 0.5e-9)
    assert components["energy_sram_mj"] == pytest.approx(1000 * 10e-9)
    assert components["energy_off_chip_mj"] == pytest.approx(500 * 200e-9)
    assert figure.value == pytest.approx(sum(components.values()))
    assert figure.low == pytest.approx(figure.value - 500 * 100e-9)
    assert figure.high == pytest.approx(figure.value + 500 * 100e-9)
    assert figure.source == "modelled"


@pytest.mark.parametrize(
    "change", [{"mac_pj": 0.0}, {"sram_pj_per_byte": -1.0}, {"off_chip_pj_per_byte_high": 1.0}]
)
def test_impossible_energies_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"target\.energy.* must be (a number in|at most)"):
        dataclasses.replace(MODEL, **change)  # type: ignore[arg-type]
