"""Tables, reference frame, verdicts and figures of comparisons."""

import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D

from hwnas.analysis import comparison_figures as pictures
from hwnas.analysis import fronts as frame
from hwnas.analysis import indicators, tables, verdicts
from hwnas.analysis.fronts import ComparedRun, Objective, ReferenceFrame, front
from hwnas.analysis.summary import Comparison, compare
from hwnas.analysis.verdicts import (
    comparison_findings,
    comparison_method,
    verification_verdict,
)
from hwnas.core.errors import ConfigError
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row
from hwnas.models.spaces import Genotype
from hwnas.nas.candidates import Candidate
from hwnas.nas.member import Member
from hwnas.tasks.metrics import metric_of
from tests.analysis.synthetic import ACCURACY, LATENCY, PAIR, run_of

A = run_of("a", [[0.9, 4.0], [0.8, 2.0], [0.6, 1.0]], half=(0.01, 0.1))
B = run_of("b", [[0.85, 2.0], [0.7, 1.5]])


def grouped(n: int, *, gap: float = 0.02) -> Comparison:
    """Return the comparison of two groups with ``n`` paired runs; the first group is better."""
    rng = np.random.default_rng(0)
    runs = []
    for seed in range(n):
        base = rng.random(3) * 0.01
        for group, lift in (("good_one", gap), ("bad&one", 0.0)):
            rows = [[0.5 + 0.1 * i + lift + x, 1.0 + i] for i, x in enumerate(base.tolist())]
            runs.append(run_of(f"{group}{seed}", rows, group=group, block=str(seed)))
    return compare(runs, PAIR, "searched")


def test_frame_extends_a_tenth_beyond_all_points() -> None:
    spanned = frame.spanned(np.array([[0.9, 4.0], [0.5, 2.0]]), PAIR)
    assert spanned.ideal == pytest.approx([0.9, 2.0])
    assert spanned.reference == pytest.approx([0.46, 4.2])
    assert spanned.normalised(np.array([[0.9, 4.2]])) == pytest.approx(np.array([[0.0, 1.0]]))
    assert spanned.volume == pytest.approx(0.44 * 2.2)


def test_frame_of_one_point_has_volume() -> None:
    spanned = frame.spanned(np.array([[0.9, 0.0]]), PAIR)
    assert spanned.reference == pytest.approx([0.81, 0.1])
    comparison = compare([run_of("a", [[0.9, 0.0]])], PAIR, "searched")
    assert comparison.indicators[0]["hypervolume_share"] == pytest.approx(1.0)
    assert "Fronts of one point: a." in " ".join(comparison_findings(comparison))


