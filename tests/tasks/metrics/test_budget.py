"""Budgets: upper limits, lower limits, and budgets written by earlier versions."""

from typing import Any

import pytest

from hwnas.core.errors import ConfigError
from hwnas.core.quantity import Quantity
from hwnas.tasks.metrics.budget import Budget, format_limits, violations


def test_upper_limit_is_compared_with_upper_end() -> None:
    budget = Budget({"latency_ms": 1.0})
    inside = {"latency_ms": Quantity(0.95, "measured", 0.9, 1.0)}
    outside = {"latency_ms": Quantity(0.95, "measured", 0.9, 1.1)}
    assert budget.violations(inside)["latency_ms"] <= 0
    assert budget.violations(outside)["latency_ms"] == pytest.approx(0.1)
    assert budget.exceeded(outside) == "latency_ms 1.1 over budget 1"


def test_lower_limit_is_compared_with_lower_end() -> None:
    budget = Budget({"throughput_ips": 100.0}, "fast")
    inside = {"throughput_ips": Quantity(110.0, "measured", 100.0, 120.0)}
    outside = {"throughput_ips": Quantity(110.0, "measured", 80.0, 140.0)}
    assert budget.violations(inside)["throughput_ips"] == 0
    assert budget.violations(outside)["throughput_ips"] == pytest.approx(0.2)
    assert budget.violations({"throughput_ips": Quantity(150.0, "modelled")}) == {
        "throughput_ips": pytest.approx(-0.5)
    }
    assert budget.met(inside) == {"fast"}
    assert budget.met(outside) == frozenset()
    assert budget.exceeded(outside) == "throughput_ips 80 under budget 100"


def test_limits_of_targets_have_direction_of_metric() -> None:
    limits = {"npu.latency_ms": 2.0, "cpu.throughput_ips": 50.0}
    figures = {
        "npu.latency_ms": Quantity(3.0, "modelled"),
        "cpu.throughput_ips": Quantity(40.0, "modelled"),
    }
    assert violations(limits, figures) == {
        "npu.latency_ms": pytest.approx(0.5),
        "cpu.throughput_ips": pytest.approx(0.2),
    }
    assert format_limits(limits) == "npu.latency_ms <= 2, cpu.throughput_ips >= 50"


def test_budget_without_limits_is_never_violated() -> None:
    assert Budget().violations({"latency_ms": Quantity(1e9, "measured")}) == {}
    assert str(Budget()) == "none"


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf")])
def test_limit_not_positive_and_finite_is_refused(limit: float) -> None:
    with pytest.raises(ConfigError, match=r"budget\.sram_kib must be a number in \(0, 1e15\]"):
        Budget({"sram_kib": limit})


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"latncy_ms": 1.0}, "Unknown limit 'budget.latncy_ms'. Did you mean 'budget.latency_ms'"),
        ({"accuracy": 0.9}, "latency_ms min where accuracy >= NUMBER"),
        ({"latency_ms": "fast"}, "budget.latency_ms must be a number in (0, 1e15], got 'fast'"),
        ({"latency_ms": True}, "budget.latency_ms must be a number in (0, 1e15], got 'True'"),
    ],
)
def test_invalid_limit_is_refused(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Budget.of(raw)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_budget_of_earlier_run_keeps_its_digest() -> None:
    earlier = {
        "name": "edge", "latency_ms": 0.5, "energy_mj": None, "sram_kib": 128.0,
        "flash_kib": 256.0, "macs_m": None, "params_m": None,
    }  # fmt: skip
    assert Budget.of(earlier) == Budget(
        {"latency_ms": 0.5, "sram_kib": 128.0, "flash_kib": 256.0}, "edge"
    )
    assert list(Budget.of(earlier).digested().items()) == list(earlier.items())
    current = Budget.of({"name": "edge", "latency_ms": 0.5, "sram_kib": 128, "flash_kib": 256})
    assert current.digested() == earlier
    assert "throughput_ips" in Budget({"throughput_ips": 3.0}).digested()
