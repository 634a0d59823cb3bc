"""``python -m hwnas split``: what the terminal shows of a network that was cut in two."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from hwnas.api.splitting import SplitRun, split
from hwnas.commands.console import Phases, print_lines, print_phases
from hwnas.export.options import SplitConfig


def run(configs: Sequence[SplitConfig], arguments: Sequence[str]) -> None:
    """Cut a network in two for one target or several, and print what its parts take."""
    console = Console()
    with Phases(console) as phases:
        found = split(configs, arguments, phases)
    console.print(_table(found))
    print_lines(console, [*found.sentences, f"Files in {found.path}: {' '.join(found.files)}"])
    print_phases(console, phases)


def _table(found: SplitRun) -> Table:
    whole = {str(row["target"]): row for row in reversed(found.profile) if not row["place"]}
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1), title=f"{found.name}: milliseconds of head + tail",
        show_edge=False,
    )  # fmt: skip
    table.add_column("cut", no_wrap=True)
    table.add_column("after", overflow="fold")
    table.add_column("KiB", justify="right", no_wrap=True)
    table.add_column("work", justify="right", no_wrap=True)
    for target, row in whole.items():
        many = f", {row['batch']} images" if row["batch"] != 1 else ""
        table.add_column(f"{target}{many}", justify="right", no_wrap=True)
    for row in found.cuts:
        times = [f"{row[f'head_ms.{t}']:.3g} + {row[f'tail_ms.{t}']:.3g}" for t in whole]
        sent = f"{row['activation_kib']:.3g}"
        table.add_row(row["name"], row["after"], sent, f"{row['head_macs']:.0%}", *times)
    table.add_row("none", "", "", "", *(f"{row['latency_ms']:.3g}" for row in whole.values()))
    return table
