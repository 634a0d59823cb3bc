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
    """Return the worst hour of each class: where something failed, in the minute after it."""
    failed = any("replicas_failed" in row for row in found.tables.get("hours", ()))
    shares = {"late": "late", **({"late_after": "late after"} if failed else {})}
    *_, judged = shares
    columns = [column for head in shares.values() for column in (head, "95 %")]
    shown = Table(
        "class", "hour", "p50 ms", "p99 ms", "limit", *columns, "lost",
        title="The hour of each class with the most late requests" + " after a failure" * failed,
        title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False,
    )  # fmt: skip
    worst: dict[str, Row] = {}
    for row in found.tables.get("classes", ()):
        if row["class"] not in worst or row[judged] > worst[row["class"]][judged]:
            worst[row["class"]] = row
    for name, row in worst.items():
        shown.add_row(
            name, str(row["hour"]), f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}",
            f"{row['p99_limit_ms']:g}", *(cell for share in shares for cell in _share(row, share)),
            str(row["lost"]),
        )  # fmt: skip
    return shown


def _share(row: Row, name: str) -> tuple[str, str]:
    """Return a share and its interval."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"{row[name]:.2%}", "" if low is None else f"±{(high - low) / 2:.2%}"
