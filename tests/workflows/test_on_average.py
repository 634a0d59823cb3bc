"""A front with its cascades against a baseline, by what an image takes on the average."""

import csv
import json
from pathlib import Path

import pytest

from hwnas.analysis.fronts import ComparedRun, FrontPoint, Objective, RunFront
from hwnas.analysis.speedup import in_plane, speedup
from hwnas.core.errors import RunError
from hwnas.core.quantity import Quantity
from hwnas.nas import cascades
from hwnas.tasks.metrics.budget import Budget
from hwnas.workflows.search import baseline as on_average
from hwnas.workflows.search.baseline import Baseline, BaselineComparison
from hwnas.workflows.search.cascades import CASCADES_FILE, CascadeReport
from tests.nas.test_cascades import stage

ACCURACY, LATENCY = Objective("accuracy", maximise=True), Objective("latency_ms", maximise=False)


@pytest.fixture(scope="module")
def own() -> CascadeReport:
    three = [
        stage("small", 1.0, 0.7, 1),
        stage("middle", 3.0, 0.8, 2),
        stage("large", 10.0, 0.95, 3),
    ]
    return CascadeReport(three, cascades.find_cascades(three, Budget()))


def told(found: CascadeReport) -> list[FrontPoint]:
    return on_average.of_front(found, "accuracy")


def _alone(found: CascadeReport, slower: float = 1.0) -> list[FrontPoint]:
    """Return the networks of cascades; a baseline's may be slower."""
    return [
        FrontPoint(
            s.id,
            {
                "accuracy": Quantity(float(s.predictions["test"].correct.mean()), "measured"),
                "latency_ms": Quantity(slower * s.latency_ms, "compiler-estimate"),
            },
        )
        for s in found.stages
    ]


def _written(found: CascadeReport, folder: Path) -> None:
    rows = [cascade.row("accuracy") for cascade in found.found]
    with (folder / CASCADES_FILE).open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def test_networks_that_the_baseline_has_too_are_beaten_by_cascades_alone(
    own: CascadeReport,
) -> None:
    found = on_average.compare_cascades(_alone(own), told(own), _alone(own), [], ACCURACY)
    assert found is not None
    assert found.range is not None
    assert found.range.lowest.value == pytest.approx(1)  # at the accuracy of the fastest network
    best = max(cascades.speedups(own.stages, own.found))
    assert found.range.highest.value >= best - 1e-9 > 1.2


def test_cascades_of_the_baseline_are_its_own(own: CascadeReport, tmp_path: Path) -> None:
    assert on_average.of_run(tmp_path, "accuracy") == []
    _written(own, tmp_path)
    theirs = on_average.of_run(tmp_path, "accuracy")
    assert len(theirs) == len(own.found)
    found = on_average.compare_cascades(_alone(own), told(own), _alone(own), theirs, ACCURACY)
    assert found is not None
    assert found.range is not None
    assert found.range.lowest.value == pytest.approx(1)
    assert found.range.highest.value == pytest.approx(1)


def test_a_front_without_cascades_is_not_compared_so(own: CascadeReport) -> None:
    assert on_average.compare_cascades(_alone(own), [], _alone(own), [], ACCURACY) is None


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / CASCADES_FILE).write_text("verified_accuracy\n0.9\n")
    with pytest.raises(RunError, match="verified_expected_latency_ms"):
        on_average.of_run(tmp_path, "accuracy")


def test_what_it_comes_to_is_said_behind_what_networks_come_to(own: CascadeReport) -> None:
    def plane(points: list[FrontPoint]) -> RunFront:
        return in_plane(ComparedRun("r", {}, [], points), ACCURACY, LATENCY, "verified")

    base, mine = _alone(own, slower=1.5), _alone(own)
    alone = speedup(plane(mine), plane(base), ACCURACY, LATENCY)
    figures = {"accuracy": Quantity(0.99, "measured"), "expected_latency_ms": Quantity(50, "table")}
    for theirs in ([], [FrontPoint("cascade", figures)]):
        average = on_average.compare_cascades(mine, told(own), base, theirs, ACCURACY)
        baseline = Baseline("b", ComparedRun("b", {}, [], base), "verified", "", 0, theirs)
        held = BaselineComparison(baseline, alone, average)
        first, ranges, then = held.sentences
        assert first.startswith("Against b (front of 3 networks): from ")
        assert ranges.startswith("Range of accuracy: the front 0.6935 at 1 ms to 0.9250 at 10 ms; ")
        assert ranges.endswith("; the baseline 0.6935 at 1.5 ms to 0.9250 at 15 ms.")
        words = "and cascades of the baseline" if theirs else "alone"
        assert then.startswith(f"Averaged over images, against networks {words}: from ")
        assert "the front with its cascades is faster: speedup 1.50 to " in then
        written = json.loads(json.dumps(held.to_json()))
        assert written["on_average"]["lowest_ratio"][0] == pytest.approx(1.5)
        assert written["lowest_ratio"][0] == pytest.approx(1.5)
