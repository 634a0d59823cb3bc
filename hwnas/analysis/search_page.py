"""What a search found, as a page: for one target, or for several at once."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

from hwnas.analysis.page.model import (
    DecisionRow,
    FrontExplorer,
    OverlaidFront,
    Page,
    PagePoint,
    PageTable,
    RunData,
    SvgFigure,
)
from hwnas.core.pareto import ParetoFront
from hwnas.core.quantity import Quantities, Quantity
from hwnas.models.spaces import Option
from hwnas.models.spaces.union import shown
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import distinct, points
from hwnas.nas.member import Member
from hwnas.tasks import metrics
from hwnas.tasks.metrics import Metric, costs_in, maximise_flags, metric_of, quality_in
from hwnas.tasks.metrics.budget import Budget

# What a search decided, trial by trial: the lines of a page's decision log.

_BLOCK = 512  # candidates that are held against the front at once
_BEYOND = re.compile(r"(\S+) \S+ ((?:over|under) budget [^;\s]+)")  # of ``Budget.exceeded``
_NAMED = 4  # members that a line names


def decisions(
    candidates: Sequence[Candidate], members: Sequence[Member], objectives: Sequence[str]
) -> list[DecisionRow]:
    """Return what entered and left the front, what was refused, and what verification found.

    Args:
        candidates: Of the search, in the order of trials; those that come again change nothing.
        members: The front, verified.
        objectives: What is minimised or maximised.
    """
    return [*_trials(candidates, objectives), *(_verification(m, objectives) for m in members)]


def _trials(candidates: Sequence[Candidate], objectives: Sequence[str]) -> Iterator[DecisionRow]:
    refused: list[Candidate] = []
    front, new = ParetoFront[Candidate](maximise_flags(objectives)), distinct(candidates)
    for start in range(0, len(new), _BLOCK):
        block = new[start : start + _BLOCK]
        scored = [c for c in block if c.state == "complete"]
        beaten = front.dominates(points(scored, objectives)).tolist()
        may_enter = {c.id for c, is_beaten in zip(scored, beaten, strict=True) if not is_beaten}
        for candidate in block:
            if candidate.state == "infeasible":
                refused.append(candidate)
            elif candidate.id in may_enter:
                left = front.add([candidate], points([candidate], objectives))
                if front.members[-1] is not candidate:
                    continue
                if refused:
                    yield _refusal(refused)
                    refused = []
                yield _entry(candidate, left, len(front.members), objectives)
    if refused:
        yield _refusal(refused)


def _entry(
    candidate: Candidate, left: Sequence[Candidate], n_front: int, objectives: Sequence[str]
) -> DecisionRow:
    text = f"{candidate.id} enters the front: {_words(candidate.figures, objectives)}"
    if left:
        named = ", ".join(c.id for c in left[:_NAMED]) + (", ..." if len(left) > _NAMED else "")
        text += f"; {len(left)} {'leaves' if len(left) == 1 else 'leave'}: {named}"
    return DecisionRow(f"trial {candidate.trial}", "front", f"{text}. Front of {n_front}.")


def _refusal(refused: Sequence[Candidate]) -> DecisionRow:
    """Return a line of the refusals between two changes of the front."""
    first, last = refused[0], refused[-1]
    if len(refused) == 1:
        return DecisionRow(f"trial {first.trial}", "refused", f"{first.id} refused: {first.reason}")
    kinds: Counter[str] = Counter()
    for candidate in refused:
        found = [" ".join(parts) for parts in _BEYOND.findall(candidate.reason)]
        kinds.update(found or [candidate.reason])
    counted = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common(_NAMED))
    return DecisionRow(
        f"trials {first.trial} to {last.trial}", "refused", f"{len(refused)} refused: {counted}"
    )


def _verification(member: Member, objectives: Sequence[str]) -> DecisionRow:
    searched = member.candidate.figures
    verified, changes = member.all_figures, []
    for name in objectives:
        text = f"{metric_of(name).label} {figure_words(verified[name], name)}"
        changes.append(f"{text} (searched {number(searched[name].value, name)})")
    verdict = member.label or "fits, on the front"
    return DecisionRow(
        "verified", "verified", f"{member.candidate.id} {verdict}: {', '.join(changes)}"
    )


def _words(figures: Quantities, names: Sequence[str]) -> str:
    return ", ".join(
        f"{metric_of(name).label} {figure_words(figures[name], name)}" for name in names
    )


def figure_words(figure: Quantity, name: str) -> str:
    """Return a value with its unit."""
    unit = metric_of(name).unit if metrics.is_metric(name) else ""
    return f"{number(figure.value, name)} {unit}".rstrip()


def number(value: float, name: str) -> str:
    """Return a value as people read it."""
    return f"{value:.2%}" if "accuracy" in name else f"{value:.4g}"


_NOTES = (
    "Each point is a network. Open: its {label} as search believes it, given all that was read "
    "(validation split, fp32 unless it chose int8; of the finished network, where some were "
    "finished). Filled: the same network verified from its compiled artefact (whole test split, "
    "95 % interval). Grey: networks that another one dominates: no worse in {label}, and no dearer "
    "in any objective. The thin line is the {best} verified {label} up to each cost.",
    "Sliders set limits: what does not fit turns grey. A limit is held against the verified figure "
    "where there is one, and against the worse end of its interval.",
)
Facts = Sequence[tuple[str, str]]
Options = Sequence[tuple[str, Option]]


@dataclass(frozen=True)
class FrontData:
    """What a search found for one target, as it is put on a page and drawn."""

    candidates: Sequence[Candidate]
    members: Sequence[Member]  #: verified
    objectives: Sequence[str]
    budget: Budget
    beside: OverlaidFront | None = None  #: a baseline


def single(title: str, front: FrontData, facts: Facts) -> Page:
    """Return the page of a search for one target."""
    log = decisions(front.candidates, front.members, front.objectives)
    explorer = explorer_of("Front", front)
    return Page(title, [explorer], notes(quality_in(front.objectives)), log=log, facts=facts)


def notes(metric: str) -> tuple[str, ...]:
    """Return what is to be known of points and sliders."""
    of = metric_of(metric) if metrics.is_metric(metric) else Metric(metric, metric, maximise=True)
    best = "highest" if of.maximise else "lowest"
    return tuple(note.format(label=of.label, best=best) for note in _NOTES)


def with_more(
    page: Page,
    findings: Sequence[str],
    tables: Sequence[PageTable] = (),
    pictures: Sequence[SvgFigure] = (),
) -> Page:
    """Return a page that says, too, what is known beside its front."""
    return replace(
        page,
        findings=[*page.findings, *findings],
        tables=[*page.tables, *tables],
        pictures=[*page.pictures, *pictures],
    )


def for_all(
    title: str,
    candidates: Sequence[Candidate],
    members: Sequence[Member],
    fronts: Mapping[str, FrontData],
    missed: Sequence[str],
    facts: Facts,
) -> Page:
    """Return the page of a search for several targets.

    Args:
        title: Of the page.
        candidates: Of the search that fit all targets, with figures such as ``npu.latency_ms``.
        members: The front of models for all targets.
        fronts: What was found for each target that has a front, by its name, which is its folder.
        missed: Why there is no front of some targets, or of all.
        facts: What is known of the run.
    """
    ids = frozenset(member.candidate.id for member in members)
    explorers = [_for_all(candidates, members, fronts, missed)]
    for target, front in fronts.items():
        link = (f"{quote(target)}/report.html", "its own page, with its decision log")
        explorers.append(explorer_of(f"Front on {target}", front, for_all=ids, link=link))
    first = next(iter(fronts.values()))
    return Page(title, explorers, notes(quality_in(first.objectives)), facts=facts)


def explorer_of(
    title: str,
    front: FrontData,
    *,
    for_all: frozenset[str] = frozenset(),
    link: tuple[str, str] = ("", ""),
) -> FrontExplorer:
    """Return the views of one target's front.

    Args:
        title: Of the section.
        front: What was found.
        for_all: Ids of models for all targets, to be framed.
        link: Address and words of a page with more.
    """
    run = run_of(title, front.candidates, front.members)
    columns = {**metrics.all_metrics(), **_fp32()}
    known: set[str] = set()
    for point in run.points:
        known.update(point.figures, point.verified)
    shown = {name: columns[name] for name in columns if name in known}
    marked = ("fits all targets, on the joint front", for_all)
    return FrontExplorer(
        title, front.objectives, shown, [run], front.budget.limits, marked=marked, link=link,
        beside=front.beside,
    )  # fmt: skip


def run_of(
    name: str, candidates: Sequence[Candidate], members: Sequence[Member], group: str = ""
) -> RunData:
    """Return a search for one target as it is put on a page: each network once."""
    front = {member.candidate.id: member for member in members}
    networks = distinct(candidates)
    scored = [candidate for candidate in networks if candidate.state != "infeasible"]
    options = shown(candidate.genotype for candidate in networks)
    points = [_point(c, front.get(c.id), options(c.genotype)) for c in scored]
    return RunData(name, points, group, len(networks) - len(scored))


def _point(candidate: Candidate, member: Member | None, options: Options) -> PagePoint:
    if member is None:
        stopped = candidate.stopped
        return PagePoint(
            candidate.id, candidate.figures, options, candidate.trial, stopped=stopped
        )  # fmt: skip
    return PagePoint(
        candidate.id, candidate.figures, options, candidate.trial,
        on_front=True, verified=verified(member), note=member.label,
    )  # fmt: skip


def _fp32() -> dict[str, Metric]:
    """Return the columns of metrics in fp32, beside those of an int8 artefact."""
    of = {name: metric_of(name) for name in metrics.quality_names()}
    return {
        f"{n}_fp32": replace(m, name=f"{n}_fp32", label=f"fp32 {m.label}") for n, m in of.items()
    }


def verified(member: Member) -> Quantities:
    """Return what verification found, by the names of searched figures: of the artefact itself."""
    plain = {
        name: figure for name, figure in member.figures.items() if name in metrics.all_metrics()
    }
    fp32 = {n: f for n, f in member.figures.items() if n in _fp32() and f is not member.quality}
    return {member.metric: member.quality, **plain, **fp32}


def _for_all(
    candidates: Sequence[Candidate],
    members: Sequence[Member],
    fronts: Mapping[str, FrontData],
    missed: Sequence[str],
) -> FrontExplorer:
    by_id = {member.candidate.id: member for member in members}
    options, networks = shown(c.genotype for c in candidates), distinct(candidates)
    points = [_point_for_all(c, by_id.get(c.id), options(c.genotype)) for c in networks]
    costs = [
        f"{target}.{name}"
        for target, front in fronts.items()
        for name in costs_in(front.objectives)
    ]
    limits = {
        f"{target}.{name}": limit
        for target, front in fronts.items()
        for name, limit in front.budget.limits.items()
    }
    metric = quality_in(next(iter(fronts.values())).objectives)
    known = {metric, *costs}.union(*(p.figures.keys() | p.verified.keys() for p in points))
    names = [f"{target}.{name}" for target in fronts for name in metrics.all_metrics()]
    columns = {name: metric_of(name) for name in (metric, *names) if name in known}
    note = "Networks that fit every target's budget, each verified on all targets."
    run = RunData("all targets", points)
    return FrontExplorer(
        "Models for all targets", [metric, *costs], columns, [run] if members else [], limits,
        notes=[*missed, *[note] * bool(members)],
    )  # fmt: skip


def _point_for_all(candidate: Candidate, member: Member | None, options: Options) -> PagePoint:
    if member is None:
        return PagePoint(candidate.id, candidate.figures, options, candidate.trial)
    found = {
        f"{target}.{name}": figure
        for target, part in member.parts.items()
        for name, figure in verified(part).items()
        if name in metrics.all_metrics()
    }
    return PagePoint(
        candidate.id, candidate.figures, options, candidate.trial,
        on_front=True, verified=found, note=member.label,
    )  # fmt: skip
