"""Regression: errors in the unit of the targets, with intervals."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from hwnas.core.errors import ConfigError, DataError
from hwnas.core.progress import NullProgress
from hwnas.tasks.base import Incumbent, Score
from hwnas.tasks.early_stopping import Errors
from hwnas.tasks.intervals import half_width
from hwnas.tasks.regression import Regression, RegressionTask
from hwnas.training.data import DatasetConfig, load_data
from hwnas.training.evaluation.trained import forecast

RNG = np.random.default_rng(0)
TARGETS = RNG.uniform(-60, 60, (500, 1)).astype(np.float32)
TASK = RegressionTask.of(("angle_deg",), TARGETS)


def _score_early(errors: Errors, incumbent: Errors, rng: np.random.Generator) -> Score:
    packed = Incumbent(incumbent.tobytes(), ())
    return TASK.score_early(lambda index: errors[index], len(errors), packed, 0.9, rng)


def test_outputs_are_standardised_and_errors_in_units() -> None:
    loss_targets = TASK.loss_targets(torch.from_numpy(TARGETS))
    assert float(loss_targets.mean()) == pytest.approx(0, abs=1e-5)
    assert float(loss_targets.std(unbiased=False)) == pytest.approx(1, abs=1e-5)
    errors = TASK.per_sample(loss_targets.numpy() + 2 / np.float32(TASK.std[0]), TARGETS)
    assert errors == pytest.approx(2, abs=1e-3)


def test_interval_of_mean_has_nominal_coverage() -> None:
    draws = RNG.exponential(3.0, (2000, 60))
    figures = [TASK.score(row) for row in draws]
    coverage = np.mean([f.low <= 3.0 <= f.high for f in figures])  # type: ignore[operator]
    assert 0.91 < coverage < 0.97  # errors are skewed, so that a little less than 0.95
    figure = figures[0]
    ends = stats.t.interval(0.95, 59, figure.value, stats.sem(draws[0]))
    assert (figure.low, figure.high) == pytest.approx(ends)


@pytest.mark.parametrize("n", [2, 3, 4, 11, 360, 10_001])
def test_interval_of_mean_matches_scipy_without_import(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = RNG.exponential(3.0, n)
    expected = stats.t.ppf(0.975, n - 1) * stats.sem(values)
    monkeypatch.setitem(sys.modules, "scipy", None)  # ``verify`` must not import scipy
    assert half_width(values) == pytest.approx(expected, rel=1e-10)


def test_loss_is_linear_far_from_target_and_flat_near() -> None:
    far = [float(TASK.loss(torch.tensor([[x]]), torch.tensor([[0.0]]))) for x in (1.0, 2.0)]
    assert far[1] - far[0] == pytest.approx(1.0)
    x = torch.tensor([[0.001]], requires_grad=True)
    (slope,) = torch.autograd.grad(TASK.loss(x, torch.tensor([[0.0]])), x)
    assert abs(float(slope)) < 0.02


def test_constant_median_has_not_learned() -> None:
    median = np.full_like(TARGETS, (np.median(TARGETS) - TASK.mean[0]) / TASK.std[0])
    errors = TASK.per_sample(median, TARGETS)
    assert errors.mean() == pytest.approx(TASK.guess_mae, rel=1e-4)
    assert not TASK.has_learned(float(errors.sum()), len(errors))
    assert TASK.has_learned(0.5 * float(errors.sum()), len(errors))
    assert TASK.points(0.0, TASK.guess_mae) == pytest.approx(100)


def test_equal_candidates_are_rarely_stopped() -> None:
    n, stopped = 1000, 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        difficulty = rng.exponential(1.0, n)
        errors, incumbent = (
            (difficulty * rng.uniform(0.5, 1.5, n)).astype(np.float32) for _ in range(2)
        )
        incumbent += errors.mean() - incumbent.mean()  # exactly as good
        score = _score_early(errors, incumbent, rng)
        stopped += score.stopped
    assert stopped / 200 <= 0.1


def test_interval_of_stopped_candidate_covers_its_error() -> None:
    n_covered, n = 0, 2000
    for seed in range(100):
        rng = np.random.default_rng(seed)
        difficulty = rng.exponential(1.0, n)
        errors = (1.5 * difficulty * rng.uniform(0.5, 1.5, n)).astype(np.float32)
        incumbent = (difficulty * rng.uniform(0.5, 1.5, n)).astype(np.float32)
        score = _score_early(errors, incumbent, rng)
        assert score.stopped
        assert score.figure.low is not None
        assert score.figure.high is not None
        n_covered += score.figure.low <= errors.mean() <= score.figure.high
    assert n_covered >= 93


@pytest.mark.parametrize("unit", [1.0, 1e-16])
def test_forecast_of_error_is_independent_of_unit(unit: float) -> None:
    pairs = [(unit * (40.0 + i), unit * (20.0 + i / 2)) for i in range(20)]
    expected = forecast("mae", unit * 45.0, pairs)
    figure = expected.figure
    assert figure.low is not None
    assert figure.high is not None
    assert figure.low < figure.value < figure.high
    assert figure.value / unit == pytest.approx(22.5, abs=1)
    assert expected.reaches(unit * 30.0) > 0.95 > 0.05 > expected.reaches(unit * 15.0)


def test_candidates_are_stopped_in_any_unit() -> None:
    rng = np.random.default_rng(0)
    difficulty = rng.exponential(1e-14, 2000)
    errors, incumbent = ((share * difficulty).astype(np.float32) for share in (1.5, 1.0))
    assert _score_early(errors, incumbent, rng).stopped


@pytest.mark.parametrize(
    ("targets", "reason"),
    [
        (["cat", "dog"], "needs numbers"),
        ([1.0, None], "row 1 .from 0. has the value None"),
        ([1.0, float("nan")], "must be finite"),
        ([[1.0, 2.0], [1.0]], "need the same number"),
        ([2.0, 2.0], "nothing to learn"),
        ([1e39, 1.0], r"row 0 .from 0. has the value 1e\+39: .* at most 1e\+36 in size"),
        ([10**400, 1], "at most 1e"),
        ([1.7e9, 1.7e9 + 60], "deviation of 30 around 1700000030, .*by up to .*subtract its mean"),
        ([1.7e9 + i for i in range(3600)], "subtract its mean first"),
        ([1e-40, 2e-40], "smaller unit"),
    ],
)
def test_invalid_targets_are_refused(targets: list[object], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        Regression().targets("Data set 'x'", {"train": targets}, None)


def test_each_value_requires_a_name() -> None:
    with pytest.raises(DataError, match="2 names for 1 values per image"):
        Regression().targets("Data set 'x'", {"train": [1.0, 2.0]}, ["width", "height"])


@pytest.mark.parametrize("unit", [1e-30, 1.0, 1e30])
def test_targets_in_any_unit_are_unchanged(unit: float) -> None:
    values = [unit * value for value in (100.0, 101.0, 103.0)]
    targets, names = Regression().targets("Data set 'x'", {"train": values}, None)
    assert targets["train"].dtype == np.float32
    assert targets["train"][:, 0].tolist() == [float(np.float32(value)) for value in values]
    assert names == ("value",)


@pytest.mark.parametrize(("split", "enough"), [("validation", 0.01), ("test", 0.01)])
def test_error_for_tiny_split_gives_sufficient_fraction(split: str, enough: float) -> None:
    config = DatasetConfig("digit_angles", task="regression", **{split: 0.0004})  # type: ignore[arg-type]
    with pytest.raises(DataError, match=rf"{split} split has 1 image;.*dataset.{split}={enough} "):
        load_data(config, 16, NullProgress())
    assert len(load_data(replace(config, **{split: enough}), 16, NullProgress()).validation) > 1  # type: ignore[arg-type]


def test_embedded_angles_are_deterministic() -> None:
    config = DatasetConfig("digit_angles", task="regression", validation=0.25)
    first, second = (load_data(config, 16, NullProgress()) for _ in range(2))
    assert first.digest == second.digest
    assert first.train.targets.shape == (len(first.train), 1)
    assert float(first.train.targets.abs().max()) <= 60
    assert first.signature.n_outputs == 1
    for name, other in (("digit_angles", "classification"), ("digits", "regression")):
        with pytest.raises(ConfigError, match=f"dataset={name} is for"):
            load_data(DatasetConfig(name, task=other), 16, NullProgress())


def test_value_that_is_constant_after_the_split_is_refused() -> None:
    targets = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]], np.float32)
    with pytest.raises(DataError, match="'defects' is the same for all images of the training"):
        Regression().task(("size", "defects"), targets)
    targets[1, 1] = 1.0
    assert Regression().task(("size", "defects"), targets).n_outputs == 2
