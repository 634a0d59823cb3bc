import numpy as np
import pytest

from hwnas.nas.pareto.models import calibrated


def test_before_anything_is_known_intervals_are_wider_than_the_model_says() -> None:
    low, high = calibrated(np.zeros(0))
    assert low == pytest.approx(-high)
    assert 2.2 < high < 3


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_ends_come_to_be_those_of_what_happened(scale: float) -> None:
    surprises = np.random.default_rng(0).gumbel(1.0, scale, 3000)
    low, high = calibrated(surprises)
    new = np.random.default_rng(1).gumbel(1.0, scale, 3000)
    assert np.mean((low <= new) & (new <= high)) == pytest.approx(0.95, abs=0.015)


def test_intervals_hold_from_the_first_proposal_on() -> None:
    """Each by the ones before it, where the model says too little and expects too much."""
    kept = []
    for seed in range(20):
        surprises = np.random.default_rng(seed).standard_t(4, 60) + 0.5
        for i, surprise in enumerate(surprises):
            low, high = calibrated(surprises[:i])
            kept.append(low <= surprise <= high)
    assert np.mean(kept) == pytest.approx(0.95, abs=0.03)


def test_what_was_expected_lies_within() -> None:
    assert calibrated(np.full(5000, 9.0))[0] == 0.0
    assert calibrated(np.full(5000, -9.0))[1] == 0.0
