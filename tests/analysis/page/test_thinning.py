import numpy as np
import pytest
from numpy.typing import NDArray

from hwnas.analysis.page.data import FrontExplorer, PagePoint, RunData, content, thinned
from hwnas.core.quantity import Quantity
from hwnas.tasks import metrics

#: Negative accuracies and latencies of a front.
FRONT = np.array([[-0.9, 1000.0], [-0.85, 900.0]])


def _cloud(n: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(0)
    return np.stack([-0.8 * rng.random(n), 1000 * (1 + rng.random(n))], axis=1)


def _distances(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distance of each point of ``_cloud`` to the nearest member of the front."""
    gaps = (points[:, None] - FRONT) / [0.8, 1000]
    return np.asarray(gaps.max(axis=2).min(axis=1))


def test_thinning_keeps_few_points() -> None:
    assert thinned(_cloud(50), FRONT, 50).tolist() == list(range(50))
    assert thinned(_cloud(0), FRONT, 50).tolist() == []


def test_thinning_keeps_nearest_and_evenly_spaced_points() -> None:
    cloud = _cloud(2_000)
    indices = thinned(cloud, FRONT, 200).tolist()
    assert len(indices) == 200
    assert indices == sorted(set(indices))
    by_distance = np.argsort(_distances(cloud))
    assert {*by_distance[:95].tolist()} <= {*indices}  # 100 except for differences in scaling
    far = {*by_distance[1_000:].tolist()} & {*indices}
    assert 30 < len(far) < 75  # 53 are expected
    assert indices == thinned(cloud, FRONT, 200).tolist()


def test_thinning_without_front_is_even() -> None:
    indices = thinned(_cloud(1_000), np.zeros((0, 2)), 10)
    assert indices.tolist() == [int(i * 111) for i in range(10)]


def _point(i: int, accuracy: float, latency: float, *, on_front: bool = False) -> PagePoint:
    figures = {
        "accuracy": Quantity(accuracy, "measured"),
        "latency_ms": Quantity(latency, "modelled"),
    }
    return PagePoint(f"{i:012x}", figures, [("width", i % 2)], i, on_front)


@pytest.mark.slow
def test_large_page_keeps_front_and_counts_all_points() -> None:
    points = [_point(i, -a, ms) for i, (a, ms) in enumerate(_cloud(120_000).tolist())]
    points[7] = _point(7, 0.9, 1000.0, on_front=True)
    columns = {name: metrics.all_metrics()[name] for name in ("accuracy", "latency_ms")}
    runs = [RunData("a", points[:70_000]), RunData("b", points[70_000:])]
    page_content = content(FrontExplorer("", tuple(columns), columns, runs), n_runs=2)
    assert page_content["n"] == 100_000
    assert [(run["n"], run["all"]) for run in page_content["runs"]] == [
        (50_000, 70_000),
        (50_000, 50_000),
    ]
    (width,) = page_content["choices"]
    assert width["all"] == [[35_000, 35_000], [25_000, 25_000]]
    assert len(page_content["front"]) == 1
