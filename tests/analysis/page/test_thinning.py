import numpy as np
import pytest
from numpy.typing import NDArray

from hwnas.analysis.page.data import FrontExplorer, PagePoint, RunData, content, thinned
from hwnas.core.quantity import Quantity
from hwnas.tasks import metrics

#: Of the front: errors and latencies.
FRONT = np.array([[-0.9, 1000.0], [-0.85, 900.0]])


def _cloud(n: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(0)
    return np.stack([-0.8 * rng.random(n), 1000 * (1 + rng.random(n))], axis=1)


def _distances(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far each point of ``_cloud`` is from being as good as some member."""
    away = (points[:, None] - FRONT) / [0.8, 1000]
    return np.asarray(away.max(axis=2).min(axis=1))


def test_few_are_all_kept() -> None:
    assert thinned(_cloud(50), FRONT, 50).tolist() == list(range(50))
    assert thinned(_cloud(0), FRONT, 50).tolist() == []


def test_of_many_the_nearest_and_an_even_share_are_kept_in_their_order() -> None:
    cloud = _cloud(2_000)
    kept = thinned(cloud, FRONT, 200).tolist()
    assert len(kept) == 200
    assert kept == sorted(set(kept))
    by_distance = np.argsort(_distances(cloud))
    assert {*by_distance[:95].tolist()} <= {*kept}  # 100, but for how ranges are measured
    far = {*by_distance[1_000:].tolist()} & {*kept}
    assert 30 < len(far) < 75  # of 100 of which 53 in 100 are expected to be far
    assert kept == thinned(cloud, FRONT, 200).tolist()


def test_without_a_front_an_even_share_is_kept() -> None:
    kept = thinned(_cloud(1_000), np.zeros((0, 2)), 10)
    assert kept.tolist() == [int(i * 111) for i in range(10)]


def _point(i: int, accuracy: float, latency: float, *, on_front: bool = False) -> PagePoint:
    figures = {
        "accuracy": Quantity(accuracy, "measured"),
        "latency_ms": Quantity(latency, "modelled"),
    }
    return PagePoint(f"{i:012x}", figures, [("width", i % 2)], i, on_front)


@pytest.mark.slow
def test_page_of_many_keeps_the_front_and_counts_all() -> None:
    points = [_point(i, -a, ms) for i, (a, ms) in enumerate(_cloud(120_000).tolist())]
    points[7] = _point(7, 0.9, 1000.0, on_front=True)
    columns = {name: metrics.all_metrics()[name] for name in ("accuracy", "latency_ms")}
    runs = [RunData("a", points[:70_000]), RunData("b", points[70_000:])]
    found = content(FrontExplorer("", tuple(columns), columns, runs), n_runs=2)
    assert found["n"] == 100_000
    assert [(run["n"], run["all"]) for run in found["runs"]] == [(50_000, 70_000), (50_000, 50_000)]
    (width,) = found["choices"]
    assert width["all"] == [[35_000, 35_000], [25_000, 25_000]]
    assert len(found["front"]) == 1
