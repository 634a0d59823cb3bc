"""Comparison of a front with cascades and a baseline by mean latency."""

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
def report() -> CascadeReport:
    three = [
        stage("small", 1.0, 0.7, 1),
        stage("middle", 3.0, 0.8, 2),
        stage("large", 10.0, 0.95, 3),
    ]
    return CascadeReport(three, cascades.find_cascades(three, Budget()))


def _cascade_points(report: CascadeReport) -> list[FrontPoint]:
    return on_average.of_front(report, "accuracy")


def _network_points(report: CascadeReport, slowdown: float = 1.0) -> list[FrontPoint]:
    """Return the networks of cascades, slowed down by a factor."""
    return [
        FrontPoint(
            s.id,
            {
                "accuracy": Quantity(float(s.predictions["test"].correct.mean()), "measured"),
                "latency_ms": Quantity(slowdown * s.latency_ms, "compiler-estimate"),
            },
        )
        for s in report.stages
    ]


def _write_cascades(report: CascadeReport, folder: Path) -> None:
    rows = [cascade.row("accuracy") for cascade in report.pairs]
    with (folder / CASCADES_FILE).open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def test_cascades_improve_on_equal_networks(
    report: CascadeReport,
) -> None:
    comparison = on_average.compare_cascades(
        _network_points(report), _cascade_points(report), _network_points(report), [], ACCURACY
    )
    assert comparison is not None
    assert comparison.range is not None
    assert comparison.range.lowest.value == pytest.approx(
        1
    )  # at the accuracy of the fastest network
    best = max(cascades.speedups(report.stages, report.pairs))
    assert comparison.range.highest.value >= best - 1e-9 > 1.2


def test_baseline_cascades_are_read_from_its_run(report: CascadeReport, tmp_path: Path) -> None:
    assert on_average.of_run(tmp_path, "accuracy", Budget()) == []
    _write_cascades(report, tmp_path)
    baseline_points = on_average.of_run(tmp_path, "accuracy", Budget())
    assert len(baseline_points) == len(report.pairs)
    comparison = on_average.compare_cascades(
        _network_points(report),
        _cascade_points(report),
        _network_points(report),
        baseline_points,
        ACCURACY,
    )
    assert comparison is not None
    assert comparison.range is not None
    assert comparison.range.lowest.value == pytest.approx(1)
    assert comparison.range.highest.value == pytest.approx(1)
    worst = [cascade.worst["latency_ms"].value for cascade in report.pairs]
    within = Budget({"latency_ms": sorted(worst)[0]})
    n_within = len(on_average.of_run(tmp_path, "accuracy", within))
    assert n_within == worst.count(min(worst)) < len(worst)


def test_front_without_cascades_has_no_comparison(report: CascadeReport) -> None:
    assert (
        on_average.compare_cascades(
            _network_points(report), [], _network_points(report), [], ACCURACY
        )
        is None
    )


def test_damaged_cascade_table_raises(tmp_path: Path) -> None:
    (tmp_path / CASCADES_FILE).write_text("verified_accuracy\n0.9\n")
    with pytest.raises(RunError, match="verified_expected_latency_ms"):
        on_average.of_run(tmp_path, "accuracy", Budget())


def test_sentences_report_networks_before_cascades(report: CascadeReport) -> None:
    def plane(points: list[FrontPoint]) -> RunFront:
        return in_plane(ComparedRun("r", {}, [], points), ACCURACY, LATENCY, "verified")

    base, points = _network_points(report, slowdown=1.5), _network_points(report)
    network_speedup = speedup(plane(points), plane(base), ACCURACY, LATENCY)
    figures = {"accuracy": Quantity(0.99, "measured"), "expected_latency_ms": Quantity(50, "table")}
    for baseline_cascades in ([], [FrontPoint("cascade", figures)]):
        average = on_average.compare_cascades(
            points, _cascade_points(report), base, baseline_cascades, ACCURACY
        )
        baseline = Baseline(
            "b", ComparedRun("b", {}, [], base), "verified", "", 0, baseline_cascades
        )
        comparison = BaselineComparison(baseline, network_speedup, average)
        first, ranges, cascade_sentence = comparison.sentences
        assert first.startswith("Against b (front of 3 networks): from ")
        assert ranges.startswith("Range of accuracy: the front 0.6935 at 1 ms to 0.9250 at 10 ms; ")
        assert ranges.endswith("; the baseline 0.6935 at 1.5 ms to 0.9250 at 15 ms.")
        reference = "and cascades of the baseline" if baseline_cascades else "alone"
        assert cascade_sentence.startswith(
            f"Averaged over images, against networks {reference}: from "
        )
        assert "speedup 1.50 to " in cascade_sentence
        content = json.loads(json.dumps(comparison.to_json()))
        assert content["on_average"]["lowest_ratio"][0] == pytest.approx(1.5)
        assert content["lowest_ratio"][0] == pytest.approx(1.5)
