"""``python -m hwnas audit``: what the terminal shows of an audit."""

import math

from rich import box
from rich.console import Console
from rich.table import Table

from hwnas.api.auditing import Audited, audit
from hwnas.commands.console import Phases, print_lines, print_phases
from hwnas.config import AuditConfig
from hwnas.figure import Figure
from hwnas.metrics import column, shown


def run(config: AuditConfig) -> None:
    """Audit the supernet of a search, and print what was found."""
    console = Console()
    with Phases(console) as phases:
        found = audit(config, phases)
    console.print(_table(found))
    print_lines(console, [*found.words, f"Files in {found.path}: audit/ report.html"])
    print_phases(console, phases)


def _table(found: Audited) -> Table:
    table = Table(
        "id", "from", "supernet", "95 %", "alone", "95 %", "2nd seed", "",
        title=f"{column(found.metric).title.capitalize()} on the validation split",
        title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False,
    )  # fmt: skip
    for i, part in enumerate(table.columns):
        part.no_wrap = True
        part.justify = "right" if i in (2, 4, 6) else "left"
    for f in sorted(found.findings, key=lambda f: f.supernet.value):
        figures = [f.supernet, *f.alone]
        values = [shown(found.metric, figure.value) for figure in figures]
        halves = [_half(found.metric, figure) for figure in figures]
        table.add_row(
            f.subject.genotype.id, f.subject.group, values[0], halves[0], values[1], halves[1],
            "".join(values[2:]), found.leaving.get(f.subject.genotype.id, ""),
        )  # fmt: skip
    return table


def _half(metric: str, figure: Figure) -> str:
    if figure.low is None or figure.high is None or not math.isfinite(figure.value):
        return ""
    return f"±{shown(metric, (figure.high - figure.low) / 2)}"
