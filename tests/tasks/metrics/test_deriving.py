"""Derived metrics."""

import math
from dataclasses import replace
from pathlib import Path
from typing import final

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from hwnas.core import package
from hwnas.core.errors import ConfigError
from hwnas.core.quantity import NORMAL_95, Quantity
from hwnas.hardware.costs.cost_model import Cost
from hwnas.hardware.derived_metrics import DerivedCostModel, check_facts, derived_metrics
from hwnas.hardware.target import PowerModel, Target, facts
from hwnas.models.spaces import Genotype
from hwnas.tasks.metrics import BASE_COSTS
from tests.workflows.test_configs import _compose

FIGURES = {
    "latency_ms": Quantity(2.0, "measured", 1.0, 4.0),
    "energy_mj": Quantity(36.0, "modelled", 18.0, 72.0),
}


@pytest.fixture
def target() -> Target:
    result: Target = _compose("+target=cpu").target
    return result


def _with(target: Target, **numbers: float) -> Target:
    return replace(target, facts=numbers)


def test_throughput_counts_images_and_reverses_interval(target: Target) -> None:
    result = derived_metrics(replace(target, batch=8), ["throughput_ips"])(FIGURES)
    assert result["throughput_ips"] == Quantity(4000.0, "measured", 2000.0, 8000.0)
    assert {name: result[name] for name in FIGURES} == FIGURES


def test_carbon_is_energy_times_grid_intensity(target: Target) -> None:
    result = derived_metrics(_with(target, grid_g_per_kwh=500.0), [])(FIGURES)
    # 36 mJ are 1e-8 kWh.
    assert result["co2_g"].value == pytest.approx(5e-6)
    assert result["co2_g"].low == pytest.approx(2.5e-6)
    assert result["co2_g"].high == pytest.approx(1e-5)
    assert result["co2_g"].source == "modelled"


def test_cost_is_price_of_a_million_images(target: Target) -> None:
    priced = replace(_with(target, price_usd_per_h=3.6), batch=2)
    result = derived_metrics(priced, [])(FIGURES)
    # 1000 images a second: a million takes 1000 s, at 0.001 dollars a second.
    cost = result["cost_usd_per_m"]
    assert cost.value == pytest.approx(1.0)
    assert cost.low == pytest.approx(0.5)
    assert cost.high == pytest.approx(2.0)
    assert cost.source == "measured"


def test_p99_is_modelled_unless_measured(target: Target) -> None:
    result = derived_metrics(_with(target, p99_over_p50=1.5), [])(FIGURES)
    assert result["latency_p99_ms"] == Quantity(3.0, "modelled", 1.5, 6.0)
    measured = {**FIGURES, "latency_p99_ms": Quantity(2.5, "measured", 2.4, 2.9)}
    assert derived_metrics(_with(target, p99_over_p50=1.5), [])(measured) == measured


def test_power_is_energy_over_latency(target: Target) -> None:
    measured = {**FIGURES, "energy_mj": Quantity(36.0, "measured", 18.0, 72.0)}
    power = derived_metrics(target, ["power_w"])(measured)["power_w"]
    assert (power.value, power.source) == (18.0, "measured")
    # Two independent factors of 2 are a factor of 2 ** sqrt(2).
    assert power.low == pytest.approx(18 / 2 ** math.sqrt(2))
    assert power.high == pytest.approx(18 * 2 ** math.sqrt(2))
    plain = {name: Quantity(f.value, f.source) for name, f in FIGURES.items()}
    assert derived_metrics(target, ["power_w"])(plain)["power_w"] == Quantity(18.0, "modelled")


def test_power_of_modelled_energy_is_power_of_model(target: Target) -> None:
    """The uncertainty of the latency is part of the energy's and counts once."""
    model = PowerModel(3.9, 15.6, "a test", per_device=True)
    latency = Quantity(2.0, "modelled", 0.2, 20.0)
    figures = {"latency_ms": latency, "energy_mj": model.energy(latency, 1)[0]}
    power = derived_metrics(replace(target, power=model), ["power_w"])(figures)["power_w"]
    assert power.low == pytest.approx(3.9)
    assert power.high == pytest.approx(15.6)


def _draws(rng: np.random.Generator, quantity: Quantity) -> NDArray[np.float64]:
    """Return log-normal draws whose central 95 % is the interval of a quantity."""
    below, above = quantity.log_widths
    normal = rng.normal(size=2000)
    width = np.where(normal < 0, below, above) / NORMAL_95
    return np.asarray(quantity.value * np.exp(width * normal))


DERIVED = ("energy_mj", "power_w", "co2_g", "throughput_ips", "cost_usd_per_m", "latency_p99_ms")


