"""Reads latencies that were measured elsewhere, and says what of them cannot be used."""

import csv
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hwnas.errors import SpaceError, TableError, unknown
from hwnas.records import bounded
from hwnas.records.rows import MOST
from hwnas.space import Genotype, Space

Row = Mapping[str, str]

#: Columns that hold a latency, with milliseconds in their unit.
_UNITS = {
    **dict.fromkeys(("p50_ms", "latency_ms", "median_ms", "ms"), 1.0),
    **dict.fromkeys(("latency_us", "us"), 1e-3),
    **dict.fromkeys(("latency_s", "s"), 1e3),
    **dict.fromkeys(("latency_ns", "ns"), 1e-6),
}
_HALVES = 2  #: readings of a sentinel that say whether a device kept its speed
_FACTS = ("batch", "dtype", "threads")  #: of the target, where a file has such columns


@dataclass(frozen=True)
class Measurements:
    """What a file says that can be used."""

    ms: Mapping[Genotype, float]
    left_out: Sequence[str]  #: a line each: what, and why


def read(path: Path, space: Space, facts: Mapping[str, object], allowed: float) -> Measurements:
    """Return the latency of each network of a CSV file: of a kit, or of one's own.

    Networks are told by a column ``genotype`` (JSON) with, where several spaces are searched,
    ``search_space``; the latency by one whose name has the unit: ``latency_ms``, ``latency_us``.

    Args:
        path: The file.
        space: Of which networks must be.
        facts: Of the target, which rows must agree with.
        allowed: By which passes, and readings of a sentinel, may differ, relative.

    Raises:
        TableError: it cannot be read, its unit is not said, or a device did not keep its speed.
    """
    rows = _rows(path)
    column = _latency_column(path, rows[0])
    notes: list[str] = []
    found: dict[Genotype, list[tuple[int, float]]] = {}
    sentinels: dict[Genotype, list[float]] = {}
    for line, row in enumerate(rows, 2):
        try:
            _check_facts(row, facts)
            genotype, ms = _genotype(row, space), _milliseconds(row, column)
        except (ValueError, SpaceError) as error:
            notes.append(f"line {line}: {error}")
            continue
        found.setdefault(genotype, []).append((line, ms))
        if row.get("role") == "sentinel":
            sentinels.setdefault(genotype, []).append(ms)
    _check_speed(path, sentinels, allowed)
    agreed = {g: _agreed(g, times, allowed, notes) for g, times in found.items()}
    used = {g: ms for g, ms in agreed.items() if ms is not None}
    if not used:
        raise TableError(f"measured={path} has no row that can be used: {notes[0]}")
    return Measurements(used, notes)


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        said = bounded.text(path, MOST)
        lines = [line for line in said.splitlines(keepends=True) if not line.startswith("#")]
        rows = list(csv.DictReader(lines))  # of a device that is still at it: cut off anywhere
    except OSError as error:
        raise TableError(f"measured={path} cannot be read: {error.strerror}.") from None
    except (bounded.Damaged, csv.Error) as error:
        raise TableError(f"measured={path} cannot be read: {error}.") from None
    if not rows:
        raise TableError(f"measured={path} has no rows. Measure with the kit's measure.py.")
    if "genotype" not in rows[0]:
        raise TableError(
            f"{path} lacks the column 'genotype': the choices of each network, in JSON."
        )
    return rows


def _latency_column(path: Path, row: Row) -> str:
    found = [name for name in _UNITS if name in row]
    if len(found) == 1:
        return found[0]
    wrong = f"several latencies ({', '.join(found)}); keep one" if found else "no latency"
    raise TableError(f"{path} has {wrong}. {unknown('column', '', _UNITS).partition('Allowed')[2]}")


def _genotype(row: Row, space: Space) -> Genotype:
    try:
        options = bounded.from_json(row["genotype"] or "null")
    except bounded.Damaged:
        options = None
    if not isinstance(options, dict):
        raise ValueError("genotype is not JSON with the choices of a network")
    name = row.get("search_space") or space.members[0].name
    members = {member.name: member for member in space.members}
    if name not in members:
        raise ValueError(unknown("search_space", name, members))
    genotype = members[name].genotype(options)
    if options.keys() - genotype.to_dict().keys() - members[name].choices.keys():
        raise ValueError(f"genotype has choices that space '{name}' does not have")
    return genotype


def _milliseconds(row: Row, column: str) -> float:
    try:
        value = float(row[column] or "")
    except (TypeError, ValueError):
        raise ValueError(f"{column} is missing or no number: {row[column]!r}") from None
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{column} must be above 0, got {row[column]}")
    return value * _UNITS[column]


def _check_facts(row: Row, facts: Mapping[str, object]) -> None:
    for name in _FACTS:
        if row.get(name) and row[name] != str(facts[name]):
            raise ValueError(f"{name} {row[name]}, but target.{name}={facts[name]}")


def _check_speed(path: Path, sentinels: Mapping[Genotype, Sequence[float]], allowed: float) -> None:
    """Refuse a device that did not keep its speed: the fastest readings of either half differ."""
    for genotype, ms in sentinels.items():
        middle = (len(ms) + 1) // 2
        if len(ms) < _HALVES:
            continue
        before, after = min(ms[:middle]), min(ms[middle:])
        drift = max(before, after) / min(before, after) - 1
        if drift > allowed:
            raise TableError(
                f"measured={path}: the device did not keep its speed: sentinel {genotype.id} took "
                f"{before:.4g} ms, later {after:.4g} ms: {drift:.1%} apart, {allowed:.0%} allowed. "
                "Cool it, fix its clocks, end other programs, and measure again, or say drift=0.1."
            )


def _agreed(
    genotype: Genotype, times: Sequence[tuple[int, float]], allowed: float, notes: list[str]
) -> float | None:
    """Return the latency on which the two fastest passes of a network agree.

    What disturbs a device makes it slower, never faster.
    """
    values = sorted(ms for _, ms in times)
    if len(values) > 1 and (apart := values[1] / values[0] - 1) > allowed:
        lines = ", ".join(str(line) for line, _ in times)
        notes.append(f"network {genotype.id} (lines {lines}): passes differ by {apart:.1%}")
        return None
    return statistics.mean(values[:2])
