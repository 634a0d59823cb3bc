"""Startup trials cover sizes; some violate a limit or are refused."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
import pytest
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import TrialState

from hwnas.nas.pareto.sampler import ParetoSampler
from hwnas.nas.trial_attributes import CANDIDATE

WIDTHS = {f"width{i}": IntDistribution(1, 4) for i in range(20)}
Assignment = Mapping[str, Any]


def _size(assignment: Assignment) -> int:
    return sum(value for name, value in assignment.items() if "width" in name)


def _summary(assignment: Assignment) -> list[float]:
    return [float(_size(assignment))]


def _run_startup(
    sampler: ParetoSampler,
    space: Mapping[str, BaseDistribution],
    n_trials: int,
    *,
    refused: Callable[[Assignment], bool] = lambda _: False,
    violating: Callable[[Assignment], bool] = lambda _: False,
) -> list[Assignment]:
    """Return the proposals, of which a target refuses some and others violate a limit."""
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    for _ in range(n_trials):
        trial = study.ask(dict(space))
        size = _size(trial.params)
        if refused(trial.params):
            study._storage.set_trial_system_attr(trial._trial_id, CANDIDATE, {"id": "refused"})
            study.tell(trial, state=TrialState.FAIL)
            continue
        violation = [1.0 if violating(trial.params) else -1.0]
        study._storage.set_trial_system_attr(trial._trial_id, "constraints", violation)
        study.tell(trial, [0.5 + size / 1000, float(size)])
    return [trial.params for trial in study.trials]


def test_refused_large_networks_are_avoided() -> None:
    sampler = ParetoSampler(search_space=WIDTHS, seed=0, n_startup=10, summary=_summary)
    results = _run_startup(sampler, WIDTHS, 12, refused=lambda a: _size(a) > 50)
    assert sum(_size(a) > 50 for a in results) <= 4
    assert max(_size(a) for a in results if _size(a) <= 50) >= 40


def test_space_that_target_refuses_is_left() -> None:
    space: dict[str, BaseDistribution] = {"space": CategoricalDistribution(["a", "b"])}
    space |= {f"{name}.width{i}": IntDistribution(1, 4) for name in "ab" for i in range(12)}

    def scope(assignment: Assignment) -> list[str]:
        return [n for n in space if n == "space" or n[0] == assignment["space"]]

    def active(assignment: Assignment) -> dict[str, Any]:
        return {name: assignment[name] for name in scope(assignment)}

    sampler = ParetoSampler(
        search_space=space, seed=0, n_startup=10, root="space", scope=scope, active=active,
        optional=[name for name in space if name != "space"],
        summary=lambda a: [float(_size(active(a)))],
    )  # fmt: skip
    results = _run_startup(sampler, space, 12, refused=lambda a: a["space"] == "a")
    assert sum(a["space"] == "b" for a in results) == 6


@pytest.mark.parametrize(("n_costs", "n_large"), [(None, 6), (40, 3)])
@pytest.mark.parametrize("seed", range(3))
def test_infeasible_choice_does_not_limit_sizes(
    seed: int, n_costs: int | None, n_large: int
) -> None:
    space = {**WIDTHS, "batch": CategoricalDistribution([1, 8])}

    def costs(assignments: Sequence[Assignment]) -> NDArray[np.float64]:
        values = [_size(a) if a["batch"] == 1 else np.nan for a in assignments]
        return np.array(values, np.float64)[:, None]

    sampler = ParetoSampler(
        costs, search_space=space, seed=seed, n_startup=20, n_costs=n_costs, summary=_summary
    )
    results = _run_startup(sampler, space, 16)
    assert all(a["batch"] == 1 for a in results)
    assert sum(_size(a) > 50 for a in results) >= n_large


def test_sizes_are_retried_after_unrelated_violations() -> None:
    space = {**WIDTHS, "batch": CategoricalDistribution([1, 8, 32])}
    sampler = ParetoSampler(search_space=space, seed=0, n_startup=20, summary=_summary)
    result = _run_startup(sampler, space, 20, violating=lambda a: a["batch"] != 1)
    assert _size(result[1]) == 80
    assert max(_size(a) for a in result[5:]) > 64


def test_sizes_that_violate_limit_are_avoided() -> None:
    sampler = ParetoSampler(search_space=WIDTHS, seed=0, n_startup=20, summary=_summary)
    results = _run_startup(sampler, WIDTHS, 20, violating=lambda a: _size(a) > 40)
    assert sum(_size(a) > 40 for a in results) <= 5
    assert max(_size(a) for a in results if _size(a) <= 40) >= 37
