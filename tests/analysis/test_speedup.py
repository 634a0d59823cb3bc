"""Speedup of a front over a baseline at equal accuracy."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from hwnas.analysis.bootstrap import BootstrapDraws
from hwnas.analysis.fronts import Array
from hwnas.analysis.speedup import Speedup, in_plane, speedup
from hwnas.analysis.speedup_verdict import (
    FrontLabels,
    device_verdict,
    equal_accuracy_table,
    plain_verdict,
    speedup_verdict,
)
from tests.analysis.synthetic import ACCURACY, LATENCY, random_front, run_of

Points = Sequence[Sequence[float]]
BASELINE = [(0.92, 0.1), (0.93, 0.2), (0.94, 0.6)]
NAMES = FrontLabels("Against b (3 networks)")


def _speedup(
    points: Points, baseline_points: Points, half: Sequence[float] = (0.0, 0.0), n: int = 200
) -> Speedup:
    a, b = (
        in_plane(run_of(name, values, half=half), ACCURACY, LATENCY, "searched")
        for name, values in (("a", points), ("b", baseline_points))
    )
    return speedup(a, b, ACCURACY, LATENCY, BootstrapDraws(n, 0))


def _text(result: Speedup) -> str:
    return " ".join(speedup_verdict(result, NAMES))


def test_mean_ratio_is_weighted_over_accuracy_range() -> None:
    result = _speedup([(0.925, 0.05), (0.94, 0.3)], BASELINE)
    accuracy_range = result.range
    assert accuracy_range is not None
    # 0.1/0.05 to 0.92, 0.2/0.05 to 0.925, 0.2/0.3 to 0.93, 0.6/0.3 to 0.94
    assert [level.ratio for level in accuracy_range.levels] == pytest.approx([2, 4, 2 / 3, 2])
    assert accuracy_range.lowest.value == pytest.approx(2 / 3)
    assert accuracy_range.highest.value == pytest.approx(4)
    logs = np.log([4, 2 / 3, 2]) @ [0.25, 0.25, 0.5]
    assert accuracy_range.mean.value == pytest.approx(np.exp(logs))
    assert accuracy_range.lowest.interval is None
    assert _text(result) == (
        "Against b (3 networks): from 0.9200 to 0.9400 accuracy, speedup 0.67 to 4.00 "
        "(the baseline / the front, above 1: the front is faster), geometric mean 1.81. "
        "Lowest: 0.67, at 0.9300: 0.3 ms against 0.2 ms. Range of accuracy: the front 0.9250 at "
        "0.05 ms to 0.9400 at 0.3 ms; the "
        "baseline 0.9200 at 0.1 ms to 0.9400 at 0.6 ms."
    )


def test_table_has_row_per_baseline_member() -> None:
    result = _speedup([(0.925, 0.05), (0.94, 0.3)], [*BASELINE, (0.91, 0.3)])
    first, second, third = result.rows()
    assert first["accuracy"] == 0.92
    assert first["baseline_latency_ms"] == 0.1
    assert (first["front_latency_ms"], first["ratio"]) == (0.05, 2.0)
    assert first["accuracy_gain"] == pytest.approx(0.005)
    assert (second["baseline_id"], second["front_id"]) == ("line 1", "line 1")
    assert second["accuracy_gain"] == pytest.approx(-0.005)
    assert (third["front_accuracy_at_equal_cost"], third["ratio"]) == (0.94, 2.0)


def test_verdict_of_faster_front_has_intervals() -> None:
    result = _speedup([(0.90, 0.02), (0.93, 0.05), (0.95, 0.3)], BASELINE, half=(0.001, 0.0))
    text = _text(result)
    assert text.startswith(
        "Against b (3 networks): from 0.9200 to 0.9400 accuracy, speedup 2.00 "
        "to 4.00 (the baseline / the front, above 1: the front is faster), geometric mean 2.83, "
        "95 % 2."
    )
    # 0.93 may be below 0.93 at 0.2 ms
    assert (
        "Lowest: 2.00, 95 % of the lowest at any accuracy 0.67 to 2.00 (not significant), at "
        in text
    )
    assert "the front 0.9000 at 0.02 ms to 0.9500 at 0.3 ms; the baseline 0.9200 at 0.1" in text
    content = result.to_json()
    assert content["lowest_at"]["accuracy"] == 0.92
    value, low, high = content["lowest_ratio"]
    assert low < value <= high


def test_accuracies_above_the_front_have_no_ratio() -> None:
    result = _speedup([(0.935, 0.1)], BASELINE, half=(0.0005, 0.0))
    text = _text(result)
    assert "0.9200 to 0.9350 accuracy, speedup 1.00 to 6.00" in text
    assert "the front 0.9350 at 0.1 ms; the baseline 0.9200 at 0.1 ms to 0.9400 at 0.6" in text
    rows = result.rows()
    assert [row["accuracy"] for row in rows] == [0.92, 0.93, 0.935, 0.94]
    assert rows[2]["accuracy_gain"] is None  # the end of the front is no baseline member
    assert rows[3]["ratio"] is rows[3]["front_id"] is None


def test_verdict_of_fronts_above_and_below_baseline() -> None:
    above = _speedup([(0.96, 0.15)], BASELINE)
    assert above.range is not None
    assert above.range.worst.quality == 0.92
    assert "speedup 0.67 to 4.00" in _text(above)
    assert "at 0.9200: 0.15 ms against 0.1 ms." in _text(above)
    assert above.rows()[0]["accuracy_gain"] is None  # no front member is that cheap
    below = _speedup([(0.8, 0.01), (0.9, 0.05)], BASELINE, half=(0.001, 0.0))
    assert below.range is None
    assert _text(below) == (
        "Against b (3 networks): no network of the front reaches the worst accuracy of the "
        "baseline. Range of accuracy: the front 0.8000 at 0.01 ms to 0.9000 at 0.05 ms; the "
        "baseline 0.9200 at 0.1 ms to 0.9400 at 0.6 ms."
    )
    assert below.to_json()["range"] is None


def test_verdict_of_single_equal_and_empty_fronts() -> None:
    single = _speedup([(0.93, 0.1)], [(0.92, 0.3)])
    assert _text(single) == (
        "Against b (3 networks): at 0.9200 accuracy, speedup 3.00 (the "
        "baseline / the front, above 1: the front is faster): 0.1 ms "
        "against 0.3 ms. Range of accuracy: the front 0.9300 at 0.1 ms; the baseline 0.9200 at "
        "0.3 ms."
    )
    assert "speedup 1.00 (" in _text(_speedup(BASELINE, BASELINE))
    without_points = in_plane(replace(run_of("x", []), verified=[]), ACCURACY, LATENCY, "verified")
    other = in_plane(run_of("b", BASELINE), ACCURACY, LATENCY, "searched")
    empty = speedup(without_points, other, ACCURACY, LATENCY)
    assert "the front has no network that fits its budget" in _text(empty)
    assert [row["ratio"] for row in empty.rows()] == [None] * 3
    assert "the baseline has no network" in _text(speedup(other, without_points, ACCURACY, LATENCY))


def test_lowest_and_highest_ratio_match_grid() -> None:
    points, baseline_points = (_front(seed) for seed in (1, 2))
    accuracy_range = _speedup(points.tolist(), baseline_points.tolist()).range
    assert accuracy_range is not None
    low, high = accuracy_range.levels[0].quality, accuracy_range.levels[-1].quality
    grid = np.linspace(low, high, 20_001)
    ratios = np.array([_lowest_cost(baseline_points, q) / _lowest_cost(points, q) for q in grid])
    assert accuracy_range.lowest.value == pytest.approx(ratios.min())
    assert accuracy_range.highest.value == pytest.approx(ratios.max())
    assert accuracy_range.mean.value == pytest.approx(np.exp(np.log(ratios).mean()), rel=1e-3)


def _front(seed: int) -> Array:
    points = random_front(seed, 40)
    return np.stack([points[:, 0], 0.1 + points[:, 1]], axis=1)


def _lowest_cost(points: Array, quality: float) -> float:
    return float(points[points[:, 0] >= quality, 1].min())


def test_shared_network_uses_the_same_draw() -> None:
    # A front with the networks of the baseline is as fast in every draw, as the ids are known.
    values = [(0.9, 0.1), (0.92, 0.3)]
    run = run_of("a", values, half=(0.01, 0.0))
    a, b = (in_plane(run, ACCURACY, LATENCY, "searched") for _ in range(2))
    result = speedup(a, b, ACCURACY, LATENCY, BootstrapDraws(200, 0))
    assert result.range is not None
    assert result.range.lowest.interval == (1.0, 1.0)


@pytest.mark.parametrize(
    ("latency_ms", "half", "larger", "beginning"),
    [
        (0.05, 0.001, 1, "A is better than B: 2.00 times as fast at equal accuracy (95 %: "),
        (0.2, 0.001, -1, "B is better than A: 2.00 times as fast at equal accuracy (95 %: "),
        (0.05, 0.001, 0, "No significant difference in hypervolume; A is 2.00 times as fast"),
        (0.05, 0.001, -1, "Neither is better everywhere: A is 2.00 times as fast"),
        (0.05, 0.0, 0, "A is 2.00 times as fast as B at equal accuracy. There are no intervals"),
        (
            0.099,
            0.02,
            0,
            "Neither is significantly better in hypervolume, cost or accuracy. Estimate: A is 1.01",
        ),
        (0.099, 0.02, 1, "A has a significantly larger hypervolume than B; no significant diff"),
        (0.099, 0.02, -1, "B has a significantly larger hypervolume than A; no significant diff"),
    ],
)
def test_plain_verdict_is_one_sentence(
    latency_ms: float, half: float, larger: int, beginning: str
) -> None:
    result = _speedup(
        [(0.92, latency_ms), (0.94, 3 * latency_ms)],
        [(0.92, 0.1), (0.94, 0.3)],
        half=(half, half / 10),
    )
    labels = FrontLabels("", "A", "B")
    assert plain_verdict(result, labels, larger).startswith(beginning)
    out_of_range = _speedup([(0.5, 0.1)], BASELINE)
    assert plain_verdict(out_of_range, labels, 0) == ""


def test_plain_verdict_states_higher_accuracy() -> None:
    labels, fast = FrontLabels("", "A", "B"), [(0.75, 0.05)]
    result = _speedup(fast, [(0.7, 0.1), (0.9, 0.3)], half=(0.01, 0.001))
    assert result.range is not None
    low, high = result.range.gain_interval or (0.0, 0.0)
    assert low < -0.15 < high < 0
    gain = rf"; B reaches a higher accuracy, 0.9000 against 0.7500 \(95 % .*: {-high:.4g} to "
    for larger, begin in ((1, "Neither is"), (0, "No significant"), (-1, "Neither is")):
        assert re.match(
            f"{begin}.*A is 6.00 times as fast.*{gain}", plain_verdict(result, labels, larger)
        )
    same = _speedup([(0.7, 0.05), (0.9, 0.1)], [(0.7, 0.1), (0.9, 0.3)], half=(0.01, 0.001))
    assert "reaches" not in plain_verdict(same, labels, 1)
    close = _speedup([(0.701, 0.05)], [(0.7, 0.1)], half=(0.01, 0.001))
    assert "A reaches a higher accuracy, 0.7010 against 0.7000" in plain_verdict(close, labels, 1)
    assert ", not significant)." in plain_verdict(close, labels, 1)


def test_ratio_may_have_no_upper_bound() -> None:
    # In many samples the front does not reach the accuracy of the baseline.
    result = _speedup([(0.7, 0.2)], [(0.7, 0.1)], half=(0.01, 0.001))
    text = plain_verdict(result, FrontLabels("", "A", "B"), 0)
    assert re.search(r"B is 2\.00 times as fast at equal accuracy \(95 %: at least 1\.9\d\)", text)
    assert (
        "above 1: A is faster" in equal_accuracy_table(result, FrontLabels("", "A", "B"), "").note
    )


def test_verdict_on_two_devices() -> None:
    result = _speedup([(0.92, 0.2), (0.94, 0.6)], [(0.92, 0.1), (0.94, 0.3)], half=(0.001, 0.0001))
    text = device_verdict(result, FrontLabels("", "cpu", "npu"))
    assert text.startswith(
        "On npu the networks are 2.00 times as fast as on cpu, at equal accuracy"
    )
    assert re.search(r"\(95 %: 1\.\d\d to 2\.\d\d\)\.$", text)
    assert device_verdict(_speedup([(0.5, 0.1)], BASELINE), NAMES) == ""
