"""Reads run folders and CSV files for a comparison, and checks that they are comparable."""

import csv
import glob
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hwnas.analysis import run_fronts
from hwnas.analysis.comparability import option_keys, option_value
from hwnas.analysis.fronts import (
    ComparedRun,
    FrontPoint,
    Objective,
    directions_example,
    objectives,
)
from hwnas.core import safe_read
from hwnas.core.errors import ConfigError, RunError, short_reason, unknown_name
from hwnas.core.quantity import Quantity
from hwnas.hardware.derived_metrics import RATIOS, int8_is_slower
from hwnas.nas.member import artefact_metric
from hwnas.tasks.metrics import quality_names

# CSV files of other tools have a row per point. Columns: one per objective, ``NAME_low`` and
# ``NAME_high`` (95 % interval), ``id`` of the point, ``run`` (equal names in different groups are
# paired in tests) and ``group``. Other columns are ignored.

_Row = dict[str, str]
_MAX_BYTES = 256 << 20
_VERIFIED = "verified_"
_ABOVE_ZERO = ("latency_ms", "energy_mj")


def read_foreign_csv(path: Path, objectives: Sequence[Objective]) -> list[ComparedRun]:
    """Return the runs of a CSV file (one per ``group`` and ``run``), in order of appearance.

    Raises:
        RunError: the file cannot be read or has no rows, a column is missing, a value is not a
            finite number (latency and energy: above 0), an interval does not contain its value, or
            points of a run with the same id differ.
    """
    rows = _rows(path, objectives)
    if not rows:
        raise RunError(f"{path} has no rows: add a row per network below the names of columns.")
    if (own := verified_front(path, objectives)) is not None:  # of a search, as measured
        if not own:
            raise RunError(f"{path} has no verified network within the budget.")
        return [ComparedRun(path.stem, {}, own, path=str(path))]
    if any(name.startswith(_VERIFIED) and "." in name for name in rows[0][1]):
        raise RunError(
            f"{path} is the joint front of several targets. Name the folder of the search instead, "
            "or the front of one target: RUN/TARGET/front.csv."
        )
    parts: dict[tuple[str, str], dict[str, FrontPoint]] = {}
    for number, row in rows:
        place, key = f"{path}, line {number}", (row.get("group") or "", row.get("run") or "")
        point, known = _point(place, number, row, objectives), parts.setdefault(key, {})
        if known.setdefault(point.id, point).figures != point.figures:
            raise RunError(
                f"{place}: id '{point.id}' is already in an earlier row, with other figures: use "
                "different ids, or remove the column id."
            )
    runs = []
    for (group, block), points in parts.items():
        many = [group * (len({g for g, _ in parts}) > 1), block]
        name = "/".join([path.stem, *filter(None, many)])
        scored = [*points.values()]
        runs.append(ComparedRun(name, {}, scored, group=group, block=block or None, path=str(path)))
    return runs


def columns(path: Path) -> frozenset[str]:
    """Return the names of the columns of a CSV file; empty if it has no rows.

    Raises:
        RunError: the file cannot be read.
    """
    return frozenset().union(*(row for _, row in _rows(path, [])[:1]))


def points(path: Path, objectives: Sequence[Objective]) -> list[FrontPoint]:
    """Return the points of all runs of a CSV file, those of a run together.

    Raises:
        RunError: the file is invalid, see ``read_foreign_csv``.
    """
    return [point for run in read_foreign_csv(path, objectives) for point in run.scored]


