"""Terminal output of ``hwnas search``."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hwnas.cli.console import print_files, print_lines, run_verb
from hwnas.core.run_folder import Row
from hwnas.hardware.target import Target
from hwnas.models.families import annotations
from hwnas.nas import candidates as columns
from hwnas.nas.candidates import Candidate
from hwnas.nas.early_exits import POINTS
from hwnas.nas.member import Member
from hwnas.tasks.metrics import expected_costs, format_value, metric_of
from hwnas.workflows.config import SearchConfig
from hwnas.workflows.search.cascades import CASCADES_FILE as CASCADES
from hwnas.workflows.search.cascades import EXITS_FILE as EXITS
from hwnas.workflows.search.front import (
    BASELINE,
    FILES,
    SearchOutcome,
    TargetFront,
    describe_energy,
    n_images_read,
)
from hwnas.workflows.search.run import search_for_front

_TABLE_ROWS = 24
_SHORT = {"float32": "fp32"}


def print_front(console: Console, outcome: SearchOutcome) -> None:
    """Print the front, its comparison with the baseline, and the paths of files."""
    (front,) = outcome.fronts
    print_members(console, front, outcome.manifest, "Verified front, fastest first")
    own = [BASELINE] * (front.against is not None)
    own += [CASCADES] * bool(front.cascades.found) + [EXITS] * bool(front.exits.found)
    storage = front.context.config.study.storage
    print_files(console, storage, front.folder, [*FILES, *own, "models/"])


def print_members(console: Console, front: TargetFront, manifest: Row, title: str) -> None:
    """Print the front of a target, its baseline, and the sources of its figures."""
    candidates, members, against = front.candidates, front.members, front.against
    parts, finishing = front.context.parts, manifest["finishing"]
    config, target = parts.config, parts.config.target
    asked = {*config.objectives, *config.allowed.limits}
    derived = [*(n for n in config.derives.names if n in asked), *expected_costs(sorted(asked))]
    listed = _spread(members, _TABLE_ROWS)
    short = "/".join(sorted({_short(member.dtype(target.dtype)) for member in members}))
    console.print(_front_table(title, short, listed, derived))
    task = parts.data.task
    infeasible = sum(candidate.state == "infeasible" for candidate in candidates)
    lines = [
        f"{len(members) - len(listed)} more members in front.csv." * (len(listed) < len(members)),
        *([] if against is None else against.sentences),
        f"{len(candidates)} candidates, {infeasible} infeasible; {_verified_words(members)}",
        *front.cascades.sentences,
        *front.exits.sentences,
        *_reading_words(front),
        _finishing_words(candidates, task.metric, finishing),
        *front.more,
        *(member.refusal for member in members if member.int8_is_slower),
        f"{short}: {metric_of(task.metric).title} of the compiled file on the whole "
        f"test split, measured; 95 %: {task.description.interval}.",
        _searched_words(front, finishing),
        f"ms: {_sources(members, 'latency_ms')}. {target.caveat}.",
        f"SRAM (activations) and flash (weights) in KiB: {_sources(members, 'sram_kib')}.",
        f"mJ: {_sources(members, 'energy_mj')}{_energy_shares(members)}. "
        f"{describe_energy(target)}.",
        *(_derived_words(name, members, target) for name in derived),
    ]
    print_lines(console, lines)


def _front_table(
    title: str, dtype: str, members: Sequence[Member], derived: Sequence[str]
) -> Table:
    """Return the table of members with their costs; derived metrics replace memory columns."""
    memories = () if derived else (("SRAM", "sram_kib", ".1f"), ("flash", "flash_kib", ".1f"))
    costs = [
        ("ms", "latency_ms", ".4f"),
        ("mJ", "energy_mj", ".5f"),
        *memories,
        *((_head(name), name, ".4g") for name in derived),
    ]
    runs = [annotations.run_label(m.candidate.genotype) for m in members]
    table = Table(
        "id", *["runs"] * any(runs), dtype, "95 %", "searched", *(head for head, _, _ in costs), "",
        title=title, box=box.SIMPLE_HEAD, padding=0, show_edge=False,
    )  # fmt: skip
    for part in table.columns:
        part.justify, part.no_wrap = "right", True
    for member, how in zip(members, runs, strict=True):
        found = member.quality
        assert found.low is not None
        assert found.high is not None
        table.add_row(
            member.candidate.id,
            *[how] * any(runs),
            format_value(member.metric, found.value) if "/" not in dtype else _in_its_dtype(member),
            f"±{format_value(member.metric, (found.high - found.low) / 2, '.3f')}",
            format_value(member.metric, member.candidate.figures[member.metric].value),
            *(f"{member.figures[name].value:{form}}" for _, name, form in costs),
            _label(member),
        )
    return table


def _head(name: str) -> str:
    """Return the column header of a metric."""
    metric = metric_of(name)
    return f"mean {metric.unit}" if metric.mean_of else metric.unit


def _derived_words(name: str, members: Sequence[Member], target: Target) -> str:
    """Return a sentence on a derived metric: its definition, sources and target facts."""
    metric = metric_of(name)
    stated = "".join(
        f"; target.facts.{fact}={number:g}"
        for fact, number in target.facts.items()
        if fact in metric.facts
    )
    if metric.mean_of:
        return (
            f"{_head(name)}: {metric.label} of images that leave as soon as an exit is sure, test "
            f"split; thresholds are chosen on validation to lose at most {POINTS} points."
        )
    of = " and ".join(metric.needs)
    return f"{metric.unit}: {metric.label}, from {of}: {_sources(members, name)}{stated}."


def _in_its_dtype(member: Member) -> str:
    """Return the quality of a member with its dtype, for a front of several dtypes."""
    return f"{_short(member.dtype('float32'))} {format_value(member.metric, member.quality.value)}"


def _short(dtype: str) -> str:
    return _SHORT.get(dtype, dtype)


def _label(member: Member) -> str:
    if member.over_budget:
        return "over budget"
    if member.int8_is_slower:
        return "no faster"
    if member.on_front:
        return ""
    return "near front" if member.near_front else "left front"


def _verified_words(members: Sequence[Member]) -> str:
    """Return a sentence on the numbers of members on and off the verified front."""
    labels = Counter(map(_label, members))
    descriptions = {
        "near front": "not significantly different from it",
        "left front": "off it",
        "over budget": "over budget",
        "no faster": "in int8 no faster than in float32",
    }
    others = [f"{labels[label]} {words}" for label, words in descriptions.items() if labels[label]]
    on_front = f"{labels['']} on the front"
    return f"{len(members)} verified: {', '.join([on_front, *others])}."


def _reading_words(front: TargetFront) -> list[str]:
    """Return sentences on the effort of scoring: trainings, or validation images."""
    candidates, parts = front.candidates, front.context.parts
    scored = {c.id: c for c in candidates if c.state != "infeasible"}
    if "evaluator" in front.context.own.named:
        return [f"{len(scored)} networks scored by {front.context.own.named['evaluator']}."]
    if parts.config.accuracy == "trained":
        return _training_words([*scored.values()], parts.config)
    stopped = sum(c.state == "stopped" for c in scored.values())
    n_read, n_all = n_images_read([*scored.values()]), len(scored) * len(parts.data.validation)
    return [
        f"{n_read:,} of {n_all:,} validation images read ({n_read / n_all:.0%}): {stopped} of "
        f"{len(scored)} networks were found to be dominated before the end."
    ]


def _training_words(scored: Sequence[Candidate], searched: SearchConfig) -> list[str]:
    """Return a sentence on the numbers of candidates stopped early and trained completely."""
    config = searched.trained
    last = len(config.fidelities)
    n_read = Counter(config.n_read(searched.metric, c.details) for c in scored)
    totals = [sum(config.fidelities[:n]) for n in range(last + 1)]
    spent = sum(totals[n] * count for n, count in n_read.items())
    stopped = [
        f"{n_read[n]} stopped after {_epochs(totals[n])}" for n in range(1, last) if n_read[n]
    ]
    ended = f"{n_read[last]} after {_epochs(totals[last])}"
    return [
        f"{len(scored)} networks trained alone: {', '.join([*stopped, ended])}; {spent} of "
        f"{len(scored) * totals[last]} epochs trained."
    ]


def _finishing_words(candidates: Sequence[Candidate], metric: str, finish: Row) -> str:
    """Return a sentence on the number of fine-tuned candidates, epochs and teacher."""
    done = {c.id for c in candidates if columns.finished(metric) in c.details}
    if not finish["epochs"]:
        return f"{len(done)} finished without further training (finish.epochs=0)."
    words = f"{len(done)} finished, each by {_epochs(finish['epochs'])} more"
    if finish["teacher"] is not None:
        words += f", taught by {finish['teacher']} ({finish['alpha']:.0%} of the loss)"
    return f"{words}."


def _searched_words(front: TargetFront, finishing: Row) -> str:
    """Return a sentence on the origin of the column ``searched``."""
    config, own = front.context.config, front.context.own.named
    metric, label = config.metric, metric_of(config.metric).label
    weights = "supernet weights" if config.accuracy == "supernet" else "trained alone"
    weights = f"as {own['evaluator']} says" if "evaluator" in own else weights
    believed = all(m.candidate.figures[metric].source == "modelled" for m in front.members)
    n_finished = len({c.id for c in front.candidates if columns.finished(metric) in c.details})
    if columns.is_enough(n_finished) and finishing["epochs"]:
        what = "finished"
        if believed:
            what = f"what is believed of the finished {label}, given all that was read"
    else:
        what = weights
        if believed:
            what = f"what is believed of the {label}, given all that was read; {weights}"
    chosen = any(map(annotations.precision_options, front.context.parts.space.members))
    dtype = "in the dtype of each" if chosen else "fp32"
    return f"searched: {what}; {dtype}, validation split{'' if believed else ', measured'}."


def _epochs(n: int) -> str:
    return f"{n} epoch{'s' * (n != 1)}"


def _sources(members: Sequence[Member], name: str) -> str:
    """Return the sources of a figure, verified and searched."""
    searched = {member.candidate.figures[name].source for member in members}
    verified = {member.figures[name].source for member in members}
    if searched == verified:
        return " and ".join(sorted(verified))
    return f"{' and '.join(sorted(verified))} (searched: {' and '.join(sorted(searched))})"


def _energy_shares(members: Sequence[Member]) -> str:
    """Return the fraction of each component of the front's energy, if known."""
    parts = {"MACs": "energy_macs_mj", "SRAM": "energy_sram_mj", "off-chip": "energy_off_chip_mj"}
    sums = {label: sum(m.details.get(name, 0) for m in members) for label, name in parts.items()}
    total = sum(sums.values())
    if not total:
        return ""
    return ", " + ", ".join(f"{label} {value / total:.0%}" for label, value in sums.items())


