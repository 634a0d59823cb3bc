"""Summary features of networks: for every family, and their use in a search."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import optuna
import pytest

from hwnas.core.gaussian_process import Surrogate, fit_hyperparameters
from hwnas.core.package import ROOT
from hwnas.models import families
from hwnas.models.graph import Graph, Node, OpSpec, Signature
from hwnas.models.spaces import Genotype, SearchSpace, find, load_space
from hwnas.nas.pareto.features import ChoiceFeatures, anatomy, summary_features, work_features
from hwnas.nas.pareto.sampler import ParetoSampler

SPACES = sorted(path.stem for path in (ROOT / "search_spaces").glob("*.yaml"))
SIGNATURE = Signature(3, 10)


def _lower(space: SearchSpace, genotype: Genotype) -> Graph:
    return families.family_of(space).lower(space, genotype, SIGNATURE)


def _small_graph() -> Graph:
    """Return a convolution of 8x8 pixels, a depthwise one of 4x4, and a classifier."""
    ops = (
        OpSpec("conv2d+bn+relu", (1, 8, 8), (4, 4, 4), kernel=3, stride=2),
        OpSpec("conv2d+bn", (4, 4, 4), (4, 4, 4), kernel=3, groups=4),
        OpSpec("mean", (4, 4, 4), (4, 1, 1)),
        OpSpec("linear", (4, 1, 1), (10, 1, 1)),
    )
    inputs = ("input", "a", "b", "c")
    return Graph.of(Node(n, op, (i,), 4) for n, op, i in zip("abcd", ops, inputs, strict=True))


def test_summary_features_match_network() -> None:
    n_macs = 16 * 4 * 9 + 16 * 4 * 9 + 40
    n_params = (36 + 4) + (36 + 4) + (40 + 10)
    features = [math.exp(value) for value in anatomy(_small_graph())[:15]]
    expected = [
        *(n_macs, n_params, 4, 64 + 64 + 10, 8),
        *(3, 2, 2),
        *(4, 4, 4, (9 * 9 * 4) ** (1 / 3)),
        *(4, 4, 4),
    ]
    assert features == pytest.approx(expected)
    assert anatomy(_small_graph())[15:] == pytest.approx([576 / n_macs, 576 / n_macs])


@pytest.mark.parametrize("name", SPACES)
def test_summary_features_of_shipped_space_are_finite(name: str) -> None:
    space = load_space(find(name))
    rows = np.array([anatomy(_lower(space, g)) for g in (space.smallest(), space.largest())])
    assert np.isfinite(rows).all()
    assert (rows[1, :2] > rows[0, :2]).all()  # work and weights


def test_network_is_lowered_once_per_active_assignment(tiny: SearchSpace) -> None:
    lowered_ids = []

    def lower(genotype: Genotype) -> Graph:
        lowered_ids.append(genotype.id)
        return _lower(tiny, genotype)

    summary, work = summary_features(tiny, lower), work_features(tiny, lower)
    full = {name: options[0] for name, options in tiny.choices.items()}
    active = tiny.assignment(tiny.genotype(full))
    assert summary(full) == summary(active)
    assert work([full, active]).shape == (2, 2)
    assert lowered_ids == [tiny.smallest().id] * 2


def test_summary_features_are_scaled_by_their_range() -> None:
    choices = {"n": (1, 2, 3), "m": (1, 2, 3)}

    def summary(a: Mapping[str, Any]) -> list[float]:
        return [1000.0 * a["n"] * a["m"], 7.0]

    features = ChoiceFeatures(choices, summary=summary)
    rows = features([{"n": n, "m": m} for n in (1, 2, 3) for m in (1, 2, 3)])
    assert features.n_shares == ChoiceFeatures(choices).n_shares + 2
    assert -0.5 < rows[:, -2].min() < 0.4
    assert 0.6 < rows[:, -2].max() < 1.5
    assert np.ptp(rows[:, -1]) == 0


@pytest.mark.parametrize("limit", [math.inf, 400.0])
def test_startup_trials_cover_sizes_within_limit(limit: float) -> None:
    space: dict[str, optuna.distributions.BaseDistribution] = {
        f"c{i}": optuna.distributions.IntDistribution(1, 4) for i in range(20)
    }
    costed = []

    def size(a: Mapping[str, Any]) -> float:
        return math.exp(sum(a.values()) / 8)

    def costs(assignments: Any) -> Any:
        costed.extend(assignments)
        return np.array([[size(a) if size(a) <= limit else math.nan] for a in assignments])

    sampler = ParetoSampler(
        costs, search_space=space, n_costs=12, summary=lambda a: [math.log(size(a)), 1.0]
    )
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    sizes = []
    for _ in range(8):
        trial = study.ask(space)
        sizes.append(size(trial.params))
        study.tell(trial, [0.5, sizes[-1]])
    assert max(sizes) <= limit
    logs = np.sort(np.log(sizes))
    low, high = 20 / 8, min(math.log(limit), 80 / 8)
    assert logs[0] == pytest.approx(low)
    assert logs[-1] > high - 1.2
    assert np.diff(logs).max() < 0.35 * (high - low)  # random candidates are of medium size
    assert len(costed) <= 8 * 17
    assert len({tuple(trial.params.values()) for trial in study.trials}) == 8


def test_startup_avoids_sizes_that_exceeded_limit() -> None:
    """Costs are measured: feasibility is unknown before a trial."""
    space: dict[str, optuna.distributions.BaseDistribution] = {
        f"c{i}": optuna.distributions.IntDistribution(1, 4) for i in range(20)
    }
    sampler = ParetoSampler(search_space=space, summary=lambda a: [float(sum(a.values()))])
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    sizes = []
    for _ in range(10):
        trial = study.ask(space)
        sizes.append(sum(trial.params.values()))
        over = [sizes[-1] - 35.0]
        study._storage.set_trial_system_attr(trial._trial_id, "constraints", over)
        study.tell(trial, [0.5, float(sizes[-1])])
    assert sizes[:2] == [20, 80]
    too_large = [size for size in sizes if size > 35]
    assert too_large == sorted(too_large, reverse=True)
    assert len(too_large) <= 5  # a random sampler has more


def test_inaccurate_small_networks_do_not_exclude_large() -> None:
    """The budget has a limit of accuracy: only large networks meet it."""
    space: dict[str, optuna.distributions.BaseDistribution] = {
        f"c{i}": optuna.distributions.IntDistribution(1, 4) for i in range(20)
    }

    def costs(assignments: Any) -> Any:
        return np.array([[float(sum(a.values()))] for a in assignments])

    sizes: dict[bool, list[int]] = {}
    for are_observed in (False, True):
        sampler = ParetoSampler(
            None if are_observed else costs,
            search_space=space,
            n_costs=None if are_observed else 12,
            summary=lambda a: [float(sum(a.values()))],
        )
        study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
        trial_sizes = sizes[are_observed] = []
        for _ in range(10):
            trial = study.ask(space)
            trial_sizes.append(sum(trial.params.values()))
            under = [40.0 - trial_sizes[-1]]
            study._storage.set_trial_system_attr(trial._trial_id, "constraints", under)
            study.tell(trial, [0.5, float(trial_sizes[-1])])
    assert sizes[False][:2] == [20, 80]
    assert all(sum(size > 60 for size in trial_sizes) >= 2 for trial_sizes in sizes.values())


def test_linear_trend_of_summary_extrapolates() -> None:
    """The predicted value grows beyond the largest observed network."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 0.5, (20, 8))
    y = 3 * x[:, -1] + rng.normal(0, 0.02, 20)
    beyond = np.vstack([x[:4]] * 2)
    beyond[:, -1] = np.repeat([0.5, 1.0], 4)
    near, far = (
        Surrogate(x, y, fit_hyperparameters(x, y, None, 2))
        .predict(beyond)[0]
        .reshape(2, 4)
        .mean(axis=1)
    )
    assert far - near == pytest.approx(1.5, abs=0.4)
    near, far = (
        Surrogate(x, y, fit_hyperparameters(x, y)).predict(beyond)[0].reshape(2, 4).mean(axis=1)
    )
    assert far - near < 1.0  # without summary features the prediction returns to the mean


