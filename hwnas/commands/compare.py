"""``python -m hwnas compare``: what the terminal shows of a comparison."""

from collections.abc import Sequence

from rich.console import Console

from hwnas.api.compare import compare
from hwnas.commands.console import Phases, print_lines
from hwnas.config import CompareConfig


def run(config: CompareConfig, arguments: Sequence[str]) -> None:
    """Compare runs, and print the main tables."""
    console = Console()
    with Phases(console) as phases:
        found = compare(config, arguments, phases)
    from hwnas.commands.compared import print_comparison  # loads with the comparison

    print_comparison(console, found.comparison, found.tables, found.sentences)
    print_lines(console, [f"Files in {found.path}: {' '.join(found.files)}"])
