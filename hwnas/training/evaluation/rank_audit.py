"""Audit of a supernet's ranking against networks trained separately.

Source: Yu et al., "Evaluating the Search Phase of Neural Architecture Search", ICLR 2020,
https://arxiv.org/abs/1902.08142.
"""

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from hwnas.core.quantity import Quantity
from hwnas.models.families.annotations import weight_relevant_genotype
from hwnas.models.spaces import Genotype, Space

Group = Literal["front", "space"]

_N_SAMPLED = 50  # random networks per selected one
_Z = 1.959963984540054


@dataclass(frozen=True)
class AuditedNetwork:
    """A network to be trained separately."""

    group: Group  #: ``front`` or ``space``: selected from the front, or from the whole space
    genotype: Genotype


@dataclass(frozen=True)
class AuditFinding:
    """Metric of a network on the validation split, from the supernet and trained alone."""

    subject: AuditedNetwork
    supernet: Quantity  #: with weights inherited from the supernet
    alone: tuple[Quantity, ...]  #: trained from scratch, one per seed

    @property
    def mean_alone(self) -> float:
        """Mean metric of the separate trainings."""
        return statistics.mean(figure.value for figure in self.alone)


@dataclass(frozen=True)
class StatisticInterval:
    """A statistic with its 95 % interval; all three are NaN if it is undefined."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"

    def to_json(self) -> list[float | None]:
        """Return ``[value, low, high]``; ``None`` for an undefined or infinite number."""
        return [x if math.isfinite(x) else None for x in (self.value, self.low, self.high)]


@dataclass(frozen=True)
class AuditVerdict:
    """Agreement of a supernet's metrics with those of networks trained from scratch."""

    kendall: StatisticInterval  #: Kendall's tau-b between both metrics
    spearman: StatisticInterval  #: Spearman's rho between both metrics
    #: standard deviation of the metric over seeds; ``None`` if no network has a second seed
    seed_sd: StatisticInterval | None
    #: expected tau between two trainings from scratch; ``None`` if the noise of seeds is unknown
    ceiling: StatisticInterval | None
    gap: float  #: mean metric of separate training minus that of the supernet, in its unit

    def to_json(self) -> dict[str, Any]:
        """Return the statistics by name, each as ``[value, low, high]``; ``None`` if undefined.

        ``alone_less_supernet`` is a number: the mean metric of separate training minus the
        supernet's.
        """
        return {
            "kendall_tau": self.kendall.to_json(),
            "spearman_rho": self.spearman.to_json(),
            "seed_sd": self.seed_sd.to_json() if self.seed_sd else None,
            "kendall_tau_of_two_seeds": self.ceiling.to_json() if self.ceiling else None,
            "alone_less_supernet": self.gap,
        }


