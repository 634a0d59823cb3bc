"""Indicators as a table of LaTeX, for the package ``booktabs``."""

from collections.abc import Sequence

from hwnas.comparison.indicators import INDICATORS
from hwnas.comparison.narrative import p_value
from hwnas.comparison.summary import Comparison

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
    body = _groups(comparison, names) if comparison.is_grouped else _fronts(comparison, names)
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


def _fronts(comparison: Comparison, names: Sequence[str]) -> list[list[str]]:
    rows = []
    for row in comparison.indicator_rows():
        cells = [escaped(row["run"]), str(row["n_points"])]
        rows.append([*cells, *(f"{row[name]:.4f}" for name in names)])
        ends = [(row[f"{name}_low"], row[f"{name}_high"]) for name in names]
        if all(low is not None for low, _ in ends):
            rows.append(["", "", *(rf"\scriptsize [{a:.3f}, {b:.3f}]" for a, b in ends)])
    return rows


def _groups(comparison: Comparison, names: Sequence[str]) -> list[list[str]]:
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
