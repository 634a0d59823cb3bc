"""``python -m hwnas simulate``: what the terminal shows of a simulation."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from hwnas.api.planning import PlannedRun, simulate
from hwnas.commands.console import Phases, print_phases
from hwnas.commands.plan import print_found
from hwnas.config import SimulateConfig
from hwnas.results import Row


def run(config: SimulateConfig, arguments: Sequence[str]) -> None:
    """Simulate a plan, and print what was seen."""
    console = Console()
    with Phases(console) as phases:
        found = simulate(config, arguments, phases)
    console.print(_table(found))
    print_found(console, found)
    print_phases(console, phases)


def _table(found: PlannedRun) -> Table:
    """Return the worst hour of each class."""
    shown = Table(
        "class", "hour", "p50 ms", "p99 ms", "limit", "late", "95 %", "lost",
        title="The hour of each class with the most late requests", title_justify="left",
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False,
    )  # fmt: skip
    worst: dict[str, Row] = {}
    for row in found.tables.get("classes", ()):
        if row["class"] not in worst or row["late"] > worst[row["class"]]["late"]:
            worst[row["class"]] = row
    for name, row in worst.items():
        half = "" if row["late_low"] is None else f"±{(row['late_high'] - row['late_low']) / 2:.2%}"
        shown.add_row(
            name, str(row["hour"]), f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}",
            f"{row['p99_limit_ms']:g}", f"{row['late']:.2%}", half, str(row["lost"]),
        )  # fmt: skip
    return shown
