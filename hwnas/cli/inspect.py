"""Print the results of ``why`` and ``verify``."""

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table

from hwnas.cli.console import Phases
from hwnas.cli.output import DISPLAY, Terminal, print_json
from hwnas.export.options import VerifyConfig
from hwnas.workflows.config import WhyConfig
from hwnas.workflows.reporter import RecordingReporter
from hwnas.workflows.verify import verify

if TYPE_CHECKING:
    from hwnas.core.run_folder import Row
    from hwnas.workflows.why_sources import Part, Section, WhyReport

_WIDTH = 100


def why_command(config: WhyConfig) -> None:
    """Run ``hwnas why``: print the history of a candidate, or the front of a search."""
    from hwnas.workflows.why import why  # ``verify`` runs where Optuna is not installed

    console = Terminal(width=min(Console().width, _WIDTH), highlight=False, markup=False)
    report = why(config)
    if DISPLAY.get().as_json:
        print_json({"headline": report.headline, "sections": [*map(_section_row, report.sections)]})
        return
    (_print if report.headline else _print_front)(console, report)


def _section_row(section: "Section") -> "Row":
    parts = [
        part if isinstance(part, str)
        else [dict(zip(part.heads, cells, strict=True)) for cells in part.cells]
        for part in section.parts
    ]  # fmt: skip
    return {"title": section.title, "parts": parts}


def _print(console: Console, report: "WhyReport") -> None:
    console.print(report.headline, style="bold")
    for section in report.sections:
        console.print(f"\n{section.title}", style="bold")
        for part in section.parts:
            console.print(Padding(_renderable(part), (0, 0, 0, 2), expand=False))


def _print_front(console: Console, report: "WhyReport") -> None:
    for i, section in enumerate(report.sections):
        if i:
            console.print()
        console.print(section.title)
        for part in section.parts:
            console.print(_renderable(part))


def _renderable(part: "Part") -> RenderableType:
    if isinstance(part, str):
        return part
    table = Table(*part.heads, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for cells in part.cells:
        table.add_row(*cells)
    return table


# ``hwnas verify``: prints each result of the repeated checks at once.


def verify_command(config: VerifyConfig) -> None:
    """Run ``hwnas verify``: repeat the checks of an export and print the results.

    Raises:
        ProofError: a check fails; with ``json=true``, nothing is printed before it.
    """
    if not DISPLAY.get().as_json:
        verify(config, Phases(Terminal()))
        return
    reporter = RecordingReporter()
    verify(config, reporter)
    print_json({"export": config.export, "holds": True, "messages": reporter.lines})
