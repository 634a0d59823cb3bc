"""Page of a search, for one target or several, with its decision log."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

from hwnas.analysis.page.data import (
    DecisionRow,
    FrontExplorer,
    OverlaidFront,
    Page,
    PagePoint,
    PageTable,
    RunData,
    SvgFigure,
)
from hwnas.analysis.page.names import is_share
from hwnas.core.pareto import ParetoFront
from hwnas.core.quantity import Quantities, Quantity
from hwnas.models.spaces import Option
from hwnas.models.spaces.union import option_labels
from hwnas.nas.candidates import Candidate
from hwnas.nas.front import distinct, points
from hwnas.nas.member import Member
from hwnas.tasks import metrics
from hwnas.tasks.metrics import Metric, costs_in, maximise_flags, metric_of, quality_in
from hwnas.tasks.metrics.budget import Budget

# The decision log.

_BLOCK = 512  # candidates compared with the front at once
_EXCEEDED = re.compile(r"(\S+) \S+ ((?:over|under) budget [^;\s]+)")  # of ``Budget.exceeded``
_MAX_NAMED = 4  # members in a line


def decisions(
    candidates: Sequence[Candidate], members: Sequence[Member], objectives: Sequence[str]
) -> list[DecisionRow]:
    """Return the decision log: changes of the searched front, rejected candidates, verification.

    Candidates rejected between two changes of the front share a line. Other candidates that do not
    enter the front have none.

    Args:
        candidates: Candidates in order of trials; repeated ones are ignored.
        members: Verified networks.
        objectives: Names of the objectives.
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
                removed = front.add([candidate], points([candidate], objectives))
                if front.members[-1] is not candidate:
                    continue
                if refused:
                    yield _refusal(refused)
                    refused = []
                yield _entry(candidate, removed, len(front.members), objectives)
    if refused:
        yield _refusal(refused)


def _entry(
    candidate: Candidate, removed: Sequence[Candidate], n_front: int, objectives: Sequence[str]
) -> DecisionRow:
    text = f"{candidate.id} enters the front: {_words(candidate.figures, objectives)}"
    if removed:
        named = ", ".join(c.id for c in removed[:_MAX_NAMED]) + (
            ", ..." if len(removed) > _MAX_NAMED else ""
        )
        text += f"; {len(removed)} {'leaves' if len(removed) == 1 else 'leave'}: {named}"
    return DecisionRow(f"trial {candidate.trial}", "front", f"{text}. Front of {n_front}.")


def _refusal(refused: Sequence[Candidate]) -> DecisionRow:
    """Return a line on the rejected candidates between two changes of the front."""
    first, last = refused[0], refused[-1]
    if len(refused) == 1:
        return DecisionRow(f"trial {first.trial}", "refused", f"{first.id} refused: {first.reason}")
    kinds: Counter[str] = Counter()
    for candidate in refused:
        limits = [" ".join(parts) for parts in _EXCEEDED.findall(candidate.reason)]
        kinds.update(limits or [candidate.reason])
    counted = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common(_MAX_NAMED))
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
    """Return the value of a figure as text with the unit of the metric ``name``, see ``number``."""
    unit = metric_of(name).unit if metrics.is_metric(name) else ""
    return f"{number(figure.value, name)} {unit}".rstrip()


def number(value: float, name: str) -> str:
    """Return a value of a metric as text: in per cent if it is a share, else with four digits."""
    return f"{value:.2%}" if is_share(name) else f"{value:.4g}"


_POINTS = (
    "Each point is a network. Open: posterior mean of its {label} (validation split; fp32 unless "
    "the network is int8; after fine-tuning, if there was any). Filled: the network verified from "
    "its compiled file (test split, 95 % interval). Grey: other networks. Thin line: the "
    "{best} verified {label} up to each cost."
)
#: Explains sliders, which exist for the limits of a budget.
LIMITS_NOTE = (
    "Sliders move the limits of the budget: networks beyond them turn grey. Limits apply to the "
    "worse end of the interval, of the verified figure if there is one."
)
Facts = Sequence[tuple[str, str]]
Options = Sequence[tuple[str, Option]]


@dataclass(frozen=True)
class FrontData:
    """Results of a search for one target, as pages and figures show them."""

    candidates: Sequence[Candidate]  #: in order of trials
    members: Sequence[Member]  #: verified networks; empty: nothing is verified
    objectives: Sequence[str]  #: names of the metric of the task and of costs
    budget: Budget
    beside: OverlaidFront | None = None  #: a baseline, drawn in a muted colour
    title: str = ""  #: of a figure
    for_all: frozenset[str] = frozenset()  #: ids of members of the joint front of all targets


def single(title: str, front: FrontData, facts: Facts) -> Page:
    """Return the page of a search for one target.

    ``facts`` are pairs of name and value, of options and versions.
    """
    log = decisions(front.candidates, front.members, front.objectives)
    explorer = explorer_of("Front", front)
    return Page(title, [explorer], _notes([front]), log=log, facts=facts)


