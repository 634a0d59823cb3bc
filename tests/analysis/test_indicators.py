"""Indicators: published values, other implementations and invariants."""

import math

import moocore
import numpy as np
import pytest
from optuna._hypervolume import compute_hypervolume

from hwnas.analysis.fronts import Array
from hwnas.analysis.indicators import INDICATORS, Yardstick, coverage, r2, r2_by_weights, weights
from hwnas.core import pareto
from tests.analysis.synthetic import random_front, unit_frame

DAT = np.array([[3.5, 5.5], [3.6, 4.1], [4.1, 3.2], [5.5, 1.5]])
REF = np.array([[1.0, 6], [2, 5], [3, 4], [4, 3], [5, 2], [6, 1]])


def measure(points: Array, target: Array | None = None, reference: float = 1.0) -> dict[str, float]:
    frame = unit_frame(points.shape[1], reference)
    return Yardstick(frame, points if target is None else target, True).indicators(points)


def test_indicators_match_examples_of_moocore() -> None:
    # https://multi-objective.github.io/moocore/python/
    indicators = measure(DAT, REF)
    assert indicators["igd_plus"] == pytest.approx(0.9855036468106652, rel=1e-12)
    assert indicators["epsilon_additive"] == pytest.approx(2.5)
    assert indicators["epsilon_multiplicative"] == pytest.approx(3.5)
    other = np.array([[5.0, 5], [4, 6], [2, 7], [7, 4]])
    assert measure(other, reference=10.0)["hypervolume"] == pytest.approx(38.0)
    assert r2(other) == pytest.approx(2.594191919191919, rel=1e-12)


def test_igd_plus_ranks_sets_of_its_paper() -> None:
    # Example 4 of Ishibuchi et al. 2015: A is better, which plain IGD denies.
    target = np.array([[10.0, 0], [6, 1], [2, 2], [1, 6], [0, 10]])
    a, b = np.array([[4.0, 2], [3, 3], [2, 4]]), np.array([[8.0, 2], [4, 4], [2, 8]])
    assert pareto.igd_plus(a, target) == pytest.approx(1.482842712474619)
    assert pareto.igd_plus(b, target) == pytest.approx(2.260112615949154)


@pytest.mark.parametrize("reference", [1.0, 1.1])
def test_hypervolume_of_zdt1_front(reference: float) -> None:
    # f2 = 1 - sqrt(f1): what lies under it up to 1 is 1/3.
    x = np.linspace(0, 1, 20001)
    front = np.stack([x, 1 - np.sqrt(x)], axis=1)
    volume = measure(front, reference=reference)["hypervolume"]
    assert volume == pytest.approx(reference**2 - 1 / 3, abs=1e-4)
    assert volume < reference**2 - 1 / 3


def test_hypervolume_of_dtlz2_fronts() -> None:
    # The part of the unit ball in which all coordinates are positive is not dominated.
    angles = np.linspace(0, np.pi / 2, 250)
    a, b = (grid.ravel() for grid in np.meshgrid(angles, angles))
    ball = np.stack([np.cos(a) * np.cos(b), np.cos(a) * np.sin(b), np.sin(a)], axis=1)
    volume = pareto.hypervolume(ball, [1.1] * 3, [False] * 3)
    assert volume == pytest.approx(1.1**3 - math.pi / 6, abs=0.006)
    normal = np.abs(np.random.default_rng(0).standard_normal((1500, 4)))
    sphere = normal / np.linalg.norm(normal, axis=1, keepdims=True)
    volume = pareto.hypervolume(sphere, [1.0] * 4, [False] * 4)
    assert 0.85 < volume / (1 - math.pi**2 / 32) < 1


# From pymoo 0.6.1.3, the last version with its own implementation: later ones call moocore.
PYMOO = {
    (2, 0): 1.1636906296471914,
    (2, 1): 1.0808280891517554,
    (3, 0): 0.9090483434655843,
    (3, 1): 0.8799792090868978,
    (4, 0): 0.823851552100038,
    (4, 1): 0.8881675053044271,
}


