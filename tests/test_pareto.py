import numpy as np
import optuna
import pytest

from hwnas.pareto import hypervolume, non_dominated

DIRECTIONS = (True, False, False)


def _dominates(a: np.ndarray, b: np.ndarray) -> bool:
    sign = np.where(DIRECTIONS, -1, 1)
    return bool(np.all(a * sign <= b * sign) and np.any(a * sign < b * sign))


@pytest.mark.parametrize("seed", range(5))
def test_front_is_what_a_double_loop_finds(seed: int) -> None:
    points = np.random.default_rng(seed).integers(0, 6, (60, 3)).astype(float)
    points = np.unique(points, axis=0)
    expected = [not any(_dominates(other, point) for other in points) for point in points]
    assert non_dominated(points, DIRECTIONS).tolist() == expected


def test_of_equal_points_the_first_is_kept() -> None:
    points = np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 2.0]])
    assert non_dominated(points, (True, False)).tolist() == [True, False, False]


def test_no_points_have_no_front() -> None:
    assert non_dominated(np.zeros((0, 2)), (True, False)).tolist() == []


@pytest.mark.parametrize("seed", range(3))
def test_hypervolume_is_the_one_optuna_computes(seed: int) -> None:
    points = np.random.default_rng(seed).random((20, 3))
    reference = (0.0, 1.0, 1.0)
    losses = points * np.where(DIRECTIONS, -1, 1)
    expected = optuna._hypervolume.compute_hypervolume(losses, np.array([0.0, 1.0, 1.0]))
    assert hypervolume(points, reference, DIRECTIONS) == pytest.approx(expected)
