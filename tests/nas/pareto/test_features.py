"""Features beyond choices and costs are computed only where they are needed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optuna
import pytest
from numpy.typing import NDArray

from hwnas.nas.pareto.sampler import ParetoSampler
from tests.nas.pareto.test_pareto_sampler import LARGE, SMALL, accuracy, latency

Assignment = Mapping[str, Any]


def _random_accuracy(a: Assignment) -> float:
    """Return an accuracy that choices and counts of options do not predict."""
    rng = np.random.default_rng([*str(sorted(a.items())).encode()])
    return float(0.5 + 0.49 * rng.random())


@dataclass
class _CountingFeatures:
    """Features that record the sizes of their batches."""

    feature: Any
    batches: list[int] = field(default_factory=list)

    def __call__(self, assignments: Sequence[Assignment]) -> NDArray[np.float64]:
        self.batches.append(len(assignments))
        return np.array([[self.feature(a)] for a in assignments])


def _study(sampler: ParetoSampler, space: Mapping[str, Any], value: Any, n: int) -> optuna.Study:
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    for _ in range(n):
        trial = study.ask(dict(space))
        study.tell(trial, [value(trial.params), latency(trial.params)])
    return study


def _costs(assignments: Sequence[Assignment]) -> NDArray[np.float64]:
    return np.array([[latency(a)] for a in assignments])


@pytest.mark.parametrize("space", [SMALL, LARGE])
def test_features_are_computed_for_shortlist_and_trials(
    space: Mapping[str, Any],
) -> None:
    features = _CountingFeatures(accuracy)
    _study(ParetoSampler(_costs, features=features), space, accuracy, 22)
    assert features.batches
    assert max(features.batches) <= 40


@pytest.mark.slow
def test_informative_feature_improves_search_result() -> None:
    def mean_accuracy(sampler: ParetoSampler) -> float:
        trials = _study(sampler, SMALL, _random_accuracy, 40).trials[16:]
        return float(np.mean([trial.values[0] for trial in trials]))

    without = mean_accuracy(ParetoSampler(_costs, seed=1))
    informed = mean_accuracy(
        ParetoSampler(_costs, seed=1, features=_CountingFeatures(_random_accuracy))
    )
    assert informed > without + 0.05


def test_features_are_not_computed_before_model_exists() -> None:
    features = _CountingFeatures(accuracy)
    without = _study(ParetoSampler(_costs), SMALL, accuracy, 10)
    informed = _study(ParetoSampler(_costs, features=features), SMALL, accuracy, 10)
    assert [t.params for t in without.trials] == [t.params for t in informed.trials]
    assert features.batches == []
