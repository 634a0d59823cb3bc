import pytest

from hwnas.budget import Budget
from hwnas.errors import ConfigError
from hwnas.figure import Figure, proportion


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # R 4.3: prop.test(successes, n, correct = FALSE)$conf.int
    [(8, 10, 0.4901625, 0.9433178), (0, 20, 0.0, 0.1611252), (50, 100, 0.4038315, 0.5961685)],
)
def test_wilson_interval_is_the_published_one(
    successes: int, n: int, low: float, high: float
) -> None:
    figure = proportion(successes, n)
    assert figure.value == successes / n
    assert figure.low == pytest.approx(low, abs=1e-6)
    assert figure.high == pytest.approx(high, abs=1e-6)


def test_budget_is_held_against_the_upper_end() -> None:
    budget = Budget({"latency_ms": 1.0})
    inside = {"latency_ms": Figure(0.95, "measured", 0.9, 1.0)}
    outside = {"latency_ms": Figure(0.95, "measured", 0.9, 1.1)}
    assert budget.violations(inside)["latency_ms"] <= 0
    assert budget.violations(outside)["latency_ms"] == pytest.approx(0.1)


def test_budget_without_limits_is_never_violated() -> None:
    assert Budget().violations({"latency_ms": Figure(1e9, "measured")}) == {}


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_limit_that_is_not_positive_is_refused(limit: float) -> None:
    with pytest.raises(ConfigError, match=r"budget\.sram_kib must be positive"):
        Budget({"sram_kib": limit})
