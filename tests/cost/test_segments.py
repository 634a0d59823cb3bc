"""What segments cost that all run, one after the other."""

import pytest

from hwnas import families
from hwnas import space as spaces
from hwnas.backends.vela.compiler import estimate
from hwnas.cost.base import Cost
from hwnas.cost.segments import in_a_row
from hwnas.families import annotations
from hwnas.figure import Figure
from hwnas.op import Signature
from hwnas.segments import cut, without_exits
from hwnas.target import Target


def _cost(latency: float, sram: float, energy: float, **details: float) -> Cost:
    return Cost(
        {
            "latency_ms": Figure(latency, "compiler-estimate"),
            "sram_kib": Figure(sram, "compiler-estimate"),
            "energy_mj": Figure(energy, "modelled", energy / 2, 2 * energy),
        },
        details,
    )


def test_all_run_and_hold_memory_in_turn() -> None:
    costs = [
        _cost(1.0, 30, 2.0, cycles=100, mac_utilisation=0.5),
        _cost(3.0, 20, 4.0, cycles=300, mac_utilisation=0.1),
    ]
    found = in_a_row(costs)
    assert found.figures == {
        "latency_ms": Figure(4.0, "compiler-estimate"),
        "sram_kib": Figure(30, "compiler-estimate"),
        "energy_mj": Figure(6.0, "modelled", 3.0, 12.0),
    }
    assert found.details == {"cycles": 400, "mac_utilisation": pytest.approx(0.2)}
    assert found.segments == tuple(cost.figures for cost in costs)
    assert in_a_row(costs[:1]) is costs[0]


def test_power_is_a_mean_over_time_and_a_flag_that_of_any() -> None:
    powers = (("power_active_w", 4.0), ("power_idle_w", 2.0), ("drifted", 1.0))
    costs = [
        _cost(1.0, 30, 2.0, **dict(powers), latency_drifted=1.0),
        _cost(3.0, 20, 4.0, power_active_w=2.0, power_idle_w=2.0, drifted=1.0, latency_drifted=0.0),
    ]
    assert in_a_row(costs).details == {
        "power_active_w": 2.5,
        "power_idle_w": 2.0,
        "drifted": 1.0,
        "latency_drifted": 1.0,
    }


def test_sources_that_differ_are_a_model() -> None:
    measured = Cost({"latency_ms": Figure(1.0, "measured")})
    modelled = Cost({"latency_ms": Figure(2.0, "modelled")})
    assert in_a_row([measured, modelled]).figures == {"latency_ms": Figure(3.0, "modelled")}


def test_exits_cost_little_on_an_npu(npu: Target) -> None:
    space = spaces.load(spaces.find("mbconv_exits"))
    lowered = annotations.lower(families.of(space), space, space.largest(), Signature(1, 10))
    with_exits, plain = estimate(lowered, npu), estimate(without_exits(lowered), npu)
    assert not plain.segments
    assert len(with_exits.segments) == len(cut(lowered)) == 3
    ratio = with_exits.figures["latency_ms"].value / plain.figures["latency_ms"].value
    assert 1 < ratio < 1.1
    total = sum(figures["latency_ms"].value for figures in with_exits.segments)
    assert with_exits.figures["latency_ms"].value == pytest.approx(total)
    assert not with_exits.reason
