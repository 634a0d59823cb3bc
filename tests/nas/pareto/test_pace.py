"""How long trials take, and that gains count by the second where time is the limit."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from hwnas.core.progress import NullProgress
from hwnas.models import families
from hwnas.models.graph import Signature
from hwnas.models.spaces import SearchSpace
from hwnas.nas import loop
from hwnas.nas.options import SamplerConfig
from hwnas.nas.pareto.models import DurationModel, learned
from hwnas.nas.pareto.sampler import ParetoSampler
from hwnas.nas.study import LocalStudy
from hwnas.nas.trial_attributes import read_proposal
from hwnas.tasks.metrics.budget import Budget
from tests.nas.fakes import SizeAccuracy, SizeCost

Assignment = Mapping[str, Any]
Array = NDArray[np.float64]
SPACE: dict[str, BaseDistribution] = {
    "depth": IntDistribution(1, 12),
    "kind": CategoricalDistribution(["quick", "slow"]),
    "width": IntDistribution(1, 6),
}


def _work(assignments: Sequence[Assignment]) -> Array:
    return np.array([[a["macs"], a["layers"]] for a in assignments], np.float64)


def _networks(n: int, seed: int = 0) -> list[Assignment]:
    rng = np.random.default_rng(seed)
    rows = zip(rng.lognormal(15, 1, n).tolist(), rng.integers(3, 20, n).tolist(), strict=True)
    return [{"macs": macs, "layers": layers} for macs, layers in rows]


def _seconds(networks: Sequence[Assignment]) -> Array:
    return np.array([0.6 + 7e-7 * a["macs"] + 0.07 * a["layers"] for a in networks])


def test_what_trials_take_is_learned_from_others() -> None:
    known, others = _networks(12), _networks(50, seed=1)
    noise = np.random.default_rng(2).lognormal(0, 0.1, 12)
    pace = DurationModel(_work, known, _seconds(known) * noise)
    assert np.median(np.abs(pace(others) / _seconds(others) - 1)) < 0.1


def test_networks_that_were_trained_before_leave_the_others_as_they_are() -> None:
    known = _networks(16)
    seconds = _seconds(known)
    seconds[:3] = 0.05
    pace = DurationModel(_work, known, seconds)
    assert np.median(np.abs(pace(known[3:]) / seconds[3:] - 1)) < 0.25


def test_nothing_is_expected_to_be_faster_than_all_before() -> None:
    known = _networks(8)
    pace = DurationModel(_work, known, np.array([1e-6 * a["macs"] for a in known]))
    least = min(a["macs"] for a in known)
    tiny, larger = pace([{"macs": 1.0, "layers": 1}, {"macs": 10 * least, "layers": 1}])
    assert tiny == pytest.approx(1e-6 * least, rel=1e-3)
    assert larger == pytest.approx(1e-5 * least, rel=1e-3)


def test_work_that_makes_nothing_slower_counts_for_nothing() -> None:
    known = [{"macs": 1e6, "layers": layers} for layers in range(4, 13)]
    seconds = np.linspace(5.0, 4.0, 9)
    assert np.ptp(DurationModel(_work, known, seconds)(known)) < 1e-6


def test_of_few_trials_nothing_is_learned() -> None:
    known = _networks(6)
    seconds = _seconds(known)
    assert learned(None, known, seconds) is None
    assert learned(_work, known, seconds) is not None
    seconds[:2] = np.nan
    assert learned(_work, known, seconds) is None


def _quality(a: Assignment) -> float:
    """Return an accuracy: what is slow to train is hardly better than what is quick."""
    return float(1 - 0.5 * np.exp(-0.15 * a["depth"]) + 0.002 * (a["kind"] == "slow"))


def _latency(assignments: Sequence[Assignment]) -> Array:
    return np.array([[a["depth"] + 0.01 * a["width"]] for a in assignments])


def _hundredfold(assignments: Sequence[Assignment]) -> Array:
    return np.array([[100.0 if a["kind"] == "slow" else 1.0] for a in assignments])


def _slow(sampler: ParetoSampler, n: int = 40) -> int:
    """Return how many slow candidates a sampler proposed after its first trials."""
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    for _ in range(n):
        trial = study.ask(SPACE)
        study.tell(trial, [_quality(trial.params), float(_latency([trial.params])[0, 0])])
        # As if it had taken so long: Optuna gives out what its storage holds.
        (own,) = study._storage.get_all_trials(study._study_id, False)[-1:]
        assert own.datetime_start is not None
        took = timedelta(seconds=float(_hundredfold([trial.params])[0, 0]))
        own.datetime_complete = own.datetime_start + took
    return sum(trial.params["kind"] == "slow" for trial in study.trials[10:])


def test_sampler_looks_for_gains_for_each_second() -> None:
    patient = _slow(ParetoSampler(_latency))
    assert _slow(ParetoSampler(_latency, work=_hundredfold)) < patient / 2


@pytest.mark.slow
@pytest.mark.parametrize("limit_s", [3600.0, float("inf")])
def test_search_counts_by_the_second_where_the_time_is_limited(
    tiny: SearchSpace, tmp_path: Path, limit_s: float
) -> None:
    def lower(genotype: Any) -> Any:
        return families.get(tiny.family).lower(tiny, genotype, Signature(1, 10))

    problem = loop.SearchProblem(tiny, Budget(), SizeCost(), SizeAccuracy(), lower=lower)
    study = LocalStudy(tmp_path / "study.db", tiny, ("accuracy", "latency_ms"))
    config = SamplerConfig(n_startup_trials=8)
    try:
        loop.run_trials(problem, study, config, 0, 14, NullProgress(), limit_s)
        trials = study._file.get_trials(deepcopy=False)
    finally:
        study.close()
    proposals = [read_proposal(trial.system_attrs) for trial in trials]
    told = [p.seconds is not None for p in proposals if p.phase == "gain"]
    assert told
    assert all(told) if limit_s < float("inf") else not any(told)
