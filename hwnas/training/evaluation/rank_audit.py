"""Can a supernet's ranking be trusted? Its figures against those of networks trained alone.

Source of the question: Yu et al., "Evaluating the Search Phase of Neural Architecture Search", ICLR
2020, https://arxiv.org/abs/1902.08142.
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

_DRAWN = 50  # networks for each one that is chosen
_Z = 1.959963984540054


@dataclass(frozen=True)
class AuditedNetwork:
    """One network that is trained alone."""

    group: Group  #: where it was chosen from
    genotype: Genotype


@dataclass(frozen=True)
class AuditFinding:
    """What a network showed, all on the validation split."""

    subject: AuditedNetwork
    supernet: Quantity  #: with the weights it inherits
    alone: tuple[Quantity, ...]  #: trained from scratch, one for each seed

    @property
    def mean_alone(self) -> float:
        """The metric of the network alone, averaged over seeds."""
        return statistics.mean(figure.value for figure in self.alone)


@dataclass(frozen=True)
class StatisticInterval:
    """A statistic with its 95 % interval; NaN where it cannot be told."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"

    def to_json(self) -> list[float | None]:
        """Return value, low and high."""
        return [x if math.isfinite(x) else None for x in (self.value, self.low, self.high)]


@dataclass(frozen=True)
class AuditVerdict:
    """What an audit says of a supernet."""

    kendall: StatisticInterval
    spearman: StatisticInterval
    seed_sd: StatisticInterval | None  #: of the metric of one network over seeds
    ceiling: (
        StatisticInterval | None
    )  #: tau that two trainings from scratch would reach with each other
    gap: float  #: mean of the metric alone less that in the supernet

    def to_json(self) -> dict[str, Any]:
        """Return the figures by name."""
        return {
            "kendall_tau": self.kendall.to_json(),
            "spearman_rho": self.spearman.to_json(),
            "seed_sd": self.seed_sd.to_json() if self.seed_sd else None,
            "kendall_tau_of_two_seeds": self.ceiling.to_json() if self.ceiling else None,
            "alone_less_supernet": self.gap,
        }


