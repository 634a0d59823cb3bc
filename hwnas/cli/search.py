"""Terminal output of ``hwnas search``."""

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hwnas.cli.console import run_verb
from hwnas.cli.output import DISPLAY, print_lines, stored_option
from hwnas.cli.search_notes import derived_metrics_of, notes
from hwnas.core.errors import counted
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row
from hwnas.export import picking
from hwnas.models.families import annotations
from hwnas.nas.member import Member
from hwnas.tasks.metrics import format_value, metric_of
from hwnas.workflows.config import SearchConfig
from hwnas.workflows.search.front import (
    FILES,
    SearchOutcome,
    TargetFront,
)
from hwnas.workflows.search.run import search_for_front

_TABLE_ROWS = 24
_PRECISE = 0.095  # relative half width of an interval below which a decimal is printed
_SHORT = {"float32": "fp32"}
_SHORT_LABELS = {"mae": "mean error"}


def print_members(console: Console, front: TargetFront, title: str, run: Path) -> None:
    """Print a table of the front, how many members are not on it and why, and the knee.

    Args:
        console: The console.
        front: The verified front.
        title: Title of the table.
        run: Folder of the run, for the command that lists the other members.
    """
    members = _shown_members(front.members)
    spread = _spread(members, _TABLE_ROWS)
    listed = [m for m in members if m in spread or m is front.recommended]
    console.print(_front_table(title, front, listed))
    lines = [
        f"{len(members) - len(listed)} more in front.csv." * (len(listed) < len(members)),
        _verified_words(front.members, run),
        *_knee_words(front.members, front.recommended),
        *([] if front.against is None else front.against.sentences),
    ]
    print_lines(console, lines)


def _shown_members(members: Sequence[Member]) -> Sequence[Member]:
    """Return the members on the front; all, if verification left none on it or with ``--all``."""
    on_front = [member for member in members if not _label(member)]
    return members if DISPLAY.get().everything or not on_front else on_front


def _knee_words(members: Sequence[Member], recommended: Member | None) -> list[str]:
    """Return why the recommended member is recommended."""
    if recommended is None or sum(not _label(member) for member in members) < 2:
        return []
    metric = metric_of(recommended.metric)
    better = f"{'more' if metric.maximise else 'less'} {metric.label}"
    return [
        f"Recommended: {recommended.candidate.id}, the knee, where {better} starts to "
        "cost more than before."
    ]


def print_next(console: Console, outcome: SearchOutcome) -> None:
    """Print the commands that continue with the result: ``export``, ``why`` and ``compare``."""
    path = shlex.quote(str(outcome.folder.path))
    commands = {}
    if any(front.recommended for front in outcome.fronts):
        commands[f"hwnas export {path}"] = "files for the device, of the knee"
    stored = stored_option(outcome.fronts[0].context.config.study.storage)
    commands[f"hwnas why {path}{stored}"] = "the history of each network"
    commands[f"hwnas compare {path} OTHER{stored}"] = "with another run"
    width = max(map(len, commands)) + 2
    lines = ["Next", *(f"  {c:<{width}}{text}" for c, text in commands.items())]
    page = outcome.folder.path / "report.html"
    print_lines(console, [*lines, f"Open in a browser: {page}"])


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines if line]


def _front_table(title: str, front: TargetFront, members: Sequence[Member]) -> Table:
    """Return the table of members with their costs; derived metrics replace memory columns."""
    config, derived = front.context.config, derived_metrics_of(front)
    dtypes = "/".join(sorted({_short_dtype(m.dtype(config.target.dtype)) for m in front.members}))
    memories = () if derived else (("sram_kib", ".1f"), ("flash_kib", ".1f"))
    costs = [
        ("latency_ms", ".4f"), ("energy_mj", ".5f"), *memories,
        *((name, ".4g") for name in derived),
    ]  # fmt: skip
    runs = [annotations.run_label(m.candidate.genotype) for m in members]
    label = _SHORT_LABELS.get(config.metric, metric_of(config.metric).label)
    table = Table(
        "network", *["runs"] * any(runs), f"{label}\n({dtypes}, test)",
        *(_head(name) for name, _ in costs), "",
        title=title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0),
        show_edge=False,
    )  # fmt: skip
    for part in table.columns:
        part.no_wrap = True
    for part in table.columns[1:-1]:
        part.justify = "right"
    for member, run_text in zip(members, runs, strict=True):
        is_recommended = member is front.recommended
        table.add_row(
            member.candidate.id,
            *[run_text] * any(runs),
            _quality(member, has_several_dtypes="/" in dtypes),
            *(_cost(member.figures[name], name, form) for name, form in costs),
            "knee" if is_recommended else _label(member),
            style="bold" if is_recommended else None,
        )
    return table


def _quality(member: Member, *, has_several_dtypes: bool) -> str:
    """Return the quality of a member, with its dtype for a front of several dtypes."""
    return f"{_short_dtype(member.dtype('float32'))} " * has_several_dtypes + member.quality_text


def _cost(figure: Quantity, name: str, form: str) -> str:
    """Return a cost; a latency with its 95 % interval, relative to the value."""
    text = f"{figure.value:{form}}"
    if name != "latency_ms" or figure.low is None or figure.high is None:
        return text
    share = max(figure.high - figure.value, figure.value - figure.low) / figure.value
    return f"{text} ±{share:{'.1%' if share < _PRECISE else '.0%'}}"


