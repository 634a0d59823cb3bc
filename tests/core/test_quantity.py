import pytest

from hwnas.tasks.intervals import proportion


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # R 4.3: prop.test(successes, n, correct = FALSE)$conf.int
    [(8, 10, 0.4901625, 0.9433178), (0, 20, 0.0, 0.1611252), (50, 100, 0.4038315, 0.5961685)],
)
def test_wilson_interval_matches_r(successes: int, n: int, low: float, high: float) -> None:
    figure = proportion(successes, n)
    assert figure.value == successes / n
    assert figure.low == pytest.approx(low, abs=1e-6)
    assert figure.high == pytest.approx(high, abs=1e-6)
