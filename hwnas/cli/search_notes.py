"""Notes on a front: effort of the search, sources of its figures, and files."""

from collections import Counter
from collections.abc import Sequence

from hwnas.core.errors import counted
from hwnas.core.run_folder import Row
from hwnas.hardware.target import Target
from hwnas.nas import candidates as columns
from hwnas.nas.candidates import Candidate
from hwnas.nas.early_exits import POINTS
from hwnas.nas.member import Member
from hwnas.tasks.metrics import expected_costs, metric_of
from hwnas.workflows.config import SearchConfig
from hwnas.workflows.search.cascades import CASCADES_FILE as CASCADES
from hwnas.workflows.search.cascades import EXITS_FILE as EXITS
from hwnas.workflows.search.front import (
    BASELINE,
    FILES,
    TargetFront,
    describe_energy,
    n_images_read,
)


def notes(front: TargetFront, manifest: Row) -> list[str]:
    """Return sentences on the effort of a search, the sources of its values, and its files."""
    candidates, members = front.candidates, front.members
    parts, finishing = front.context.parts, manifest["finishing"]
    target, task = parts.config.target, parts.data.task
    infeasible = sum(candidate.state == "infeasible" for candidate in candidates)
    return [
        f"{counted(len(candidates), 'candidate')}, {infeasible} infeasible.",
        *_reading_words(front),
        _finishing_words(candidates, task.metric, finishing),
        *front.more,
        *front.cascades.sentences,
        *front.exits.sentences,
        *(member.refusal for member in members if member.int8_is_slower),
        f"{_capitalise(metric_of(task.metric).title)}: of the compiled file on the whole test "
        f"split, measured; in brackets: 95 %, {task.description.interval}.",
        f"Latency: {_sources(members, 'latency_ms')} (cost={parts.config.cost})"
        f"{_interval_words(members)}. {_capitalise(target.caveat)}.",
        f"SRAM (activations) and flash (weights): {_sources(members, 'sram_kib')}.",
        f"Energy: {_sources(members, 'energy_mj')}{_energy_shares(members)}. "
        f"{_capitalise(describe_energy(target))}.",
        *(_derived_words(name, members, target) for name in derived_metrics_of(front)),
        f"Files in {front.folder.path}: {' '.join(_files(front))}",
    ]


def _capitalise(text: str) -> str:
    return text[:1].upper() + text[1:]


def _files(front: TargetFront) -> list[str]:
    optional = [BASELINE] * (front.against is not None)
    optional += [CASCADES] * bool(front.cascades.pairs) + [EXITS] * bool(front.exits.settings)
    return [n for n in (*FILES, *optional, "models/") if (front.folder.path / n).exists()]


def derived_metrics_of(front: TargetFront) -> list[str]:
    """Return the names of the derived metrics and expected costs among objectives and limits."""
    config = front.context.config
    requested = {*config.objectives, *config.allowed.limits}
    names = [name for name in config.derives.names if name in requested]
    return [*names, *expected_costs(sorted(requested))]


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
            f"Mean {metric_of(metric.mean_of).label}: of images that leave as soon as an exit is "
            f"sure, test split; thresholds are chosen on validation to lose at most {POINTS} "
            "points."
        )
    needs = " and ".join(metric.needs)
    return f"{_capitalise(metric.label)}: from {needs}, {_sources(members, name)}{stated}."


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
    n_epochs = sum(totals[n] * count for n, count in n_read.items())
    stopped = [
        f"{n_read[n]} stopped after {counted(totals[n], 'epoch')}"
        for n in range(1, last)
        if n_read[n]
    ]
    ended = f"{n_read[last]} after {counted(totals[last], 'epoch')}"
    return [
        f"{len(scored)} networks trained alone: {', '.join([*stopped, ended])}; {n_epochs} of "
        f"{len(scored) * totals[last]} epochs trained."
    ]


def _finishing_words(candidates: Sequence[Candidate], metric: str, finish: Row) -> str:
    """Return a sentence on the number of fine-tuned candidates, epochs and teacher."""
    done = {c.id for c in candidates if columns.finished(metric) in c.details}
    if not finish["epochs"]:
        return f"{len(done)} without fine-tuning (finish.epochs=0)."
    text = f"{len(done)} fine-tuned for {counted(finish['epochs'], 'epoch')}"
    if finish["teacher"] is not None:
        text += f" with the teacher {finish['teacher']} ({finish['alpha']:.0%} of the loss)"
    return f"{text}."


def _sources(members: Sequence[Member], name: str) -> str:
    """Return the sources of a figure, verified and searched."""
    searched = {member.candidate.figures[name].source for member in members}
    verified = {member.figures[name].source for member in members}
    if searched == verified:
        return " and ".join(sorted(verified))
    return f"{' and '.join(sorted(verified))} (searched: {' and '.join(sorted(searched))})"


def _interval_words(members: Sequence[Member]) -> str:
    """Return what ± of latencies means, if they have intervals."""
    if all(member.figures["latency_ms"].low is None for member in members):
        return ""
    return "; ±: the farther end of the 95 % interval, both ends are in front.csv"


def _energy_shares(members: Sequence[Member]) -> str:
    """Return the fraction of each component of the front's energy, if known."""
    parts = {"MACs": "energy_macs_mj", "SRAM": "energy_sram_mj", "off-chip": "energy_off_chip_mj"}
    sums = {label: sum(m.details.get(name, 0) for m in members) for label, name in parts.items()}
    total = sum(sums.values())
    if not total:
        return ""
    percent = whole_percents([*sums.values()])
    return ", " + ", ".join(f"{label} {n}%" for label, n in zip(sums, percent, strict=True))


def whole_percents(values: Sequence[float]) -> list[int]:
    """Return values, not all 0, in whole per cent of their sum; the results add up to 100."""
    shares = [100 * value / sum(values) for value in values]
    percents = [int(share) for share in shares]
    by_rest = sorted(range(len(shares)), key=lambda i: percents[i] - shares[i])
    return [n + (i in by_rest[: 100 - sum(percents)]) for i, n in enumerate(percents)]
