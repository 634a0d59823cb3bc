"""Tests over seeds against worked examples and SciPy."""

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


def test_ranking_of_demsars_example() -> None:
    found = ranked(["C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf"], np.array(DEMSAR))
    assert found.mean_ranks == pytest.approx([3.143, 2.0, 2.893, 1.964], abs=5e-4)
    # 9.28 in the paper, which does not correct for the ties: 78 of 840.
    assert found.statistic * (1 - 78 / 840) == pytest.approx(9.28, abs=0.01)
    assert found.critical_difference == pytest.approx(1.25, abs=0.005)
    assert found.p < found.f_p * 10
    assert found.f_p < 0.05
    # No two of the four differ by 1.25: 3.143 - 1.964 is 1.18.
    assert found.cliques() == [(3, 1, 2, 0)]


def test_nemenyis_quantiles_are_those_of_demsars_table() -> None:
    table = [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]
    for k, q in enumerate(table, start=2):
        assert critical_difference(k, 1) / math.sqrt(k * (k + 1) / 6) == pytest.approx(q, abs=1e-3)


def test_cliques_are_maximal() -> None:
    values = np.tile([1.0, 2, 3, 4], (12, 1))
    found = ranked(list("abcd"), values)
    assert found.critical_difference == pytest.approx(1.354, abs=1e-3)
    assert found.cliques() == [(0, 1), (1, 2), (2, 3)]
    assert found.f_statistic == math.inf
    assert found.f_p == 0.0


def test_equal_groups_are_not_told_apart() -> None:
    found = ranked(list("abc"), np.ones((5, 3)))
    assert (found.p, found.statistic) == (1.0, 0.0)
    (test,) = pair_tests([sample("a", [1.0] * 6), sample("b", [1.0] * 6)])
    assert (test.p, test.a12, test.significant) == (1.0, 0.5, False)


def test_ranking_needs_three_groups_of_the_same_seeds() -> None:
    groups = [sample(name, [1.0, 2.0, 3.0]) for name in "abc"]
    assert significance.ranking(groups, higher_is_better=True) is not None
    assert significance.ranking(groups[:2], higher_is_better=True) is None
    other = GroupSample("d", [1.0, 2.0, 3.0], ["0", "1", "7"])
    assert significance.ranking([*groups, other], higher_is_better=True) is None
    unnamed = GroupSample("e", [1.0, 2.0, 3.0], [None, None, None])
    assert significance.ranking([*groups, unnamed], higher_is_better=True) is None


def test_higher_may_be_better_or_worse() -> None:
    groups = [sample("a", [1.0, 2.0]), sample("b", [3.0, 4.0]), sample("c", [5.0, 6.0])]
    for higher, expected in ((True, [3, 2, 1]), (False, [1, 2, 3])):
        found = significance.ranking(groups, higher_is_better=higher)
        assert found is not None
        assert list(found.mean_ranks) == expected


def test_pairs_of_seeds_are_tested_by_wilcoxon() -> None:
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


def test_other_runs_are_tested_by_mann_and_whitney() -> None:
    a, b = [1.0, 2.5, 3.0, 4.5], [0.1, 0.2, 0.3, 2.6, 0.5]
    (test,) = pair_tests([sample("a", a), GroupSample("b", b, ["5", "6", "7", "8", "9"])])
    assert test.test == "mann-whitney"
    assert test.p == pytest.approx(stats.mannwhitneyu(a, b).pvalue)
    assert test.least_p == pytest.approx(2 / math.comb(9, 4))
    assert test.a12 == pytest.approx(stats.mannwhitneyu(a, b).statistic / 20)
    (twice,) = pair_tests([GroupSample("a", a, ["0", "0", "1", "2"]), sample("b", [*a])])
    assert twice.test == "mann-whitney"


def test_ties_give_no_p_below_the_least() -> None:
    (test,) = pair_tests([sample("a", [1.0, 1.0, 1.0]), sample("b", [0.2, 0.2, 0.2, 0.1])])
    assert test.test == "mann-whitney"
    assert test.p == pytest.approx(test.least_p)
    assert not test.significant
    (equal,) = pair_tests([sample("a", [1.0] * 3), sample("b", [1.0] * 4)])
    assert equal.p == 1.0
    a, b = np.random.default_rng(0).integers(0, 5, (2, 9)).tolist()
    assert significance.mann_whitney(a, b) == stats.mannwhitneyu(a, b).pvalue


@pytest.mark.parametrize(("n", "reaches"), [(5, False), (6, True)])
def test_least_p_is_what_the_clearest_difference_gives(n: int, reaches: bool) -> None:
    clear = [
        sample("a", [10.0 + i for i in range(n)]),
        sample("b", [float(i) ** 2 / 9 for i in range(n)]),
    ]
    (test,) = pair_tests(clear)
    assert test.p == pytest.approx(test.least_p)
    assert test.significant is reaches


def test_a12_counts_ties_half() -> None:
    assert a12([1, 2, 3], [2, 3, 4]) == pytest.approx(2 / 9)
    assert a12([5], [1, 2]) == 1.0
    assert a12([1, 1], [1, 1]) == 0.5


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_spread() -> None:
    values = [1.0, 2.0, 4.0, 5.0]
    found = significance.spread(values)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.sd == pytest.approx(np.std(values, ddof=1))
    assert significance.spread([3.0]) == significance.GroupStatistics(1, 3.0)