@pytest.mark.slow
def test_summary_features_improve_search_result() -> None:
    """The work of a layer is the product of two widths, which no single choice determines."""
    options = (8, 16, 32, 64)
    choice = optuna.distributions.CategoricalDistribution(options)
    space: dict[str, optuna.distributions.BaseDistribution] = {f"c{i}": choice for i in range(12)}
    pixels = np.random.default_rng(0).uniform(0.2, 2.0, 11)

    def log_work(a: Mapping[str, Any]) -> float:
        return math.log(sum(n * a[f"c{i}"] * a[f"c{i + 1}"] for i, n in enumerate(pixels)))

    def latency(a: Mapping[str, Any]) -> float:
        return float(sum(a.values())) / 100

    def costs(assignments: Any) -> Any:
        return np.array([[latency(a)] for a in assignments])

    def mean_accuracy(seed: int, **summed: Any) -> float:
        sampler = ParetoSampler(costs, search_space=space, n_costs=12, seed=seed, **summed)
        study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
        for _ in range(20):
            trial = study.ask(space)
            accuracy = 1 - math.exp(-0.25 * log_work(trial.params))
            study.tell(trial, [accuracy, latency(trial.params)])
        rows = np.array([trial.values for trial in study.trials])
        # The mean accuracy of the front at several limits of latency.
        within = [rows[rows[:, 1] <= limit, 0] for limit in (1.2, 2.0, 3.0, 4.0, 5.0, 6.0)]
        return float(np.mean([part.max(initial=0.0) for part in within]))

    gains = [
        mean_accuracy(seed, summary=lambda a: [log_work(a)]) - mean_accuracy(seed)
        for seed in range(3)
    ]
    assert min(gains) > 0
    assert np.mean(gains) > 0.003
