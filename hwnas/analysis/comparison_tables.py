"""Tables of a comparison for its page."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from hwnas.analysis import tables
from hwnas.analysis.fronts import Objective, RunFront
from hwnas.analysis.indicators import INDICATORS
from hwnas.analysis.page.data import PageTable
from hwnas.analysis.significance import GroupStatistics, PairTest
from hwnas.analysis.speedup_verdict import amount
from hwnas.analysis.summary import Comparison
from hwnas.analysis.verdicts import ABOVE_ONE, p_value, size
from hwnas.core.run_folder import Row

_MAIN = "hypervolume_share"
_LEFT_OUT = "hypervolume"  # redundant with its share
_MAX_COVERAGE = 30  # fronts in the table of coverage
_NONE = "\u2013"
_ARROWS = {True: "↑", False: "↓"}
_DIRECTIONS = {True: "higher is better", False: "lower is better"}
#: Column headers.
_VERIFICATION = {
    "run": "run", "n_members": "members", "n_left": "left the front",
    "hypervolume_share_searched": "hypervolume share, searched",
    "hypervolume_share_verified": "hypervolume share, verified",
}  # fmt: skip
_PREDICTIONS = {
    "run": "run", "target": "target", "n": "members", "predicted_by": "predicted by",
    "mape": "mean absolute error", "kendall": "Kendall's tau",
}  # fmt: skip
_SHARED = {
    "first": "first", "second": "second", "n_shared": "networks on both",
    "share_of_first": "share of the first", "share_of_second": "share of the second",
}  # fmt: skip
_RECOSTED = {
    "members_of": "front of", "on": "on the target of", "n_members": "members", "n_fit": "fit",
    "n_already_there": "already on the front", "n_joining": "would join",
    "hypervolume_share": "hypervolume share",
    "hypervolume_share_with_them": "with joining networks",
}  # fmt: skip
_SHARES = ("mape", "share_of_first", "share_of_second")


def comparison_tables(comparison: Comparison, rows: Mapping[str, Sequence[Row]]) -> list[PageTable]:
    """Return the tables of a comparison's page; tables without rows are left out.

    The table of coverage is also left out for more than 30 fronts.

    Args:
        comparison: The comparison.
        rows: Rows of its CSV files, by name of the file without ``.csv``.
    """
    page_tables = [*_groups(comparison), _indicators(comparison), *_tests(comparison)]
    page_tables += [*_ladders(comparison, rows["ladder"]), *_prices(comparison, rows["needed"])]
    page_tables += [_growth(comparison, rows["convergence"]), _coverage(rows["coverage"])]
    page_tables += [
        _row_table("Searched against verified", rows["verification"], _VERIFICATION,
                   "verification"),
        _row_table("Predicted latency against measured", rows["predictions"], _PREDICTIONS,
                   "predictions"),
        _row_table("Networks in common", rows["shared"], _SHARED, "shared"),
        _row_table("Fronts costed on each other's target", rows.get("recosted_fronts", ()),
                   _RECOSTED, "recosted_fronts"),
    ]  # fmt: skip
    return [table for table in page_tables if table.rows]


def summary_table(comparison: Comparison) -> PageTable:
    """Return a table with a row per front, or per group if there are groups.

    Columns are name, number of networks (or of runs), hypervolume share with its 95 % interval, and
    the best value of each objective. The highest hypervolume share is first. Values of groups are
    the mean share and medians of the others.
    """
    quality, costs = tables.parts(comparison.objectives)
    objectives = [quality, *costs]
    ends = [f"{'highest' if o.maximise else 'lowest'} {o.title}" for o in objectives]
    rows = []
    for name, fronts, share in sorted(_with_share(comparison), key=lambda row: -row[2].mean):
        best = [
            median(tables.best_of(front, comparison.objectives, objective) for front in fronts)
            for objective in objectives
        ]
        n = len(fronts) if comparison.is_grouped else int(fronts[0].mask.sum())
        interval = "" if share.low is None else f" ({share.low:.4f} to {share.high:.4f})"
        values = (amount(o, value) for o, value in zip(objectives, best, strict=True))
        rows.append([name, str(n), f"{share.mean:.4f}{interval}", *values])
    first = ["group", "runs"] if comparison.is_grouped else ["front", "networks"]
    note = (
        "Hypervolume share: fraction of the objective space, from the reference point to the ideal "
        "point, that a front dominates. "
    )
    note += (
        "Means of hypervolume shares with Student's intervals, which may exceed 1; medians of the "
        "others."
        if comparison.is_grouped
        else ABOVE_ONE
    )
    return PageTable("Verdict", [*first, "hypervolume share (95 %) ↑", *ends], rows, note)


def _with_share(
    comparison: Comparison,
) -> Iterator[tuple[str, Sequence[RunFront], GroupStatistics]]:
    """Yield each group, or each front, with its hypervolume share."""
    if comparison.is_grouped:
        for group, share in comparison.spreads(_MAIN):
            yield group, [front for front in comparison.fronts if front.group == group], share
        return
    for front, row in zip(comparison.fronts, comparison.indicator_rows(), strict=True):
        low, high = row[f"{_MAIN}_low"], row[f"{_MAIN}_high"]
        yield front.name, [front], GroupStatistics(1, row[_MAIN], None, low, high)


def _heads(comparison: Comparison) -> dict[str, str]:
    """Return headers of the indicators of all fronts, with an arrow for the better direction."""
    return {
        i.name: f"{i.title} {_ARROWS[i.higher_is_better]}"
        for i in INDICATORS
        if i.name in comparison.samples and i.name != _LEFT_OUT
    }


def _groups(comparison: Comparison) -> Iterator[PageTable]:
    if not comparison.is_grouped:
        return
    heads = _heads(comparison)
    spreads = [dict(comparison.spreads(name)) for name in heads]
    rows = []
    for group in comparison.groups:
        row = [group, str(spreads[0][group].n)]
        for statistics in (spread[group] for spread in spreads):
            sd = "" if statistics.sd is None else f" ± {statistics.sd:.4f}"
            interval = (
                ""
                if statistics.low is None
                else f" ({statistics.low:.4f} to {statistics.high:.4f})"
            )
            row.append(f"{statistics.mean:.4f}{sd}{interval}")
        rows.append(row)
    note = "Mean ± standard deviation over runs; in brackets: 95 % interval of the mean (Student)."
    heads_ = ["group", "runs", *heads.values()]
    note = f"{note} {_file('groups')}"
    yield PageTable("Indicators of groups", heads_, rows, note, is_folded=True)


def _indicators(comparison: Comparison) -> PageTable:
    heads = _heads(comparison)
    group = ["group"] if comparison.is_grouped else []
    rows = []
    for row in comparison.indicator_rows():
        cells = [row["run"], *(row[name] for name in group), str(row["n_points"])]
        for name in heads:
            low, high = row[f"{name}_low"], row[f"{name}_high"]
            interval = "" if low is None else f" ({low:.4f} to {high:.4f})"
            cells.append(f"{row[name]:.4f}{interval}")
        rows.append(cells)
    meanings = "; ".join(
        f"{i.title} ({_DIRECTIONS[i.higher_is_better]}): {i.meaning}"
        for i in INDICATORS
        if i.name in heads
    )
    known = " In brackets: 95 % intervals by bootstrap." * (comparison.uncertainty is not None)
    note = f"{meanings[0].upper()}{meanings[1:]}.{known} {_file('indicators')}"
    columns = ["run", *group, "points", *heads.values()]
    return PageTable("Indicators", columns, rows, note, is_folded=True)


def _tests(comparison: Comparison) -> Iterator[PageTable]:
    heads = [
        "first", "second", "test", "runs", "median difference", "A12", "effect", "p",
        "p by Holm", "",
    ]  # fmt: skip
    note = (
        "Hypervolume share. A12: probability that a run of the first group has the higher one. "
        f"Holm: p corrected for all pairs. {_file('tests')}"
    )
    rows = [_test(test) for test in comparison.tests[_MAIN]]
    yield PageTable("Differences between groups", heads, rows, note)


def _test(test: PairTest) -> list[str]:
    return [
        test.first, test.second, test.test, " and ".join(map(str, test.n)),
        f"{test.difference:+.4f}", f"{test.a12:.2f}", size(test.a12), p_value(test.p),
        p_value(test.p_holm), "significant" if test.significant else "not significant",
    ]  # fmt: skip


def _ladders(comparison: Comparison, rows: Sequence[Row]) -> Iterator[PageTable]:
    quality, costs = tables.parts(comparison.objectives)
    for cost in costs:
        best = "Highest" if quality.maximise else "Lowest"
        title = f"{best} {quality.title} for {cost.title} {_bound(cost.maximise)}"
        body = _by_level(rows, cost, "limit", quality.name)
        note = f"{_over_runs(comparison)}Limits include intervals. {_file('ladder')}"
        yield PageTable(title, [cost.title, *comparison.groups], body, note)


def _prices(comparison: Comparison, rows: Sequence[Row]) -> Iterator[PageTable]:
    quality, costs = tables.parts(comparison.objectives)
    for cost in costs:
        least = "Highest" if cost.maximise else "Lowest"
        title = f"{least} {cost.title} for {quality.title} {_bound(quality.maximise)}"
        body = _by_level(rows, cost, "level", "value")
        note = f"{_over_runs(comparison)}{_file('needed')}"
        columns = [quality.title, *comparison.groups]
        yield PageTable(title, columns, body, note, is_folded=True)


def _by_level(rows: Sequence[Row], cost: Objective, level: str, value: str) -> list[list[str]]:
    """Return a row per level of a cost, with the values of groups."""
    cells = tables.by_group([row for row in rows if row["cost"] == cost.name], level, value)
    return [[f"{bound:g}", *map(_number, values.values())] for bound, values in cells.items()]


def _bound(is_least: bool) -> str:
    return "at least" if is_least else "at most"


def _over_runs(comparison: Comparison) -> str:
    if not comparison.is_grouped:
        return ""
    return f"Median over runs; {_NONE}: not in half or more of them. "


def _growth(comparison: Comparison, rows: Sequence[Row]) -> PageTable:
    growth = tables.growth(rows)
    groups = [*dict.fromkeys(row["group"] for row in rows)]
    body = [
        [
            "all" if count is None else f"{count:,}",
            *(_cell(_MAIN, shares.get(group)) for group in groups),
        ]
        for count, shares in growth.items()
    ]
    note = f"{_over_runs(comparison)}Searched figures; different networks. {_file('convergence')}"
    title = "Hypervolume share after evaluations"
    return PageTable(title, ["evaluations", *groups], body, note, is_folded=True)


def _coverage(rows: Sequence[Row]) -> PageTable:
    names = list(dict.fromkeys(str(row["run"]) for row in rows))
    share = {(str(row["run"]), str(row["covered"])): row["share"] for row in rows}
    note = (
        "Fraction of the front of the column that the front of the row weakly dominates. "
        f"{_file('coverage')}"
    )
    body = [
        [a, *(_NONE if a == b else f"{share[a, b]:.0%}" for b in names)]
        for a in (names if 1 < len(names) <= _MAX_COVERAGE else ())
    ]
    return PageTable("Coverage", ["", *names], body, note, is_folded=True)


def _row_table(title: str, rows: Sequence[Row], heads: Mapping[str, str], name: str) -> PageTable:
    """Return a table of rows; columns of median changes follow the others."""
    changes = [key for key in (rows[0] if rows else ()) if key.startswith("median_change_")]
    every = {**heads, **{key: f"{key.removeprefix('median_change_')}, change" for key in changes}}
    cells = [
        [_share(row[key]) if key in _SHARES else _cell(key, row[key]) for key in every]
        for row in rows
    ]
    medians = "Changes are medians over members. " * bool(changes)
    return PageTable(title, [*every.values()], cells, f"{medians}{_file(name)}", is_folded=True)


def _cell(name: str, value: Any) -> str:
    """Return a value as text; hypervolume shares have four decimals."""
    is_share = name.startswith(_MAIN) and value is not None
    return f"{value:.4f}" if is_share else _number(value)


def _share(value: float) -> str:
    return f"{value:.1%}"


def _number(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return _NONE
    if not isinstance(value, float):
        return str(value)
    return f"{value:#.4g}" if 1e-3 <= abs(value) < 1e4 else f"{value:.4g}"


def _file(name: str) -> str:
    return f"All figures: {name}.csv."