def select_networks(
    front: Sequence[Genotype],
    space: Space,
    n: int,
    size: Callable[[Genotype], float],
    seed: int,
) -> list[AuditedNetwork]:
    """Return up to ``n`` different networks: at most half from the front, then from the space.

    They are evenly spaced along the front, and along the sizes of random networks. Genotypes that
    differ in batch, threads or precision only have the same weights and count as one network.

    Args:
        front: Front members in the order of a cost.
        space: The search space.
        n: Number of networks.
        size: Returns the size of a network, such as its multiply-accumulates.
        seed: Seed of the random networks.
    """
    distinct = _distinct_weights(front)
    members = _evenly_spaced([*distinct.values()], min(len(distinct), -(-n // 2)))
    rng = random.Random(f"audit {seed}")
    sampled = _distinct_weights(space.sample(rng) for _ in range(_N_SAMPLED * n))
    for genotype in members:
        sampled.pop(weight_relevant_genotype(genotype).id, None)
    others = _evenly_spaced(sorted(sampled.values(), key=size), n - len(members))
    return [AuditedNetwork("front", g) for g in members] + [
        AuditedNetwork("space", g) for g in others
    ]


def _distinct_weights(genotypes: Iterable[Genotype]) -> dict[str, Genotype]:
    """Return the first genotype of each set of weights."""
    result: dict[str, Genotype] = {}
    for genotype in genotypes:
        result.setdefault(weight_relevant_genotype(genotype).id, genotype)
    return result


def repeated_indices(n: int, n_repeated: int) -> list[int]:
    """Return at most ``n_repeated`` evenly spaced indices below ``n``.

    The networks at these indices are trained with a second seed.
    """
    n_repeated = min(n, n_repeated)
    return [(2 * i + 1) * n // (2 * n_repeated) for i in range(n_repeated)]


def _evenly_spaced(items: Sequence[Genotype], n: int) -> list[Genotype]:
    """Return ``n`` evenly spaced items, including both ends."""
    if n >= len(items):
        return list(items)
    if n == 1:
        return [items[len(items) // 2]]
    return [items[round(i * (len(items) - 1) / (n - 1))] for i in range(n)]


def assess_ranking(findings: Sequence[AuditFinding]) -> AuditVerdict:
    """Return how well the supernet's metrics agree with those of separate training.

    Args:
        findings: One or more networks.
    """
    supernet = [finding.supernet.value for finding in findings]
    alone = [finding.mean_alone for finding in findings]
    return AuditVerdict(
        kendall=rank_correlation("kendall", supernet, alone),
        spearman=rank_correlation("spearman", supernet, alone),
        seed_sd=seed_deviation(findings),
        ceiling=two_seeds(findings),
        gap=statistics.mean(a - s for a, s in zip(alone, supernet, strict=True)),
    )


def rank_correlation(
    kind: Literal["kendall", "spearman"], a: Sequence[float], b: Sequence[float]
) -> StatisticInterval:
    """Return Kendall's tau-b or Spearman's rho of two samples, with its 95 % interval.

    The result is NaN for fewer than three values, or if all values of a sample are equal. The
    interval is [-1, 1] for up to four values (Kendall) or three (Spearman).

    Source: Fieller, Hartley & Pearson, "Tests for rank correlation coefficients. I", Biometrika
    1957, https://doi.org/10.1093/biomet/44.3-4.470: normal after Fisher's transform, with variance
    ``0.437 / (n - 4)`` and ``1.06 / (n - 3)``.
    """
    n, nan = len(a), math.nan
    if n < 3 or len(set(a)) == 1 or len(set(b)) == 1:
        return StatisticInterval(nan, nan, nan)
    correlation = stats.kendalltau if kind == "kendall" else stats.spearmanr
    value = float(correlation(a, b).statistic)
    variance, n_lost = (0.437, 4) if kind == "kendall" else (1.06, 3)
    if n <= n_lost:
        return StatisticInterval(value, -1.0, 1.0)
    # A perfect correlation of few networks gets a finite z: as if half of one pair were swapped.
    edge = 1 - 1 / (n * (n - 1) / 2)
    z = math.atanh(max(-edge, min(edge, value)))
    half = _Z * math.sqrt(variance / (n - n_lost))
    return StatisticInterval(value, math.tanh(z - half), max(value, math.tanh(z + half)))


def seed_deviation(findings: Sequence[AuditFinding]) -> StatisticInterval | None:
    """Return the standard deviation of the metric over seeds, pooled over repeated networks.

    ``None`` if no network was trained with several seeds.
    """
    repeated = [[f.value for f in finding.alone] for finding in findings if len(finding.alone) > 1]
    freedom = sum(len(values) - 1 for values in repeated)
    if not freedom:
        return None
    squares = sum((len(values) - 1) * statistics.variance(values) for values in repeated)
    low, high = stats.chi2.ppf((0.975, 0.025), freedom)
    value = math.sqrt(squares / freedom)
    return StatisticInterval(value, math.sqrt(squares / low), math.sqrt(squares / high))


def two_seeds(findings: Sequence[AuditFinding]) -> StatisticInterval | None:
    """Return the expected tau between two trainings of the same networks, with 95 % interval.

    Observed differences between networks include the noise of seeds. The true variance, in units
    of that noise, follows from the ratio of the variances between networks and between seeds,
    which has an F distribution if both are normal. Observed differences are shrunk accordingly.
    The value is median-unbiased.

    Source: Thomas & Hultquist, "Interval estimation for the unbalanced case of the one-way random
    effects model", Annals of Statistics 6, 1978.

    Returns:
        ``None`` if the seed noise is unknown or zero, or there are fewer than three networks.
    """
    sd, n = seed_deviation(findings), len(findings)
    if sd is None or sd.value == 0 or n < 3:
        return None
    means = np.array([finding.mean_alone for finding in findings])
    freedom = sum(len(finding.alone) - 1 for finding in findings)
    noise = statistics.mean(1 / len(finding.alone) for finding in findings)
    ratio = means.var(ddof=1) / sd.value**2
    differences = np.subtract.outer(means, means)[np.triu_indices(n, 1)]
    differences /= means.std(ddof=1) or 1.0
    true = ratio / stats.f.ppf((0.5, 0.975, 0.025), n - 1, freedom) - noise
    return StatisticInterval(*(_mean_tau(differences * math.sqrt(max(0.0, v))) for v in true))


def _mean_tau(differences: NDArray[np.float64]) -> float:
    """Return the expected tau of two noisy readings, from differences in units of their noise."""
    return float(np.mean(special.erf(differences / 2) ** 2))  # both readings are independent
