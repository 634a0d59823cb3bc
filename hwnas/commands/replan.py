"""``python -m hwnas replan``: what the terminal shows of a plan that telemetry changed."""

from collections.abc import Sequence

from rich.console import Console

from hwnas.api.replanning import replan
from hwnas.commands.console import Phases, print_lines, print_phases
from hwnas.commands.plan import print_found
from hwnas.config import ReplanConfig


def run(config: ReplanConfig, arguments: Sequence[str]) -> None:
    """Plan on, and print what was moved, and why."""
    console = Console()
    with Phases(console) as phases:
        found = replan(config, arguments, phases)
    print_found(console, found)
    print_lines(console, [f"Open in a browser: {found.path / 'report.html'}"])
    print_phases(console, phases)
