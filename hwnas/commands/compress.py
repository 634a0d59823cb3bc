"""``python -m hwnas compress``: what the terminal shows of it."""

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hwnas.api.compressing import Compressed, compress
from hwnas.commands.console import print_lines, timed
from hwnas.commands.export import print_export
from hwnas.config import CompressConfig
from hwnas.figure import Figure
from hwnas.metrics import column


def run(config: CompressConfig, arguments: Sequence[str]) -> None:
    """Compress a network, and print what it was and what it became.

    Raises:
        ProofError: the export does not hold what it should; its folder is marked as failed.
    """
    console = Console()

    def told(done: Compressed) -> None:
        print_export(console, done.done)
        _print(console, config, done)

    timed(console, lambda phases: compress(config, arguments, phases, told))


def _print(console: Console, config: CompressConfig, done: Compressed) -> None:
    proof = done.done.proof
    means, rows = {}, proof["figures"]
    if "exits" in proof:  # as before: segment by segment
        means = proof["exits"]["found"]["costs"]
        rows = {**rows, **proof["exits"]["worst"], **means}
    after = {name: Figure(*row) for name, row in rows.items()}
    table = Table("", "before", "after", "change", "limit", box=box.SIMPLE_HEAD, show_edge=False)
    for part in table.columns[1:]:
        part.justify = "right"
    limits = config.allowed.limits
    names = ("latency_ms", "energy_mj", *means, "sram_kib", "flash_kib", *limits)
    for name in dict.fromkeys(names):
        if name in done.before and name in after:
            a, b = done.before[name].value, after[name].value
            limit = limits.get(name)
            table.add_row(
                escape(column(name).title), f"{a:.4g}", f"{b:.4g}", f"{b / a - 1:+.0%}",
                "" if limit is None else f"{limit:g}",
            )  # fmt: skip
    console.print(table)
    found = done.compression
    counts = sorted(Counter(found.bits.values()).items())
    told = [f"{n} layer{'s' * (n != 1)} of {bits} bits" for bits, n in counts]
    told += [f"{found.prune:.0%} of the channels taken out"] * bool(found.prune)
    print_lines(console, [f"{', '.join(told).capitalize()}; other weights stay in int8."])