@pytest.mark.parametrize(("m", "seed"), PYMOO)
def test_hypervolume_matches_pymoo_and_optuna(m: int, seed: int) -> None:
    points = random_front(seed, 40, m)
    volume = measure(points, reference=1.1)["hypervolume"]
    assert volume == pytest.approx(PYMOO[m, seed], rel=1e-12)
    assert volume == pytest.approx(compute_hypervolume(points, np.full(m, 1.1)), rel=1e-12)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        # From moocore's tests; the limit for a line is 1/6.
        ([[0.0, 0.0]], 0.0),
        ([[1.0, 1.0]], 0.75),
        ([[0.0, 1.0], [1.0, 0.0]], 0.25),
        ([[x, 1 - x] for x in np.linspace(0, 1, 5001)], 1 / 6),
    ],
)
def test_r2_of_two_objectives(points: list[list[float]], expected: float) -> None:
    front = np.array(points)
    assert r2(front) == pytest.approx(expected, abs=1e-4)
    assert r2_by_weights(front, weights(2, 2000)) == pytest.approx(expected, abs=1e-3)


def test_r2_of_more_objectives_approximates_uniform_weights() -> None:
    # Uniform weights on the simplex: the mean of the largest is (1 + 1/2 + ... + 1/m) / m.
    for m, mean in ((3, (1 + 1 / 2 + 1 / 3) / 3), (4, (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)):
        assert r2(np.ones((1, m))) == pytest.approx(mean, rel=0.03)
    assert len(weights(3, 44)) == 1035
    assert weights(4, 17).sum(axis=1) == pytest.approx(1.0)


def test_coverage_counts_weakly_dominated_points() -> None:
    a, b = np.array([[0.9, 2.0], [0.8, 1.0]]), np.array([[0.9, 2.0], [0.85, 3.0], [0.7, 0.5]])
    assert coverage(a, b, [True, False]) == pytest.approx(2 / 3)
    assert coverage(b, a, [True, False]) == pytest.approx(1 / 2)
    assert coverage(a, a, [True, False]) == 1.0


def test_multiplicative_epsilon_needs_positive_values() -> None:
    assert math.isnan(measure(np.array([[0.0, 1.0]]))["epsilon_multiplicative"])
    # Both directions: 0.9 must be 0.95, 2 ms must be 1 ms, or 0.8 must be 0.95.
    best = pareto.epsilon_multiplicative(
        np.array([[0.9, 2.0], [0.8, 1.0]]), np.array([[0.95, 1.0]]), [True, False]
    )
    assert best == pytest.approx(0.95 / 0.8)


@pytest.mark.parametrize("m", [2, 3, 4])
@pytest.mark.parametrize("seed", range(8))
def test_dominated_point_changes_nothing(m: int, seed: int) -> None:
    points, target = random_front(seed, 12, m), random_front(seed + 100, 12, m)
    worse = points[seed % 12] + np.random.default_rng(seed).random(m) * 0.3
    more = np.concatenate([points[:5], worse[None], points[5:]])
    for name, value in measure(points, target).items():
        assert measure(more, target)[name] == pytest.approx(value, rel=1e-12), name


@pytest.mark.parametrize("m", [2, 3, 4])
@pytest.mark.parametrize("seed", range(8))
def test_dominating_set_is_never_worse(m: int, seed: int) -> None:
    points, target = random_front(seed, 12, m), random_front(seed + 100, 12, m)
    better = points - np.random.default_rng(seed).random((12, m)) * points * 0.3
    before, after = measure(points, target), measure(better, target)
    for indicator in INDICATORS:
        sign = 1 if indicator.higher_is_better else -1
        assert sign * after[indicator.name] >= sign * before[indicator.name] - 1e-12
    assert after["hypervolume"] > before["hypervolume"]
    assert coverage(better, points, [False] * m) == 1.0


def test_attainment_matches_example_of_moocore() -> None:
    data = moocore.get_dataset("input1.dat")
    surfaces = pareto.attainment_surfaces(data[:, :2], data[:, 2], [50])
    # Points of the median surface: half of ten sets attain each point, fewer any better one.
    for x, y, _ in surfaces:
        sets = [data[data[:, 2] == i, :2] for i in np.unique(data[:, 2])]
        n = sum(bool((points <= [x, y]).all(axis=1).any()) for points in sets)
        assert n >= 5
        fewer = sum(
            bool(((points <= [x, y]).all(axis=1) & (points[:, 0] < x)).any()) for points in sets
        )
        assert fewer < 5
