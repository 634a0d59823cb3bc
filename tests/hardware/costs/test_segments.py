"""Costs of segments that run in sequence."""

import pytest

from hwnas.core.quantity import Quantity
from hwnas.hardware.backends.vela.compiler import estimate
from hwnas.hardware.costs.cost_model import Cost, sequential_cost
from hwnas.hardware.target import Target
from hwnas.models import families, spaces
from hwnas.models.families import annotations
from hwnas.models.graph import Signature, split_at_exits, without_exits


def _cost(latency: float, sram: float, energy: float, **details: float) -> Cost:
    return Cost(
        {
            "latency_ms": Quantity(latency, "compiler-estimate"),
            "sram_kib": Quantity(sram, "compiler-estimate"),
            "energy_mj": Quantity(energy, "modelled", energy / 2, 2 * energy),
        },
        details,
    )


def test_costs_are_summed_and_memory_is_maximum() -> None:
    costs = [
        _cost(1.0, 30, 2.0, cycles=100, mac_utilisation=0.5),
        _cost(3.0, 20, 4.0, cycles=300, mac_utilisation=0.1),
    ]
    result = sequential_cost(costs)
    assert result.figures == {
        "latency_ms": Quantity(4.0, "compiler-estimate"),
        "sram_kib": Quantity(30, "compiler-estimate"),
        "energy_mj": Quantity(6.0, "modelled", 3.0, 12.0),
    }
    assert result.details == {"cycles": 400, "mac_utilisation": pytest.approx(0.2)}
    assert result.segments == tuple(cost.figures for cost in costs)
    assert sequential_cost(costs[:1]) is costs[0]


def test_power_is_time_average_and_flags_are_combined() -> None:
    powers = (("power_active_w", 4.0), ("power_idle_w", 2.0), ("drifted", 1.0))
    costs = [
        _cost(1.0, 30, 2.0, **dict(powers), latency_drifted=1.0),
        _cost(3.0, 20, 4.0, power_active_w=2.0, power_idle_w=2.0, drifted=1.0, latency_drifted=0.0),
    ]
    assert sequential_cost(costs).details == {
        "power_active_w": 2.5,
        "power_idle_w": 2.0,
        "drifted": 1.0,
        "latency_drifted": 1.0,
    }


def test_different_sources_become_modelled() -> None:
    measured = Cost({"latency_ms": Quantity(1.0, "measured")})
    modelled = Cost({"latency_ms": Quantity(2.0, "modelled")})
    assert sequential_cost([measured, modelled]).figures == {
        "latency_ms": Quantity(3.0, "modelled")
    }


def test_exits_add_little_latency_on_npu(npu: Target) -> None:
    space = spaces.load_space(spaces.find("mbconv_exits"))
    lowered = annotations.lower(families.family_of(space), space, space.largest(), Signature(1, 10))
    with_exits, plain = estimate(lowered, npu), estimate(without_exits(lowered), npu)
    assert not plain.segments
    assert len(with_exits.segments) == len(split_at_exits(lowered)) == 3
    ratio = with_exits.figures["latency_ms"].value / plain.figures["latency_ms"].value
    assert 1 < ratio < 1.1
    total = sum(figures["latency_ms"].value for figures in with_exits.segments)
    assert with_exits.figures["latency_ms"].value == pytest.approx(total)
    assert not with_exits.reason