@pytest.mark.parametrize("is_modelled", [True, False])
@pytest.mark.parametrize("name", DERIVED)
def test_derived_interval_covers_95_percent_of_draws(
    name: str, is_modelled: bool, target: Target
) -> None:
    rng = np.random.default_rng(0)
    latency = Quantity(2.0, "modelled", 1.1, 3.9)
    model = PowerModel(3.0, 14.0, "a test", per_device=True)
    numbers = {"grid_g_per_kwh": 380.0, "price_usd_per_h": 0.5, "p99_over_p50": 1.3}
    priced = replace(_with(target, **numbers), power=model)
    ms = _draws(rng, latency)
    if is_modelled:
        energy = model.energy(latency, 1)[0]
        mj = ms * _draws(rng, Quantity(math.sqrt(42.0), "modelled", 3.0, 14.0))
    else:
        energy = Quantity(10.0, "measured", 8.0, 13.0)
        mj = _draws(rng, energy)
    derived = derived_metrics(priced, DERIVED)({"latency_ms": latency, "energy_mj": energy})[name]
    draws = {
        "energy_mj": mj, "power_w": mj / ms, "co2_g": mj * 380 / 3.6e9,
        "throughput_ips": 1e3 / ms, "cost_usd_per_m": ms * 1e3 * 0.5 / 3600,
        "latency_p99_ms": 1.3 * ms,
    }[name]  # fmt: skip
    assert 0.93 <= np.mean((derived.lower <= draws) & (draws <= derived.upper)) <= 0.97
    low, high = np.quantile(draws, [0.025, 0.975])
    assert derived.upper - derived.lower <= 1.1 * (high - low)


def test_figures_without_interval_derive_no_interval(target: Target) -> None:
    plain = {"latency_ms": Quantity(2.0, "compiler-estimate")}
    result = derived_metrics(target, ["throughput_ips"])(plain)
    assert result["throughput_ips"] == Quantity(500.0, "compiler-estimate")
    zero = {"latency_ms": Quantity(2.0, "table", 0.0, 4.0)}
    assert derived_metrics(target, ["throughput_ips"])(zero)["throughput_ips"] == Quantity(
        500.0, "table", 250.0, None
    )


def test_metric_without_request_or_fact_is_absent(target: Target) -> None:
    assert derived_metrics(target, [])(FIGURES) == FIGURES
    assert [*derived_metrics(_with(target, price_usd_per_h=1.0), [])(FIGURES)] == [
        *FIGURES, "cost_usd_per_m",
    ]  # fmt: skip


def test_given_metric_is_kept_and_underivable_absent(target: Target) -> None:
    given = {"throughput_ips": Quantity(7.0, "measured")}
    assert derived_metrics(target, ["throughput_ips"])(given) == given
    priced = _with(target, price_usd_per_h=3.6)
    assert derived_metrics(priced, [])(given)["cost_usd_per_m"].value == pytest.approx(1000 / 7)
    assert derived_metrics(target, ["throughput_ips"])({}) == {}


def test_missing_and_unknown_facts_are_refused(target: Target) -> None:
    with pytest.raises(ConfigError, match=r"needs target\.facts\.price_usd_per_h .*=NUMBER"):
        check_facts(target, ["cost_usd_per_m"], "budget")
    check_facts(_with(target, price_usd_per_h=1.0), ["cost_usd_per_m"], "budget")
    check_facts(target, ["latency_ms", "throughput_ips"], "budget")
    with pytest.raises(ConfigError, match=r"Unknown fact 'grid_g'.*Did you mean 'grid_g_per_kwh'"):
        check_facts(_with(target, grid_g=1.0), [], "budget")
    with pytest.raises(ConfigError, match=r"target\.facts\.price_usd_per_h must be .*\(0, 1e12\]"):
        check_facts(_with(target, price_usd_per_h=0.0), [], "budget")
    with pytest.raises(ConfigError, match=r"p99_over_p50 must be at least 1, got 0\.9"):
        check_facts(_with(target, p99_over_p50=0.9), [], "budget")


def test_target_facts_are_listed_only_if_given(target: Target) -> None:
    assert "facts" not in facts(target)
    assert facts(_with(target, price_usd_per_h=1.0))["facts"] == {"price_usd_per_h": 1.0}


@pytest.mark.parametrize(
    "path", sorted((package.ROOT / "conf" / "target").glob("*.yaml")), ids=lambda path: path.stem
)
def test_facts_of_shipped_target_are_valid(path: Path) -> None:
    name = yaml.safe_load(path.read_text())["name"]
    check_facts(_compose(f"+target={path.stem}").target, [], name)


@final
class _WithoutEnergy:
    max_cost_queries: int | None = None

    def cost(self, genotype: Genotype) -> Cost:
        return Cost({name: FIGURES["latency_ms"] for name in BASE_COSTS if name != "energy_mj"})


def test_cost_model_without_base_cost_is_refused(target: Target) -> None:
    model = DerivedCostModel(_WithoutEnergy(), derived_metrics(target, []))
    with pytest.raises(ConfigError, match=r"_WithoutEnergy of target.runtime=tvm returns no energ"):
        model.cost(Genotype("tiny", ()))