def choose(
    front: Sequence[Genotype],
    space: Space,
    n: int,
    size: Callable[[Genotype], float],
    seed: int,
) -> list[AuditedNetwork]:
    """Return ``n`` different networks: half of them of the front, the others of the whole space.

    Both are spread: evenly over the order of the front, and over the sizes of random networks. What
    differs in batch, threads or precision alone has the same weights: it is one network.

    Args:
        front: In the order of a cost.
        space: Where the others come from.
        n: How many.
        size: Such as multiply-accumulates.
        seed: Of the random networks.
    """
    own = _distinct(front)
    members = _spread([*own.values()], min(len(own), -(-n // 2)))
    rng = random.Random(f"audit {seed}")
    drawn = _distinct(space.sample(rng) for _ in range(_DRAWN * n))
    for genotype in members:
        drawn.pop(weight_relevant_genotype(genotype).id, None)
    others = _spread(sorted(drawn.values(), key=size), n - len(members))
    return [AuditedNetwork("front", g) for g in members] + [
        AuditedNetwork("space", g) for g in others
    ]


def _distinct(genotypes: Iterable[Genotype]) -> dict[str, Genotype]:
    """Return the first genotype of each network, by what its weights are known by."""
    found: dict[str, Genotype] = {}
    for genotype in genotypes:
        found.setdefault(weight_relevant_genotype(genotype).id, genotype)
    return found


def repeated(n: int, n_repeated: int) -> list[int]:
    """Return which of ``n`` networks are trained with a second seed, at even distances."""
    n_repeated = min(n, n_repeated)
    return [(2 * i + 1) * n // (2 * n_repeated) for i in range(n_repeated)]


def _spread(items: Sequence[Genotype], n: int) -> list[Genotype]:
    """Return ``n`` items at even distances, the ends among them."""
    if n >= len(items):
        return list(items)
    if n == 1:
        return [items[len(items) // 2]]
    return [items[round(i * (len(items) - 1) / (n - 1))] for i in range(n)]


def judge(findings: Sequence[AuditFinding]) -> AuditVerdict:
    """Return how well the supernet's figures agree with those of networks trained alone."""
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
    """Return Kendall's tau-b or Spearman's rho with its 95 % interval.

    Source: Fieller, Hartley & Pearson, "Tests for rank correlation coefficients. I", Biometrika
    1957, https://doi.org/10.1093/biomet/44.3-4.470: normal after Fisher's transform, with variance
    ``0.437 / (n - 4)`` and ``1.06 / (n - 3)``.
    """
    n, nan = len(a), math.nan
    if n < 3 or len(set(a)) == 1 or len(set(b)) == 1:
        return StatisticInterval(nan, nan, nan)
    of = stats.kendalltau if kind == "kendall" else stats.spearmanr
    value = float(of(a, b).statistic)
    variance, lost = (0.437, 4) if kind == "kendall" else (1.06, 3)
    if n <= lost:
        return StatisticInterval(value, -1.0, 1.0)
    # Perfect order of a few networks is no certainty: as if half of one pair were turned.
    edge = 1 - 1 / (n * (n - 1) / 2)
    z = math.atanh(max(-edge, min(edge, value)))
    half = _Z * math.sqrt(variance / (n - lost))
    return StatisticInterval(value, math.tanh(z - half), max(value, math.tanh(z + half)))


def seed_deviation(findings: Sequence[AuditFinding]) -> StatisticInterval | None:
    """Return the standard deviation over seeds, pooled over networks trained more than once."""
    repeated = [[f.value for f in finding.alone] for finding in findings if len(finding.alone) > 1]
    freedom = sum(len(values) - 1 for values in repeated)
    if not freedom:
        return None
    squares = sum((len(values) - 1) * statistics.variance(values) for values in repeated)
    low, high = stats.chi2.ppf((0.975, 0.025), freedom)
    value = math.sqrt(squares / freedom)
    return StatisticInterval(value, math.sqrt(squares / low), math.sqrt(squares / high))


def two_seeds(findings: Sequence[AuditFinding]) -> StatisticInterval | None:
    """Return the mean tau between two trainings of the same networks, with its 95 % interval.

    As found, networks differ more than they truly do: by the noise of seeds, too. What they truly
    differ by, in standard deviations of that noise, follows from the variance among them over that
    between seeds, which goes as F where both are normal; they are as far apart as found, shrunken
    to that. The value is unbiased in the median.

    Source: Thomas & Hultquist, "Interval estimation for the unbalanced case of the one-way random
    effects model", Annals of Statistics 6, 1978.

    Returns:
        ``None`` where the noise of seeds is not known, or is below what figures can tell.
    """
    sd, n = seed_deviation(findings), len(findings)
    if sd is None or sd.value == 0 or n < 3:
        return None
    found = np.array([finding.mean_alone for finding in findings])
    freedom = sum(len(finding.alone) - 1 for finding in findings)
    noise = statistics.mean(1 / len(finding.alone) for finding in findings)
    ratio = found.var(ddof=1) / sd.value**2
    apart = np.subtract.outer(found, found)[np.triu_indices(n, 1)]
    apart /= found.std(ddof=1) or 1.0
    true = ratio / stats.f.ppf((0.5, 0.975, 0.025), n - 1, freedom) - noise
    return StatisticInterval(*(_mean_tau(apart * math.sqrt(max(0.0, each))) for each in true))


def _mean_tau(apart: NDArray[np.float64]) -> float:
    """Return the tau to be expected of two readings of values so far apart, pair by pair.

    Args:
        apart: In standard deviations of a reading.
    """
    return float(np.mean(special.erf(apart / 2) ** 2))  # both readings order a pair by themselves
