import random
from dataclasses import replace

import pytest

from hwnas.core.errors import ConfigError
from hwnas.core.quantity import Quantity
from hwnas.models.spaces import Genotype
from hwnas.nas import explanation
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import pareto_front
from hwnas.nas.trial_attributes import Proposal

OBJECTIVES = ("accuracy", "latency_ms")


def _candidate(trial: int, name: str, accuracy: float, latency: float) -> Candidate:
    figures = {
        "accuracy": Quantity(accuracy, "measured"),
        "latency_ms": Quantity(latency, "modelled"),
    }
    return Candidate(trial, Genotype("s", (("name", name),)), figures)


def _infeasible(trial: int, name: str) -> Candidate:
    figures = {"latency_ms": Quantity(9.0, "modelled")}
    return Candidate(trial, Genotype("s", (("name", name),)), figures, {}, "over budget")


A = _candidate(0, "a", 0.80, 2.0)
B = _candidate(1, "b", 0.70, 1.0)
C = _candidate(2, "c", 0.60, 3.0)
D = _infeasible(3, "d")
E = _candidate(4, "e", 0.85, 1.5)  # beats a and c, not b
B_AGAIN = _candidate(5, "b", 0.70, 1.0)
F = _candidate(6, "f", 0.86, 1.4)  # beats e, a and c
G = _candidate(7, "g", 0.70, 1.0)  # as good as b, and later
ALL = [A, B, C, D, E, B_AGAIN, F, G]


def _explain(candidate: Candidate) -> explanation.Explanation:
    return explanation.explain(ALL, candidate.id, OBJECTIVES)


def test_candidate_removed_from_front_names_its_successor() -> None:
    explained = _explain(E)
    assert explained.before is not None
    assert explained.before.n_others == 3
    assert explained.before.beaten == [A, C]
    assert explained.before.beaten_by == []
    assert explained.displaced == [A]  # c was not on the front
    assert explained.now is not None
    assert explained.now.beaten_by == [F]
    assert explained.removed_by == F
    assert not explained.on_front
    assert explained.neighbours == (None, None)


def test_candidate_dominated_from_start_names_dominators() -> None:
    explained = _explain(C)
    assert explained.before is not None
    assert explained.now is not None
    assert explained.before.beaten_by == [A, B]
    assert explained.displaced == []
    assert explained.removed_by is None  # it was not on the front
    # first b and f, which are on the front; then the others by distance
    assert [c.trial for c in explained.now.beaten_by] == [1, 6, 0, 4, 7]


def test_front_member_has_neighbours_and_trials() -> None:
    explained = _explain(B)
    assert explained.on_front
    assert explained.trials == [1, 5]
    assert explained.front == [B, F]
    assert explained.neighbours == (None, F)
    assert _explain(F).neighbours == (B, None)


def test_first_of_equal_candidates_is_on_front() -> None:
    explained = _explain(G)
    assert explained.now is not None
    assert explained.now.beaten_by == [B]
    assert not explained.on_front


def test_infeasible_candidate_is_not_compared() -> None:
    explained = _explain(D)
    assert explained.before is explained.now is None
    assert not explained.on_front


def test_candidate_that_target_cannot_run_is_not_compared() -> None:
    only_a = Candidate(1, Genotype("s", (("name", "x"),)), {"accuracy": Quantity(0.9, "measured")})
    candidates = [A, only_a, E]
    explained = explanation.explain(candidates, only_a.id, OBJECTIVES)
    assert explained.before is explained.now is None
    assert not explained.on_front
    other = explanation.explain(candidates, E.id, OBJECTIVES)
    assert other.before is not None
    assert (other.before.n_others, other.before.beaten, other.displaced) == (1, [A], [A])
    assert other.on_front


def test_non_dominated_candidates_are_on_front() -> None:
    rng = random.Random(0)
    candidates = [
        _candidate(i, str(i), rng.randrange(12) / 12, float(rng.randrange(12))) for i in range(80)
    ]
    front = {c.id for c in pareto_front(candidates, OBJECTIVES)}
    for candidate in candidates:
        explained = explanation.explain(candidates, candidate.id, OBJECTIVES)
        assert explained.on_front == (candidate.id in front)


def test_earlier_front_equals_front_of_shorter_search() -> None:
    rng = random.Random(1)
    candidates = [_candidate(i, str(i), rng.random(), rng.random()) for i in range(40)]
    on_front: set[str] = set()
    for i, candidate in enumerate(candidates):
        explained = explanation.explain(candidates, candidate.id, OBJECTIVES)
        assert explained.before is not None
        on_front -= {c.id for c in explained.displaced}
        on_front |= set() if explained.before.beaten_by else {candidate.id}
        assert on_front == {c.id for c in pareto_front(candidates[: i + 1], OBJECTIVES)}


def test_id_may_be_abbreviated() -> None:
    assert explanation.find(ALL, A.id) == A.id
    assert explanation.find(ALL, A.id[:8]) == A.id


def test_error_for_unknown_id_names_similar_ids() -> None:
    misspelt = A.id[:-1] + ("0" if A.id[-1] != "0" else "1")
    with pytest.raises(ConfigError, match=f"none of 7 candidates has this id. Similar ids: {A.id}"):
        explanation.find(ALL, misspelt)
    many = [_candidate(i, str(i), 0.5, 1.0) for i in range(200)]
    with pytest.raises(ConfigError, match=rf"id={many[0].id[0]}: \d+ candidates start with it"):
        explanation.find(many, many[0].id[0])


def test_interval_coverage_counts_scored_candidates() -> None:
    proposals = {c.trial: Proposal("startup") for c in ALL}
    for candidate, interval in ((A, (0.7, 0.9)), (B, (0.75, 0.9)), (D, (0.1, 0.9))):
        proposals[candidate.trial] = Proposal("gain", expected=(0.8, *interval))
    assert explanation.n_within_intervals(ALL, proposals) == (1, 2)
    # Candidates stopped early count, too.
    stopped = replace(C, trial=8, genotype=Genotype("s", (("name", "h"),)), stopped=True)
    proposals[8] = Proposal("gain", expected=(0.8, 0.7, 0.9))
    assert explanation.n_within_intervals([*ALL, stopped], proposals) == (1, 3)
