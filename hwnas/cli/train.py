"""Commands ``profile``, ``audit`` and ``train``."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from rich import box
from rich.console import Console
from rich.table import Table

from hwnas.cli.console import run_verb
from hwnas.cli.output import print_lines
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row
from hwnas.tasks.metrics import format_interval, format_value, metric_of
from hwnas.training import parallel
from hwnas.workflows.audit import AuditResult, audit
from hwnas.workflows.config import AuditConfig, ProfileConfig, TrainConfig
from hwnas.workflows.profile import profile
from hwnas.workflows.profile_layers import LatencyBreakdown
from hwnas.workflows.result_folders import ProfileResult, TrainResult
from hwnas.workflows.train import train


def profile_command(config: ProfileConfig, arguments: Sequence[str]) -> None:
    """Run ``hwnas profile`` and print its result."""
    run_verb(partial(profile, config, arguments), _print_profile, _profile_row)


def _profile_row(result: ProfileResult) -> Row:
    layers = [] if result.layers is None else [asdict(layer) for layer in result.layers.layers]
    known = {"path": result.path, "messages": result.messages, "errors": result.errors}
    return known | ({"layers": layers} if layers else {})


def _print_profile(console: Console, result: ProfileResult) -> None:
    if result.layers is not None:
        console.print(_layer_table(result.layers))
    print_lines(console, result.messages)


def _layer_table(result: LatencyBreakdown) -> Table:
    total = sum(layer.latency_ms for layer in result.layers)
    bounds = [layer.bound for layer in result.layers]
    table = Table("operator", "shape", "ms", "share", *["bound"] * any(bounds),
                  title=result.title, box=box.SIMPLE_HEAD, padding=0, show_edge=False)  # fmt: skip
    for layer in result.layers:
        share = f"{layer.latency_ms / total:.1%}"
        cells = (layer.name, layer.operator, f"{layer.latency_ms:.5f}", share)
        table.add_row(*cells, *[layer.bound] * any(bounds))
    return table


def audit_command(config: AuditConfig) -> None:
    """Run ``hwnas audit`` and print its result."""
    run_verb(partial(audit, config), _print_audit, _audit_row)


def _audit_row(result: AuditResult) -> Row:
    networks = [
        {
            "id": finding.subject.genotype.id,
            "from": finding.subject.group,
            "supernet": finding.supernet.to_json(),
            "alone": [figure.to_json() for figure in finding.alone],
            "leaves_front": result.leaving.get(finding.subject.genotype.id),
        }
        for finding in result.findings
    ]
    return {"path": result.path, "messages": result.messages, "networks": networks}


def _print_audit(console: Console, result: AuditResult) -> None:
    console.print(_audit_table(result))
    print_lines(console, [*result.messages, f"Files in {result.path}: audit/ report.html"])


def _audit_table(result: AuditResult) -> Table:
    table = Table(
        "id", "from", "supernet", "95 %", "alone", "95 %", "2nd seed", "",
        title=f"{metric_of(result.metric).title.capitalize()} on the validation split",
        title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False,
    )  # fmt: skip
    for i, part in enumerate(table.columns):
        part.no_wrap = True
        part.justify = "right" if i in (2, 4, 6) else "left"
    for f in sorted(result.findings, key=lambda f: f.supernet.value):
        figures = [f.supernet, *f.alone]
        values = [format_value(result.metric, figure.value) for figure in figures]
        intervals = [_interval(result.metric, figure) for figure in figures]
        table.add_row(
            f.subject.genotype.id, f.subject.group, values[0], intervals[0], values[1],
            intervals[1], "".join(values[2:]), result.leaving.get(f.subject.genotype.id, ""),
        )  # fmt: skip
    return table


def _interval(metric: str, figure: Quantity) -> str:
    return format_interval(metric, figure, ".3f") if math.isfinite(figure.value) else ""


def train_command(config: TrainConfig, arguments: Sequence[str]) -> None:
    """Run ``hwnas train`` and print its result; with torchrun, only the first process prints."""
    quiet = not parallel.leads()
    run_verb(partial(train, config, arguments), _print_training, _training_row, quiet=quiet)


def _training_row(result: TrainResult | None) -> Row:
    return {} if result is None else {"path": result.path, **result.summary}


def _print_training(console: Console, result: TrainResult | None) -> None:
    if result is not None:
        console.print(_training_table(result))
        print_lines(console, [_checkpoint_message(result.summary)])


def _training_table(result: TrainResult) -> Table:
    table = Table(
        "", metric_of(result.metric).title, "95 % interval", title=result.title,
        title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False,
    )  # fmt: skip
    table.columns[1].justify = "right"
    for row in result.figures:
        table.add_row(*row)
    return table


def _checkpoint_message(summary: Row) -> str:
    """Return the duration of a training and its checkpoint."""
    checkpoint = f"Checkpoint: {summary['checkpoint']}"
    if summary["checkpoint"] is None:
        return "Nothing was trained: weights are from train.init_from."
    if not summary["steps"]:
        return f"Trained by an earlier command. {checkpoint}"
    rate = summary["images_x_subnets_per_second"]
    unit = "images x subnets" if "genotypes" in summary else "images"
    steps, seconds = summary["steps"], summary["seconds"]
    return f"Trained {steps} steps in {seconds:.1f} s, {rate:.0f} {unit}/s. {checkpoint}"
