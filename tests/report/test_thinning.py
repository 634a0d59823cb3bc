import random

from hwnas.figure import Figure
from hwnas.report.page import RunStory, render
from hwnas.report.thinning import thinned
from hwnas.results import Candidate
from hwnas.space import Genotype
from hwnas.target import Budget

OBJECTIVES = ("accuracy", "latency_ms")


def _candidate(trial: int, accuracy: float, latency: float) -> Candidate:
    figures = {"accuracy": Figure(accuracy, "measured"), "latency_ms": Figure(latency, "modelled")}
    return Candidate(trial, Genotype("s", (("n", trial),)), figures)


def _cloud(n: int) -> list[Candidate]:
    rng = random.Random(0)
    return [_candidate(i, 0.8 * rng.random(), 1000 * (1 + rng.random())) for i in range(n)]


FRONT = [_candidate(10_000, 0.9, 1000.0), _candidate(10_001, 0.85, 900.0)]


def _distance(candidate: Candidate) -> float:
    """Return how far all figures of a candidate of ``_cloud`` are from those of some member."""
    a, ms = (candidate.figures[name].value for name in OBJECTIVES)
    members = [[c.figures[name].value for name in OBJECTIVES] for c in FRONT]
    return min(max((x - a) / 0.8, (ms - y) / 1000) for x, y in members)


def test_few_are_all_kept() -> None:
    cloud = _cloud(50)
    assert thinned(cloud, FRONT, OBJECTIVES, 50) is cloud
    assert thinned([], FRONT, OBJECTIVES, 50) == []


def test_of_many_the_nearest_and_an_even_share_are_kept_in_their_order() -> None:
    cloud = _cloud(2_000)
    kept = thinned(cloud, FRONT, OBJECTIVES, 200)
    trials = [c.trial for c in kept]
    assert len(kept) == 200
    assert trials == sorted(set(trials))
    by_distance = sorted(cloud, key=_distance)
    assert {c.trial for c in by_distance[:95]} <= {*trials}  # 100, but for how ranges are measured
    far = {c.trial for c in by_distance[1_000:]} & {*trials}
    assert 30 < len(far) < 75  # of 100 of which 53 in 100 are expected to be far
    assert kept == thinned(cloud, FRONT, OBJECTIVES, 200)


def test_without_a_front_an_even_share_is_kept() -> None:
    kept = thinned(_cloud(1_000), [], OBJECTIVES, 10)
    assert [c.trial for c in kept] == [round(i * 111) for i in range(10)]


def test_page_of_many_stays_small_and_says_what_it_leaves_out() -> None:
    few, many = (
        render(RunStory("run", [], Budget(), OBJECTIVES), _cloud(n), []) for n in (5_000, 20_000)
    )
    assert "dominated candidates shown" not in few
    assert "5,000 of 20,000 dominated candidates shown" in many
    assert len(many) < 1.01 * len(few)
