"""What is known of candidates beside choices and costs: read where it is given, and only there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from numpy.typing import NDArray

from hwnas.core.errors import ConfigError
from hwnas.core.progress import NullProgress
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.nas import loop
from hwnas.nas.candidates import Candidate
from hwnas.nas.options import SamplerConfig
from hwnas.nas.pareto.sampler import ParetoSampler
from hwnas.nas.study import LocalStudy
from hwnas.tasks.metrics.budget import Budget
from hwnas.workflows.config import TabularConfig
from tests.conftest import few_of
from tests.nas.fakes import SizeAccuracy, SizeCost, size
from tests.nas.pareto.test_pareto_sampler import LARGE, SMALL, accuracy, latency

Assignment = Mapping[str, Any]
OBJECTIVES = ("accuracy", "latency_ms")


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


@dataclass
class _Digits:
    """Knowledge of genotypes: their last digits, which are the noise of ``SizeAccuracy``."""

    asked: list[str] = field(default_factory=list)

    def features(self, genotype: Genotype) -> Sequence[float]:
        self.asked.append(genotype.id)
        return [float(int(genotype.id, 16) % 50), float(size(genotype))]

    def scores(self, genotype: Genotype) -> Mapping[str, float]:
        return {"digits": float(int(genotype.id, 16) % 50)}


def _search(space: SearchSpace, path: Path, n: int, cost: SizeCost) -> list[Candidate]:
    study = LocalStudy(path, space, OBJECTIVES)
    limit = Budget({"latency_ms": size(space.largest()) - 6})
    problem = loop.SearchProblem(space, limit, cost, SizeAccuracy(), _Digits())
    try:
        config = SamplerConfig("pareto", n_startup_trials=8)
        return list(loop.run_trials(problem, study, config, 0, n, NullProgress()))
    finally:
        study.close()


@pytest.mark.parametrize("max_cost_queries", few_of([6, None], 1))
def test_search_with_features_goes_on_as_if_it_had_not_been_cut_off(
    tiny: SearchSpace, tmp_path: Path, max_cost_queries: int | None
) -> None:
    def part(name: str, n: int) -> list[Candidate]:
        return _search(tiny, tmp_path / name, n, SizeCost(max_cost_queries=max_cost_queries))

    whole = part("whole.db", 30)
    for n in (3, 17):
        part("cut.db", n)
    assert part("cut.db", 30) == whole
    for candidate in whole:
        row = candidate.row(tiny, "accuracy")
        noise = float(int(candidate.id, 16) % 50)
        assert row.get("digits") == (None if candidate.reason else noise)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": ["synflo"]}, "Did you mean 'synflow'"),
        ({"features": ["macs"], "name": "tpe"}, "only sampler=pareto reads features"),
        ({"features": ["macs", "macs"]}, "must be different"),
    ],
)
def test_features_that_cannot_be_read_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SamplerConfig(**options)


def test_table_has_no_networks_to_read_features_from() -> None:
    with pytest.raises(ConfigError, match="there are no networks"):
        TabularConfig(sampler=SamplerConfig(features=["macs"]))
