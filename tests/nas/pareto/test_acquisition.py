import numpy as np
import pytest

from hwnas.core.pareto import hypervolume, non_dominated
from hwnas.nas.pareto.acquisition import expected_improvement, log_normal_improvement
from tests.conftest import few_of


def _front(rng: np.random.Generator, m: int) -> np.ndarray:
    points = rng.uniform(0.1, 1.1, (12, 1 + m))  # some exceed the reference
    return points[non_dominated(points, [False] * (1 + m))]


def _sampled_improvement(
    errors: np.ndarray, cost: np.ndarray, front: np.ndarray, reference: list[float]
) -> float:
    """Return the mean gain of hypervolume over sampled errors."""

    def volume(points: np.ndarray) -> float:
        inside = points[(points < reference).all(axis=1)]
        return hypervolume(inside, reference, [False] * len(reference)) if len(inside) else 0.0

    before = volume(front)
    return float(np.mean([volume(np.vstack([front, [e, *cost]])) - before for e in errors]))


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("seed", few_of(range(3), 1))
def test_expected_improvement_matches_sampling(m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    front, reference = _front(rng, m), [1.0] * (1 + m)
    costs = rng.uniform(0.05, 1.05, (6, m))
    mean, std = rng.uniform(-1.5, 0.2, 6), rng.uniform(0.05, 0.5, 6)
    improvement = log_normal_improvement(mean, std)
    result = expected_improvement(costs, improvement, front[:, 0], front[:, 1:], reference)
    for i in range(6):
        errors = np.exp(rng.normal(mean[i], std[i], 3000))
        expected = _sampled_improvement(errors, costs[i], front, reference)
        assert result[i] == pytest.approx(expected, rel=0.12, abs=3e-3)


def test_improvement_without_front_is_volume_of_box() -> None:
    none = np.zeros(0), np.zeros((0, 1))
    sure = log_normal_improvement(np.log([0.25]), np.array([1e-6]))
    assert expected_improvement(np.array([[0.4]]), sure, *none, [1.0, 2.0]) == pytest.approx(
        0.75 * 1.6
    )


def test_improvement_beyond_reference_is_zero() -> None:
    front = np.array([[0.5, 0.5]])
    sure = log_normal_improvement(np.log([0.2, 0.2, 0.9]), np.full(3, 1e-9))
    costs = np.array([[1.0], [0.7], [0.6]])
    result = expected_improvement(costs, sure, front[:, 0], front[:, 1:], [1.0, 1.0])
    assert result == pytest.approx([0.0, 0.3 * 0.3, 0.0], abs=1e-6)


def test_improvement_for_huge_uncertainty_is_finite() -> None:
    improvement = log_normal_improvement(np.array([0.0, -5.0]), np.array([60.0, 1e-6]))
    improvements = improvement(np.array([0.1, 0.5]))
    assert improvements[0] == pytest.approx([0.05, 0.25], rel=0.1)
    assert improvements[1] == pytest.approx(np.array([0.1, 0.5]) - np.exp(-5.0))
