"""``python -m hwnas profile``: what the terminal shows of a latency table."""

import math
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from hwnas.cli.console import Phases, print_lines, print_phases
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row
from hwnas.hardware.latency_tables.latency_table import LatencyTable
from hwnas.tasks.metrics import format_value, metric_of
from hwnas.training import parallel
from hwnas.workflows.audit import AuditOutcome, audit
from hwnas.workflows.config import AuditConfig, ProfileConfig, TrainConfig
from hwnas.workflows.profile import profile
from hwnas.workflows.profile_layers import LatencyBreakdown
from hwnas.workflows.train import TrainingOutcome, train


def profile_command(config: ProfileConfig, arguments: Sequence[str]) -> None:
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


def _print_layers(console: Console, found: LatencyBreakdown) -> None:
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


# ``python -m hwnas audit``: what the terminal shows of an audit.


def audit_command(config: AuditConfig) -> None:
    """Audit the supernet of a search, and print what was found."""
    console = Console()
    with Phases(console) as phases:
        found = audit(config, phases)
    console.print(_audit_table(found))
    print_lines(console, [*found.words, f"Files in {found.path}: audit/ report.html"])
    print_phases(console, phases)


def _audit_table(found: AuditOutcome) -> Table:
    table = Table(
        "id", "from", "supernet", "95 %", "alone", "95 %", "2nd seed", "",
        title=f"{metric_of(found.metric).title.capitalize()} on the validation split",
        title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False,
    )  # fmt: skip
    for i, part in enumerate(table.columns):
        part.no_wrap = True
        part.justify = "right" if i in (2, 4, 6) else "left"
    for f in sorted(found.findings, key=lambda f: f.supernet.value):
        figures = [f.supernet, *f.alone]
        values = [format_value(found.metric, figure.value) for figure in figures]
        halves = [_half(found.metric, figure) for figure in figures]
        table.add_row(
            f.subject.genotype.id, f.subject.group, values[0], halves[0], values[1], halves[1],
            "".join(values[2:]), found.leaving.get(f.subject.genotype.id, ""),
        )  # fmt: skip
    return table


def _half(metric: str, figure: Quantity) -> str:
    if figure.low is None or figure.high is None or not math.isfinite(figure.value):
        return ""
    return f"±{format_value(metric, (figure.high - figure.low) / 2)}"


# ``python -m hwnas train``: what the terminal shows of a training.


def train_command(config: TrainConfig, arguments: Sequence[str]) -> None:
    """Train, and print how good it is; of several processes, the first prints."""
    console = Console(quiet=not parallel.leads())
    with Phases(console) as phases:
        trained = train(config, arguments, phases)
    if trained is not None:
        console.print(_training_table(trained))
        console.print(_closing(trained.summary), highlight=False, soft_wrap=True)
        print_phases(console, phases)


def _training_table(trained: TrainingOutcome) -> Table:
    table = Table(
        "", metric_of(trained.metric).title, "95 % interval", title=trained.title,
        title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False,
    )  # fmt: skip
    table.columns[1].justify = "right"
    for row in trained.figures:
        table.add_row(*row)
    return table


def _closing(summary: Row) -> str:
    """Return what the training took and where its result is."""
    where = f"Checkpoint: {summary['checkpoint']}"
    if summary["checkpoint"] is None:
        return "Nothing was trained: the weights are those of train.init_from."
    if not summary["steps"]:
        return f"It was trained before. {where}"
    rate = summary["images_x_subnets_per_second"]
    what = "images x subnets" if "genotypes" in summary else "images"
    steps, seconds = summary["steps"], summary["seconds"]
    return f"Trained {steps} steps in {seconds:.1f} s, {rate:.0f} {what} a second. {where}"
