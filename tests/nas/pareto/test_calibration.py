import numpy as np
import pytest

from hwnas.nas.pareto.models import calibrated


def test_initial_intervals_are_wider_than_normal() -> None:
    low, high = calibrated(np.zeros(0))
    assert low == pytest.approx(-high)
    assert 2.2 < high < 3


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_interval_ends_converge_to_quantiles(scale: float) -> None:
    surprises = np.random.default_rng(0).gumbel(1.0, scale, 3000)
    low, high = calibrated(surprises)
    new = np.random.default_rng(1).gumbel(1.0, scale, 3000)
    assert np.mean((low <= new) & (new <= high)) == pytest.approx(0.95, abs=0.015)


def test_intervals_have_nominal_coverage_from_start() -> None:
    """Each interval is calibrated on earlier residuals of a biased, overconfident model."""
    covered = []
    for seed in range(20):
        surprises = np.random.default_rng(seed).standard_t(4, 60) + 0.5
        for i, surprise in enumerate(surprises):
            low, high = calibrated(surprises[:i])
            covered.append(low <= surprise <= high)
    assert np.mean(covered) == pytest.approx(0.95, abs=0.03)


def test_interval_contains_predicted_value() -> None:
    assert calibrated(np.full(5000, 9.0))[0] == 0.0
    assert calibrated(np.full(5000, -9.0))[1] == 0.0
