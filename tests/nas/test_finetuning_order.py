import random
from dataclasses import replace

import numpy as np
import pytest

from hwnas.core.quantity import Quantity
from hwnas.models.spaces import SearchSpace
from hwnas.nas import candidates as columns
from hwnas.nas.candidates import Candidate
from hwnas.nas.front_probability import candidate_posteriors, space_filling_order
from hwnas.nas.search_progress import SearchView
from hwnas.tasks.intervals import proportion

VIEW = SearchView("", ("accuracy", "latency_ms"), {})


@pytest.fixture
def candidates(tiny: SearchSpace) -> list[Candidate]:
    """Return 30 networks whose noisy accuracies grow with their cost."""
    rng, noise = random.Random(0), np.random.default_rng(0)
    genotypes = list({g.id: g for g in (tiny.sample(rng) for _ in range(60))}.values())[:30]
    candidate_list = []
    for trial, genotype in enumerate(genotypes):
        cost = 0.1 + 0.02 * trial
        accuracy = proportion(
            round(1000 * (0.8 + 0.12 * cost + 0.01 * noise.standard_normal())), 1000
        )
        figures = {"accuracy": accuracy, "latency_ms": Quantity(cost, "modelled")}
        candidate_list.append(Candidate(trial, genotype, figures))
    return candidate_list


def test_most_probable_front_members_come_first(
    tiny: SearchSpace, candidates: list[Candidate]
) -> None:
    result = candidate_posteriors(tiny, candidates, VIEW, {})
    assert [c.id for c in result.candidates] == [c.id for c in candidates]
    chosen = result.most_probable(0.3)
    shares = [result.on_front[c.id] for c in chosen]
    assert shares == sorted(shares, reverse=True)
    assert min(shares) >= 0.3
    assert candidates[0].id in {c.id for c in chosen}, "the cheapest candidate"
    assert len(result.most_probable(1.0, n_min=7)) >= 7
    for raw, posterior in zip(candidates, result.candidates, strict=True):
        assert posterior.figures["accuracy"].source == "modelled"
        assert posterior.details[columns.read_column("accuracy")] == raw.figures["accuracy"].value


def test_gain_of_fine_tuning_is_predicted_for_others(
    tiny: SearchSpace, candidates: list[Candidate]
) -> None:
    finished = {
        c.id: proportion(round(1000 * (1 - 0.5 * (1 - c.figures["accuracy"].value))), 1000)
        for c in candidates[::4]
    }
    before = candidate_posteriors(tiny, candidates, VIEW, {}).candidates
    after = candidate_posteriors(tiny, candidates, VIEW, finished).candidates
    for early, late in zip(before, after, strict=True):
        expected = 1 - 0.5 * (1 - early.figures["accuracy"].value)
        assert late.figures["accuracy"].value == pytest.approx(expected, abs=0.02)
        assert (columns.finished("accuracy") in late.details) is (late.id in finished)


def test_infeasible_and_stopped_candidates(tiny: SearchSpace, candidates: list[Candidate]) -> None:
    broken = replace(candidates[3], reason="It does not run.", figures={})
    stopped = replace(candidates[4], stopped=True)
    mixed = [*candidates[:3], broken, stopped, *candidates[5:]]
    result = candidate_posteriors(tiny, mixed, VIEW, {})
    assert result.candidates[3] == broken
    assert broken.id not in result.on_front
    assert stopped.id in result.on_front


def test_order_of_fine_tuning_covers_range_of_costs(candidates: list[Candidate]) -> None:
    def candidate(trial: int, cost: float, probability: float = 0.5) -> Candidate:
        figures = {"accuracy": Quantity(0.9, "measured"), "latency_ms": Quantity(cost, "measured")}
        details = {columns.ON_FRONT: probability}
        return replace(candidates[trial], trial=trial, figures=figures, details=details)

    costs = [1.0, 2.0, 4.0, 8.0, 16.0, 60.0, 64.0]
    pending = [candidate(i, cost) for i, cost in enumerate(costs)]
    order = [
        c.figures["latency_ms"].value for c in space_filling_order(pending, [candidate(7, 100.0)])
    ]
    assert order[:2] == [1.0, 8.0], "far from finished ones in ratios"
    assert order[-2:] in ([60.0, 64.0], [64.0, 60.0])
    assert sorted(order) == costs
    pending[3] = candidate(3, 8.0, 0.01)
    order = [
        c.figures["latency_ms"].value for c in space_filling_order(pending, [candidate(7, 100.0)])
    ]
    assert order[:2] == [1.0, 16.0], "an improbable member is last"
    assert order[-1] == 8.0
    assert len(space_filling_order([candidate(0, 0.0), candidate(1, 0.0)], [])) == 2


def test_network_without_errors_is_no_better_than_its_images_show(
    tiny: SearchSpace, candidates: list[Candidate]
) -> None:
    def accuracy(n_right: int) -> Quantity:
        return proportion(n_right, 24)

    read = [24 if i % 2 else 23 for i in range(len(candidates))]
    of_few_images = [
        replace(c, figures={**c.figures, "accuracy": accuracy(n)})
        for c, n in zip(candidates, read, strict=True)
    ]
    finished = {c.id: accuracy(n) for c, n in zip(candidates[:12], read, strict=False)}
    result = candidate_posteriors(tiny, of_few_images, VIEW, finished)
    values = {c.id: c.figures["accuracy"].value for c in result.candidates}
    assert max(v for name, v in values.items() if name not in finished) < 0.99