def test_frame_of_earlier_comparison_is_reused(tmp_path: Path) -> None:
    first = compare([A, B], PAIR, "searched")
    path = tmp_path / "comparison.json"
    path.write_text(json.dumps(first.to_json()))
    stored_frame = frame.read_frame(path, PAIR)
    later = compare([A], PAIR, "searched", stored_frame)
    assert later.indicators[0]["hypervolume"] == first.indicators[0]["hypervolume"]
    assert "that of" in " ".join(comparison_method(later))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "the content is a list of 2"),
        ("ideal: {accuracy: 1}\nreference: {accuracy: 0}", "each of accuracy, latency_ms"),
        (
            "ideal: {accuracy: 0.5, latency_ms: 1}\nreference: {accuracy: 0.9, latency_ms: 2}",
            "must be worse than the ideal",
        ),
        (
            "ideal: {accuracy: yes, latency_ms: 1}",
            "'ideal' must give a number for each of accuracy, latency_ms, as in "
            '{"ideal": {"accuracy": 0.9, "latency_ms": 0.5}, "reference": {"accuracy": 0.5, ',
        ),
        ("a: [", "not YAML"),
    ],
)
def test_invalid_frame_raises(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "frame.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        frame.read_frame(path, PAIR)
    with pytest.raises(ConfigError, match="file not found"):
        frame.read_frame(tmp_path / "none", PAIR)


@pytest.mark.parametrize(
    ("first", "second", "beginning"),
    [
        ((0.79, 0.83), (0.7, 0.78), "a has a significantly larger hypervolume than b: "),
        ((0.79, 0.83), (0.75, 0.8), "No significant difference in hypervolume between a and b: "),
        ((0.77, 0.795), (0.8, 0.8), "b has a significantly larger hypervolume than a: "),
    ],
)
def test_verdict_tests_intervals_in_both_directions(
    first: tuple[float, float], second: tuple[float, float], beginning: str
) -> None:
    intervals = [{verdicts._MAIN: ends} for ends in (first, second)]
    comparison: Any = SimpleNamespace(
        is_grouped=False,
        fronts=[SimpleNamespace(name=name) for name in "ab"],
        indicators=[{verdicts._MAIN: 0.8}, {verdicts._MAIN: 0.78}],
        uncertainty=SimpleNamespace(intervals=intervals),
    )
    text = verdicts.verdict(comparison)
    assert text.startswith(beginning)
    assert "hypervolume share 0.8000 against 0.7800" in text
    comparison.uncertainty = None
    assert verdicts.verdict(comparison).endswith("There are no intervals: this is not tested.")
    comparison.fronts, comparison.indicators = comparison.fronts[:1], comparison.indicators[:1]
    assert verdicts.verdict(comparison).startswith("Only one front, a:")


def test_ladder_compares_upper_end_with_limit() -> None:
    fronts = [front(run, PAIR, "searched") for run in (A, B)]
    rows = tables.ladder(fronts, PAIR)
    limits = [*dict.fromkeys(row["limit"] for row in rows)]
    assert (limits[0], limits[-1]) == (1.1, 4.1)
    best = {(row["limit"], row["run"]): row["accuracy"] for row in rows}
    assert best[1.1, "a"] == 0.6
    assert best[1.1, "b"] is None
    assert best[4.1, "a"] == 0.9
    for limit in limits:
        feasible = [acc for acc, ms in ((0.9, 4.1), (0.8, 2.1), (0.6, 1.1)) if ms <= limit]
        assert best[limit, "a"] == max(feasible)


def test_needed_cost_per_accuracy() -> None:
    fronts = [front(run, PAIR, "searched") for run in (A, B)]
    rows = tables.needed(fronts, PAIR)
    for row in rows:
        points = {"a": [(0.9, 4.0), (0.8, 2.0), (0.6, 1.0)], "b": [(0.85, 2.0), (0.7, 1.5)]}
        costs = [ms for acc, ms in points[row["run"]] if acc >= row["level"]]
        assert row["value"] == (min(costs) if costs else None)
    assert {row["level"] for row in rows} >= {0.6, 0.85, 0.9}


def _run_with_candidates() -> ComparedRun:
    rows = [[0.5, 3.0], [0.6, 3.0], [0.6, 3.0], [0.7, 9.0], [0.9, 1.0]]
    candidates = []
    for trial, (accuracy, latency) in enumerate(rows):
        figures = {
            "accuracy": Quantity(accuracy, "measured"),
            "latency_ms": Quantity(latency, "table"),
        }
        genotype = Genotype("space", (("a", int(100 * accuracy)),))
        reason = "too slow" if latency > 5 else ""
        candidates.append(Candidate(trial, genotype, figures, {}, reason))
    scored = run_of("a", rows[:3] + rows[4:]).scored
    feasible = [c for c in candidates if not c.reason]
    points_with_ids = [type(p)(c.id, p.figures) for p, c in zip(scored, feasible, strict=True)]
    seconds = {trial: float(trial) for trial in range(5)}
    return ComparedRun("a", {}, points_with_ids, group="a", candidates=candidates, seconds=seconds)


def test_convergence_counts_distinct_feasible_networks() -> None:
    run = _run_with_candidates()
    box = frame.ReferenceFrame(PAIR, np.array([1.0, 0.0]), np.array([0.0, 10.0]), "fixed")
    rows = tables.convergence([run], box, PAIR)
    assert [row["trials"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["evaluations"] for row in rows] == [1, 2, 2, 2, 3]
    assert [row["seconds"] for row in rows] == [0.0, 1.0, 2.0, 3.0, 4.0]
    shares = [row["hypervolume_share"] for row in rows]
    assert shares == pytest.approx([0.35, 0.42, 0.42, 0.42, 0.81])


def test_attainment_surfaces_per_percentile() -> None:
    runs = [
        run_of(str(i), [[0.5 + 0.1 * i, 1.0], [0.9, 2.0]], group="g", block=str(i))
        for i in range(4)
    ]
    fronts = [front(run, PAIR, "searched") for run in runs]
    surfaces = {s.percentile: s.points for s in indicators.surfaces(fronts, ACCURACY, [LATENCY])}
    # At 1 ms, 0.8 is reached by one of four runs, 0.7 by two, 0.6 by three.
    for percentile, accuracy in ((25, 0.8), (50, 0.7), (75, 0.6)):
        assert surfaces[percentile] == pytest.approx(np.array([[1.0, accuracy], [2.0, 0.9]]))
    assert indicators.surfaces(fronts[:1], ACCURACY, [LATENCY]) == []


def test_sentences_state_significance() -> None:
    best = verdicts.verdict(grouped(8))
    assert re.match(
        r"good_one is better than bad&one: mean hypervolume share 0.\d+ against 0.\d+ "
        r"\(8 runs and 8 runs\); p 0.008, wilcoxon",
        best,
    )
    equal = verdicts.verdict(grouped(8, gap=0.0))
    assert equal.startswith("No significant difference between ")
    assert "; p 1.000" in equal
    clear = " ".join(comparison_findings(grouped(8)))
    assert "Significantly different at 0.05 (Holm): good_one > bad&one (p 0.008, A12 1.0" in clear
    assert "Not significantly different" not in clear
    none = " ".join(comparison_findings(grouped(8, gap=0.0)))
    assert "Significantly different at 0.05 (Holm): none." in none
    assert re.search(r"Not significantly different: \S+ and \S+ \(p 1.000", none)
    few = " ".join(comparison_findings(grouped(4)))
    assert "Not significantly different" in few
    assert "Too few runs for a test: with 4 and 4 runs p is at least 0.125" in few
    alone = " ".join(comparison_findings(compare([A, B], PAIR, "searched")))
    assert "One run each" in alone


def test_true_front_is_target_of_distances() -> None:
    truth = np.array([[0.95, 1.0]])
    comparison = compare([A], PAIR, "searched", true_front=truth)
    assert comparison.indicators[0]["epsilon_additive"] > 0
    assert compare([A], PAIR, "searched").indicators[0]["epsilon_additive"] == 0
    assert "the given true front (1 points, hypervolume share " in " ".join(
        comparison_method(comparison)
    )


def test_growth_table_has_round_numbers_and_end() -> None:
    runs = {"a": ("x", [(1, 0.1), (15, 0.2), (30, 0.3)]), "b": ("x", [(10, 0.3), (12, 0.4)]),
            "c": ("y", [(30, 0.5)])}  # fmt: skip
    rows = [
        {"run": run, "group": group, "evaluations": n, "hypervolume_share": share}
        for run, (group, steps) in runs.items()
        for n, share in steps
    ]
    assert tables.growth(rows) == {
        10: {"x": pytest.approx(0.2), "y": 0.0},
        20: {"x": None, "y": 0.0},  # only half of the group
        None: {"x": pytest.approx(0.35), "y": 0.5},
    }
    assert tables.growth([]) == {}


def test_verification_verdict_is_one_sentence() -> None:
    rows = [
        {"run": f"r{i}", "n_members": 10, "n_left": i, "hypervolume_share_searched": 0.5,
         "hypervolume_share_verified": 0.5 - 0.01 * i, "median_change_accuracy": 0.0}
        for i in range(7)
    ]  # fmt: skip
    assert "share by -0.0100; 1 of 10 members left" in verification_verdict(rows[1:2])
    many = verification_verdict(rows)
    assert "by -0.0300 (median of 7, -0.0600 to +0.0000); 21 of 70 members" in many
    assert verification_verdict([]) == ""


def test_shared_networks_verdict_is_one_sentence() -> None:
    rows: list[Row] = [{"first": "a", "second": "b", "n_shared": n} for n in (1, 5)]
    assert verdicts.shared_networks_verdict(rows[:1], 2) == "a and b have 1 network in common."
    assert verdicts.shared_networks_verdict(rows, 3) == (
        "2 of 3 pairs of fronts have networks in common: at most 5 (a and b)."
    )


def test_members_near_front_have_not_left_it() -> None:
    figures = {"accuracy": Quantity(0.9, "measured"), "latency_ms": Quantity(1.0, "measured")}
    verified = {"accuracy_int8": figures["accuracy"], "latency_ms": figures["latency_ms"]}
    members = [
        Member(Candidate(0, Genotype("s", ()), figures), verified, {}, {}, (), on, near)
        for on, near in ((True, False), (False, True), (False, False))
    ]
    run = replace(run_of("a", [(0.9, 1.0)]), members=members)
    frame = ReferenceFrame(PAIR, np.array([1.0, 0.0]), np.array([0.0, 2.0]), "unscaled")
    (row,) = tables.verification([run], frame)
    assert (row["n_members"], row["n_left"]) == (3, 1)


def test_json_has_no_nan() -> None:
    comparison = compare([run_of("a", [[0.0, 1.0], [0.5, 2.0]])], PAIR, "searched")
    assert math.isnan(comparison.indicators[0]["epsilon_multiplicative"])
    text = json.dumps(comparison.to_json(), allow_nan=False)
    assert json.loads(text)["runs"][0]["epsilon_multiplicative"] is None


def test_figures_are_deterministic_and_contain_text() -> None:
    comparison = grouped(6)
    box = comparison.yardstick.frame
    args = (comparison.fronts, box, ACCURACY, [LATENCY])
    first, second = pictures.fronts(*args), pictures.fronts(*args)
    assert first == second
    svg = first["svg"].decode()
    assert ">latency [ms]</text>" in svg
    assert "bad&amp;one" in svg
    surfaces = indicators.surfaces(comparison.fronts, ACCURACY, [LATENCY])
    assert "good_one (6 runs)" in pictures.attainment(surfaces, box)["svg"].decode()


def _svg(
    values: Sequence[Sequence[float]], names: Sequence[str], box: ReferenceFrame | None = None
) -> str:
    run_fronts = [front(run_of(name, values), PAIR, "searched") for name in names]
    box = box or frame.spanned(np.array(values), PAIR)
    return pictures.fronts(run_fronts, box, ACCURACY, [LATENCY])["svg"].decode()


def _height(line: Line2D, x: float) -> float | None:
    """Return the height of a drawn staircase at x."""
    for (x0, y0), (x1, y1) in itertools.pairwise(np.asarray(line.get_path().vertices)):
        if y0 == y1 and min(x0, x1) < x < max(x0, x1):
            return float(y0)
    return None


@pytest.mark.parametrize(
    ("name", "values", "far", "reached", "beyond"),
    [
        ("latency_ms", [(0.6, 1), (0.8, 5), (0.9, 9)], 12, {3: 0.6, 7: 0.8}, {0.7: None, 10: 0.9}),
        (
            "throughput_ips",
            [(0.9, 1), (0.8, 5), (0.6, 9)],
            0.5,
            {3: 0.8, 7: 0.6},
            {0.7: 0.9, 10: None},
        ),
    ],
)
def test_staircases_show_best_at_no_worse_cost(
    name: str,
    values: list[tuple[float, float]],
    far: float,
    reached: dict[float, float],
    beyond: dict[float, float | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cost, names = Objective(name, metric_of(name).maximise), ("accuracy", name)
    runs = [
        run_of(f"{i}", [(q - i / 10, x) for q, x in values], group="own", names=names)
        for i in range(4)
    ]
    runs += [run_of(f"far{i}", [(0.91, far)], group="far", names=names) for i in range(2)]
    fronts = [front(run, (ACCURACY, cost), "searched") for run in runs]
    box = frame.spanned(np.concatenate([f.values for f in fronts]), (ACCURACY, cost))
    figures: list[Drawing] = []
    monkeypatch.setattr(pictures, "_pictures", figures.append)
    pictures.fronts(fronts, box, ACCURACY, [cost])
    pictures.attainment(indicators.surfaces(fronts, ACCURACY, [cost]), box)
    (axes,), (surface,) = (figure.axes for figure in figures)
    (shade,) = surface.collections[0].get_paths()
    for x, height in reached.items():
        assert _height(axes.lines[0], x) == height
        assert _height(surface.lines[0], x) == pytest.approx(
            height - 0.1
        )  # the second of four runs
        assert shade.contains_point((x, height - 0.05))
        assert not shade.contains_point((x, height + 0.05))
    for x, highest in beyond.items():
        assert _height(surface.lines[0], x) == (highest and pytest.approx(highest - 0.1))


def test_names_are_literal_and_wide_axes_logarithmic() -> None:
    svg = _svg([[0.9, 100.0], [0.8, 0.5]], ["$x", "<b>$y$</b>"])
    assert ">&lt;b&gt;$y$&lt;/b&gt;</text>" in svg
    assert ">10</text>" in svg
    assert "mathdefault" not in svg


def test_axes_end_at_reference_point() -> None:
    values = [[0.9, 4.0], [0.88, 3.0], [0.5, 1.0]]
    box = ReferenceFrame(PAIR, np.array([0.9, 1.0]), np.array([0.85, 3.5]), "given")
    assert ">0.60</text>" in _svg(values, ["a"])
    assert ">4.0</text>" in _svg(values, ["a"])
    clipped = _svg(values, ["a"], box)
    assert ">0.60</text>" not in clipped
    assert ">4.0</text>" not in clipped
    assert ">0.88</text>" in clipped


@pytest.mark.parametrize("letters", [5, 25, 45])
def test_legends_fit_figure_width(letters: int) -> None:
    svg = _svg([[0.9, 4.0], [0.5, 1.0]], [f"{i} {'n' * letters}" for i in range(6)])
    width = float(re.findall(r'viewBox="0 0 ([\d.]+) ', svg)[0])
    positions = [float(x) for x in re.findall(r'x="([-\d.]+)"[^>]*>\d n+</text>', svg)]
    assert len(positions) == 6
    assert min(positions) > 0
    assert max(positions) + letters * 4 < width  # at least four points per letter
