"""Figures that follow from others."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from hwnas.core import package
from hwnas.core.errors import ConfigError
from hwnas.core.quantity import Quantity
from hwnas.hardware.derived_metrics import check_facts, derived_metrics
from hwnas.hardware.target import Target, facts
from tests.workflows.test_configs import _compose

FIGURES = {
    "latency_ms": Quantity(2.0, "measured", 1.0, 4.0),
    "energy_mj": Quantity(36.0, "modelled", 18.0, 72.0),
}


@pytest.fixture
def target() -> Target:
    found: Target = _compose("+target=cpu").target
    return found


def _with(target: Target, **numbers: float) -> Target:
    return replace(target, facts=numbers)


def test_throughput_is_of_images_and_its_interval_turns_round(target: Target) -> None:
    found = derived_metrics(replace(target, batch=8), ["throughput_ips"])(FIGURES)
    assert found["throughput_ips"] == Quantity(4000.0, "measured", 2000.0, 8000.0)
    assert {name: found[name] for name in FIGURES} == FIGURES


def test_carbon_is_energy_times_the_grid(target: Target) -> None:
    found = derived_metrics(_with(target, grid_g_per_kwh=500.0), [])(FIGURES)
    # 36 mJ are 1e-8 kWh.
    assert found["co2_g"].value == pytest.approx(5e-6)
    assert found["co2_g"].low == pytest.approx(2.5e-6)
    assert found["co2_g"].high == pytest.approx(1e-5)
    assert found["co2_g"].source == "modelled"


def test_cost_is_of_a_million_images_at_the_price(target: Target) -> None:
    priced = replace(_with(target, price_usd_per_h=3.6), batch=2)
    found = derived_metrics(priced, [])(FIGURES)
    # 1000 images a second: a million takes 1000 s, at 0.001 dollars a second.
    cost = found["cost_usd_per_m"]
    assert cost.value == pytest.approx(1.0)
    assert cost.low == pytest.approx(0.5)
    assert cost.high == pytest.approx(2.0)
    assert cost.source == "measured"


def test_p99_is_modelled_from_the_median_whatever_that_is(target: Target) -> None:
    found = derived_metrics(_with(target, p99_over_p50=1.5), [])(FIGURES)
    assert found["latency_p99_ms"] == Quantity(3.0, "modelled", 1.5, 6.0)
    measured = {**FIGURES, "latency_p99_ms": Quantity(2.5, "measured", 2.4, 2.9)}
    assert derived_metrics(_with(target, p99_over_p50=1.5), [])(measured) == measured


def test_power_is_energy_over_latency_as_sure_as_the_less_sure(target: Target) -> None:
    found = derived_metrics(target, ["power_w"])(FIGURES)
    assert found["power_w"] == Quantity(18.0, "modelled", 4.5, 72.0)
    counted = {**FIGURES, "energy_mj": Quantity(36.0, "measured")}
    assert derived_metrics(target, ["power_w"])(counted)["power_w"].source == "measured"
    plain = {name: Quantity(f.value, f.source) for name, f in FIGURES.items()}
    assert derived_metrics(target, ["power_w"])(plain)["power_w"] == Quantity(18.0, "modelled")


def test_figures_without_an_interval_derive_none(target: Target) -> None:
    plain = {"latency_ms": Quantity(2.0, "compiler-estimate")}
    found = derived_metrics(target, ["throughput_ips"])(plain)
    assert found["throughput_ips"] == Quantity(500.0, "compiler-estimate")
    zero = {"latency_ms": Quantity(2.0, "table", 0.0, 4.0)}
    assert derived_metrics(target, ["throughput_ips"])(zero)["throughput_ips"] == Quantity(
        500.0, "table", 250.0, None
    )


def test_what_nobody_asked_for_and_no_fact_says_is_absent(target: Target) -> None:
    assert derived_metrics(target, [])(FIGURES) == FIGURES
    assert [*derived_metrics(_with(target, price_usd_per_h=1.0), [])(FIGURES)] == [
        *FIGURES, "cost_usd_per_m",
    ]  # fmt: skip


def test_what_was_said_itself_stays_and_what_cannot_follow_is_absent(target: Target) -> None:
    said = {"throughput_ips": Quantity(7.0, "measured")}
    assert derived_metrics(target, ["throughput_ips"])(said) == said
    priced = _with(target, price_usd_per_h=3.6)
    assert derived_metrics(priced, [])(said)["cost_usd_per_m"].value == pytest.approx(1000 / 7)
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


def test_facts_enter_what_is_known_of_a_target_only_if_stated(target: Target) -> None:
    assert "facts" not in facts(target)
    assert facts(_with(target, price_usd_per_h=1.0))["facts"] == {"price_usd_per_h": 1.0}


@pytest.mark.parametrize(
    "path", sorted((package.ROOT / "conf" / "target").glob("*.yaml")), ids=lambda path: path.stem
)
def test_shipped_targets_state_facts_that_some_metric_reads(path: Path) -> None:
    name = yaml.safe_load(path.read_text())["name"]
    check_facts(_compose(f"+target={path.stem}").target, [], name)
