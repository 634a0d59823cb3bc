"""What is known of candidates beside choices and costs: read where it is given, and only there."""

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


def _puzzle(a: Assignment) -> float:
    """Return an accuracy that says nothing of what it depends on: nor do counts of options."""
    rng = np.random.default_rng([*str(sorted(a.items())).encode()])
    return float(0.5 + 0.49 * rng.random())


@dataclass
class _Told:
    """Features that are counted."""

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
def test_features_are_asked_of_a_shortlist_and_of_what_was_evaluated(
    space: Mapping[str, Any],
) -> None:
    told = _Told(accuracy)
    _study(ParetoSampler(_costs, features=told), space, accuracy, 22)
    assert told.batches
    assert max(told.batches) <= 40


@pytest.mark.slow
def test_feature_that_tells_the_accuracy_finds_what_choices_cannot_tell() -> None:
    def found(sampler: ParetoSampler) -> float:
        trials = _study(sampler, SMALL, _puzzle, 40).trials[16:]
        return float(np.mean([trial.values[0] for trial in trials]))

    alone = found(ParetoSampler(_costs, seed=1))
    informed = found(ParetoSampler(_costs, seed=1, features=_Told(_puzzle)))
    assert informed > alone + 0.05


def test_before_there_is_a_model_nothing_is_asked() -> None:
    told = _Told(accuracy)
    alone = _study(ParetoSampler(_costs), SMALL, accuracy, 10)
    informed = _study(ParetoSampler(_costs, features=told), SMALL, accuracy, 10)
    assert [t.params for t in alone.trials] == [t.params for t in informed.trials]
    assert told.batches == []
