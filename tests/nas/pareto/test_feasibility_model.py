"""Limits that only a trial reveals, and refusals of a target, are learned."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
import pytest
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.trial import TrialState

from hwnas.nas.pareto.models import FeasibilityModel
from hwnas.nas.pareto.sampler import ParetoSampler
from hwnas.nas.trial_attributes import CANDIDATE

SPACE: dict[str, BaseDistribution] = {f"width{i}": IntDistribution(1, 4) for i in range(12)}
N = 30  # trials


def _size(assignment: Mapping[str, Any]) -> int:
    return sum(assignment.values())


def _accuracy(assignment: Mapping[str, Any]) -> float:
    bonus = 0.02 * (assignment["width3"] - assignment["width5"])
    return float(0.95 - 0.5 * np.exp(-0.05 * _size(assignment)) + bonus)


def _costs(assignments: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    return np.array([[float(_size(a))] for a in assignments])


@pytest.mark.parametrize("seed", [0, 2])
def test_lower_limit_of_accuracy_is_learned(seed: int) -> None:
    sampler = ParetoSampler(
        _costs, search_space=SPACE, seed=seed, n_startup=8, n_costs=None,
        summary=lambda a: [float(_size(a))],
    )  # fmt: skip
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    below = []
    for _ in range(N):
        trial = study.ask(SPACE)
        accuracy = _accuracy(trial.params)
        below.append(accuracy < 0.8)
        violation = [1.0 if below[-1] else -1.0]
        study._storage.set_trial_system_attr(trial._trial_id, "constraints", violation)
        study.tell(trial, [accuracy, float(_size(trial.params))])
    assert sum(below[N // 2 :]) <= 3


def test_refusals_of_target_are_learned() -> None:
    sampler = ParetoSampler(search_space=SPACE, seed=0, n_startup=8)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    refused = []
    for _ in range(N):
        trial = study.ask(SPACE)
        refused.append(trial.params["width3"] > 2)  # the most accurate ones
        if refused[-1]:
            study._storage.set_trial_system_attr(trial._trial_id, CANDIDATE, {"id": "refused"})
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, [_accuracy(trial.params), float(_size(trial.params))])
    assert sum(refused[N // 2 :]) <= 3


def test_feasibility_is_that_of_similar_candidates() -> None:
    rng = np.random.default_rng(0)
    features = rng.uniform(size=(60, 3))
    model = FeasibilityModel(features, features[:, 0] < 0.5, 0)
    new = rng.uniform(size=(200, 3))
    probability, fits = model(new), new[:, 0] < 0.5
    assert ((probability > 0.5) == fits).mean() > 0.9
    assert probability[new[:, 0] < 0.3].min() > 0.8
    assert probability[new[:, 0] > 0.7].max() < 0.2
