"""What a comparison means, in sentences."""

from collections.abc import Iterator, Sequence
from statistics import median

from hwnas.analysis.fronts import Array, Objective
from hwnas.analysis.indicators import INDICATORS
from hwnas.analysis.reading import listed
from hwnas.analysis.significance import ALPHA, PairTest, Ranking
from hwnas.analysis.summary import Comparison
from hwnas.core.run_folder import Row
from hwnas.tasks.metrics import format_value, metric_of, quality_names

_MAIN = "hypervolume_share"
_RUNS = 6  # whose verification is worded; verification.csv has all
_NAMED = 12  # tests that are worded; tests.csv has all
_TESTS = {"wilcoxon": "Wilcoxon's signed ranks, paired by seed", "mann-whitney": "Mann-Whitney"}


def sentences(comparison: Comparison) -> list[str]:
    """Return which fronts are better, and which differences are more than luck."""
    return [*_front_sentences(comparison), *_group_sentences(comparison)]


def method(comparison: Comparison) -> Iterator[str]:
    """Say what was compared, and how."""
    yardstick = comparison.yardstick
    frame = yardstick.frame
    if comparison.kind == "verified":
        yield "Compared: verified figures (each member's own artefact, on the test split)."
    elif any(own.run.directions for own in comparison.fronts):
        yield "Compared: figures as search read them (on the validation split, or the table's)."
    if any(not own.run.directions for own in comparison.fronts):
        yield "Figures of CSV files are taken as they are."
    reference, ideal = (_point(frame.objectives, p) for p in (frame.reference, frame.ideal))
    yield f"Reference point: {reference} ({frame.origin}); ideal: {ideal}."
    yield "Normalised linearly: 0 at the ideal, 1 at the reference point."
    target = yardstick.target
    yield (
        f"IGD+ and epsilons refer to {comparison.reference_set} ({len(target)} points; their "
        f"hypervolume share is {yardstick.share(target):.4f})."
    )
    if comparison.uncertainty is None:
        yield "No intervals of points were given or drawn: indicators carry none."
    else:
        yield (
            "Intervals: 95 %, by a parametric bootstrap over the points' intervals; those of the "
            "hypervolume are turned around the value, since noise alone makes a front look better. "
            "They don't hold the noise of training."
        )
        highest = max(own[_MAIN][1] for own in comparison.uncertainty.intervals)
        if highest > 1:
            yield "A hypervolume share above 1 is better than the ideal, which is no bound."
    systematic = [
        objective.title
        for i, objective in enumerate(frame.objectives)
        if any((~own.is_random & (own.low < own.high))[:, i].any() for own in comparison.fronts)
    ]
    if systematic:
        yield (
            f"Intervals of modelled figures are the model's, alike for all networks, and were not "
            f"drawn from: {listed(systematic)}."
        )


def _point(objectives: Sequence[Objective], values: Array) -> str:
    pairs = zip(objectives, values.tolist(), strict=True)
    return ", ".join(f"{o.title} {value:.5g}" for o, value in pairs)


def _front_sentences(comparison: Comparison) -> Iterator[str]:
    if single := [own.name for own in comparison.fronts if own.mask.sum() == 1]:
        yield f"A front of one point: {listed(single)}. Its indicators are that point's."
    outside = []
    frame = comparison.yardstick.frame
    for own in comparison.fronts:
        if (n := int((frame.normalised(own.members) >= 1).any(axis=1).sum())) > 0:
            outside.append(f"{own.name} ({n} of {len(own.members)})")
    if outside:
        yield (
            "Points beyond the reference point count nothing towards the hypervolume: "
            f"{listed(outside)}."
        )
    if comparison.is_grouped or len(comparison.fronts) < 2:
        return
    order = sorted(
        range(len(comparison.fronts)), key=lambda i: -comparison.found[i]["hypervolume_share"]
    )
    first, second = order[:2]
    a, b = (comparison.found[i][_MAIN] for i in (first, second))
    names = [comparison.fronts[i].name for i in (first, second)]
    words = f"Highest hypervolume: {names[0]} ({a:.4f} of the box), then {names[1]} ({b:.4f})."
    yield f"{words}{_overlap(comparison, first, second)}"
    yield "Each group has one run: whether another seed would say the same is not known."


def _overlap(comparison: Comparison, first: int, second: int) -> str:
    if comparison.uncertainty is None:
        return ""
    intervals = comparison.uncertainty.intervals
    (low, high), (other_low, other_high) = intervals[first][_MAIN], intervals[second][_MAIN]
    if low > other_high:
        return " Their 95 % intervals don't overlap."
    if other_low > high:  # an interval need not hold the figure of the very points that were read
        return " Yet the 95 % interval of the second lies above that of the first."
    return " Their 95 % intervals overlap: within the points' uncertainty they may be equal."