def _rows(path: Path, objectives: Sequence[Objective]) -> list[tuple[int, _Row]]:
    """Return rows with line numbers; the columns of all objectives exist."""
    try:
        file = io.StringIO(safe_read.read_text(path, _MAX_BYTES), newline="")
        reader = csv.DictReader(file, strict=True)
        columns = list(reader.fieldnames or ())
        rows = [(reader.line_num, row) for row in reader]
    except FileNotFoundError:
        raise RunError(f"{path}: file not found; correct the path.") from None
    except (OSError, safe_read.CorruptFileError, csv.Error) as error:
        reason = f"cannot be read as CSV: {short_reason(error)}"
        raise RunError(f"{path} {reason}. Save it again as UTF-8 text with commas.") from None
    for name in (objective.name for objective in objectives):
        if name not in columns:
            remedy = "Rename one of them, or choose other objectives."
            if len(columns) == 1 and {*";\t"} & {*columns[0]}:
                remedy = "Separate values by commas, and write decimals with a point."
            raise RunError(
                f"{path} has no column '{name}', which is an objective. Its columns: "
                f"{', '.join(columns)}. {remedy}"
            )
    if twice := sorted({name for name in columns if columns.count(name) > 1}):
        raise RunError(f"{path} has two columns '{twice[0]}': rename or remove one.")
    for number, row in rows:
        if None in row or None in row.values():
            raise RunError(
                f"{path}, line {number}: the row must have {len(columns)} values, as the first "
                "line has names of columns."
            )
    return rows


def _point(place: str, number: int, row: _Row, objectives: Sequence[Objective]) -> FrontPoint:
    figures = {o.name: _figure(place, row, o.name) for o in objectives}
    return FrontPoint(row.get("id") or f"line {number}", figures)


def _figure(place: str, row: _Row, name: str) -> Quantity:
    value = _number(place, row, name)
    low, high = (
        _number(place, row, key) if row.get(key) else None
        for key in (f"{name}_low", f"{name}_high")
    )
    if (low is not None and low > value) or (high is not None and high < value):
        raise RunError(
            f"{place}: {name}={value:g} is not between {name}_low and {name}_high, the ends of its "
            "95 % interval: correct the three columns."
        )
    return Quantity(value, "measured", low, high)


def _number(place: str, row: Mapping[str, str], name: str) -> float:
    try:
        value = float(row[name])
    except ValueError:
        raise RunError(f"{place}: {name} must be a number, got '{row[name]}'.") from None
    if not math.isfinite(value):
        raise RunError(f"{place}: {name} must be a finite number, got '{row[name]}'.")
    if name in _ABOVE_ZERO and value <= 0:
        raise RunError(f"{place}: {name} must be above 0, got '{row[name]}'.")
    return value


def verified_front(path: Path, objectives: Sequence[Objective]) -> list[FrontPoint] | None:
    """Return the verified members of a search's ``front.csv``, including dominated ones.

    Those over the budget, or slower in int8 than in float32, are left out. ``None``: it is another
    CSV file, without verified figures.

    Raises:
        RunError: the file cannot be read, or a verified value is missing or not a finite number.
    """
    rows = _rows(path, [])
    known_columns = {*rows[0][1]} if rows else set()
    metrics = [o.name for o in objectives if o.name in quality_names()]
    known = [f"verified_{metric}_{dtype}" for metric in metrics for dtype in ("int8", "fp32")]
    if "verified_fits_budget" not in known_columns or known_columns.isdisjoint(known):
        return None
    members = []
    for number, row in rows:
        place = f"{path}, line {number}"
        if row["verified_fits_budget"] == "True" and not _is_outrun(place, row):
            members.append(_point(place, number, _verified_columns(row, objectives), objectives))
    return members


def _is_outrun(place: str, row: _Row) -> bool:
    ratios = [name for name in RATIOS if row.get(f"{_VERIFIED}{name}")]
    return int8_is_slower({name: _number(place, row, f"{_VERIFIED}{name}") for name in ratios})


def _verified_columns(row: _Row, objectives: Sequence[Objective]) -> _Row:
    """Return the verified columns of a row of ``front.csv``, by the names of the objectives.

    Artefacts of different rows may have different dtypes.
    """
    verified = {
        n.removeprefix(_VERIFIED): v for n, v in row.items() if v and n.startswith(_VERIFIED)
    }
    values = {"id": row["id"]}
    for name in (objective.name for objective in objectives):
        source = artefact_metric(name, verified) if name in quality_names() else name
        values |= {
            f"{name}{end}": verified.get(f"{source}{end}", "") for end in ("", "_low", "_high")
        }
    return values


_WILD = "*?["


