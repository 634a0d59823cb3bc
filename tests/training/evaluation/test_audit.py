import math
import random
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from hwnas.core.quantity import Quantity
from hwnas.models.families.annotations import weight_relevant_genotype
from hwnas.models.spaces import SearchSpace
from hwnas.training.evaluation.rank_audit import (
    AuditedNetwork,
    AuditFinding,
    assess_ranking,
    rank_correlation,
    repeated_indices,
    seed_deviation,
    select_networks,
    two_seeds,
)


def _finding(small: SearchSpace, seed: int, supernet: float, *alone: float) -> AuditFinding:
    subject = AuditedNetwork("space", small.sample(random.Random(seed)))
    figures = tuple(Quantity(value, "measured") for value in alone)
    return AuditFinding(subject, Quantity(supernet, "measured"), figures)


def test_choice_is_spread_over_the_front_and_over_the_sizes_of_the_space(
    small: SearchSpace,
) -> None:
    rng = random.Random(0)
    front = [small.sample(rng) for _ in range(9)]

    def size(genotype: object) -> float:
        return float(int(str(getattr(genotype, "id")), 16))  # noqa: B009

    chosen = select_networks(front, small, 12, size, seed=1)
    assert [s.group for s in chosen] == ["front"] * 6 + ["space"] * 6
    members = [s.genotype for s in chosen[:6]]
    assert members[0] == front[0]
    assert members[-1] == front[-1]
    assert len({s.genotype.id for s in chosen}) == 12
    sizes = [size(s.genotype) / 16**12 for s in chosen[6:]]
    assert sizes == sorted(sizes)
    assert sizes[0] < 0.05
    assert sizes[-1] > 0.95
    assert select_networks(front, small, 12, size, seed=1) == chosen
    assert select_networks(front, small, 12, size, seed=2) != chosen


def test_short_front_leaves_more_to_the_space(small: SearchSpace) -> None:
    front = [small.smallest(), small.largest()]
    chosen = select_networks(front, small, 8, lambda genotype: len(genotype.options), seed=0)
    assert [s.group for s in chosen] == ["front"] * 2 + ["space"] * 6


def test_network_that_runs_in_several_ways_is_chosen_once(small: SearchSpace) -> None:
    ways: dict[str, tuple[int | float | str, ...]]
    ways = {"batch": (1, 8), "threads": (1, 2), "precision": ("float32", "int8")}
    space = replace(small, choices={**small.choices, **ways})
    rng = random.Random(0)
    networks = [small.sample(rng).to_dict() for _ in range(6)]
    front = [space.genotype({**n, "batch": b, "threads": 1, "precision": p})
             for n in networks for b in (1, 8) for p in ways["precision"]]  # fmt: skip
    chosen = select_networks(front, space, 12, lambda genotype: len(genotype.options), seed=0)
    assert (
        len({weight_relevant_genotype(subject.genotype).id for subject in chosen})
        == len(chosen)
        == 12
    )
    assert [s.genotype for s in chosen[:6]] == front[::4]


@pytest.mark.parametrize("kind", ["kendall", "spearman"])
def test_intervals_hold_the_true_correlation_nineteen_times_of_twenty(kind: str) -> None:
    rho, n, draws = 0.7, 12, 1500
    true = 2 / math.pi * math.asin(rho) if kind == "kendall" else 6 / math.pi * math.asin(rho / 2)
    rng, held = np.random.default_rng(0), 0
    for _ in range(draws):
        a, b = rng.multivariate_normal([0, 0], [[1, rho], [rho, 1]], n).T
        found = rank_correlation(kind, list(a), list(b))  # type: ignore[arg-type]
        assert found.low <= found.value <= found.high
        held += found.low <= true <= found.high
    assert 0.92 <= held / draws <= 0.98


def test_correlations_are_those_of_scipy() -> None:
    rng = np.random.default_rng(1)
    a, b = list(rng.normal(size=15)), list(rng.normal(size=15))
    assert rank_correlation("kendall", a, b).value == stats.kendalltau(a, b).statistic
    assert rank_correlation("spearman", a, b).value == stats.spearmanr(a, b).statistic