def _spread(members: Sequence[Member], n: int) -> Sequence[Member]:
    """Return at most ``n`` members, evenly spaced over the front, including both ends."""
    if len(members) <= n:
        return members
    return [members[round(i * (len(members) - 1) / (n - 1))] for i in range(n)]


# Fronts of several targets, and the front of models for all targets.

_ROWS = 24


def print_fronts(console: Console, outcome: SearchOutcome) -> None:
    """Print the front of each target, the front of models for all, and the paths of files."""
    for front in outcome.fronts:
        title = f"{front.context.target}: verified front, fastest first"
        print_members(console, front, outcome.manifest, title)
        console.print()
    if outcome.for_all:
        console.print(_joint_table(outcome.for_all))
    left = sum(bool(member.label) for member in outcome.for_all)
    n, targets = len(outcome.for_all), [front.context.target for front in outcome.fronts]
    lines = [
        *outcome.missed,
        f"{_counted(n)} for all targets, {left} left that front or a budget after verification."
        * bool(n),
        f"{n - _ROWS} more members in front.csv." * (n > _ROWS),
    ]  # fmt: skip
    print_lines(console, lines)
    own = [f"{target}/ (the same, and models/)" for target in targets]
    storage = outcome.fronts[0].context.config.study.storage
    print_files(console, storage, outcome.folder, [*FILES, *own])


def _counted(n: int) -> str:
    return "1 model" if n == 1 else f"{n} models"


def _joint_table(members: Sequence[Member]) -> Table:
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
        state = "over budget" if member.over_budget else "" if member.on_front else "left front"
        for i, (target, own) in enumerate(member.parts.items()):
            first = (member.candidate.id, state) if i == 0 else ("", "")
            figures = (
                format_value(metric, own.quality.value),
                f"{own.figures['latency_ms'].value:.4f}",
            )
            table.add_row(first[0], escape(target), *figures, first[1])
    return table


def search_command(configs: Sequence[SearchConfig], arguments: Sequence[str]) -> None:
    """Run ``search`` for one target or several."""
    show = partial(_print_search, has_several_targets=len(configs) > 1)
    run_verb(partial(search_for_front, configs, arguments), show)


def _print_search(console: Console, outcome: SearchOutcome, *, has_several_targets: bool) -> None:
    if outcome.leader:
        print_lines(console, [outcome.leader])
        return
    (print_fronts if has_several_targets else print_front)(console, outcome)
    print_lines(console, outcome.foreign, style="red")
    print_lines(console, [front.measurement_advice for front in outcome.fronts])
