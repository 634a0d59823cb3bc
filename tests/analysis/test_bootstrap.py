"""Bootstrap: intervals of indicators and probabilities of being on a front."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from hwnas.analysis import bootstrap
from hwnas.analysis.bootstrap import BootstrapDraws
from hwnas.analysis.fronts import ComparedRun, ReferenceFrame, RunFront, front, union
from hwnas.analysis.indicators import Yardstick
from hwnas.models.spaces import Genotype
from hwnas.nas.candidates import Candidate
from tests.analysis.synthetic import PAIR, run_of

FRAME = ReferenceFrame(PAIR, np.array([1.0, 0.0]), np.array([0.0, 10.0]), "fixed")


def verified_front(run: ComparedRun) -> RunFront:
    """Return a front that keeps dominated points, like verified fronts."""
    all_points = ComparedRun(run.name, {}, run.scored, run.scored)
    return front(all_points, PAIR, "verified")


def uncertainty(fronts: list[RunFront], draws: BootstrapDraws) -> bootstrap.FrontUncertainty:
    yardstick = Yardstick(FRAME, union(fronts, PAIR), False)
    indicators = [yardstick.indicators(f.members) for f in fronts]
    return bootstrap.uncertainty(fronts, yardstick, indicators, draws)


def test_front_of_one_point_has_interval_of_the_point() -> None:
    # Its share is (accuracy) * (1 - latency / 10), linear in the accuracy.
    run_front = verified_front(run_of("a", [[0.8, 5.0]], half=(0.0196, 0)))
    result = uncertainty([run_front], BootstrapDraws(4000, 1))
    low, high = result.intervals[0]["hypervolume_share"]
    assert low == pytest.approx(0.4 - 0.0098, abs=6e-4)
    assert high == pytest.approx(0.4 + 0.0098, abs=6e-4)
    assert result.on_own[0] == pytest.approx([1.0])


def test_front_probability_equals_probability_of_being_better() -> None:
    # At the same latency; standard deviations 0.01, means 0.01 apart.
    half = (0.01 * 1.959964, 0.0)
    run_front = verified_front(run_of("a", [[0.80, 5.0], [0.79, 5.0]], half=half))
    other = verified_front(run_of("b", [[0.70, 1.0]], half=half))
    result = uncertainty([run_front, other], BootstrapDraws(4000, 0))
    expected = stats.norm.cdf(-1 / np.sqrt(2))
    assert result.on_own[0][1] == pytest.approx(expected, abs=0.03)
    assert result.on_own[0].sum() == pytest.approx(1.0)
    assert result.on_all[0] == pytest.approx(result.on_own[0])
    assert result.on_all[1] == pytest.approx([1.0])


def test_basic_interval_corrects_bias_of_noisy_fronts() -> None:
    rng, truth = np.random.default_rng(3), np.array([[0.5, float(x)] for x in range(1, 9)])
    yardstick = Yardstick(FRAME, truth, True)
    true_share = yardstick.indicators(truth)["hypervolume_share"]
    n_covered, n_above = 0, 0
    for seed in range(40):
        noisy = truth.copy()
        noisy[:, 0] += rng.standard_normal(8) * 0.03
        run_front = verified_front(run_of("a", noisy.tolist(), half=(0.03 * 1.959964, 0)))
        share = yardstick.indicators(run_front.values)
        result = bootstrap.uncertainty([run_front], yardstick, [share], BootstrapDraws(150, seed))
        low, high = result.intervals[0]["hypervolume_share"]
        n_covered += low <= true_share <= high
        n_above += share["hypervolume_share"] > true_share
    assert n_above >= 36  # the bias that the intervals correct
    assert n_covered >= 33


def test_shared_measurements_use_the_same_draw() -> None:
    points = [[0.8, 5.0], [0.7, 2.0]]
    first, second = (verified_front(run_of(name, points, half=(0.1, 0))) for name in "ab")
    result = uncertainty([first, second], BootstrapDraws(200))
    assert result.on_all[0][0] < 1  # ids of foreign files are local to the file
    searched = [Candidate(0, Genotype("space", ()), {})]
    with_candidates = [
        replace(run_front, run=replace(run_front.run, candidates=searched))
        for run_front in (first, second)
    ]
    result = uncertainty(with_candidates, BootstrapDraws(200))
    assert result.on_all[0].tolist() == result.on_all[1].tolist()
    assert result.on_all[0].max() == 1.0
    assert result.intervals[0] == result.intervals[1]
    assert result.intervals[0]["epsilon_additive"] == (0.0, 0.0)


def test_same_seed_gives_the_same_numbers() -> None:
    run_front = verified_front(run_of("a", [[0.8, 5.0], [0.7, 2.0]], half=(0.1, 1.0)))
    first, repeated, other = (
        uncertainty([run_front], BootstrapDraws(150, seed)) for seed in (1, 1, 2)
    )
    assert first.intervals == repeated.intervals
    assert first.intervals != other.intervals


def test_split_normal_draws_keep_median_and_interval() -> None:
    run = run_of("a", [[0.9, 5.0]])
    run_front = verified_front(run)
    below, above = np.array([0.2, 0]), np.array([0.05, 0])
    skewed = RunFront(
        run_front.run, run_front.points, run_front.values, run_front.values - below,
        run_front.values + above, run_front.is_random, run_front.mask,
    )  # fmt: skip
    samples = np.array(
        [values[0][0, 0] for values in bootstrap.sampled([skewed], BootstrapDraws(20000, 0))]
    )
    assert np.quantile(samples, [0.025, 0.5, 0.975]) == pytest.approx([0.7, 0.9, 0.95], abs=6e-3)


def test_runs_without_intervals_have_no_uncertainty() -> None:
    assert not bootstrap.has_intervals([verified_front(run_of("a", [[0.9, 5.0]]))])
    assert bootstrap.has_intervals([verified_front(run_of("a", [[0.9, 5.0]], half=(0.1, 0)))])
