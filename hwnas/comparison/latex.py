"""Indicators as a table of LaTeX, for the package ``booktabs``."""

from collections.abc import Sequence

from hwnas.comparison.indicators import INDICATORS
from hwnas.comparison.summary import Comparison
from hwnas.comparison.words import p_value

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
_LEFT_OUT = "hypervolume"  # in the product of the units; its share says the same


def escaped(text: str) -> str:
    """Return text that LaTeX prints as it is, on one line."""
    return "".join(_ESCAPED.get(sign, sign) for sign in " ".join(text.split()))


def indicators(comparison: Comparison) -> str:
    """Return the indicators of groups (mean and standard deviation), or of fronts (intervals)."""
    shown = [i for i in INDICATORS if i.name in comparison.samples and i.name != _LEFT_OUT]
    heads = [f"{escaped(i.title)} {_ARROWS[i.higher_is_better]}" for i in shown]
    names = [i.name for i in shown]
    body = _groups(comparison, names) if comparison.is_grouped else _fronts(comparison, names)
    first = "group" if comparison.is_grouped else "front"
    notes = [
        "% Needs \\usepackage{booktabs}. Arrows: which direction is better.",
        "% Groups: mean +- standard deviation over runs. Fronts: value with its 95 % interval.",
    ]
    lines = [
        *notes,
        rf"\begin{{tabular}}{{l{'r' * (len(shown) + 1)}}}",
        r"\toprule",
        " & ".join([first, "$n$", *heads]) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in body),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join([*lines, *_test_comments(comparison)]) + "\n"


def _fronts(comparison: Comparison, names: Sequence[str]) -> list[list[str]]:
    rows = []
    for row in comparison.indicator_rows():
        cells = [escaped(row["run"]), str(row["n_points"])]
        for name in names:
            low, high = row[f"{name}_low"], row[f"{name}_high"]
            interval = "" if low is None else rf" {{\scriptsize [{low:.4f}, {high:.4f}]}}"
            cells.append(f"{row[name]:.4f}{interval}")
        rows.append(cells)
    return rows


def _groups(comparison: Comparison, names: Sequence[str]) -> list[list[str]]:
    rows = {
        group: [escaped(group), str(spread.n)] for group, spread in comparison.spreads(names[0])
    }
    for name in names:
        for group, spread in comparison.spreads(name):
            sd = "" if spread.sd is None else rf" $\pm$ {spread.sd:.4f}"
            rows[group].append(f"{spread.mean:.4f}{sd}")
    return list(rows.values())


def _test_comments(comparison: Comparison) -> list[str]:
    tests = comparison.tests.get("hypervolume_share", ())
    return [
        f"% hypervolume share, {escaped(test.first)} against {escaped(test.second)}: {test.test}, "
        f"p (Holm) {p_value(test.p_holm)}, A12 {test.a12:.2f}"
        for test in tests
    ]
