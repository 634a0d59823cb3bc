import numpy as np
import optuna
import pytest

from hwnas.core.pareto import ParetoFront, hypervolume, no_worse, non_dominated

DIRECTIONS = (True, False, False)


def _dominates(a: np.ndarray, b: np.ndarray) -> bool:
    sign = np.where(DIRECTIONS, -1, 1)
    return bool(np.all(a * sign <= b * sign) and np.any(a * sign < b * sign))


@pytest.mark.parametrize("seed", range(5))
def test_front_matches_pairwise_comparison(seed: int) -> None:
    points = np.random.default_rng(seed).integers(0, 6, (60, 3)).astype(float)
    points = np.unique(points, axis=0)
    expected = [not any(_dominates(other, point) for other in points) for point in points]
    assert non_dominated(points, DIRECTIONS).tolist() == expected


def test_first_of_equal_points_is_in_front() -> None:
    points = np.array([[1.0, 1.0], [1.0, 1.0], [0.0, 2.0]])
    assert non_dominated(points, (True, False)).tolist() == [True, False, False]


def test_front_of_no_points_is_empty() -> None:
    assert non_dominated(np.zeros((0, 2)), (True, False)).tolist() == []


@pytest.mark.parametrize("size", [1, 7, 60])
def test_incremental_front_equals_front_of_all_points(size: int) -> None:
    points = np.random.default_rng(size).integers(0, 5, (60, 3)).astype(float)
    front, removed = ParetoFront[int](DIRECTIONS), list[int]()
    for start in range(0, len(points), size):
        rows = range(start, min(start + size, len(points)))
        block = points[start : start + size]
        would_enter = ~front.dominates(block)
        removed += front.add(rows, block)
        assert not set(front.members).intersection(np.array(rows)[~would_enter].tolist())
    expected = np.flatnonzero(non_dominated(points, DIRECTIONS)).tolist()
    assert front.members == expected
    assert front.points.tolist() == points[expected].tolist()
    assert not set(removed).intersection(expected)
    assert front.dominates(points).all()


def test_add_returns_removed_members() -> None:
    front = ParetoFront[str]((True, False))
    assert front.add(["a", "b"], [[0.8, 2.0], [0.7, 1.0]]) == []
    assert front.add(["c"], [[0.8, 2.0]]) == []  # as good as a, and later
    assert front.add(["d"], [[0.9, 2.0]]) == ["a"]
    assert front.members == ["b", "d"]
    assert ParetoFront[str](()).add([], []) == []


def test_no_worse_includes_equal_and_dominating_points() -> None:
    point, others = np.array([0.8, 2.0]), np.array([[0.8, 2.0], [0.7, 2.0], [0.9, 3.0]])
    assert no_worse(point, others, (True, False)).tolist() == [True, True, False]
    assert no_worse(others, point, (True, False)).tolist() == [True, False, False]


@pytest.mark.parametrize("seed", range(3))
def test_hypervolume_matches_optuna(seed: int) -> None:
    points = np.random.default_rng(seed).random((20, 3))
    reference = (0.0, 1.0, 1.0)
    losses = points * np.where(DIRECTIONS, -1, 1)
    expected = optuna._hypervolume.compute_hypervolume(losses, np.array([0.0, 1.0, 1.0]))
    assert hypervolume(points, reference, DIRECTIONS) == pytest.approx(expected)
