"""``python -m hwnas plan``: what the terminal shows of a plan."""

from collections.abc import Sequence

from rich.console import Console

from hwnas.api.planning import PlannedRun, plan
from hwnas.commands.console import Phases, print_lines, print_phases
from hwnas.config import PlanConfig


def run(config: PlanConfig, arguments: Sequence[str]) -> None:
    """Plan, and print what was found."""
    console = Console()
    with Phases(console) as phases:
        found = plan(config, arguments, phases)
    print_found(console, found)
    print_lines(
        console,
        [
            f"Open in a browser: {found.path / 'report.html'}",
            f"Simulate with failures: python -m hwnas simulate plan={found.path} kill=DEVICE",
        ],
    )
    print_phases(console, phases)


def print_found(console: Console, found: PlannedRun) -> None:
    """Print sentences, and where files are."""
    print_lines(console, [*found.sentences, f"Files in {found.path}: {' '.join(found.files)}"])