def _notes(fronts: Sequence[FrontData]) -> list[str]:
    """Return explanations of points and sliders."""
    limits = [LIMITS_NOTE] * any(front.budget.limits for front in fronts)
    return [points_note(quality_in(fronts[0].objectives)), *limits]


def points_note(metric: str) -> str:
    """Return the note that explains the points in plots of a metric, of verified runs."""
    definition = (
        metric_of(metric) if metrics.is_metric(metric) else Metric(metric, metric, maximise=True)
    )
    best = "highest" if definition.maximise else "lowest"
    return _POINTS.format(label=definition.label, best=best)


def with_more(
    page: Page,
    findings: Sequence[str],
    tables: Sequence[PageTable] = (),
    pictures: Sequence[SvgFigure] = (),
) -> Page:
    """Return a copy of a page with findings, tables and figures appended to its own."""
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
    facts: Facts,
) -> Page:
    """Return the page of a search for several targets.

    Args:
        title: Title of the page.
        candidates: Candidates within all budgets, with figures such as ``npu.latency_ms``.
        members: Verified members of the joint front of all targets.
        fronts: Results by target, which is also the name of the folder.
        facts: Name and value of options and versions.
    """
    explorers = [_for_all(candidates, members, fronts)] if members else []
    for target, front in fronts.items():
        link = (f"{quote(target)}/report.html", "page of this target, with its decision log")
        explorers.append(explorer_of(f"Front on {target}", front, link))
    return Page(title, explorers, _notes([*fronts.values()]), facts=facts)


def explorer_of(title: str, front: FrontData, link: tuple[str, str] = ("", "")) -> FrontExplorer:
    """Return the interactive plots of the front of one target.

    Args:
        title: Title of the section.
        front: Results of the search.
        link: Address and text of a link.
    """
    run = run_of(title, front.candidates, front.members)
    columns = {**metrics.all_metrics(), **_fp32()}
    known: set[str] = set()
    for point in run.points:
        known.update(point.figures, point.verified)
    used_columns = {name: columns[name] for name in columns if name in known}
    marked = ("fits all targets, on the joint front", front.for_all)
    objectives = (quality_in(front.objectives), *costs_in(front.objectives))
    return FrontExplorer(
        title, objectives, used_columns, [run], front.budget.limits, marked=marked, link=link,
        beside=front.beside,
    )  # fmt: skip


def run_of(
    name: str, candidates: Sequence[Candidate], members: Sequence[Member], group: str = ""
) -> RunData:
    """Return the networks of a search for one target, each once, for plots.

    Rejected candidates are only counted. Verified members have their verified figures, too.

    Args:
        name: Label of the run.
        candidates: Candidates in order of trials.
        members: Verified networks.
        group: Group of a comparison; runs of a group share a colour.
    """
    front = {member.candidate.id: member for member in members}
    networks = distinct(candidates)
    scored = [candidate for candidate in networks if candidate.state != "infeasible"]
    options = option_labels(candidate.genotype for candidate in networks)
    points = [_point(c, front.get(c.id), options(c.genotype)) for c in scored]
    return RunData(name, points, group, len(networks) - len(scored))


def _point(candidate: Candidate, member: Member | None, options: Options) -> PagePoint:
    point = PagePoint(
        candidate.id, candidate.figures, options, candidate.trial, stopped=candidate.stopped
    )
    if member is None:
        return point
    figures = verified_figures(member)
    return replace(point, on_front=True, verified=figures, note=member.label, stopped=False)


def _fp32() -> dict[str, Metric]:
    """Return the columns of metrics in fp32, in addition to those of int8 artefacts."""
    definitions = {name: metric_of(name) for name in metrics.quality_names()}
    return {
        f"{n}_fp32": replace(m, name=f"{n}_fp32", label=f"fp32 {m.label}")
        for n, m in definitions.items()
    }


def verified_figures(member: Member) -> Quantities:
    """Return the verified metric and costs of a member's compiled artefact, as ``latency_ms``.

    For one target, an int8 member also has its float32 metric, as ``accuracy_fp32``. For several
    targets, names begin with that of the target, as ``npu.latency_ms``, without float32 metrics.
    """
    known = metrics.all_metrics()
    if member.is_for_all:
        return {
            f"{target}.{name}": figure
            for target, part in member.parts.items()
            for name, figure in verified_figures(part).items()
            if name in known
        }
    plain = {name: figure for name, figure in member.figures.items() if name in known}
    fp32 = {n: f for n, f in member.figures.items() if n in _fp32() and f is not member.quality}
    return {member.metric: member.quality, **plain, **fp32}


def _for_all(
    candidates: Sequence[Candidate],
    members: Sequence[Member],
    fronts: Mapping[str, FrontData],
) -> FrontExplorer:
    by_id = {member.candidate.id: member for member in members}
    options, networks = option_labels(c.genotype for c in candidates), distinct(candidates)
    points = [_point(c, by_id.get(c.id), options(c.genotype)) for c in networks]
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
    note = "Networks within the budgets of all targets, verified on each of them."
    return FrontExplorer(
        "Models for all targets", [metric, *costs], columns, [RunData("all targets", points)],
        limits, notes=[note],
    )  # fmt: skip
