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


def _finding(small: SearchSpace, seed: int, supernet: float, *trained_alone: float) -> AuditFinding:
    subject = AuditedNetwork("space", small.sample(random.Random(seed)))
    figures = tuple(Quantity(value, "measured") for value in trained_alone)
    return AuditFinding(subject, Quantity(supernet, "measured"), figures)


def test_selection_covers_front_and_sizes_of_space(
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


def test_short_front_is_supplemented_from_space(small: SearchSpace) -> None:
    front = [small.smallest(), small.largest()]
    chosen = select_networks(front, small, 8, lambda genotype: len(genotype.options), seed=0)
    assert [s.group for s in chosen] == ["front"] * 2 + ["space"] * 6


def test_network_with_several_run_options_is_selected_once(small: SearchSpace) -> None:
    run_options: dict[str, tuple[int | float | str, ...]]
    run_options = {"batch": (1, 8), "threads": (1, 2), "precision": ("float32", "int8")}
    space = replace(small, choices={**small.choices, **run_options})
    rng = random.Random(0)
    networks = [small.sample(rng).to_dict() for _ in range(6)]
    front = [space.genotype({**n, "batch": b, "threads": 1, "precision": p})
             for n in networks for b in (1, 8) for p in run_options["precision"]]  # fmt: skip
    chosen = select_networks(front, space, 12, lambda genotype: len(genotype.options), seed=0)
    assert (
        len({weight_relevant_genotype(subject.genotype).id for subject in chosen})
        == len(chosen)
        == 12
    )
    assert [s.genotype for s in chosen[:6]] == front[::4]


@pytest.mark.parametrize("kind", ["kendall", "spearman"])
def test_intervals_of_correlation_have_nominal_coverage(kind: str) -> None:
    rho, n, draws = 0.7, 12, 1500
    true = 2 / math.pi * math.asin(rho) if kind == "kendall" else 6 / math.pi * math.asin(rho / 2)
    rng, n_covered = np.random.default_rng(0), 0
    for _ in range(draws):
        a, b = rng.multivariate_normal([0, 0], [[1, rho], [rho, 1]], n).T
        result = rank_correlation(kind, list(a), list(b))  # type: ignore[arg-type]
        assert result.low <= result.value <= result.high
        n_covered += result.low <= true <= result.high
    assert 0.92 <= n_covered / draws <= 0.98


def test_correlations_match_scipy() -> None:
    rng = np.random.default_rng(1)
    a, b = list(rng.normal(size=15)), list(rng.normal(size=15))
    assert rank_correlation("kendall", a, b).value == stats.kendalltau(a, b).statistic
    assert rank_correlation("spearman", a, b).value == stats.spearmanr(a, b).statistic


def test_interval_for_perfect_order_is_wide() -> None:
    result = rank_correlation("kendall", [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6])
    assert result.value == pytest.approx(1)
    assert 0.2 < result.low < 0.9
    assert result.high == result.value


def test_correlation_of_equal_accuracies_is_nan() -> None:
    assert math.isnan(rank_correlation("kendall", [1, 1, 1, 1, 1, 1], [1, 2, 3, 4, 5, 6]).value)


def test_interval_of_seed_deviation_covers_true_value(small: SearchSpace) -> None:
    rng, n_covered, sd = np.random.default_rng(2), 0, 0.004
    for _ in range(300):
        findings = [
            _finding(small, i, 0.9, *(0.9 + 0.01 * i + sd * rng.standard_normal(2)))
            for i in range(4)
        ]
        result = seed_deviation(findings)
        assert result is not None
        n_covered += result.low <= sd <= result.high
    assert n_covered > 270
    assert seed_deviation([_finding(small, 0, 0.9, 0.91)]) is None


@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
def test_agreement_of_trainings_is_unbiased_and_covered(small: SearchSpace, spread: float) -> None:
    """It is 0 for equal networks, although their measured accuracies differ."""
    rng, n = np.random.default_rng(3), 12
    truth = spread * stats.norm.ppf((np.arange(n) + 0.5) / n)
    pairs = truth + rng.standard_normal((200, 2, n))
    true = float(np.mean([stats.kendalltau(first, second).statistic for first, second in pairs]))
    subject, reading = _finding(small, 0, 0.0, 0.0).subject, Quantity(0.0, "measured")
    results = []
    for readings in truth[:, None] + rng.standard_normal((120, n, 2)):
        alone = [readings[i, : 1 + (i % 4 == 2)] for i in range(n)]
        quantities = [
            tuple(Quantity(float(value), "measured") for value in values) for values in alone
        ]
        results.append(two_seeds([AuditFinding(subject, reading, values) for values in quantities]))
    assert float(np.median([f.value for f in results if f])) == pytest.approx(true, abs=0.06)
    assert sum(f.low - 0.03 <= true <= f.high for f in results if f) >= 0.91 * len(results)
    assert np.mean([f.high - f.low for f in results if f]) < 0.8


def test_agreement_requires_noise_between_seeds(small: SearchSpace) -> None:
    findings = [_finding(small, i, 0.5, 0.6 + 0.01 * i, 0.6 + 0.01 * i) for i in range(4)]
    assert two_seeds(findings) is None
    assert two_seeds([_finding(small, i, 0.5, 0.6) for i in range(4)]) is None


def test_verdict_on_correct_and_reversed_ranking(
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


def test_repeated_networks_are_distinct() -> None:
    assert repeated_indices(4, 6) == [0, 1, 2, 3]
    assert repeated_indices(6, 2) == [1, 4]
