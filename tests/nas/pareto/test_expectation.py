"""Expected gains of candidates whose costs span a wide range."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from hwnas.nas.pareto.expectation import CostedCandidates, Expectation, History, Learner

Array = NDArray[np.float64]
N = 10  # trials


def _expectation(costs: Array, errors: Array) -> Expectation:
    """Return the model after trials whose only feature is the logarithm of their cost."""
    n = len(costs)
    logs, nothing = np.log(costs)[:, None], np.zeros(n)
    history = History(
        list(range(n)), [{}] * n, logs / 5, errors, costs[:, None],
        stds=nothing, surprises=np.full(n, np.nan), seconds=nothing, pending=[],
    )  # fmt: skip
    return Learner(N, 0).expectation(history, [], None, None)


def _gain(model: Expectation, cost: float) -> float:
    features = np.array([[np.log(cost) / 5]])
    return float(model.gains(CostedCandidates([{}], features, np.array([[cost]])))[0])


def test_errors_up_to_cheapest_candidate_are_useful() -> None:
    costs = np.geomspace(0.01, 10, N)
    costs[1:] = np.geomspace(1, 10, N - 1)  # nothing lies between the cheapest and the others
    errors = np.append(0.15, np.linspace(0.11, 0.05, N - 1))
    model = _expectation(costs, errors)
    assert model.by_ratio
    assert model.reference[0] < 0.15
    assert model.highest == pytest.approx(0.15)
    without = replace(model, highest=model.reference[0])
    assert _gain(model, 0.05) > 5 * max(_gain(without, 0.05), _gain(model, 5.0))


def test_cheap_useless_candidates_are_ignored() -> None:
    """They affect neither the range of costs nor the highest useful error."""
    costs, errors = np.geomspace(1, 10, N), np.linspace(0.11, 0.05, N)
    costs[0], errors[0] = 1e-4, 0.9
    model = _expectation(costs, errors)
    assert not model.by_ratio
    assert model.highest == errors[1]
    costs[1:] = np.geomspace(0.1, 10, N - 1)  # a wide range without the useless one
    assert _expectation(costs, errors).by_ratio


def test_narrow_range_of_costs_is_not_logarithmic() -> None:
    model = _expectation(np.linspace(1, 10, N), np.linspace(0.15, 0.05, N))
    assert not model.by_ratio


def test_constant_cost_does_not_hide_other_inputs() -> None:
    costs = np.append(np.full(N, 2.0), [2.2, 2.2])  # the last two are beyond what was known
    model = _expectation(costs, np.linspace(0.15, 0.05, N + 2))
    inputs = model.inputs(CostedCandidates([{}] * 2, np.zeros((2, 1)), costs[-3:-1, None]))
    assert 0 < np.ptp(inputs[:, 1]) < 1


def test_curiosity_alternates_between_proposals() -> None:
    models = [
        _expectation(np.geomspace(0.01, 10, n), np.linspace(0.15, 0.05, n)) for n in range(N, N + 4)
    ]
    (*three, fourth) = [model.curiosity for model in models]
    assert len(set(three)) == 3
    assert fourth == three[0]
    # Candidates far from all observations gain more with higher curiosity.
    curious = replace(models[0], curiosity=max(three))
    cautious = replace(models[0], curiosity=min(three))
    assert _gain(curious, 0.001) > _gain(cautious, 0.001)


def test_linear_trend_of_costs_is_bounded_near_zero() -> None:
    costs = np.geomspace(1, 10, N)
    model = _expectation(costs, np.linspace(0.15, 0.05, N))
    features = np.zeros((3, 1))
    known = CostedCandidates([{}] * 3, features, np.array([[0.0], [1e-9], [1e-2]]))
    assert np.isfinite(model.gains(known)).all()
    assert model.inputs(known)[0] == pytest.approx(model.inputs(known)[2])
