"""``python -m hwnas search``: what the terminal shows of a search."""

from collections.abc import Sequence

from rich.console import Console

from hwnas.api.elsewhere import asked
from hwnas.api.search import search
from hwnas.commands.console import Phases, print_lines, print_phases
from hwnas.commands.front import print_front
from hwnas.commands.fronts import print_fronts
from hwnas.config import SearchConfig


def run(configs: Sequence[SearchConfig], arguments: Sequence[str]) -> None:
    """Search, and print what was found.

    Args:
        configs: One for each target.
        arguments: Of the command line.
    """
    console = Console()
    with Phases(console) as phases:
        outcome = search(configs, arguments, phases)
    if outcome.leader:
        print_lines(console, [outcome.leader])
        return
    (print_front if len(configs) == 1 else print_fronts)(console, outcome)
    print_lines(console, outcome.foreign, style="red")
    print_lines(console, [asked(front) for front in outcome.fronts])
    print_phases(console, phases)
