"""Statistical tests of differences between groups of runs.

Two groups with the same seeds: Wilcoxon's signed-rank test, others: the Mann-Whitney U test;
p-values of all pairs are corrected by Holm's method. Effect size: Vargha and Delaney's A12. Three
or more groups with the same seeds: Friedman's test and Nemenyi's critical difference, as Demšar
recommends.

Sources: Demšar, "Statistical comparisons of classifiers over multiple data sets", JMLR 2006,
https://jmlr.org/papers/v7/demsar06a.html; Vargha and Delaney, "A critique and improvement of the CL
common language effect size statistics", 2000, https://doi.org/10.3102/10769986025002101.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from hwnas.analysis.fronts import Array

ALPHA = 0.05
_MAX_PERMUTATIONS = math.comb(16, 8)  # a tenth of a second


@dataclass(frozen=True)
class GroupSample:
    """The values of an indicator in a group, one per run."""

    group: str  #: name of the group
    values: Sequence[float]
    #: seed of each run, by which runs of different groups are paired; ``None``: it has none
    seeds: Sequence[str | None]

    @property
    def by_seed(self) -> dict[str, float] | None:
        """The values by seed; ``None`` if a run has no seed, or two have the same."""
        named = [seed for seed in self.seeds if seed is not None]
        if len({*named}) < len(self.values):
            return None
        return dict(zip(named, self.values, strict=True))


@dataclass(frozen=True)
class GroupStatistics:
    """Mean of a group with its 95 % interval (Student's t), and standard deviation.

    ``None``: unknown, as the group has one run.
    """

    n: int  #: number of runs
    mean: float
    sd: float | None = None  #: standard deviation
    low: float | None = None  #: lower end of the interval of the mean
    high: float | None = None  #: upper end of the interval of the mean


def spread(values: Sequence[float]) -> GroupStatistics:
    """Return mean, standard deviation and 95 % interval of the mean; of one value only the mean."""
    n, mean = len(values), float(np.mean(values))
    if n < 2:
        return GroupStatistics(n, mean)
    sd = float(np.std(values, ddof=1))
    half = float(stats.t.ppf(0.975, n - 1)) * sd / math.sqrt(n)
    return GroupStatistics(n, mean, sd, mean - half, mean + half)


@dataclass(frozen=True)
class PairTest:
    """Two-sided test of the difference between two groups in one indicator."""

    first: str  #: name of the first group
    second: str  #: name of the second group
    test: str  #: ``wilcoxon`` or ``mann-whitney``
    n: tuple[int, int]  #: number of runs of both groups
    p: float  #: p-value
    least_p: float  #: the lowest p-value possible with this number of runs
    a12: float  #: probability that a value of the first group is higher
    #: median of first minus second: of paired values (Wilcoxon), or of all combinations
    difference: float
    p_holm: float = math.nan  #: p-value corrected by Holm's method for all pairs of groups

    @property
    def significant(self) -> bool:
        """True if ``p_holm`` is below 0.05."""
        return self.p_holm < ALPHA

    @property
    def higher(self) -> str:
        """The group with the higher values by what is tested: pairs, or the ranks of all values.

        The means may be in another order because of a few extreme runs.
        """
        by_pairs = self.difference if self.test == "wilcoxon" else 0.0
        return self.first if (by_pairs or self.a12 - 0.5) >= 0 else self.second


def pair_tests(samples: Sequence[GroupSample]) -> list[PairTest]:
    """Return a test per pair of groups with two or more runs each, corrected by Holm's method.

    It is Wilcoxon's signed-rank test for groups with the same seeds, else the Mann-Whitney U test.
    The list is empty if fewer than two groups have two runs.
    """
    large = [sample for sample in samples if len(sample.values) > 1]
    tests = [_pair(a, b) for a, b in itertools.combinations(large, 2)]
    corrected = holm([test.p for test in tests])
    return [replace(test, p_holm=p) for test, p in zip(tests, corrected, strict=True)]


def _pair(first: GroupSample, second: GroupSample) -> PairTest:
    a, b = first.by_seed, second.by_seed
    n = len(first.values), len(second.values)
    effect = a12(first.values, second.values)
    names = first.group, second.group
    if a is not None and b is not None and a.keys() == b.keys():
        pairs = np.array([[a[seed], b[seed]] for seed in sorted(a)])
        p, difference = wilcoxon(pairs), float(np.median(pairs[:, 0] - pairs[:, 1]))
        return PairTest(*names, "wilcoxon", n, p, 2 / 2 ** len(a), effect, difference)
    p = mann_whitney(first.values, second.values)
    difference = float(np.median(np.subtract.outer(first.values, second.values)))
    least = 2 / math.comb(sum(n), n[0])
    return PairTest(*names, "mann-whitney", n, p, least, effect, difference)


def mann_whitney(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p-value of the Mann-Whitney U test.

    Exact if a group has at most 8 values, else a normal approximation. With ties, for which SciPy
    has no exact distribution, it is exact (by permutations) for up to 8 and 8 values.
    """
    n = len(first) + len(second)
    ways, tied = math.comb(n, len(first)), len({*first, *second}) < n
    method = stats.PermutationMethod(ways) if tied and ways <= _MAX_PERMUTATIONS else "auto"
    return float(stats.mannwhitneyu(first, second, method=method).pvalue)


def wilcoxon(pairs: Array) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test of pairs ``(n, 2)``.

    1 if the values of all pairs are equal.
    """
    differences = pairs[:, 0] - pairs[:, 1]
    if not differences.any():
        return 1.0
    return float(stats.wilcoxon(differences).pvalue)


def a12(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the effect size A12: the probability that a value of the first group is higher.

    Ties count half; 0.5: no difference.
    """
    difference = np.subtract.outer(np.asarray(first), np.asarray(second))
    return float(np.mean(difference > 0) + np.mean(difference == 0) / 2)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values in the same order, corrected for their number by Holm's step-down method.

    Source: Holm, "A simple sequentially rejective multiple test procedure", 1979,
    https://www.jstor.org/stable/4615733.
    """
    n, corrected, least = len(p_values), [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(n), key=lambda i: p_values[i])):
        least = max(least, min(1.0, (n - rank) * p_values[i]))
        corrected[i] = least
    return corrected


@dataclass(frozen=True)
class Ranking:
    """Mean ranks of groups over the same seeds, with Friedman's and Nemenyi's tests at 0.05."""

    groups: Sequence[str]
    mean_ranks: Sequence[float]  #: of each group; 1 is the best
    n_blocks: int  #: number of seeds
    statistic: float  #: chi squared of Friedman's test
    p: float  #: p-value of ``statistic``
    f_statistic: float  #: F of Iman and Davenport's variant, which is less conservative
    f_p: float  #: p-value of ``f_statistic``
    critical_difference: float  #: Nemenyi's: larger differences of mean ranks are significant

    def cliques(self) -> list[tuple[int, ...]]:
        """Return the maximal sets of two or more groups that do not differ significantly.

        Sets with the best group are first.

        Groups are indices into ``groups``.
        """
        order = sorted(range(len(self.groups)), key=lambda i: self.mean_ranks[i])
        result: list[tuple[int, ...]] = []
        for start, i in enumerate(order):
            near = tuple(
                j
                for j in order[start:]
                if self.mean_ranks[j] - self.mean_ranks[i] < self.critical_difference
            )
            if len(near) > 1 and not (result and {*near} <= {*result[-1]}):
                result.append(near)
        return result


def ranking(samples: Sequence[GroupSample], *, higher_is_better: bool) -> Ranking | None:
    """Return the ranking of three or more groups that have the same two or more seeds.

    ``None`` for fewer groups, or if their seeds differ.
    """
    tables = [sample.by_seed for sample in samples]
    seeds = sorted(tables[0] or ()) if tables else []
    if len(samples) < 3 or len(seeds) < 2 or any((t or {}).keys() != {*seeds} for t in tables):
        return None
    values = np.array([[(t or {})[seed] for t in tables] for seed in seeds])
    return ranked([s.group for s in samples], -values if higher_is_better else values)


def ranked(groups: Sequence[str], values: Array) -> Ranking:
    """Return the ranking of groups by values ``(seeds, groups)``; the lowest is the best."""
    n, k = values.shape
    means = stats.rankdata(values, axis=1).mean(axis=0)
    statistic, p = 0.0, 1.0
    if np.ptp(values, axis=1).any():
        result = stats.friedmanchisquare(*values.T)
        statistic, p = float(result.statistic), float(result.pvalue)
    rest = n * (k - 1) - statistic
    f = math.inf if rest <= 1e-12 else (n - 1) * statistic / rest
    f_p = float(stats.f.sf(f, k - 1, (k - 1) * (n - 1)))
    return Ranking(groups, means.tolist(), n, statistic, p, f, f_p, critical_difference(k, n))


def critical_difference(k: int, n: int) -> float:
    """Return Nemenyi's critical difference of mean ranks at 0.05 for ``k`` groups, ``n`` seeds."""
    q = float(stats.studentized_range.ppf(1 - ALPHA, k, np.inf)) / math.sqrt(2)
    return q * math.sqrt(k * (k + 1) / (6 * n))


def group_values(
    groups: Sequence[str], seeds: Sequence[str | None], values: Sequence[float]
) -> list[GroupSample]:
    """Return a sample per group, in the order in which groups first occur.

    The arguments have one entry per run: its group, its seed and its value of an indicator.
    """
    run_indices: Mapping[str, list[int]] = {group: [] for group in dict.fromkeys(groups)}
    for i, group in enumerate(groups):
        run_indices[group].append(i)
    return [
        GroupSample(group, [values[i] for i in chosen], [seeds[i] for i in chosen])
        for group, chosen in run_indices.items()
    ]
