"""Significance tests over seeds: published examples and SciPy."""

import math

import numpy as np
import pytest
from scipy import stats

from hwnas.analysis import significance
from hwnas.analysis.significance import (
    GroupSample,
    a12,
    critical_difference,
    holm,
    pair_tests,
    ranked,
)

# Ranks of four classifiers on 14 data sets: table 6 of Demšar 2006.
DEMSAR = [
    [4, 3, 2, 1], [1, 2, 3, 4], [4, 1, 2, 3], [4, 1, 3, 2], [4, 2, 3, 1], [1, 2.5, 4, 2.5],
    [3, 2, 4, 1], [2.5, 2.5, 4, 1], [4, 3, 2, 1], [2.5, 2.5, 2.5, 2.5], [4, 2.5, 1, 2.5],
    [3, 2, 4, 1], [4, 1, 2, 3], [3, 1, 4, 2],
]  # fmt: skip


def sample(group: str, values: list[float]) -> GroupSample:
    return GroupSample(group, values, [str(i) for i in range(len(values))])


def test_ranking_matches_example_of_demsar() -> None:
    ranking = ranked(["C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf"], np.array(DEMSAR))
    assert ranking.mean_ranks == pytest.approx([3.143, 2.0, 2.893, 1.964], abs=5e-4)
    # 9.28 in the paper, which does not correct for the ties: 78 of 840.
    assert ranking.statistic * (1 - 78 / 840) == pytest.approx(9.28, abs=0.01)
    assert ranking.critical_difference == pytest.approx(1.25, abs=0.005)
    assert ranking.p < ranking.f_p * 10
    assert ranking.f_p < 0.05
    # No two of the four differ by 1.25: 3.143 - 1.964 is 1.18.
    assert ranking.cliques() == [(3, 1, 2, 0)]


def test_nemenyi_quantiles_match_table_of_demsar() -> None:
    table = [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]
    for k, q in enumerate(table, start=2):
        assert critical_difference(k, 1) / math.sqrt(k * (k + 1) / 6) == pytest.approx(q, abs=1e-3)


def test_cliques_are_maximal() -> None:
    values = np.tile([1.0, 2, 3, 4], (12, 1))
    ranking = ranked(list("abcd"), values)
    assert ranking.critical_difference == pytest.approx(1.354, abs=1e-3)
    assert ranking.cliques() == [(0, 1), (1, 2), (2, 3)]
    assert ranking.f_statistic == math.inf
    assert ranking.f_p == 0.0


def test_equal_groups_are_not_significantly_different() -> None:
    ranking = ranked(list("abc"), np.ones((5, 3)))
    assert (ranking.p, ranking.statistic) == (1.0, 0.0)
    (test,) = pair_tests([sample("a", [1.0] * 6), sample("b", [1.0] * 6)])
    assert (test.p, test.a12, test.significant) == (1.0, 0.5, False)


def test_ranking_needs_three_groups_with_equal_seeds() -> None:
    groups = [sample(name, [1.0, 2.0, 3.0]) for name in "abc"]
    assert significance.ranking(groups, higher_is_better=True) is not None
    assert significance.ranking(groups[:2], higher_is_better=True) is None
    other = GroupSample("d", [1.0, 2.0, 3.0], ["0", "1", "7"])
    assert significance.ranking([*groups, other], higher_is_better=True) is None
    unnamed = GroupSample("e", [1.0, 2.0, 3.0], [None, None, None])
    assert significance.ranking([*groups, unnamed], higher_is_better=True) is None


def test_ranking_supports_both_directions() -> None:
    groups = [sample("a", [1.0, 2.0]), sample("b", [3.0, 4.0]), sample("c", [5.0, 6.0])]
    for higher, expected in ((True, [3, 2, 1]), (False, [1, 2, 3])):
        ranking = significance.ranking(groups, higher_is_better=higher)
        assert ranking is not None
        assert list(ranking.mean_ranks) == expected


