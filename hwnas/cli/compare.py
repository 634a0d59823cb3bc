"""Command ``compare``."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hwnas.analysis.fronts import Objective
from hwnas.analysis.speedup_verdict import amount, direction
from hwnas.analysis.summary import Comparison
from hwnas.analysis.tables import by_group, parts
from hwnas.cli.console import run_verb
from hwnas.cli.output import folder_row, print_lines, print_result
from hwnas.core.run_folder import Row
from hwnas.workflows.compare import ComparisonResult, compare
from hwnas.workflows.config import CompareConfig

_TitledTable = tuple[str, Table]
_ROWS = 24
_WIDE = 6  # fronts or groups that fit beside each other
_MAIN = "hypervolume_share"  #: the one whose interval is shown; indicators.csv has all
_OTHERS = {
    "igd_plus": "IGD+ ↓",
    "epsilon_additive": "eps. + ↓",
    "epsilon_multiplicative": "eps. x ↓",
    "r2": "R2 ↓",
}
_MEANINGS = (
    "↑: higher is better, ↓: lower. HV share: share of the objective space that the front "
    "dominates. IGD+: mean distance to the best known front; eps. +, eps. x: largest distance, as "
    "a sum and as a factor. R2: mean distance to the ideal point."
)


def compare_command(config: CompareConfig, arguments: Sequence[str]) -> None:
    """Run ``hwnas compare`` and print its result."""
    run_verb(partial(compare, config, arguments), _print_comparison, folder_row)


def _print_comparison(console: Console, result: ComparisonResult) -> None:
    comparison, tables = result.comparison, result.rows
    assert comparison is not None
    titled_tables = [_groups(comparison) if comparison.is_grouped else _fronts(comparison)]
    if len(comparison.groups) <= _WIDE:
        titled_tables += _ladders(tables["ladder"], comparison)
    if equal := tables.get("equal_quality"):
        titled_tables.append(_equal(equal, comparison.objectives))
    verdict, *messages = result.messages
    print_lines(console, [verdict], style="bold")
    for title, table in titled_tables:
        console.print(Text(title))  # above the table: it may be wider
        console.print(table, "")
    print_lines(console, [_MEANINGS])
    print_result(console, replace(result, messages=messages))


def _fronts(comparison: Comparison) -> _TitledTable:
    known = ["95 %"] if comparison.uncertainty is not None else []
    heads = ("front", "points", "HV share ↑", *known, *_OTHERS.values())  # HV: hypervolume
    table = _table(*heads)
    rows = comparison.indicator_rows()
    for row in rows[:_ROWS]:
        low, high = row[f"{_MAIN}_low"], row[f"{_MAIN}_high"]
        interval = [] if low is None else [f"{low:.3f}-{high:.3f}"]
        others = ("-" if np.isnan(row[name]) else f"{row[name]:.4f}" for name in _OTHERS)
        cells = (str(row["n_points"]), f"{row[_MAIN]:.4f}", *interval, *others)
        table.add_row(Text(row["run"]), *cells)
    if len(rows) > _ROWS:
        table.caption = f"{len(rows) - _ROWS} more in indicators.csv"
    return "Indicators", table


def _groups(comparison: Comparison) -> _TitledTable:
    known = [name for name in _OTHERS if name in comparison.samples]
    heads = ("group", "runs", "HV share ↑", "st. dev.", *(_OTHERS[name] for name in known))
    table = _table(*heads)
    spreads = {name: dict(comparison.spreads(name)) for name in (_MAIN, *known)}
    for group in comparison.groups:
        main_statistics = spreads[_MAIN][group]
        deviation = "-" if main_statistics.sd is None else f"{main_statistics.sd:.4f}"
        others = (f"{spreads[name][group].mean:.4f}" for name in known)
        table.add_row(
            Text(group), str(main_statistics.n), f"{main_statistics.mean:.4f}", deviation, *others
        )
    return "Indicators: means over runs", table


def _ladders(rows: Sequence[Row], comparison: Comparison) -> Iterator[_TitledTable]:
    """Yield, for each cost, the best quality within each limit: the median over a group's runs."""
    quality, costs = parts(comparison.objectives)
    runs = " (median over runs)" * comparison.is_grouped
    for cost in costs:
        word = "at least" if cost.maximise else "at most"
        direction = "highest" if quality.maximise else "lowest"
        table = _table(cost.title, *comparison.groups)
        rows_of_cost = [row for row in rows if row["cost"] == cost.name]
        for limit, values in by_group(rows_of_cost, "limit", quality.name).items():
            cells = ["-" if v is None else amount(quality, v) for v in values.values()]
            table.add_row(f"{limit:g}", *cells)
        yield f"{direction} {quality.title} for {cost.title} {word}{runs}", table


def _equal(rows: Sequence[Row], objectives: Sequence[Objective]) -> _TitledTable:
    """Return the costs of the first of two runs at the metric that the second reaches."""
    quality, (cost, *_) = parts(objectives)
    a, b = (str(rows[0][side]) for side in ("front", "baseline"))
    known = ["95 %"] if any(row["ratio_low"] is not None for row in rows) else []
    table = _table(quality.title, b, a, "ratio", *known)
    for row in rows[:_ROWS]:
        paid, ratio, low = (row[key] for key in (f"front_{cost.name}", "ratio", "ratio_low"))
        cells = ["-" if value is None else form.format(value)
                 for value, form in ((paid, "{:.4g}"), (ratio, "{:.2f}"))]  # fmt: skip
        interval = "-" if low is None else f"{low:.2f}-{row['ratio_high']:.2f}"
        baseline_cells = amount(quality, row[quality.name]), f"{row[f'baseline_{cost.name}']:.4g}"
        table.add_row(*baseline_cells, *cells, *([interval] if known else []))
    if len(rows) > _ROWS:
        table.caption = f"{len(rows) - _ROWS} more in equal_quality.csv"
    return f"{cost.title} at equal {quality.title} (ratio: {direction(cost, a, b)})", table


def _table(*heads: str) -> Table:
    # As text: names and units in brackets are no markup.
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for i, head in enumerate(heads):
        table.add_column(Text(head), justify="right" if i else "left", no_wrap=i > 0)
    return table
