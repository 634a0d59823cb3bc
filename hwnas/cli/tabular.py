"""Command ``search accuracy=table``."""

import math
from collections.abc import Sequence
from functools import partial

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hwnas.cli.console import run_verb
from hwnas.cli.output import print_files, print_lines
from hwnas.core.run_folder import Row
from hwnas.tasks.metrics import metric_of
from hwnas.workflows.config import TabularConfig
from hwnas.workflows.search.tabular import TabularOutcome, search_table

_ROWS = 24


def tabular_command(config: TabularConfig, arguments: Sequence[str]) -> None:
    """Run ``hwnas search accuracy=table`` and print its result."""
    run_verb(partial(search_table, config, arguments), partial(_print, config), _row)


def _row(outcome: TabularOutcome) -> Row:
    names = outcome.benchmark.names
    front = [{"id": m.id, **{n: m.figures[n].value for n in names}} for m in outcome.members]
    return {
        "path": outcome.folder.path,
        "front": front,
        "hypervolume_fraction": outcome.share,
    }


def _print(config: TabularConfig, console: Console, outcome: TabularOutcome) -> None:
    names, members = outcome.benchmark.names, outcome.members
    table = Table("id", *(escape(metric_of(n).title) for n in names), box=box.SIMPLE_HEAD)
    for part in table.columns[1:]:
        part.justify = "right"
    for member in members[:_ROWS]:
        values = (member.figures[name].value for name in names)
        table.add_row(member.id, *(f"{value:.5g}" for value in values))
    console.print(table)
    benchmark, limits = outcome.benchmark, config.allowed.limits
    n = len(benchmark.values)
    networks = f"{n} networks"
    if limits:
        networks = f"the {len(benchmark.fitting(limits))} of {n} networks that fit the budget"
    share = f"; hypervolume {outcome.share:.4f} of that of the exact front of {networks}"
    lines = [
        f"{len(members) - _ROWS} more members in front.csv." * (len(members) > _ROWS),
        f"Front of {len(members)} after {outcome.n_trials} trials by sampler={config.sampler.name}"
        f"{'' if math.isnan(outcome.share) else share}.",
    ]
    print_lines(console, lines)
    files = ["front.csv", "candidates.parquet", "manifest.json"]
    print_files(console, config.study.storage, outcome.folder, files)
