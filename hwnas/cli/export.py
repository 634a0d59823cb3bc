"""Commands ``export`` and ``compress``."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hwnas import tasks
from hwnas.cli.console import run_verb
from hwnas.cli.output import print_lines
from hwnas.core.errors import counted
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row
from hwnas.export import folder as folders
from hwnas.export.prove import ProofEvidence
from hwnas.tasks.metrics import format_interval, format_value, metric_of
from hwnas.workflows.compress import CompressionResult, compress
from hwnas.workflows.config import CompressConfig, ExportConfig
from hwnas.workflows.export import ExportResult, export
from hwnas.workflows.result_folders import Export


def export_command(config: ExportConfig, arguments: Sequence[str]) -> None:
    """Run ``hwnas export`` and print its result.

    Raises:
        ProofError: a check of an export fails; its folder is kept with the suffix ``.failed``.
    """
    run_verb(partial(export, config, arguments), _print_exports, _exports_row).checked()


def compress_command(config: CompressConfig, arguments: Sequence[str]) -> None:
    """Run ``hwnas compress`` and print its result.

    Raises:
        ProofError: a check of the export fails; its folder is kept with the suffix ``.failed``.
    """
    run_verb(partial(compress, config, arguments), _print_compression, _exports_row).checked()


def _exports_row(result: ExportResult) -> Row:
    exports = [{"path": done.path, "proof": done.proof} for done in result.exports]
    return {"exports": exports, "failed": result.failed}


def _print_exports(console: Console, result: ExportResult) -> None:
    for done in result.exports:
        if done.evidence is not None:  # else an earlier command printed it
            _print_export(console, done, done.evidence)


def _print_export(console: Console, done: Export, evidence: ProofEvidence) -> None:
    place, row = done.path, done.proof
    task = tasks.from_json(row["task"])
    metric = task.metric
    table = Table(
        "", metric_of(metric).label, "95 %", "largest error", task.description.same,
        title=f"{row['model']['name']}", box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False,
    )  # fmt: skip
    table.add_row("torch", *_cells(metric, evidence.reference), "", "")
    for name, facts in row["artefacts"].items():
        if name in evidence.not_run:
            continue
        near = evidence.agreements[name]
        error, same = f"{near.max_error:.2g}", f"{near.same:.1%}"
        table.add_row(name, *_cells(metric, Quantity(*facts[metric])), error, same)
    console.print(table)
    steps = row["finishing"]["steps"]
    identical = (row["source"]["reported"] or {}).get("same_files")
    lines = [
        f"Finished, {metric_of(metric).label} on the validation split: "
        + ", ".join(f"{step['step']} {format_value(metric, step[metric][0])}" for step in steps),
        ", ".join(_words(name, values) for name, values in row["figures"].items()),
        f"Byte for byte what the search verified: {', '.join(identical)}." if identical else "",
        *_exit_words(row),
        *(f"Does not hold: {c.name}: {c.found:.4g} {c.words}; "
          f"at {'least' if c.is_least else 'most'} {c.allowed:g}."
          for c in evidence.checks if not c.holds),
        *(f"{name} was not run: {why}." for name, why in evidence.not_run.items()),
        f"Files in {place}: {' '.join([*row['files'], folders.PROOF])}",
    ]  # fmt: skip
    print_lines(console, lines)


def _exit_words(row: Row) -> list[str]:
    """Return a sentence about accuracy and latency with early exits, if the network has exits."""
    if (exits := row.get("exits")) is None:
        return []
    measured, worst = exits["found"], Quantity(*exits["worst"]["latency_ms"])
    expected = Quantity(*measured["costs"]["expected_latency_ms"])
    shares = ", ".join(f"{share[0]:.1%}" for share in measured["left"])
    return [
        f"Leaving early (run_exits.py): accuracy {measured['accuracy'][0]:.4f} at an expected "
        f"{expected.value:.4g} ms, {expected.value / worst.value:.0%} of the {worst.value:.4g} ms "
        f"to the end ({worst.source}); {shares} of the test images leave at the exits."
    ]


def _words(name: str, values: Sequence[Any]) -> str:
    figure = Quantity(*values)
    return f"{name} {figure.value:.4g} ({figure.source})"


def _cells(metric: str, figure: Quantity) -> tuple[str, str]:
    return format_value(metric, figure.value), format_interval(metric, figure)


def _print_compression(console: Console, result: CompressionResult) -> None:
    _print_exports(console, result)
    (done,) = result.exports
    proof = done.proof
    means, rows = {}, proof["figures"]
    if "exits" in proof:  # segment by segment, as before compression
        means = proof["exits"]["found"]["costs"]
        rows = {**rows, **proof["exits"]["worst"], **means}
    after = {name: Quantity(*row) for name, row in rows.items()}
    console.print(_cost_table(result, after, means))
    compression = result.compression
    counts = sorted(Counter(compression.bits.values()).items())
    parts = [f"{counted(n, 'layer')} of {bits} bits" for bits, n in counts]
    parts += [f"{compression.prune:.0%} of the channels removed"] * bool(compression.prune)
    rest = "; other weights keep their format" * bool(compression.bits)
    print_lines(console, [f"{', '.join(parts).capitalize()}{rest}."])


def _cost_table(
    result: CompressionResult, after: Mapping[str, Quantity], means: Iterable[str]
) -> Table:
    """Return costs before and after compression, with the limits of the budget."""
    table = Table("", "before", "after", "change", "limit", box=box.SIMPLE_HEAD, show_edge=False)
    for part in table.columns[1:]:
        part.justify = "right"
    limits = result.limits
    names = ("latency_ms", "energy_mj", *means, "sram_kib", "flash_kib", *limits)
    for name in dict.fromkeys(names):
        if name in result.before and name in after:
            a, b = result.before[name].value, after[name].value
            limit = limits.get(name)
            table.add_row(
                escape(metric_of(name).title), f"{a:.4g}", f"{b:.4g}", f"{b / a - 1:+.0%}",
                "" if limit is None else f"{limit:g}",
            )  # fmt: skip
    return table
