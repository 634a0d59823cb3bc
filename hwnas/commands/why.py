"""``python -m hwnas why``: what the terminal shows of an explanation."""

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table

from hwnas.api.narrative import Part, Why
from hwnas.api.why import why
from hwnas.config import WhyConfig

_WIDTH = 100


def run(config: WhyConfig) -> None:
    """Print what the run folder says of a candidate, or its front."""
    console = Console(width=min(Console().width, _WIDTH), highlight=False, markup=False)
    found = why(config)
    (_print if found.headline else _print_front)(console, found)


def _print(console: Console, found: Why) -> None:
    console.print(found.headline, style="bold")
    for section in found.sections:
        console.print(f"\n{section.title}", style="bold")
        for part in section.parts:
            console.print(Padding(_rendered(part), (0, 0, 0, 2), expand=False))


def _print_front(console: Console, found: Why) -> None:
    for i, section in enumerate(found.sections):
        if i:
            console.print()
        console.print(section.title)
        for part in section.parts:
            console.print(_rendered(part))


def _rendered(part: Part) -> RenderableType:
    if isinstance(part, str):
        return part
    table = Table(*part.heads, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for cells in part.cells:
        table.add_row(*cells)
    return table
