import csv
import dataclasses
import json
import math
import statistics
from dataclasses import replace

import pytest

from hwnas.core import package
from hwnas.core.errors import ConfigError
from hwnas.core.quantity import Quantities, Quantity
from hwnas.hardware.backends import base
from hwnas.hardware.derived_metrics import derived_metrics
from hwnas.hardware.target import EnergyModel, PowerModel
from hwnas.models import families, spaces
from hwnas.models.graph import Signature
from tests.conftest import target

MODEL = EnergyModel("test", "none", 0.5, 10.0, 100.0, 300.0)


def test_energy_is_sum_of_components_with_interval() -> None:
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
def test_invalid_energies_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"target\.energy.* must be (a number in|at most)"):
        dataclasses.replace(MODEL, **change)  # type: ignore[arg-type]


GPUS = ("nvidia_a100", "nvidia_h100", "nvidia_l4", "nvidia_t4", "jetson_orin_nano")
GPU = PowerModel(2, 700, "a test", per_device=True)


def test_power_is_linear_in_load() -> None:
    for full_load_ms, watts in ((0.0, 2.0), (0.5, 351.0), (1.0, 700.0), (9.0, 700.0)):
        energy, details = GPU.energy(Quantity(1.0, "measured"), 1, full_load_ms)
        assert details["power_active_w"] == pytest.approx(watts)
        assert energy.value == pytest.approx(watts)
        assert energy.lower == pytest.approx(watts / 8)
        assert energy.upper == pytest.approx(min(8 * watts, 700))


def test_power_of_unknown_load_is_geometric_mean() -> None:
    energy, _ = GPU.energy(Quantity(1.0, "measured"), 1)
    assert [energy.lower, energy.upper] == pytest.approx([2, 700])
    assert energy.value == pytest.approx(math.sqrt(2 * 700))


def _modelled(space: str, genotype: str, batch: int, name: str = "nvidia_h100") -> Quantities:
    """Return the modelled power and energy of a network on a GPU."""
    gpu, searched = replace(target(name), batch=batch), spaces.load_space(spaces.find(space))
    lower = families.get(searched.family).lower
    chosen = searched.genotype(json.loads(genotype)) if genotype else searched.smallest()
    cost = base.backend_of(gpu).estimate(lower(searched, chosen, Signature(1, 10)))
    assert cost is not None
    return derived_metrics(gpu, ["power_w"])(cost.figures)


def test_figures_of_unmeasured_device_are_consistent() -> None:
    searched = spaces.load_space(spaces.find("mbconv_small"))
    lowered = families.get(searched.family).lower(searched, searched.smallest(), Signature(1, 10))
    cost = base.backend_of(target("nvidia_t4")).estimate(lowered)
    assert cost is not None
    latency_ms = cost.figures["latency_ms"].value
    assert sum(layer.latency_ms or 0.0 for layer in cost.layers) == pytest.approx(latency_ms)
    power_w = cost.figures["energy_mj"].value / latency_ms
    assert cost.details["power_active_w"] == pytest.approx(power_w)


def test_modelled_gpu_power_is_consistent_with_measurements() -> None:
    """An H200 took 2.3 W (0 to 5.7) above idle at batch 1, 10 to 77 W (median 28) at batch 64."""
    for batch, (lowest, median, highest) in ((1, (0.0, 2.3, 5.7)), (64, (10.0, 28.0, 77.0))):
        rows = package.ROOT / "experiments" / "providers" / f"h200_batch_{batch}.csv"
        if not rows.exists():
            pytest.skip("needs a clone")
        with rows.open() as file:
            genotypes = sorted({row["genotype"] for row in csv.DictReader(file)})
        powers = [_modelled("mbconv_small", genotype, batch)["power_w"] for genotype in genotypes]
        assert min(p.lower for p in powers) <= lowest + 1
        assert statistics.median(p.lower for p in powers) <= median
        assert statistics.median(p.upper for p in powers) >= median
        assert max(p.upper for p in powers) >= highest
        assert max(p.value for p in powers) <= highest


def test_modelled_gpu_energy_covers_measurement() -> None:
    """An H200 took 0.29 mJ (0 to 0.8) for an inference of a network of ``tiny``."""
    energy = _modelled("tiny", "", 1)["energy_mj"]
    assert energy.lower < 0.29 < energy.upper
    assert energy.value < 2


@pytest.mark.parametrize("name", GPUS)
def test_gpu_targets_have_plausible_facts(name: str) -> None:
    gpu = target(name)
    assert gpu.power is not None
    assert gpu.roofline is not None
    assert gpu.power.active_w_low < 0.04 * gpu.power.active_w_high
    assert min(gpu.roofline.tile) >= 8
    (space,) = gpu.spaces
    resolutions = spaces.load_space(spaces.find(space)).choices["resolution"]
    assert (min(resolutions), max(resolutions)) == (128, 224)
    figures = _modelled(space, "", 1, name)
    assert figures["power_w"].lower < gpu.power.active_w_low
