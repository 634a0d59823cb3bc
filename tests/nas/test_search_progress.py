import random

import numpy as np
import pytest

from hwnas.core.quantity import Quantity
from hwnas.models.spaces import SearchSpace
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import pareto_front
from hwnas.nas.search_progress import SearchProgress

OBJECTIVES = ("accuracy", "latency_ms", "energy_mj")


def candidates(space: SearchSpace, n: int, seed: int) -> list[Candidate]:
    """Return random candidates, some of them equal, infeasible or stopped."""
    rng, candidate_list = random.Random(seed), []
    for trial in range(n):
        values = (rng.randrange(100) / 100, rng.randrange(1, 30), rng.randrange(1, 30))
        figures = {
            name: Quantity(float(value), "modelled")
            for name, value in zip(OBJECTIVES, values, strict=True)
        }
        reason, stopped = rng.choice(["", "", "", "too slow"]), rng.random() < 0.1
        candidate = Candidate(trial, space.sample(rng), figures, {}, reason, stopped)
        candidate_list.append(candidate)
    return candidate_list


@pytest.mark.parametrize("objectives", [OBJECTIVES[:2], OBJECTIVES])
@pytest.mark.parametrize("step", [1, 7, 200])
def test_front_is_independent_of_batches(
    small: SearchSpace, objectives: tuple[str, ...], step: int
) -> None:
    candidate_list, search_progress = candidates(small, 200, 1), SearchProgress(objectives)
    for i in range(0, 200, step):
        search_progress.add(candidate_list[i : i + step])
    members, snapshot = pareto_front(candidate_list, objectives), search_progress.snapshot()
    assert snapshot.n == 200
    assert snapshot.n_feasible == sum(not c.reason for c in candidate_list)
    assert snapshot.n_front == len(members)
    assert snapshot.newest == max(c.trial for c in members)
    assert snapshot.highest in members
    accuracies = [c.figures["accuracy"].value for c in members]
    assert snapshot.highest is not None
    assert snapshot.highest.figures["accuracy"].value == max(accuracies)


def test_no_front_of_infeasible_candidates(small: SearchSpace) -> None:
    search_progress = SearchProgress(OBJECTIVES)
    assert np.isnan(search_progress.snapshot().feasible)
    search_progress.add([c for c in candidates(small, 50, 3) if c.reason])
    nothing = search_progress.snapshot()
    assert (nothing.n_front, nothing.newest, nothing.highest) == (0, None, None)
    assert nothing.feasible == 0
