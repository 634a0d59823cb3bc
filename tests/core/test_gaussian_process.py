import numpy as np
import pytest
from scipy import optimize

from hwnas.core.gaussian_process import Surrogate, fit_hyperparameters
from hwnas.nas.pareto.features import ChoiceFeatures

CHOICES = {"a": ("x", "y", "z"), "b": ("x", "y", "z"), "k": (3, 5, 7), "only": (1,)}


def test_features_keep_order_and_equality() -> None:
    features = ChoiceFeatures(CHOICES)
    rows = features(
        [
            {"a": "x", "b": "y", "k": 3, "only": 1},
            {"a": "y", "b": "x", "k": 5, "only": 1},
            {"a": "x", "b": "y", "k": 7, "only": 1},
        ]
    )
    assert rows.shape == (3, 3 + 3 + 1 + 3)
    assert rows[:, 6].tolist() == [0.0, 0.5, 1.0]
    assert rows[0, 7:] == pytest.approx(rows[1, 7:])  # as often x as y
    assert np.sum((rows[0, :3] - rows[1, :3]) ** 2) == pytest.approx(1.0)  # as far as 0 from 1


def test_inactive_choice_differs_from_all_options() -> None:
    features = ChoiceFeatures({"n": (1, 2, 3), "c": ("x", "y")}, optional=("n", "c"))
    absent, *present = features([{}, *({"n": n, "c": c} for n in (1, 2, 3) for c in ("x", "y"))])
    assert all(np.abs(absent - row).max() > 0.5 for row in present)


def _smooth(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.sin(3 * x[:, 0]) + 0.5 * x[:, 1] ** 2)


@pytest.mark.parametrize("n_summary", [0, 2, 4])
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_gradient_matches_numeric_gradient(
    seed: int, noisy: bool, n_summary: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(15, 4))
    x[:, 3] = 0.5  # a constant feature
    x[14] = x[13]  # the same candidate again
    stds = rng.uniform(0, 0.5, 15) if noisy else None
    checked = []

    def check(loss, first, **options):  # type: ignore[no-untyped-def]
        for _ in range(3):
            point = first + rng.normal(0, 0.7, len(first))
            numeric = optimize.approx_fprime(point, lambda v: loss(v)[0], 1e-6)
            assert loss(point)[1] == pytest.approx(numeric, rel=1e-3, abs=1e-3)
            checked.append(point)
        return optimize.OptimizeResult(x=first)

    monkeypatch.setattr(optimize, "minimize", check)
    fitted = fit_hyperparameters(x, _smooth(x) + rng.normal(0, 0.05, 15), stds, n_summary)
    assert len(checked) == 3
    assert len(fitted.lengths) == 4


def test_irrelevant_feature_has_long_length_scale() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(60, 5))
    lengths = fit_hyperparameters(x, _smooth(x)).lengths
    assert lengths[0] < lengths[1] < lengths[2:].min()


def test_summary_features_improve_fit_to_few_candidates() -> None:
    """The count of an option has a large effect, its position a small one."""
    choices = {f"edge_{i}": ("x", "y", "z") for i in range(6)}
    features = ChoiceFeatures(choices)
    errors, coverage = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        options = rng.integers(0, 3, (230, 6))
        position_effects = rng.normal(0, 0.1, (6, 3))
        count = (options == 0).sum(axis=1)
        y = np.sqrt(count) + position_effects[np.arange(6), options].sum(axis=1)
        x = features(
            [dict(zip(choices, np.array(["x", "y", "z"])[o], strict=True)) for o in options]
        )
        models = [
            Surrogate(x[:30], y[:30], fit_hyperparameters(x[:30], y[:30], None, n)) for n in (0, 3)
        ]
        (plain_mean, _), (mean, std) = [model.predict(x[30:]) for model in models]
        errors.append([np.std(y[30:] - plain_mean), np.std(y[30:] - mean)])
        coverage.append(np.mean(np.abs(y[30:] - mean) < 1.96 * std))
    assert features.n_shares == 3
    without, with_summary = np.mean(errors, axis=0)
    assert with_summary < 0.8 * without
    assert np.mean(coverage) > 0.85


