"""Fronts of other tools: a CSV file with a row for each point.

Columns are named as the objectives; ``NAME_low`` and ``NAME_high`` are the ends of 95 % intervals,
``id`` names a point of a run, ``run`` tells several runs in one file apart (equal ones in different
groups are paired in tests), ``group`` says what a run belongs to. Other columns are not read.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from hwnas.comparison.fronts import Objective, Point, Run
from hwnas.cost.in_float import RATIOS, is_outrun
from hwnas.errors import RunError, unknown, why
from hwnas.figure import Figure
from hwnas.metrics import qualities
from hwnas.records import bounded
from hwnas.searching.member import own

_Row = dict[str, str]
_MOST = 256 << 20  # bytes of a file
_VERIFIED = "verified_"
_ABOVE_ZERO = ("latency_ms", "energy_mj")  # nothing takes no time and no energy


def read(path: Path, objectives: Sequence[Objective]) -> list[Run]:
    """Return the runs of a file, in order of appearance.

    Raises:
        RunError: a column is missing, a value is not a number, an interval does not hold its value,
            or two points of a run have one id.
    """
    rows = _rows(path, objectives)
    if not rows:
        raise RunError(f"{path}: its front is empty: there are no rows below the header.")
    parts: dict[tuple[str, str], dict[str, Point]] = {}
    for number, row in rows:
        where, key = f"{path}, line {number}", (row.get("group") or "", row.get("run") or "")
        point, known = _point(where, number, row, objectives), parts.setdefault(key, {})
        if known.setdefault(point.id, point).figures != point.figures:
            raise RunError(
                f"{where}: id '{point.id}' is there twice, with other figures: make ids different, "
                "or leave that column out."
            )
    runs = []
    for (group, block), points in parts.items():
        many = [group * (len({g for g, _ in parts}) > 1), block]
        name = "/".join([path.stem, *filter(None, many)])
        scored = [*points.values()]
        runs.append(Run(name, {}, scored, group=group, block=block or None, path=str(path)))
    return runs


def points(path: Path, objectives: Sequence[Objective]) -> list[Point]:
    """Return all points of a file, whatever their run.

    Raises:
        RunError: as ``read``.
    """
    return [point for run in read(path, objectives) for point in run.scored]


def _rows(path: Path, objectives: Sequence[Objective]) -> list[tuple[int, _Row]]:
    """Return the rows with the numbers of their lines; all columns that are needed are there."""
    try:
        file = io.StringIO(bounded.text(path, _MOST), newline="")
        reader = csv.DictReader(file, strict=True)
        columns = list(reader.fieldnames or ())
        rows = [(reader.line_num, row) for row in reader]
    except FileNotFoundError:
        raise RunError(f"{path}: there is no such file.") from None
    except (OSError, bounded.Damaged, csv.Error) as error:
        raise RunError(f"{path} cannot be read as CSV: {why(error)}") from None
    for name in (objective.name for objective in objectives):
        if name not in columns:
            raise RunError(f"{path}: {unknown('column', name, columns)}")
    if twice := sorted({name for name in columns if columns.count(name) > 1}):
        raise RunError(f"{path}: column '{twice[0]}' is there twice.")
    for number, row in rows:
        if None in row or None in row.values():
            raise RunError(f"{path}, line {number}: expected {len(columns)} values, as the header.")
    return rows


def _point(where: str, number: int, row: _Row, objectives: Sequence[Objective]) -> Point:
    figures = {o.name: _figure(where, row, o.name) for o in objectives}
    return Point(row.get("id") or f"line {number}", figures)


def _figure(where: str, row: _Row, name: str) -> Figure:
    value = _number(where, row, name)
    low, high = (
        _number(where, row, key) if row.get(key) else None
        for key in (f"{name}_low", f"{name}_high")
    )
    if (low is not None and low > value) or (high is not None and high < value):
        raise RunError(f"{where}: the interval of {name} does not hold its value {value:g}.")
    return Figure(value, "measured", low, high)


def _number(where: str, row: Mapping[str, str], name: str) -> float:
    try:
        value = float(row[name])
    except ValueError:
        raise RunError(f"{where}: {name} must be a number, got '{row[name]}'.") from None
    if not math.isfinite(value):
        raise RunError(f"{where}: {name} is {row[name]}.")
    if name in _ABOVE_ZERO and value <= 0:
        raise RunError(f"{where}: {name} is {row[name]}; allowed: above 0.")
    return value


def verified_front(path: Path, objectives: Sequence[Objective]) -> list[Point] | None:
    """Return the verified members of a file ``front.csv`` that a search has written.

    Those that it would deliver, by the figures of their artefacts. ``None`` where it is another
    file, whose figures are what they are.

    Raises:
        RunError: as ``read``.
    """
    rows = _rows(path, [])
    columns = {*rows[0][1]} if rows else set()
    metrics = [o.name for o in objectives if o.name in qualities()]
    known = [f"verified_{metric}_{dtype}" for metric in metrics for dtype in ("int8", "fp32")]
    if "verified_fits_budget" not in columns or columns.isdisjoint(known):
        return None
    found = []
    for number, row in rows:
        where = f"{path}, line {number}"
        if row["verified_fits_budget"] == "True" and not _is_outrun(where, row):
            found.append(_point(where, number, _verified(row, objectives), objectives))
    return found


def _is_outrun(where: str, row: _Row) -> bool:
    ratios = [name for name in RATIOS if row.get(f"{_VERIFIED}{name}")]
    return is_outrun({name: _number(where, row, f"{_VERIFIED}{name}") for name in ratios})


def _verified(row: _Row, objectives: Sequence[Objective]) -> _Row:
    """Return what a row of ``front.csv`` says of its artefact, by the names of the objectives.

    The artefact of each row has a dtype of its own.
    """
    said = {n.removeprefix(_VERIFIED): v for n, v in row.items() if v and n.startswith(_VERIFIED)}
    found = {"id": row["id"]}
    for name in (objective.name for objective in objectives):
        source = own(name, said) if name in qualities() else name
        found |= {f"{name}{end}": said.get(f"{source}{end}", "") for end in ("", "_low", "_high")}
    return found