def _head(name: str) -> str:
    """Return the column header of a cost."""
    metric = metric_of(name)
    label = f"mean {metric_of(metric.mean_of).label}" if metric.mean_of else metric.label
    return f"{label}\n[{metric.unit}]".replace("[", "\\[")


def _short_dtype(dtype: str) -> str:
    return _SHORT.get(dtype, dtype)


def _label(member: Member) -> str:
    if member.over_budget:
        return "over budget"
    if member.int8_is_slower:
        return "no faster"
    if member.on_front:
        return ""
    return "near front" if member.near_front else "left front"


def _verified_words(members: Sequence[Member], run: Path) -> str:
    """Return a sentence on the numbers of members on and off the verified front."""
    labels = Counter(map(_label, members))
    descriptions = {
        "near front": "not significantly different from it",
        "left front": "off it",
        "over budget": "over budget",
        "no faster": "in int8 no faster than in float32",
    }
    others = [
        f"{labels[label]} {description}"
        for label, description in descriptions.items()
        if labels[label]
    ]
    on_front = f"{counted(labels[''], 'network')} on the front"
    is_short = labels[""] and others and not DISPLAY.get().everything
    command = f"hwnas resume {shlex.quote(str(run))} --all"
    hidden = f" ({command} lists them)" if is_short else ""
    return f"{len(members)} verified: {', '.join([on_front, *others])}{hidden}."


def _spread(members: Sequence[Member], n: int) -> Sequence[Member]:
    """Return at most ``n`` members, evenly spaced over the front, including both ends."""
    if len(members) <= n:
        return members
    return [members[round(i * (len(members) - 1) / (n - 1))] for i in range(n)]


# Fronts of the targets, and of several the front of models for all targets.

_ROWS = 24


def print_fronts(console: Console, outcome: SearchOutcome) -> None:
    """Print the front of each target and, of several, the joint one; next commands and notes."""
    several = "targets" in outcome.manifest
    for front in outcome.fronts:
        print_members(console, front, front.context.target * several, outcome.folder.path)
        if several:
            console.print()
    print_lines(console, outcome.missed)
    if joint := outcome.for_all.members:
        members, recommended = _shown_members(joint), picking.recommended(outcome.for_all)
        console.print(_joint_table(members, recommended))
        lines = [
            f"{len(members) - _ROWS} more in front.csv." * (len(members) > _ROWS),
            f"For all targets, {_verified_words(joint, outcome.folder.path)}",
            *_knee_words(joint, recommended),
        ]
        print_lines(console, lines)
    print_next(console, outcome)
    for front in outcome.fronts:
        lines = _indent(notes(front, outcome.manifest))
        print_lines(console, ["Notes" + f" on {front.context.target}" * several, *lines])
    if several:
        files = [name for name in FILES if (outcome.folder.path / name).exists()]
        print_lines(console, [f"Files in {outcome.folder.path}: {' '.join(files)}"])


def _joint_table(members: Sequence[Member], recommended: Member | None) -> Table:
    """Return the table of models for all targets, with a row for each model and target."""
    metric = members[0].metric
    table = Table(
        "id", "target", metric, "ms", "",
        title="Models for all targets, verified on each", box=box.SIMPLE_HEAD, padding=(0, 1),
        show_edge=False,
    )  # fmt: skip
    for part in table.columns:
        part.justify, part.no_wrap = "right", True
    for member in members[:_ROWS]:
        state = "knee" if member is recommended else _label(member)
        for i, (target, member_on_target) in enumerate(member.parts.items()):
            first = (member.candidate.id, state) if i == 0 else ("", "")
            figures = (
                format_value(metric, member_on_target.quality.value),
                f"{member_on_target.figures['latency_ms'].value:.4f}",
            )
            table.add_row(first[0], escape(target), *figures, first[1])
    return table


#: Beginnings of the names of phases, by stage.
_STAGES = (
    ("Search",),
    ("Train the teacher", "Fine-tune", "Teacher answers", "Finish members"),
    ("Verify",),
)


def search_command(configs: Sequence[SearchConfig], arguments: Sequence[str]) -> None:
    """Run ``hwnas search`` for one target or several and print its result."""
    search = partial(search_for_front, configs, arguments)
    run_verb(search, _print_search, _search_row, stages=_STAGES)


def _search_row(outcome: SearchOutcome) -> Row:
    fronts = {front.context.target: _front_row(front) for front in outcome.fronts}
    joint = outcome.for_all.members
    return {
        "path": outcome.folder.path,
        "messages": outcome.notes,
        "targets": fronts,
        **({"for_all": [m.candidate.id for m in joint]} if joint else {}),
    }


def _front_row(front: TargetFront) -> Row:
    space = front.context.parts.space
    recommended = front.recommended
    return {
        "path": front.folder.path,
        "recommended": None if recommended is None else recommended.candidate.id,
        "messages": [*front.headline, *front.notes, *front.more],
        "members": [member.row(space) for member in front.members],
    }


def _print_search(console: Console, outcome: SearchOutcome) -> None:
    if outcome.leader:
        print_lines(console, [outcome.leader])
        return
    print_fronts(console, outcome)
    print_lines(console, outcome.foreign, style="red")
    print_lines(console, [front.measurement_advice for front in outcome.fronts])
