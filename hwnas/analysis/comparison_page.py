"""Page of a comparison of fronts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hwnas.analysis import search_page
from hwnas.analysis.bootstrap import FrontUncertainty
from hwnas.analysis.comparison_tables import comparison_tables, summary_table
from hwnas.analysis.fronts import FrontStage, RunFront
from hwnas.analysis.page.data import (
    FrontExplorer,
    Page,
    PagePoint,
    RunData,
    SvgFigure,
    VerdictSection,
)
from hwnas.analysis.summary import Comparison, kind_of
from hwnas.analysis.tables import parts
from hwnas.analysis.verdicts import ComparisonWords
from hwnas.core.quantity import Quantities, Quantity
from hwnas.core.run_folder import Row
from hwnas.models.spaces.union import option_labels
from hwnas.nas.front import distinct
from hwnas.tasks import metrics
from hwnas.tasks.metrics import Metric, metric_of

#: Column of the probability to be on the union of all fronts.
_ON_ALL = "p_on_front_of_all"
_SEARCHED = (
    "Each point is a network with its searched figures (or those of its file). Coloured: the front "
    "of its run. Grey: dominated networks. Thin lines: the best quality up to each cost."
)
_CHANCE = "P(on the front of all): probability to be on the front of all runs, by bootstrap."
_TITLES = {
    "fronts": "Fronts as a figure",
    "attainment": "Attainment surfaces of groups",
    "convergence": "Convergence",
    "critical_difference": "Ranks of groups",
}


def page(
    comparison: Comparison,
    rows: Mapping[str, Sequence[Row]],
    words: ComparisonWords,
    pictures: Mapping[str, str],
    facts: Sequence[tuple[str, str]],
) -> Page:
    """Return the page of a comparison.

    Args:
        comparison: The comparison.
        rows: Rows of its CSV files, by name of the file without ``.csv``.
        words: Verdict, findings and method.
        pictures: Text of SVG figures by name: ``fronts``, ``attainment``, ``convergence`` or
            ``critical_difference``.
        facts: Pairs of name and value, of options and versions.
    """
    return Page(
        "hwnas: fronts compared",
        [_explorer(comparison)],
        [*_notes(comparison), *words.method],
        findings=words.findings,
        verdict=VerdictSection(words.verdict, summary_table(comparison)),
        tables=comparison_tables(comparison, rows),
        pictures=[
            SvgFigure(
                _TITLES[name], svg, f"As files: {name}.svg, {name}.png.", is_folded=name == "fronts"
            )
            for name, svg in pictures.items()
        ],
        facts=facts,
    )


def _explorer(comparison: Comparison) -> FrontExplorer:
    quality, costs = parts(comparison.objectives)
    spaces = _spaces(comparison.fronts)
    runs = [
        _run(front, comparison, _chances(comparison.uncertainty, i), len(spaces) == 1)
        for i, front in enumerate(comparison.fronts)
    ]
    return FrontExplorer(
        "Fronts",
        [objective.name for objective in (quality, *costs)],
        _columns(comparison, runs),
        runs,
        _common_limits(comparison.fronts),
        [_about_choices(comparison.fronts, spaces)],
    )


def _notes(comparison: Comparison) -> list[str]:
    """Return explanations of the plots."""
    quality, _ = parts(comparison.objectives)
    is_verified = comparison.kind == "verified"
    return [
        search_page.points_note(quality.name) if is_verified else _SEARCHED,
        *[search_page.LIMITS_NOTE] * bool(_common_limits(comparison.fronts)),
        *[_CHANCE] * (comparison.uncertainty is not None),
    ]


def _spaces(fronts: Sequence[RunFront]) -> set[str]:
    """Return the different search spaces of runs; those of one run are joined."""
    return {
        " + ".join(sorted({candidate.genotype.space for candidate in front.run.candidates}))
        for front in fronts
        if front.run.candidates
    }


def _about_choices(fronts: Sequence[RunFront], spaces: set[str]) -> str:
    if not spaces:
        return "CSV files have no choices of networks."
    if len(spaces) > 1:
        names = ", ".join(sorted(spaces))
        return f"The search spaces differ ({names}): choices are not shown."
    if all(front.run.candidates for front in fronts):
        return ""
    return "Choices are of runs only: CSV files have none."


def _common_limits(fronts: Sequence[RunFront]) -> Mapping[str, float]:
    """Return the budget if all runs have the same."""
    first = fronts[0].run.limits
    return first if all(front.run.limits == first for front in fronts) else {}


def _columns(comparison: Comparison, runs: Sequence[RunData]) -> dict[str, Metric]:
    """Return the columns of the figures of all networks, objectives first."""
    columns: dict[str, Metric] = {}
    for objective in comparison.objectives:
        name = objective.name
        plain = Metric(name, name, maximise=objective.maximise)
        columns[name] = metric_of(name) if metrics.is_metric(name) else plain
    known = {n for run in runs for p in run.points for n in (*p.figures, *p.verified)}
    if _ON_ALL in known:
        columns[_ON_ALL] = Metric(_ON_ALL, "P(on the front of all)", maximise=True)
    targets = dict.fromkeys(name.rpartition(".")[0] for name in columns if "." in name) or [""]
    for name in (
        f"{target}.{name}".lstrip(".") for target in targets for name in metrics.all_metrics()
    ):
        if name in known:
            columns.setdefault(name, metric_of(name))
    return columns


def _chances(uncertainty: FrontUncertainty | None, i: int) -> Sequence[float]:
    """Return the probability of each point to be on the union of fronts; empty if unknown."""
    return [] if uncertainty is None else uncertainty.on_all[i].tolist()


def _run(
    front: RunFront, comparison: Comparison, chances: Sequence[float], options: bool
) -> RunData:
    """Return a run with its compared front.

    Args:
        front: The front.
        comparison: The comparison.
        chances: Probabilities of its points.
        options: Whether choices are shown.
    """
    run, stage = front.run, kind_of(front.run, comparison.kind)
    same = {*run.directions} == {objective.name for objective in comparison.objectives}
    if stage == "verified" and run.members and same:
        data = search_page.run_of(run.name, run.candidates, run.members, run.group)
    else:
        data = RunData(run.name, _points(front, stage), run.group, _n_refused(front))
    front_ids = {point.id for point in data.points if point.on_front}
    chance_by_id = {
        p.id: c for p, c in zip(front.points, chances, strict=False) if p.id in front_ids
    }
    points = [
        _with_chance(p if options else replace(p, options=()), chance_by_id.get(p.id), stage)
        for p in data.points
    ]
    return replace(data, points=points)


def _points(front: RunFront, kind: FrontStage) -> list[PagePoint]:
    """Return each network once; members are those on the compared front.

    Verification, or fewer objectives than in the search, may have removed members.
    """
    candidates = {c.id: c for c in distinct(front.run.candidates)}
    options = option_labels(c.genotype for c in candidates.values())
    members = {p.id: p.figures for p, on in zip(front.points, front.mask, strict=True) if on}
    page_points: dict[str, PagePoint] = {}
    for point in front.run.scored:
        if point.id in page_points:
            continue
        candidate = candidates.get(point.id)
        plain = PagePoint(point.id, point.figures)
        if candidate is not None:
            chosen = options(candidate.genotype)
            figures = candidate.figures if kind == "verified" else point.figures
            plain = PagePoint(point.id, figures, chosen, candidate.trial)
        if point.id in members:
            verified: Quantities = members[point.id] if kind == "verified" else {}
            plain = replace(plain, on_front=True, verified=verified)
        page_points[point.id] = plain
    return list(page_points.values())


def _n_refused(front: RunFront) -> int:
    return sum(c.state == "infeasible" for c in distinct(front.run.candidates))


def _with_chance(point: PagePoint, chance: float | None, kind: FrontStage) -> PagePoint:
    if chance is None:
        return point
    known = {_ON_ALL: Quantity(chance, "modelled")}
    if kind == "verified":
        return replace(point, verified={**point.verified, **known})
    return replace(point, figures={**point.figures, **known})