def _group_sentences(comparison: Comparison) -> Iterator[str]:
    if not comparison.is_grouped:
        return
    for group, spread in comparison.spreads(_MAIN):
        if spread.low is None or spread.sd is None:
            yield f"{group}: hypervolume share {spread.mean:.4f}, one run: no spread is known."
        else:
            yield (
                f"{group}: hypervolume share {spread.mean:.4f} on the mean of {spread.n} runs, "
                f"standard deviation {spread.sd:.4f}, 95 % interval {spread.low:.4f} to "
                f"{spread.high:.4f}."
            )
    tests = comparison.tests[_MAIN]
    yield from map(_test, tests[:_NAMED])
    if len(tests) > _NAMED:
        yield f"{len(tests) - _NAMED} more tests are in tests.csv."
    yield from _power(tests)
    ranking = comparison.rankings[_MAIN]
    if ranking is not None:
        yield from _ranking(ranking)
    elif len(comparison.groups) > 2:
        yield "No ranking of all groups: it needs two seeds or more that all groups have in common."


def _test(test: PairTest) -> str:
    higher, lower = (test.first, test.second) if test.a12 >= 0.5 else (test.second, test.first)
    effect = max(test.a12, 1 - test.a12)
    verdict = "significant" if test.significant else "not significant"
    return (
        f"{higher} against {lower}: hypervolume share higher in {effect:.0%} of pairs of runs "
        f"(A12 {effect:.2f}, {size(effect)}), median difference {abs(test.difference):.4f}; "
        f"{_TESTS[test.test]}: {_p(test.p)}, by Holm {p_value(test.p_holm)}: {verdict}."
    )


def size(a12: float) -> str:
    """Return how large an effect is; the bounds are those of Vargha and Delaney."""
    distance = abs(a12 - 0.5)
    bounds = ((0.06, "negligible"), (0.14, "small"), (0.21, "medium"))
    return next((word for bound, word in bounds if distance < bound), "large")


def p_value(p: float) -> str:
    """Return a p-value in three digits."""
    return f"{p:.3f}" if p >= 0.001 else "below 0.001"


def _p(p: float) -> str:
    return f"p = {p_value(p)}" if p >= 0.001 else f"p {p_value(p)}"


def _power(tests: Sequence[PairTest]) -> Iterator[str]:
    """Say where so few runs could not have shown any difference."""
    if not tests:
        yield "No test: that needs two groups of two runs or more each."
    hopeless = [test for test in tests if test.least_p >= ALPHA]
    if hopeless:
        test = hopeless[0]
        yield (
            f"Too few runs for a test: {' and '.join(map(str, test.n))} of them cannot give p "
            f"below {test.least_p:.3g}, whatever the difference; no difference can be significant "
            f"at {ALPHA} ({len(hopeless)} of {len(tests)} pairs). "
            "Six seeds that both groups have in common can."
        )
    elif tests and min(test.least_p for test in tests) * len(tests) >= ALPHA:
        yield (
            f"Too few runs for {len(tests)} comparisons at once: corrected by Holm, none can be "
            f"significant at {ALPHA}. Run more seeds, or compare fewer groups."
        )


def _ranking(ranking: Ranking) -> Iterator[str]:
    order = sorted(range(len(ranking.groups)), key=lambda i: ranking.mean_ranks[i])
    ranks = ", ".join(f"{ranking.groups[i]} {ranking.mean_ranks[i]:.2f}" for i in order)
    verdict = "differ" if ranking.f_p < ALPHA else "don't differ significantly"
    yield (
        f"Mean ranks over {ranking.n_blocks} seeds: {ranks}. Friedman's test in Iman and "
        f"Davenport's form: {_p(ranking.f_p)} (chi squared: {p_value(ranking.p)}): the "
        f"groups {verdict}."
    )
    difference = f"Nemenyi's critical difference at {ALPHA}: {ranking.critical_difference:.2f}"
    if ranking.f_p >= ALPHA:
        yield f"{difference}; not to be read, since the test of all groups finds nothing."
        return
    alike = [" and ".join(ranking.groups[i] for i in clique) for clique in ranking.cliques()]
    yield f"{difference}; not told apart: {'; '.join(alike) if alike else 'none'}."


def predicted(rows: Sequence[Row]) -> Iterator[str]:
    """Say how far predicted latencies were from measured ones."""
    for row in rows:
        yield (
            f"{row['run']}: latency predicted ({row['predicted_by']}) against measured, "
            f"{row['n']} members: mean absolute error {row['mape']:.1%}, Kendall's tau "
            f"{row['kendall']:.2f}."
        )