def test_perfect_order_of_few_networks_is_no_certainty() -> None:
    found = rank_correlation("kendall", [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])
    assert found.value == pytest.approx(1)
    assert 0.2 < found.low < 0.9
    assert found.high == found.value


def test_order_of_equal_accuracies_is_not_told() -> None:
    assert math.isnan(rank_correlation("kendall", [1, 1, 1, 1, 1, 1], [1, 2, 3, 4, 5, 6]).value)


def test_deviation_over_seeds_is_pooled_and_holds_the_true_one(small: SearchSpace) -> None:
    rng, held, sd = np.random.default_rng(2), 0, 0.004
    for _ in range(300):
        findings = [
            _finding(small, i, 0.9, *(0.9 + 0.01 * i + sd * rng.standard_normal(2)))
            for i in range(4)
        ]
        found = seed_deviation(findings)
        assert found is not None
        held += found.low <= sd <= found.high
    assert held > 270
    assert seed_deviation([_finding(small, 0, 0.9, 0.91)]) is None


@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
def test_agreement_of_two_trainings_is_what_it_is_and_its_interval_holds_it(
    small: SearchSpace, spread: float
) -> None:
    """Of networks that are all alike it is 0, though what was found of them differs."""
    rng, n = np.random.default_rng(3), 12
    truth = spread * stats.norm.ppf((np.arange(n) + 0.5) / n)
    pairs = truth + rng.standard_normal((200, 2, n))
    true = float(np.mean([stats.kendalltau(first, second).statistic for first, second in pairs]))
    subject, reading = _finding(small, 0, 0.0, 0.0).subject, Quantity(0.0, "measured")
    found = []
    for readings in truth[:, None] + rng.standard_normal((120, n, 2)):
        alone = [readings[i, : 1 + (i % 4 == 2)] for i in range(n)]
        each = [tuple(Quantity(float(value), "measured") for value in own) for own in alone]
        found.append(two_seeds([AuditFinding(subject, reading, own) for own in each]))
    assert float(np.median([f.value for f in found if f])) == pytest.approx(true, abs=0.06)
    assert sum(f.low - 0.03 <= true <= f.high for f in found if f) >= 0.91 * len(found)
    assert np.mean([f.high - f.low for f in found if f]) < 0.8


def test_agreement_is_not_told_where_seeds_show_no_noise(small: SearchSpace) -> None:
    alike = [_finding(small, i, 0.5, 0.6 + 0.01 * i, 0.6 + 0.01 * i) for i in range(4)]
    assert two_seeds(alike) is None
    assert two_seeds([_finding(small, i, 0.5, 0.6) for i in range(4)]) is None


def test_verdict_on_a_supernet_that_ranks_rightly_and_on_one_that_does_not(
    small: SearchSpace,
) -> None:
    truth = [0.90 + 0.003 * i for i in range(12)]
    good = [_finding(small, i, t - 0.02, t, t + 0.0005) for i, t in enumerate(truth)]
    verdict = assess_ranking(good)
    assert verdict.kendall.value == pytest.approx(1)
    assert verdict.ceiling is not None
    assert 0.8 < verdict.ceiling.value <= 1
    assert verdict.gap == pytest.approx(0.02, abs=0.001)
    shuffled = truth[::-1]
    bad = [_finding(small, i, s, t) for i, (s, t) in enumerate(zip(shuffled, truth, strict=True))]
    verdict = assess_ranking(bad)
    assert verdict.kendall.value == pytest.approx(-1)
    assert verdict.seed_sd is None
    assert verdict.ceiling is None
    assert verdict.to_json()["seed_sd"] is None


def test_no_network_is_trained_twice_with_the_same_second_seed() -> None:
    assert repeated_indices(4, 6) == [0, 1, 2, 3]
    assert repeated_indices(6, 2) == [1, 4]
