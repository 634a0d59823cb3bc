"""A front with its cascades against a baseline, by what an image takes on the average."""

import csv
import json
from pathlib import Path

import pytest

from hwnas.api import on_average
from hwnas.api.baseline import Against, Baseline
from hwnas.api.cascades import FILE, Cascades
from hwnas.budget import Budget
from hwnas.comparison.fronts import Objective, Point, Run, RunFront
from hwnas.comparison.speedup import in_plane, speedup
from hwnas.errors import RunError
from hwnas.figure import Figure
from hwnas.searching import cascades
from tests.searching.test_cascades import stage

ACCURACY, LATENCY = Objective("accuracy", maximise=True), Objective("latency_ms", maximise=False)


@pytest.fixture(scope="module")
def own() -> Cascades:
    three = [
        stage("small", 1.0, 0.7, 1),
        stage("middle", 3.0, 0.8, 2),
        stage("large", 10.0, 0.95, 3),
    ]
    return Cascades(three, cascades.found(three, Budget()))


def told(found: Cascades) -> list[Point]:
    return on_average.of_front(found, "accuracy")


def _alone(found: Cascades, slower: float = 1.0) -> list[Point]:
    """Return the networks of cascades; a baseline's may be slower."""
    return [
        Point(
            s.id,
            {
                "accuracy": Figure(float(s.heard["test"].correct.mean()), "measured"),
                "latency_ms": Figure(slower * s.latency_ms, "compiler-estimate"),
            },
        )
        for s in found.stages
    ]


def _written(found: Cascades, folder: Path) -> None:
    rows = [cascade.row("accuracy") for cascade in found.found]
    with (folder / FILE).open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def test_networks_that_the_baseline_has_too_are_beaten_by_cascades_alone(own: Cascades) -> None:
    found = on_average.compared(_alone(own), told(own), _alone(own), [], ACCURACY)
    assert found is not None
    assert found.range is not None
    assert found.range.lowest.value == pytest.approx(1)  # at the accuracy of the fastest network
    best = max(cascades.speedups(own.stages, own.found))
    assert found.range.highest.value >= best - 1e-9 > 1.2


def test_cascades_of_the_baseline_are_its_own(own: Cascades, tmp_path: Path) -> None:
    assert on_average.of_run(tmp_path, "accuracy") == []
    _written(own, tmp_path)
    theirs = on_average.of_run(tmp_path, "accuracy")
    assert len(theirs) == len(own.found)
    found = on_average.compared(_alone(own), told(own), _alone(own), theirs, ACCURACY)
    assert found is not None
    assert found.range is not None
    assert found.range.lowest.value == pytest.approx(1)
    assert found.range.highest.value == pytest.approx(1)


def test_a_front_without_cascades_is_not_compared_so(own: Cascades) -> None:
    assert on_average.compared(_alone(own), [], _alone(own), [], ACCURACY) is None


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("verified_accuracy\n0.9\n")
    with pytest.raises(RunError, match="verified_expected_latency_ms"):
        on_average.of_run(tmp_path, "accuracy")


def test_what_it_comes_to_is_said_behind_what_networks_come_to(own: Cascades) -> None:
    def plane(points: list[Point]) -> RunFront:
        return in_plane(Run("r", {}, [], points), ACCURACY, LATENCY, "verified")

    base, mine = _alone(own, slower=1.5), _alone(own)
    alone = speedup(plane(mine), plane(base), ACCURACY, LATENCY)
    figures = {"accuracy": Figure(0.99, "measured"), "expected_latency_ms": Figure(50, "table")}
    for theirs in ([], [Point("cascade", figures)]):
        average = on_average.compared(mine, told(own), base, theirs, ACCURACY)
        baseline = Baseline("b", Run("b", {}, [], base), "verified", "", 0, theirs)
        held = Against(baseline, alone, average)
        first, then, *_ = held.sentences
        assert first.startswith("Against b (front of 3 networks): from ")
        words = "and cascades of the baseline" if theirs else "alone"
        assert then.startswith(f"On the average image, against networks {words}: from ")
        assert "the front with its cascades is 1.50 to " in then
        written = json.loads(json.dumps(held.to_json()))
        assert written["on_average"]["lowest_ratio"][0] == pytest.approx(1.5)
        assert written["lowest_ratio"][0] == pytest.approx(1.5)