def verified(rows: Sequence[Row]) -> Iterator[str]:
    """Say what verification changed."""
    if len(rows) > _RUNS:
        changes = [r["hypervolume_share_verified"] - r["hypervolume_share_searched"] for r in rows]
        members, left = (sum(int(row[key]) for row in rows) for key in ("n_members", "n_left"))
        yield (
            f"Verification changed the hypervolume share of {len(rows)} fronts by "
            f"{median(changes):+.4f} on the median, {min(changes):+.4f} to {max(changes):+.4f}; "
            f"{left} of {members} members left their front."
        )
        return
    for row in rows:
        a, b = row["hypervolume_share_searched"], row["hypervolume_share_verified"]
        medians = {n: row.get(f"median_change_{n}") for n in quality_names()}
        more = "".join(
            f", {metric_of(name).label} {format_value(name, change, '+.4f')} on the median"
            for name, change in medians.items()
            if change is not None
        )
        yield (
            f"{row['run']}: verification changed the hypervolume share from {a:.4f} to {b:.4f}"
            f"{more}; {row['n_left']} of {row['n_members']} members left the front."
        )


def shared(rows: Sequence[Row], n_fronts: int) -> str:
    """Say which fronts have networks in common."""
    pairs = n_fronts * (n_fronts - 1) // 2
    if not pairs:
        return ""
    if not rows:
        return "No two fronts have a network in common."
    most = max(rows, key=lambda row: int(row["n_shared"]))
    return (
        f"{len(rows)} of {pairs} pairs of fronts have networks in common; most "
        f"{most['first']} and {most['second']}: {most['n_shared']} "
        f"({most['share_of_first']:.0%} and {most['share_of_second']:.0%} of them)."
    )


# Indicators as a table of LaTeX, for the package ``booktabs``.

_ESCAPED = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}
_ARROWS = {True: r"$\uparrow$", False: r"$\downarrow$"}
_HEADS = {  # short ones: a table has to fit between the margins of a page
    "hypervolume_share": "HV",
    "igd_plus": "IGD$^+$",
    "epsilon_additive": r"$\epsilon_+$",
    "epsilon_multiplicative": r"$\epsilon_\times$",
    "r2": "R2",
}
_LEFT_OUT = "hypervolume"  # in the product of the units; its share says the same


def escaped(text: str) -> str:
    """Return text that LaTeX prints as it is, on one line."""
    return "".join(_ESCAPED.get(sign, sign) for sign in " ".join(text.split()))


def indicators(comparison: Comparison) -> str:
    """Return the indicators of groups (mean and standard deviation), or of fronts (intervals)."""
    shown = [i for i in INDICATORS if i.name in comparison.samples and i.name != _LEFT_OUT]
    heads = [f"{_HEADS[i.name]} {_ARROWS[i.higher_is_better]}" for i in shown]
    names = [i.name for i in shown]
    body = (
        _latex_group_rows(comparison, names)
        if comparison.is_grouped
        else _latex_front_rows(comparison, names)
    )
    first = "group" if comparison.is_grouped else "front"
    notes = [
        "% Needs \\usepackage{booktabs}. Arrows: which direction is better.",
        "% Groups: mean, +- standard deviation over runs. Fronts: value, 95 % interval.",
        *(f"% {_HEADS[i.name]}: {i.title}" for i in shown),
    ]
    lines = [
        *notes,
        r"{\setlength{\tabcolsep}{4pt}",
        rf"\begin{{tabular}}{{@{{}}l{'r' * (len(shown) + 1)}@{{}}}}",
        r"\toprule",
        " & ".join([first, "$n$", *heads]) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in body),
        r"\bottomrule",
        r"\end{tabular}}",
    ]
    return "\n".join([*lines, *_test_comments(comparison)]) + "\n"


def _latex_front_rows(comparison: Comparison, names: Sequence[str]) -> list[list[str]]:
    rows = []
    for row in comparison.indicator_rows():
        cells = [escaped(row["run"]), str(row["n_points"])]
        rows.append([*cells, *(f"{row[name]:.4f}" for name in names)])
        ends = [(row[f"{name}_low"], row[f"{name}_high"]) for name in names]
        if all(low is not None for low, _ in ends):
            rows.append(["", "", *(rf"\scriptsize [{a:.3f}, {b:.3f}]" for a, b in ends)])
    return rows


def _latex_group_rows(comparison: Comparison, names: Sequence[str]) -> list[list[str]]:
    spreads = [dict(comparison.spreads(name)) for name in names]
    rows = []
    for group in comparison.groups:
        own = [by[group] for by in spreads]
        rows.append([escaped(group), str(own[0].n), *(f"{spread.mean:.4f}" for spread in own)])
        if own[0].sd is not None:
            rows.append(["", "", *(rf"\scriptsize $\pm$ {spread.sd:.4f}" for spread in own)])
    return rows


def _test_comments(comparison: Comparison) -> list[str]:
    tests = comparison.tests.get("hypervolume_share", ())
    return [
        f"% hypervolume share, {escaped(test.first)} against {escaped(test.second)}: {test.test}, "
        f"p (Holm) {p_value(test.p_holm)}, A12 {test.a12:.2f}"
        for test in tests
    ]
