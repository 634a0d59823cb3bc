"""``python -m hwnas serve-check``: what the terminal shows of a server and its simulation."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from hwnas.api.serving import Checked, serve_check
from hwnas.commands.console import Phases, print_lines, print_phases
from hwnas.config import ServeCheckConfig
from hwnas.results import Row

_SHOWN = ("p50", "p95", "p99")


def run(config: ServeCheckConfig, arguments: Sequence[str]) -> None:
    """Check, and print simulated and measured latencies."""
    console = Console()
    with Phases(console) as phases:
        found = serve_check(config, arguments, phases)
    console.print(_table(found))
    print_lines(console, [*found.sentences, f"Files in {found.path}: {' '.join(found.files)}"])
    print_phases(console, phases)


def _table(found: Checked) -> Table:
    """Return a row for each pool and load."""
    shown = Table(
        "pool", "load", "a second", *(f"{name} ms" for name in _SHOWN),
        title="Simulated / measured, ± half of the 95 % interval over repeats",
        title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False,
    )  # fmt: skip
    for row in found.rows:
        shown.add_row(
            row["pool"], f"{row['load']:.0%}", f"{row['rate_per_s']:.0f}",
            *(_pair(row, name) for name in _SHOWN),
        )  # fmt: skip
    return shown


def _pair(row: Row, name: str) -> str:
    said = f"measured_{name}_ms"
    half = (row[f"{said}_high"] - row[f"{said}_low"]) / 2
    simulated, error = row[f"simulated_{name}_ms"], row[f"error_{name}"]
    return f"{simulated:.2f} / {row[said]:.2f}±{half:.2f} ({error:+.0%})"
