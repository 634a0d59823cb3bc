"""Predicted duration of trials; with a time limit, gains are per second."""

import time
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


def test_durations_are_learned_from_other_trials() -> None:
    known, others = _networks(12), _networks(50, seed=1)
    noise = np.random.default_rng(2).lognormal(0, 0.1, 12)
    model = DurationModel(_work, known, _seconds(known) * noise)
    assert np.median(np.abs(model(others) / _seconds(others) - 1)) < 0.1


def test_cached_networks_do_not_bias_durations() -> None:
    known = _networks(16)
    seconds = _seconds(known)
    seconds[:3] = 0.05
    model = DurationModel(_work, known, seconds)
    assert np.median(np.abs(model(known[3:]) / seconds[3:] - 1)) < 0.25


def test_duration_is_at_least_the_fastest_observed() -> None:
    known = _networks(8)
    model = DurationModel(_work, known, np.array([1e-6 * a["macs"] for a in known]))
    least = min(a["macs"] for a in known)
    tiny, larger = model([{"macs": 1.0, "layers": 1}, {"macs": 10 * least, "layers": 1}])
    assert tiny == pytest.approx(1e-6 * least, rel=1e-3)
    assert larger == pytest.approx(1e-5 * least, rel=1e-3)


def test_irrelevant_work_does_not_affect_duration() -> None:
    known = [{"macs": 1e6, "layers": layers} for layers in range(4, 13)]
    seconds = np.linspace(5.0, 4.0, 9)
    assert np.ptp(DurationModel(_work, known, seconds)(known)) < 1e-6


def test_durations_of_few_trials_are_not_learned() -> None:
    known = _networks(6)
    seconds = _seconds(known)
    assert learned(None, known, seconds) is None
    assert learned(_work, known, seconds) is not None
    seconds[:2] = np.nan
    assert learned(_work, known, seconds) is None


def _quality(a: Assignment) -> float:
    """Return an accuracy that is hardly higher for slow networks."""
    return float(1 - 0.5 * np.exp(-0.15 * a["depth"]) + 0.002 * (a["kind"] == "slow"))


def _latency(assignments: Sequence[Assignment]) -> Array:
    return np.array([[a["depth"] + 0.01 * a["width"]] for a in assignments])


def _training_s(assignments: Sequence[Assignment]) -> Array:
    return np.array([[100.0 if a["kind"] == "slow" else 1.0] for a in assignments])


def _count_slow_proposals(sampler: ParetoSampler, n: int = 40) -> int:
    """Return the number of slow candidates proposed after the startup trials."""
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    for _ in range(n):
        trial = study.ask(SPACE)
        study.tell(trial, [_quality(trial.params), float(_latency([trial.params])[0, 0])])
        # Set the duration in Optuna's storage.
        (stored,) = study._storage.get_all_trials(study._study_id, False)[-1:]
        assert stored.datetime_start is not None
        duration = timedelta(seconds=float(_training_s([trial.params])[0, 0]))
        stored.datetime_complete = stored.datetime_start + duration
    return sum(trial.params["kind"] == "slow" for trial in study.trials[10:])


def test_sampler_maximises_gain_per_second() -> None:
    n_without_work = _count_slow_proposals(ParetoSampler(_latency))
    assert _count_slow_proposals(ParetoSampler(_latency, work=_training_s)) < n_without_work / 2


@pytest.mark.slow
@pytest.mark.parametrize("limit_s", [3600.0, float("inf")])
def test_search_with_time_limit_records_durations(
    tiny: SearchSpace, tmp_path: Path, limit_s: float
) -> None:
    def lower(genotype: Any) -> Any:
        return families.get(tiny.family).lower(tiny, genotype, Signature(1, 10))

    problem = loop.SearchProblem(tiny, Budget(), SizeCost(), SizeAccuracy(), lower=lower)
    study = LocalStudy(tmp_path / "study.db", tiny, ("accuracy", "latency_ms"))
    config = SamplerConfig(n_startup_trials=8)
    try:
        loop.run_trials(problem, study, config, 0, 14, NullProgress(), time.monotonic() + limit_s)
        trials = study._file.get_trials(deepcopy=False)
    finally:
        study.close()
    proposals = [read_proposal(trial.system_attrs) for trial in trials]
    has_duration = [p.seconds is not None for p in proposals if p.phase == "gain"]
    assert has_duration
    assert all(has_duration) if limit_s < float("inf") else not any(has_duration)
