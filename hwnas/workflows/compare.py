"""Fronts of runs and of other tools, as numbers, tests and figures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from hwnas.analysis import (
    comparability,
    comparison_page,
    indicators,
    reading,
    speedup,
    tables,
    verdicts,
)
from hwnas.analysis import comparison_figures as pictures
from hwnas.analysis import fronts as frame
from hwnas.analysis.bootstrap import BootstrapDraws
from hwnas.analysis.fronts import Array, ComparedRun, Objective
from hwnas.analysis.page.html import render
from hwnas.analysis.speedup import Speedup
from hwnas.analysis.speedup_verdict import (
    FrontLabels,
    device_verdict,
    equal_accuracy_table,
    plain_verdict,
    speedup_verdict,
)
from hwnas.analysis.summary import Comparison, chosen_kind, kind_of
from hwnas.analysis.summary import compare as compare_summary
from hwnas.analysis.verdicts import ComparisonWords
from hwnas.core import files
from hwnas.core.errors import counted
from hwnas.core.files import atomic_folder
from hwnas.core.run_folder import Row, RunFolder, default_path, initial_manifest
from hwnas.core.typed_files import finite
from hwnas.hardware import backends
from hwnas.workflows.config import CompareConfig
from hwnas.workflows.reporter import Reporter
from hwnas.workflows.result_folders import FolderResult

_RECORDED = ("hwnas", "moocore", "numpy", "scipy", "matplotlib")
_MAIN = "hypervolume_share"


@dataclass
class _ComparisonReport:
    """Content of the output folder and of the console."""

    comparison: Comparison
    words: ComparisonWords
    tables: dict[str, Sequence[Row]]  #: rows by the name of their CSV file
    figures: dict[str, pictures.Pictures] = field(default_factory=dict)
    speedup: Speedup | None = None  #: of the run that costs less of two against the other
    names: FrontLabels | None = None  #: of these two runs


@dataclass(frozen=True)
class ComparisonResult(FolderResult):
    """The result of ``compare``: the folder, and the comparison itself."""

    #: compared fronts, indicators and tests; set by ``compare``
    comparison: Comparison | None = field(default=None, repr=False)


def compare_runs(
    config: CompareConfig,
    runs: Sequence[ComparedRun],
    objectives: Sequence[Objective],
    arguments: Sequence[str],
) -> ComparisonResult:
    """Compare runs, write tables, figures and a report into a folder, and return them.

    Args:
        config: Options of the comparison.
        runs: Runs with their points, as ``analysis.reading`` returns them.
        objectives: Objectives that all runs have.
        arguments: Arguments of the command line, or their equivalent.

    Raises:
        RunError: data or units of the runs differ, a front is empty or lacks an objective, or
            ``true_front`` cannot be read.
        ConfigError: the file ``reference`` is missing or lacks an objective.
    """
    notes = comparability.check_data(runs, allow_mixed=config.allow_mixed)
    notes += comparability.check_groups(runs, config.group_by)
    true_front = _true_front(Path(config.true_front), objectives) if config.true_front else None
    comparability.check_units(runs, objectives, true_front)
    report = _comparison_report(config, runs, objectives, true_front, notes)
    path = Path(config.run.dir or default_path("compare"))
    with atomic_folder(path, remove_stale=config.run.dir is None) as building:
        folder = RunFolder(building)
        _write(folder, report, _facts(config, report.comparison))
        manifest = initial_manifest("compare", arguments, {}, config) | {
            "status": "finished",
            "versions": {name: backends.version(name) for name in _RECORDED},
        }
        folder.write_json("manifest.json", manifest)
    files, tables = _files(report), report.tables
    return ComparisonResult(
        path,
        [report.words.verdict, *report.words.findings],
        tables,
        "indicators",
        files,
        report.comparison,
    )


def _comparison_report(
    config: CompareConfig,
    runs: Sequence[ComparedRun],
    objectives: Sequence[Objective],
    true_front: Array | None,
    notes: Sequence[str],
) -> _ComparisonReport:
    kind, draws = chosen_kind(runs, config.figures), BootstrapDraws(config.n_bootstrap, config.seed)
    comparison = compare_summary(
        runs,
        objectives,
        kind,
        frame.read_frame(Path(config.reference), objectives) if config.reference else None,
        true_front,
        draws,
    )
    rows = _tables(comparison)
    kinds = [kind_of(run, kind) for run in runs]
    faster = speedup.speedup_of_two(runs, objectives, kinds, draws)
    if faster is not None and faster.range is not None and faster.range.mean.value < 1:
        swapped = speedup.speedup_of_two(runs[::-1], objectives, kinds[::-1], draws)
        if swapped is not None and swapped.range is not None:
            runs, faster = runs[::-1], swapped  # ratios above 1 are easier to read
    if faster is not None:
        sides = {"front": runs[0].name, "baseline": runs[1].name}
        rows["equal_quality"] = [sides | row for row in faster.rows()]
    findings = [
        *verdicts.comparison_findings(comparison),
        *([] if faster is None else speedup_verdict(faster, _names(runs, faster))),
        verdicts.verification_verdict(rows["verification"]),
        verdicts.prediction_verdict(rows["predictions"]),
        verdicts.shared_networks_verdict(rows["shared"], sum(bool(run.candidates) for run in runs)),
        *notes,
    ]
    verdict = [verdicts.verdict(comparison)]
    if faster is not None:
        larger = verdicts.larger_front(comparison)
        is_swapped = runs[0] is not comparison.fronts[0].run
        verdict.insert(0, _verdict_on_two(runs, faster, -larger if is_swapped else larger))
    first, *others = filter(None, verdict)
    words = ComparisonWords(
        first,
        [line for line in [*others, *findings] if line],
        [*verdicts.comparison_method(comparison)],
    )
    names = None if faster is None else _names(runs, faster)
    report = _ComparisonReport(comparison, words, rows, speedup=faster, names=names)
    report.figures = dict(_figures(comparison, rows["convergence"]))
    return report


def _verdict_on_two(runs: Sequence[ComparedRun], result: Speedup, larger: int) -> str:
    """Return the verdict on two fronts in one sentence."""
    a, b = (run.target for run in runs)
    if a is not None and b is not None and a != b:
        return device_verdict(result, FrontLabels("", a, b))
    return plain_verdict(result, _names(runs, result), larger)


def _names(runs: Sequence[ComparedRun], result: Speedup) -> FrontLabels:
    a, b = (run.name for run in runs)
    return FrontLabels(f"{a} against {b}, at equal {result.quality.title}", a, b)


def _true_front(path: Path, objectives: Sequence[Objective]) -> Array:
    points = reading.points(path, objectives)
    return np.array([[point.figures[o.name].value for o in objectives] for point in points])


def _tables(comparison: Comparison) -> dict[str, Sequence[Row]]:
    objectives, fronts = comparison.objectives, comparison.fronts
    runs, box = [front.run for front in fronts], comparison.yardstick.frame
    return {
        "indicators": comparison.indicator_rows(),
        "points": comparison.point_rows(),
        "coverage": comparison.coverage_rows(),
        "groups": comparison.group_rows() if comparison.is_grouped else [],
        "tests": comparison.test_rows(),
        "ladder": tables.ladder(fronts, objectives),
        "needed": tables.needed(fronts, objectives),
        "convergence": tables.convergence(runs, box, objectives),
        "verification": tables.verification(runs, box),
        "predictions": tables.predictions(runs),
        "shared": tables.shared(fronts),
        "attainment": _attained_rows(comparison),
    }


def _attained_rows(comparison: Comparison) -> list[Row]:
    quality, costs = tables.parts(comparison.objectives)
    return [
        {
            "group": s.group,
            "n_runs": s.n_runs,
            "percentile": s.percentile,
            "cost": s.cost.name,
            "cost_value": float(x),
            "quality": s.quality.name,
            "quality_value": float(y),
        }
        for s in indicators.surfaces(comparison.fronts, quality, costs)
        for x, y in s.points
    ]


def _figures(
    comparison: Comparison, growth: Sequence[Row]
) -> Iterator[tuple[str, pictures.Pictures]]:
    """Yield the names and pictures of figures that have data."""
    quality, costs = tables.parts(comparison.objectives)
    box = comparison.yardstick.frame
    yield "fronts", pictures.fronts(comparison.fronts, box, quality, costs)
    if surfaces := indicators.surfaces(comparison.fronts, quality, costs):
        yield "attainment", pictures.attainment(surfaces, box)
    if growth:
        yield "convergence", pictures.convergence(growth)
    if (ranking := comparison.rankings[_MAIN]) is not None:
        title = f"Mean ranks in hypervolume over {ranking.n_blocks} seeds; 1 is the best"
        yield "critical_difference", pictures.critical_difference(ranking, title)


def _facts(config: CompareConfig, comparison: Comparison) -> list[tuple[str, str]]:
    """Return the facts about the comparison for its page; they do not depend on the time."""
    draws = f"{config.n_bootstrap} draws, seed {config.seed}"
    return [
        *((f"run {front.name}", front.run.path) for front in comparison.fronts),
        ("figures", comparison.kind),
        ("grouped by", config.group_by or "nothing: each run is a group of its own"),
        ("bootstrap", draws if comparison.uncertainty is not None else "none"),
        *((f"version of {name}", backends.version(name)) for name in _RECORDED),
    ]


def _sides(report: _ComparisonReport) -> Row:
    """Return the names of the two compared runs, as ``front`` and ``baseline``."""
    row = next(iter(report.tables["equal_quality"]), {})
    return {name: row.get(name) for name in ("front", "baseline")}


def _write(folder: RunFolder, report: _ComparisonReport, facts: Sequence[tuple[str, str]]) -> None:
    """Write all files; where there are no rows there is no table."""
    for name, rows in report.tables.items():
        if rows:
            folder.write_csv(f"{name}.csv", [finite(row) for row in rows])
    for name, picture in report.figures.items():
        for suffix, image in picture.items():
            folder.write_bytes(f"{name}.{suffix}", image)
    content = report.comparison.to_json() | {
        "equal_quality": finite(report.speedup and _sides(report) | report.speedup.to_json()),
        "sentences": report.words.sentences,
    }
    folder.write_json("comparison.json", content)
    drawn_as_svg = {name: picture["svg"].decode() for name, picture in report.figures.items()}
    page = comparison_page.page(report.comparison, report.tables, report.words, drawn_as_svg, facts)
    if report.speedup is not None and report.names is not None:
        note = "All figures: equal_quality.csv."
        table = equal_accuracy_table(report.speedup, report.names, note)
        page = replace(page, tables=[table, *page.tables])
    folder.write_bytes("report.html", render(page).encode())


def _files(report: _ComparisonReport) -> list[str]:
    names = [f"{name}.csv" for name, rows in report.tables.items() if rows]
    figures = [f"{name}.png/.svg" for name in report.figures]
    return ["report.html", "comparison.json", *names, *figures]


# The beginning of a comparison: what is compared is read and named before anything heavy loads.

_NAMED = 6  # runs that are named


def compare(
    config: CompareConfig, arguments: Sequence[str], reporter: Reporter
) -> ComparisonResult:
    """Read and compare runs, write tables, figures and a report into a folder, and return them.

    Args:
        config: Options of the comparison.
        arguments: Arguments of the command line, or their equivalent.
        reporter: Receives phases and messages.

    Raises:
        RunError: a run or ``true_front`` cannot be read, data or units differ, a front is empty or
            lacks an objective, or the output folder is not empty.
        ConfigError: the objectives of the runs differ, ``group_by`` or ``label`` does not fit the
            runs, or the file ``reference`` is missing or invalid.
    """
    if config.run.dir:
        files.check_new_folder(Path(config.run.dir), "run.dir")
    runs, objectives = reading.read_runs(
        config.paths, config.objectives, config.group_by, config.label, config.study.storage
    )
    reporter.say([_words(runs)])
    return compare_runs(config, runs, objectives, arguments)


def _words(runs: Sequence[ComparedRun]) -> str:
    named = ", ".join(run.name for run in runs[:_NAMED])
    more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
    return f"Comparing {counted(len(runs), 'front')}: {named}{more}."
