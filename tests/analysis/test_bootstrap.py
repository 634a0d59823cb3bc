"""Intervals of indicators, and probabilities of being on a front."""

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


def verified(run: ComparedRun) -> RunFront:
    """Return a front that keeps dominated points, as verified ones do."""
    kept = ComparedRun(run.name, {}, run.scored, run.scored)
    return front(kept, PAIR, "verified")


def uncertain(fronts: list[RunFront], draws: BootstrapDraws) -> bootstrap.FrontUncertainty:
    yardstick = Yardstick(FRAME, union(fronts, PAIR), False)
    found = [yardstick.indicators(f.members) for f in fronts]
    return bootstrap.uncertainty(fronts, yardstick, found, draws)


def test_interval_of_one_point_is_the_points_own() -> None:
    # Its share is (accuracy) * (1 - latency / 10), linear in the accuracy.
    own = verified(run_of("a", [[0.8, 5.0]], half=(0.0196, 0)))
    found = uncertain([own], BootstrapDraws(4000, 1))
    low, high = found.intervals[0]["hypervolume_share"]
    assert low == pytest.approx(0.4 - 0.0098, abs=6e-4)
    assert high == pytest.approx(0.4 + 0.0098, abs=6e-4)
    assert found.on_own[0] == pytest.approx([1.0])


def test_probability_of_being_on_the_front_is_that_of_being_better() -> None:
    # At the same latency; standard deviations 0.01, means 0.01 apart.
    half = (0.01 * 1.959964, 0.0)
    own = verified(run_of("a", [[0.80, 5.0], [0.79, 5.0]], half=half))
    other = verified(run_of("b", [[0.70, 1.0]], half=half))
    found = uncertain([own, other], BootstrapDraws(4000, 0))
    expected = stats.norm.cdf(-1 / np.sqrt(2))
    assert found.on_own[0][1] == pytest.approx(expected, abs=0.03)
    assert found.on_own[0].sum() == pytest.approx(1.0)
    assert found.on_all[0] == pytest.approx(found.on_own[0])
    assert found.on_all[1] == pytest.approx([1.0])


def test_basic_interval_holds_the_truth_though_noise_makes_fronts_look_better() -> None:
    rng, truth = np.random.default_rng(3), np.array([[0.5, float(x)] for x in range(1, 9)])
    yardstick = Yardstick(FRAME, truth, True)
    true_share = yardstick.indicators(truth)["hypervolume_share"]
    held, above = 0, 0
    for seed in range(40):
        noisy = truth.copy()
        noisy[:, 0] += rng.standard_normal(8) * 0.03
        own = verified(run_of("a", noisy.tolist(), half=(0.03 * 1.959964, 0)))
        share = yardstick.indicators(own.values)
        found = bootstrap.uncertainty([own], yardstick, [share], BootstrapDraws(150, seed))
        low, high = found.intervals[0]["hypervolume_share"]
        held += low <= true_share <= high
        above += share["hypervolume_share"] > true_share
    assert above >= 36  # the bias that the intervals undo
    assert held >= 33


def test_same_measurement_in_two_runs_is_drawn_once() -> None:
    points = [[0.8, 5.0], [0.7, 2.0]]
    one, two = (verified(run_of(name, points, half=(0.1, 0))) for name in "ab")
    found = uncertain([one, two], BootstrapDraws(200))
    assert found.on_all[0][0] < 1  # files of other tools: an id means nothing beyond its file
    searched = [Candidate(0, Genotype("space", ()), {})]
    known = [replace(own, run=replace(own.run, candidates=searched)) for own in (one, two)]
    found = uncertain(known, BootstrapDraws(200))
    assert found.on_all[0].tolist() == found.on_all[1].tolist()
    assert found.on_all[0].max() == 1.0
    assert found.intervals[0] == found.intervals[1]
    assert found.intervals[0]["epsilon_additive"] == (0.0, 0.0)


def test_same_seed_gives_the_same_numbers() -> None:
    own = verified(run_of("a", [[0.8, 5.0], [0.7, 2.0]], half=(0.1, 1.0)))
    first, again, other = (uncertain([own], BootstrapDraws(150, seed)) for seed in (1, 1, 2))
    assert first.intervals == again.intervals
    assert first.intervals != other.intervals


def test_half_normals_meet_at_the_value_and_keep_the_interval() -> None:
    run = run_of("a", [[0.9, 5.0]])
    own = verified(run)
    below, above = np.array([0.2, 0]), np.array([0.05, 0])
    skewed = RunFront(
        own.run, own.points, own.values, own.values - below, own.values + above, own.is_random,
        own.mask,
    )  # fmt: skip
    drawn = np.array(
        [values[0][0, 0] for values in bootstrap.sampled([skewed], BootstrapDraws(20000, 0))]
    )
    assert np.quantile(drawn, [0.025, 0.5, 0.975]) == pytest.approx([0.7, 0.9, 0.95], abs=6e-3)


def test_runs_without_intervals_have_none() -> None:
    assert not bootstrap.has_intervals([verified(run_of("a", [[0.9, 5.0]]))])
    assert bootstrap.has_intervals([verified(run_of("a", [[0.9, 5.0]], half=(0.1, 0)))])