def read_runs(
    names: Sequence[str],
    directions: Mapping[str, str],
    group_by: str | None,
    labels: Sequence[str] = (),
    storage: str | None = None,
) -> tuple[list[ComparedRun], tuple[Objective, ...]]:
    """Return the runs of folders and CSV files, in the order of ``names``, and the objectives.

    Args:
        names: Folders, CSV files, or patterns of them (see ``expanded``).
        directions: ``max`` or ``min`` by objective; empty: the objectives of the runs.
        group_by: An option of the runs, as ``sampler``, whose value is the group; ``None``: one
            group per run. A column ``group`` of a CSV file takes precedence.
        labels: Names of the runs, in their order; empty: from their paths.
        storage: URL of the database of their studies; ``None``: that of the manifest.

    Raises:
        RunError: a run or CSV file cannot be read.
        ConfigError: a path does not exist, objectives are invalid or differ between runs, the
            option ``group_by`` does not exist, or labels are not different names of all runs.
    """
    paths = expanded(names)
    tables = [path for path in paths if not path.is_dir()]
    folders = [path for path in paths if path.is_dir()]
    runs = {path: [run_fronts.read_run_folder(path, storage=storage)] for path in folders}
    chosen = objectives(directions or _common_objectives([run for (run,) in runs.values()], tables))
    runs |= {path: read_foreign_csv(path, chosen) for path in tables}
    all_runs = [run for path in paths for run in runs[path]]
    return _runs_with_groups(run_fronts.named(all_runs, labels), group_by), chosen


def expanded(names: Sequence[str]) -> list[Path]:
    """Return the paths of run folders and CSV files that names and patterns (``runs/*``) match.

    Raises:
        ConfigError: a pattern matches no run folder or CSV file, a path does not exist, or a path
            is named twice.
    """
    paths: list[Path] = []
    for name in names:
        if not any(sign in name for sign in _WILD) or Path(name).exists():
            paths.append(Path(name))
            continue
        matched = [Path(match) for match in sorted(glob.glob(name))]
        readable = [p for p in matched if p.suffix == ".csv" or (p / "manifest.json").is_file()]
        if not readable:
            raise ConfigError(f"runs={name}: no run folder or CSV file matches. Check the pattern.")
        paths += readable
    for path in paths:
        if not path.exists():
            raise ConfigError(f"runs={path}: no such folder or file; correct the path.")
    places = [path.resolve() for path in paths]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise ConfigError(f"runs={paths[i]} is named twice: remove one.")
    return paths


def _common_objectives(runs: Sequence[ComparedRun], tables: Sequence[Path]) -> Mapping[str, str]:
    """Return the objectives of all runs."""
    if not runs:
        raise ConfigError(
            f"{tables[0]} is a CSV file, which does not say what to compare: name columns by "
            "objectives='{accuracy: max, latency_ms: min}'."
        )
    first = runs[0]
    for run in runs:
        if {*run.directions} != {*first.directions}:
            figures = run.scored[0].figures if run.scored else {}
            common = {n: way for n, way in first.directions.items() if n in figures}
            fix = "They have fewer than two in common: leave one of them out."
            if not run.scored:
                fix = f"{run.name} has no completely scored network: leave it out, or finish it."
            if len(common) > 1:
                fix = f"Choose common ones by {directions_example(common)}."
            raise ConfigError(
                f"The objectives differ: {', '.join(first.directions)} in {first.name}, "
                f"{', '.join(run.directions)} in {run.name}. {fix}"
            )
    return first.directions


def _runs_with_groups(runs: Sequence[ComparedRun], group_by: str | None) -> list[ComparedRun]:
    result = []
    for run in runs:
        group = run.group
        if not group:
            group = run.name if group_by is None else _value(run, group_by)
        result.append(replace(run, group=group))
    return result


def _value(run: ComparedRun, key: str) -> str:
    """Return the value of a key of the configuration as text.

    Raises:
        ConfigError: the key does not exist.
    """
    if not run.config:
        raise ConfigError(
            f"group_by={key}: {run.name} is a CSV file without options: name its group in a column "
            "'group'."
        )
    if key not in (known := option_keys(run.config)):
        raise ConfigError(f"group_by: {unknown_name(f'key of {run.name}', key, known)}")
    value = option_value(run.config, key)
    if isinstance(value, Mapping):
        value = value.get("name", ", ".join(f"{k}={v}" for k, v in value.items()))
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return str(value)
