import math

import numpy as np
import pytest

from hwnas.tasks.intervals import proportion
from hwnas.training.evaluation.trained import forecast, log_error, log_std


def _pairs(n: int, gain: float, residual: float, seed: int = 0) -> list[tuple[float, float]]:
    """Return accuracies after short and longer trainings; ``gain`` is the ratio of errors."""
    rng = np.random.default_rng(seed)
    short = rng.uniform(0.05, 0.25, n)
    longer = short * gain * np.exp(residual * rng.standard_normal(n))
    return list(zip((1 - short).tolist(), (1 - longer).tolist(), strict=True))


def test_gain_of_longer_training_is_predicted() -> None:
    expected = forecast("accuracy", 0.9, _pairs(20, 0.7, 0.02))
    assert expected.figure.value == pytest.approx(0.93, abs=0.002)
    assert expected.figure.source == "modelled"
    assert expected.reaches(0.92) > 0.95
    assert expected.reaches(0.94) < 0.05
    assert expected.reaches(expected.figure.value) == pytest.approx(0.5)


def test_forecast_intervals_have_nominal_coverage() -> None:
    covered = []
    for seed in range(200):
        *known, (short, longer) = _pairs(13, 0.6, 0.05, seed)
        figure = forecast("accuracy", short, known).figure
        assert figure.low is not None
        assert figure.high is not None
        covered.append(figure.low <= longer <= figure.high)
    assert 0.92 <= np.mean(covered) <= 1.0


def test_forecast_from_few_networks_is_less_certain() -> None:
    few, many = (forecast("accuracy", 0.85, _pairs(n, 0.7, 0.02)) for n in (5, 80))
    assert many.std < few.std
    assert few.widened(0.3).std == pytest.approx(math.hypot(few.std, 0.3))


def test_log_error_of_zero_error_is_finite() -> None:
    assert math.isfinite(log_error("accuracy", 1.0))
    assert forecast("accuracy", 1.0, _pairs(8, 0.7, 0.02)).figure.value <= 1.0


def test_log_std_matches_interval() -> None:
    figure = proportion(900, 1000)
    assert log_std("accuracy", figure) == pytest.approx(math.sqrt(0.9 * 0.1 / 1000) / 0.1, rel=0.05)