def test_paired_seeds_use_wilcoxon_test() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=10)
    b = a - 0.5 + rng.normal(size=10) * 0.3
    shuffled = rng.permutation(10)
    first = sample("a", a.tolist())
    second = GroupSample("b", b[shuffled].tolist(), [str(i) for i in shuffled])
    (test,) = pair_tests([first, second])
    assert test.test == "wilcoxon"
    assert test.p == pytest.approx(stats.wilcoxon(a, b).pvalue)
    assert test.difference == pytest.approx(np.median(a - b))
    assert test.least_p == 2 / 2**10


def test_unpaired_runs_use_mann_whitney_test() -> None:
    a, b = [1.0, 2.5, 3.0, 4.5], [0.1, 0.2, 0.3, 2.6, 0.5]
    (test,) = pair_tests([sample("a", a), GroupSample("b", b, ["5", "6", "7", "8", "9"])])
    assert test.test == "mann-whitney"
    assert test.p == pytest.approx(stats.mannwhitneyu(a, b).pvalue)
    assert test.least_p == pytest.approx(2 / math.comb(9, 4))
    assert test.a12 == pytest.approx(stats.mannwhitneyu(a, b).statistic / 20)
    (twice,) = pair_tests([GroupSample("a", a, ["0", "0", "1", "2"]), sample("b", [*a])])
    assert twice.test == "mann-whitney"


def test_better_group_follows_the_test_and_not_the_mean() -> None:
    """One run of ``a`` has failed: its mean is lower, but it is better in all other runs."""
    a, b = [*np.linspace(0.90, 0.96, 11), 0.1], [*np.linspace(0.85, 0.88, 11), 0.86]
    paired = pair_tests([sample("a", a), sample("b", b)])[0]
    seeds = [str(i) for i in range(20, 32)]
    unpaired = pair_tests([sample("a", a), GroupSample("b", b, seeds)])[0]
    assert np.mean(a) < np.mean(b)
    for test, name in ((paired, "wilcoxon"), (unpaired, "mann-whitney")):
        assert (test.test, test.significant, test.higher) == (name, True, "a")


def test_ties_give_no_p_below_minimum() -> None:
    (test,) = pair_tests([sample("a", [1.0, 1.0, 1.0]), sample("b", [0.2, 0.2, 0.2, 0.1])])
    assert test.test == "mann-whitney"
    assert test.p == pytest.approx(test.least_p)
    assert not test.significant
    (equal,) = pair_tests([sample("a", [1.0] * 3), sample("b", [1.0] * 4)])
    assert equal.p == 1.0
    a, b = np.random.default_rng(0).integers(0, 5, (2, 9)).tolist()
    assert significance.mann_whitney(a, b) == stats.mannwhitneyu(a, b).pvalue


@pytest.mark.parametrize(("n", "reaches"), [(5, False), (6, True)])
def test_least_p_is_reached_by_complete_separation(n: int, reaches: bool) -> None:
    separated = [
        sample("a", [10.0 + i for i in range(n)]),
        sample("b", [float(i) ** 2 / 9 for i in range(n)]),
    ]
    (test,) = pair_tests(separated)
    assert test.p == pytest.approx(test.least_p)
    assert test.significant is reaches


def test_a12_counts_ties_half() -> None:
    assert a12([1, 2, 3], [2, 3, 4]) == pytest.approx(2 / 9)
    assert a12([5], [1, 2]) == 1.0
    assert a12([1, 1], [1, 1]) == 0.5


def test_holm_adjusts_p_values() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_spread_gives_t_interval() -> None:
    values = [1.0, 2.0, 4.0, 5.0]
    statistics = significance.spread(values)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (statistics.low, statistics.high) == pytest.approx((expected.low, expected.high))
    assert statistics.sd == pytest.approx(np.std(values, ddof=1))
    assert significance.spread([3.0]) == significance.GroupStatistics(1, 3.0)
