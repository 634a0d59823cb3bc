"""``python -m hwnas profile``: what the terminal shows of a latency table."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from hwnas.api.layers import Layered
from hwnas.api.profiling import profile
from hwnas.commands.console import Phases, print_lines
from hwnas.config import ProfileConfig
from hwnas.latency_table import LatencyTable


def run(config: ProfileConfig, arguments: Sequence[str]) -> None:
    """Measure what a target's table lacks, and print its error."""
    console = Console()
    with Phases(console) as phases:
        found = profile(config, arguments, phases)
    if found.layers is not None:
        _print_layers(console, found.layers)
        return
    if found.elsewhere is not None:
        print_lines(console, found.elsewhere.sentences(config))
        return
    assert found.table is not None
    if found.transfer is not None:
        _print_transfer(console, found.table, found.transfer)
        return
    for name in found.spaces:
        _print(console, found.table, name, f" of {name}" * (len(found.spaces) > 1))
    took = ", ".join(f"{name.lower()} {s:.1f} s" for name, s in phases.seconds.items())
    print_lines(console, [*found.extras, f"Took {took}."])


def _print_layers(console: Console, found: Layered) -> None:
    total = sum(layer.latency_ms for layer in found.layers)
    table = Table("operator", "shape", "ms", "share", "bound", title=found.title,
                  box=box.SIMPLE_HEAD, padding=0, show_edge=False)  # fmt: skip
    for layer in found.layers:
        share = layer.latency_ms / total
        table.add_row(
            layer.name, layer.operator, f"{layer.latency_ms:.5f}", f"{share:.1%}", layer.bound
        )
    console.print(table)
    where = f"Files in {found.path}: layers.csv layers.png"
    print_lines(console, [f"Sum {total:.5f} ms, {found.source}. {where}"])


def _print(console: Console, table: LatencyTable, space: str, of: str) -> None:
    known = table.calibration[space]
    found, n_told = known["error"], len(table.entries) - len(table.plans())
    seen = "each left out in turn" if "foretold" in known else "that neither fit nor interval saw"
    told = f", {n_told} of them foretold" * bool(n_told)
    lines = [
        f"{len(table.entries)} operators in {table.path}{told}.",
        f"Error on {found['n']} networks{of}, {seen}:",
    ]
    for name in ("table", "macs"):
        e = found[name]
        lines.append(
            f"  {name:<6} within 5 %: {e['within_5']:.1%}, within 10 %: {e['within_10']:.1%}, "
            f"MAPE {e['mape']:.2%}, Spearman {e['spearman']:.4f}, Kendall {e['kendall']:.4f}"
        )
    lines.append(
        f"Interval: ±{found['table']['interval']:.1%}, which holds "
        f"{found['table']['coverage']:.1%} of them (95 % wanted). "
        f"{found['drifted']} were measured while the machine drifted."
    )
    print_lines(console, lines)


def _print_transfer(console: Console, table: LatencyTable, report: Mapping[str, float]) -> None:
    console.print(
        f"{len(table.entries)} operators in {table.path}, most of them transferred. Networks left "
        f"out of the fit: Spearman {report['spearman']:.4f}, MAPE {report['mape']:.2%}; interval "
        f"±{report['interval']:.1%} of {report['coverage']:.0%}.",
        highlight=False,
        soft_wrap=True,
    )
