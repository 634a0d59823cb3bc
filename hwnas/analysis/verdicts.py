"""Verdicts of a comparison, one line each.

The tables of ``comparison_tables`` and the CSV files have the figures that verdicts sum up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from hwnas.analysis.comparability import listed
from hwnas.analysis.fronts import Array, Objective
from hwnas.analysis.significance import ALPHA, PairTest, Ranking
from hwnas.analysis.summary import Comparison
from hwnas.core.errors import counted
from hwnas.core.run_folder import Row

_MAIN = "hypervolume_share"
ABOVE_ONE = (
    "Basic bootstrap intervals of hypervolume shares may exceed 1: they are not limited to the "
    "range of the share, and the ideal point does not vary."
)


@dataclass(frozen=True)
class ComparisonWords:
    """A comparison in sentences."""

    verdict: str  #: see ``verdict``
    findings: Sequence[str]  #: limitations, and tests between groups
    method: Sequence[str]  #: how the fronts were compared

    @property
    def sentences(self) -> list[str]:
        """All sentences, the verdict first."""
        return [self.verdict, *self.findings, *self.method]


def verdict(comparison: Comparison) -> str:
    """Return which front or group is best, and whether it differs significantly, in a sentence."""
    return _best_group(comparison) if comparison.is_grouped else _best_front(comparison)


def comparison_findings(comparison: Comparison) -> list[str]:
    """Return sentences on limitations of a comparison, and on tests between groups."""
    if comparison.is_grouped:
        return [*_limitations(comparison), *_groups(comparison)]
    seeds = ["One run each: other seeds may differ."] * (len(comparison.fronts) > 1)
    return [*_limitations(comparison), *seeds]


def comparison_method(comparison: Comparison) -> Iterator[str]:
    """Yield sentences on how the fronts were compared: figures, reference point, intervals."""
    yardstick = comparison.yardstick
    frame, target = yardstick.frame, yardstick.target
    if comparison.kind == "verified":
        yield "Compared: verified figures (each member's compiled file on the test split)."
    elif any(front.run.directions for front in comparison.fronts):
        yield "Compared: figures of the search (validation split, or the benchmark table)."
    if any(not front.run.directions for front in comparison.fronts):
        yield "Figures of CSV files are used unchanged."
    reference, ideal = (_point(frame.objectives, p) for p in (frame.reference, frame.ideal))
    yield (
        f"Reference point: {reference} ({frame.origin}); ideal: {ideal}. Objectives are normalised "
        "linearly: 0 at the ideal, 1 at the reference point."
    )
    yield (
        f"IGD+ and epsilons refer to {comparison.reference_set} ({len(target)} points, "
        f"hypervolume share {yardstick.share(target):.4f})."
    )
    if comparison.uncertainty is None:
        yield "Indicators have no intervals: the points have none, or n_bootstrap=0."
    else:
        yield (
            "Intervals: 95 %, parametric bootstrap over the points' intervals (basic for "
            "hypervolume and R2, percentile for the others). They do not include training noise. "
            + ABOVE_ONE
        )
    systematic = [
        objective.title
        for i, objective in enumerate(frame.objectives)
        if any(
            (~front.is_random & (front.low < front.high))[:, i].any() for front in comparison.fronts
        )
    ]
    if systematic:
        yield (
            f"Not in the bootstrap: {listed(systematic)}. Intervals of modelled figures are errors "
            "of the model, the same for all networks."
        )


def _point(objectives: Sequence[Objective], values: Array) -> str:
    pairs = zip(objectives, values.tolist(), strict=True)
    return ", ".join(f"{o.title} {value:.5g}" for o, value in pairs)


def _limitations(comparison: Comparison) -> Iterator[str]:
    if single := [front.name for front in comparison.fronts if front.mask.sum() == 1]:
        yield f"Fronts of one point: {listed(single)}."
    frame = comparison.yardstick.frame
    beyond = {
        front.name: int((frame.normalised(front.members) >= 1).any(axis=1).sum())
        for front in comparison.fronts
    }
    if any(beyond.values()):
        counts = [f"{name} ({n})" for name, n in beyond.items() if n]
        yield f"Points beyond the reference point do not add hypervolume: {listed(counts)}."


def _best_front(comparison: Comparison) -> str:
    if len(comparison.fronts) < 2:
        return f"Only one front, {comparison.fronts[0].name}: there is nothing to compare it with."
    shares = [indicators[_MAIN] for indicators in comparison.indicators]
    first, second = sorted(range(len(shares)), key=lambda i: -shares[i])[:2]
    a, b = (comparison.fronts[i].name for i in (first, second))
    figures = f"hypervolume share {shares[first]:.4f} against {shares[second]:.4f}"
    selection = f", the best two of {len(shares)}" * (len(shares) > 2)
    if comparison.uncertainty is None:
        return (
            f"{a} has a larger hypervolume than {b}{selection}: {figures}. There are no intervals: "
            "this is not tested."
        )
    if not (differs := _sign_of_difference(comparison, first, second)):
        return (
            f"No significant difference in hypervolume between {a} and {b}{selection}: {figures}."
        )
    # Basic intervals need not contain the value.
    best, other = (a, b) if differs > 0 else (b, a)
    return (
        f"{best} has a significantly larger hypervolume than {other}{selection}: {figures}; the "
        "95 % intervals do not overlap."
    )


def larger_front(comparison: Comparison) -> int:
    """Return which of the first two fronts has a significantly larger hypervolume.

    1: the first one, -1: the second one, 0: their 95 % intervals overlap or are unknown.
    """
    return 0 if comparison.uncertainty is None else _sign_of_difference(comparison, 0, 1)


def _sign_of_difference(comparison: Comparison, first: int, second: int) -> int:
    assert comparison.uncertainty is not None
    intervals = comparison.uncertainty.intervals
    (low, high), (other_low, other_high) = intervals[first][_MAIN], intervals[second][_MAIN]
    return int(low > other_high) - int(other_low > high)


def _best_group(comparison: Comparison) -> str:
    spreads = sorted(comparison.spreads(_MAIN), key=lambda spread: -spread[1].mean)
    if len(spreads) < 2:
        return f"Only one group, {spreads[0][0]}: there is nothing to compare it with."
    (first, a), (second, b) = spreads[:2]
    selection = f", the best two of {len(spreads)} groups" * (len(spreads) > 2)
    runs = " and ".join(f"{counted(n.n, 'run')}" for n in (a, b))
    figures = f"mean hypervolume share {a.mean:.4f} against {b.mean:.4f} ({runs})"
    pairs = [
        test for test in comparison.tests[_MAIN] if {test.first, test.second} == {first, second}
    ]
    if not pairs:
        return f"{first} before {second}{selection}: {figures}. There are too few runs for a test."
    (test,) = pairs
    evidence = f"p {p_value(test.p_holm)}, {test.test}, corrected by Holm"
    if test.significant and test.higher == first:
        return f"{first} is better than {second}{selection}: {figures}; {evidence}."
    if test.significant:
        return (
            f"{second} is better than {first}{selection} in most runs: {evidence}. A few runs give "
            f"{first} the higher mean: {figures}."
        )
    return (
        f"No significant difference between {first} and {second}{selection}: {figures}; {evidence}."
    )


def _groups(comparison: Comparison) -> Iterator[str]:
    tests = comparison.tests[_MAIN]
    different = [_test(test, ">") for test in tests if test.significant]
    equal = [_test(test, "and") for test in tests if not test.significant]
    if tests:
        yield f"Significantly different at {ALPHA} (Holm): {listed(different) or 'none'}."
    if equal:
        yield f"Not significantly different: {listed(equal)}."
    yield from _power(tests)
    ranking = comparison.rankings[_MAIN]
    if ranking is not None:
        yield _ranking(ranking)
    elif len(comparison.groups) > 2:
        yield "No ranking of all groups: it needs two or more seeds that all groups have."


def _test(test: PairTest, sign: str) -> str:
    first, second = test.first, test.second
    if test.higher != first:
        first, second = second, first
    effect = test.a12 if first == test.first else 1 - test.a12
    return f"{first} {sign} {second} (p {p_value(test.p_holm)}, A12 {effect:.2f}, {size(effect)})"


def size(a12: float) -> str:
    """Return ``negligible``, ``small``, ``medium`` or ``large`` for an effect size A12 in [0, 1].

    The bounds of its distance from 0.5 (no effect) are those of Vargha and Delaney.
    """
    distance = abs(a12 - 0.5)
    bounds = ((0.06, "negligible"), (0.14, "small"), (0.21, "medium"))
    return next((word for bound, word in bounds if distance < bound), "large")


def p_value(p: float) -> str:
    """Return a p-value as text with three decimals, or ``below 0.001``."""
    return f"{p:.3f}" if p >= 0.001 else "below 0.001"


def _power(tests: Sequence[PairTest]) -> Iterator[str]:
    """Yield where the number of runs rules out a significant result."""
    if not tests:
        yield "No test: it needs two groups of two or more runs each."
    hopeless = [test for test in tests if test.least_p >= ALPHA]
    if hopeless:
        test = hopeless[0]
        yield (
            f"Too few runs for a test: with {' and '.join(map(str, test.n))} runs p is at least "
            f"{test.least_p:.3g} ({len(hopeless)} of {len(tests)} pairs). Run six or more seeds "
            "that both groups have."
        )
    elif tests and min(test.least_p for test in tests) * len(tests) >= ALPHA:
        yield (
            f"Too few runs for {len(tests)} comparisons corrected by Holm: none can be significant "
            f"at {ALPHA}. Run more seeds, or compare fewer groups."
        )


def _ranking(ranking: Ranking) -> str:
    order = sorted(range(len(ranking.groups)), key=lambda i: ranking.mean_ranks[i])
    ranks = ", ".join(f"{ranking.groups[i]} {ranking.mean_ranks[i]:.2f}" for i in order)
    text = f"Mean ranks over {ranking.n_blocks} seeds: {ranks}. Friedman (Iman-Davenport): p "
    text += p_value(ranking.f_p)
    if ranking.f_p >= ALPHA:
        return f"{text}, the groups do not differ significantly."
    cliques = [" = ".join(ranking.groups[i] for i in clique) for clique in ranking.cliques()]
    return (
        f"{text}; Nemenyi's critical difference {ranking.critical_difference:.2f}; "
        f"not significantly different: {'; '.join(cliques) or 'none'}."
    )


def prediction_verdict(rows: Sequence[Row]) -> str:
    """Return a sentence on the errors of predicted latencies; empty without rows.

    ``rows`` are those of ``tables.predictions``.
    """
    if not rows:
        return ""
    errors, taus = ([row[name] for row in rows] for name in ("mape", "kendall"))
    return (
        f"Predicted against measured latency of {sum(row['n'] for row in rows)} members: mean "
        f"absolute error {_span(errors, '.1%')}, Kendall's tau {_span(taus, '.2f')}."
    )


def verification_verdict(rows: Sequence[Row]) -> str:
    """Return a sentence on how verification changed the fronts; empty without rows.

    ``rows`` are those of ``tables.verification``.
    """
    if not rows:
        return ""
    changes = [r["hypervolume_share_verified"] - r["hypervolume_share_searched"] for r in rows]
    n_members, n_left = (sum(int(row[key]) for row in rows) for key in ("n_members", "n_left"))
    return (
        f"Verification changed the hypervolume share by {_span(changes, '+.4f')}; {n_left} of "
        f"{n_members} members left their front."
    )


def _span(values: Sequence[float], form: str) -> str:
    """Return the median of values, with their range if there are several."""
    middle = f"{median(values):{form}}"
    if len(values) == 1:
        return middle
    return f"{middle} (median of {len(values)}, {min(values):{form}} to {max(values):{form}})"


def shared_networks_verdict(rows: Sequence[Row], n_fronts: int) -> str:
    """Return a sentence on how many pairs of fronts have networks in common.

    It is empty for fewer than two fronts.

    Args:
        rows: The rows of ``tables.shared``.
        n_fronts: Number of fronts of searches.
    """
    pairs = n_fronts * (n_fronts - 1) // 2
    if not pairs:
        return ""
    if not rows:
        return "No two fronts have a network in common."
    largest = max(rows, key=lambda row: int(row["n_shared"]))
    first, second, n = largest["first"], largest["second"], int(largest["n_shared"])
    if pairs == 1:
        return f"{first} and {second} have {counted(n, 'network')} in common."
    return (
        f"{len(rows)} of {pairs} pairs of fronts have networks in common: at most {n} "
        f"({first} and {second})."
    )
