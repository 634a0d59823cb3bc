"""What the terminal shows of fronts of several targets, and of the one of models for all."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hwnas.api.front import FILES, Outcome
from hwnas.commands.console import print_files, print_lines
from hwnas.commands.front import print_members
from hwnas.metrics import shown
from hwnas.searching.member import Member

_ROWS = 24


def print_fronts(console: Console, outcome: Outcome) -> None:
    """Print the front of each target, that of models for all, and where the files are."""
    for front in outcome.fronts:
        title = f"{front.context.target}: verified front, fastest first"
        print_members(console, front, outcome.manifest, title)
        console.print()
    if outcome.for_all:
        console.print(_table(outcome.for_all))
    left = sum(bool(member.label) for member in outcome.for_all)
    n, targets = len(outcome.for_all), [front.context.target for front in outcome.fronts]
    lines = [
        *outcome.missed,
        f"{_counted(n)} for all targets, {left} left that front or a budget after verification."
        * bool(n),
        f"{n - _ROWS} more members in front.csv." * (n > _ROWS),
    ]  # fmt: skip
    print_lines(console, lines)
    own = [f"{target}/ (the same, and models/)" for target in targets]
    storage = outcome.fronts[0].context.config.study.storage
    print_files(console, storage, outcome.folder, [*FILES, *own])


def _counted(n: int) -> str:
    return "1 model" if n == 1 else f"{n} models"


def _table(members: Sequence[Member]) -> Table:
    """Return a row for each model and target: beside one another, figures of many were cut off."""
    metric = members[0].metric
    table = Table(
        "id", "target", metric, "ms", "",
        title="Models for all targets, verified on each", box=box.SIMPLE_HEAD, padding=(0, 1),
        show_edge=False,
    )  # fmt: skip
    for part in table.columns:
        part.justify, part.no_wrap = "right", True
    for member in members[:_ROWS]:
        state = "over budget" if member.over_budget else "" if member.on_front else "left front"
        for i, (target, own) in enumerate(member.parts.items()):
            first = (member.candidate.id, state) if i == 0 else ("", "")
            figures = shown(metric, own.quality.value), f"{own.figures['latency_ms'].value:.4f}"
            table.add_row(first[0], escape(target), *figures, first[1])
    return table