@pytest.mark.parametrize("constant", [slice(0, 3), slice(3, 5)])
def test_uninformative_summary_is_not_used(constant: slice) -> None:
    rng = np.random.default_rng(4)
    x = rng.uniform(size=(30, 5))
    x[:, constant] = 0.5
    y = np.sin(4 * x).sum(axis=1)
    with_summary, without = fit_hyperparameters(x, y, None, 2), fit_hyperparameters(x, y)
    assert with_summary.n_summary == 0
    assert with_summary.lengths == pytest.approx(without.lengths)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_prediction_is_calibrated(noise: float) -> None:
    coverage, ratios = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        x, new = rng.uniform(size=(40, 3)), rng.uniform(size=(200, 3))
        y = _smooth(x) + rng.normal(0, noise, 40)
        mean, std = Surrogate(x, y, fit_hyperparameters(x, y)).predict(new)
        coverage.append(np.mean(np.abs(_smooth(new) - mean) < 1.96 * std))
        ratios.append(np.std(_smooth(new) - mean) / np.std(_smooth(new)))
    assert np.mean(coverage) > 0.85
    assert np.mean(ratios) < (0.1 if noise == 0 else 0.25)


def test_noiseless_observations_are_interpolated() -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(size=(30, 2))
    y = _smooth(x)
    mean, std = Surrogate(x, y, fit_hyperparameters(x, y)).predict(x)
    assert mean == pytest.approx(y, abs=0.02)
    assert std.max() < 0.1


def test_equal_values_are_fitted() -> None:
    x = np.eye(5)
    mean, std = Surrogate(x, np.ones(5), fit_hyperparameters(x, np.ones(5))).predict(x)
    assert mean == pytest.approx(1.0)
    assert np.isfinite(std).all()


def test_imprecise_observations_have_less_weight() -> None:
    errors = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x, new = rng.uniform(size=(60, 2)), rng.uniform(size=(200, 2))
        stds = np.where(np.arange(60) % 2, 0.01, 1.0)
        y = _smooth(x) + rng.normal(0, stds)
        fit_with_stds, fit_without = fit_hyperparameters(x, y, stds), fit_hyperparameters(x, y)
        with_stds = Surrogate(x, y, fit_with_stds, stds).predict(new)[0]
        without = Surrogate(x, y, fit_without).predict(new)[0]
        errors.append([np.std(_smooth(new) - with_stds), np.std(_smooth(new) - without)])
    error_with_stds, error_without = np.mean(errors, axis=0)
    assert error_with_stds < 0.5 * error_without


def test_observed_shrinks_noisy_values_to_the_mean() -> None:
    rng = np.random.default_rng(2)
    x = rng.uniform(size=(50, 2))
    stds = np.where(np.arange(50) < 5, 0.0, 0.3)
    y = _smooth(x) + rng.normal(0, stds)
    model = Surrogate(x, y, fit_hyperparameters(x, y, stds), stds)
    mean, std = model.observed()
    assert mean[:5] == pytest.approx(y[:5])
    assert std[:5] == pytest.approx(0.0)
    assert np.std(mean[5:] - _smooth(x)[5:]) < 0.5 * np.std(y[5:] - _smooth(x)[5:])
    draws = model.sample(4000, rng)
    assert draws.shape == (4000, 50)
    assert draws.mean(axis=0) == pytest.approx(mean, abs=0.02)
    assert draws.std(axis=0) == pytest.approx(std, abs=0.01)


def test_repeated_observations_are_pooled() -> None:
    """Each candidate has a random effect that no feature explains, observed twice."""
    x = np.repeat(np.random.default_rng(3).uniform(size=(20, 2)), 2, axis=0)
    effect = np.repeat(np.random.default_rng(4).normal(0, 1, 20), 2)
    y = effect + np.random.default_rng(5).normal(0, 0.2, 40)
    stds = np.full(40, 0.2)
    mean, std = Surrogate(x, y, fit_hyperparameters(x, y, stds), stds).observed()
    assert mean[::2] == pytest.approx(mean[1::2], abs=1e-5)
    assert mean[::2] == pytest.approx((y[::2] + y[1::2]) / 2, abs=0.1)
    assert std == pytest.approx(0.2 / np.sqrt(2), abs=0.02)
