"""Reads latencies that were measured elsewhere, and says what of them cannot be used."""

import csv
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hwnas.core import safe_read
from hwnas.core.errors import SpaceError, TableError, unknown_name
from hwnas.core.schema import MAX_CSV_BYTES
from hwnas.models.spaces import Genotype, Space

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
_ONE = ("machine", "runtime", "provider")  #: that all rows are of, where files have such columns


@dataclass(frozen=True)
class Measurements:
    """What a file says that can be used."""

    ms: Mapping[Genotype, float]
    left_out: Sequence[str]  #: a line each: what, and why


@dataclass(frozen=True)
class _Reading:
    """What one row says."""

    genotype: Genotype
    ms: float
    row: Row
    at: str  #: which line it is, of which file where there are several


def read_measurements(
    paths: Sequence[Path], space: Space, facts: Mapping[str, object], allowed: float
) -> Measurements:
    """Return the latency of each network of CSV files: of kits, or of one's own.

    Networks are told by a column ``genotype`` (JSON) with, where several spaces are searched,
    ``search_space``; the latency by one whose name has the unit: ``latency_ms``, ``latency_us``.

    Args:
        paths: The files, of one device, in the order in which they were measured.
        space: Of which networks must be.
        facts: Of the target, which rows must agree with.
        allowed: By which passes, and readings of a sentinel, may differ, relative.

    Raises:
        TableError: one cannot be read, its unit is not said, a device did not keep its speed, or
            rows are of several devices, runtimes or providers.
    """
    notes: list[str] = []
    every: list[_Reading] = []
    for path in paths:
        of_file = f"{path} " * (len(paths) > 1)
        readings = list(_readings(path, of_file, space, facts, notes))
        if not readings:
            raise TableError(f"measured={path} has no row that can be used: {notes[-1]}")
        _check_speed(readings, allowed)
        every += readings
    _check_one(every)
    _check_speed(every, allowed)
    found = _by_genotype(every)
    agreed = {g: _agreed(g, readings, allowed, notes) for g, readings in found.items()}
    used = {g: ms for g, ms in agreed.items() if ms is not None}
    if not used:
        raise TableError(f"measured: no row can be used: {notes[0]}")
    return Measurements(used, notes)


def _readings(
    path: Path, of_file: str, space: Space, facts: Mapping[str, object], notes: list[str]
) -> Iterator[_Reading]:
    """Yield what the rows of a file say; note those that cannot be used."""
    rows = _rows(path)
    column = _latency_column(path, rows[0])
    for line, row in enumerate(rows, 2):
        at = f"{of_file}line {line}"
        try:
            _check_facts(row, facts)
            yield _Reading(_genotype(row, space), _milliseconds(row, column), row, at)
        except (ValueError, SpaceError) as error:
            notes.append(f"{at}: {error}")


def _by_genotype(readings: Sequence[_Reading]) -> dict[Genotype, list[_Reading]]:
    found: dict[Genotype, list[_Reading]] = {}
    for each in readings:
        found.setdefault(each.genotype, []).append(each)
    return found


def _check_one(readings: Sequence[_Reading]) -> None:
    """Refuse rows of several devices or ways to measure: their latencies are not of one kind."""
    for name in _ONE:
        first: dict[str, str] = {}
        for each in readings:
            if value := each.row.get(name):
                first.setdefault(value, each.at)
        if len(first) > 1:
            said = ", ".join(f"'{value}' ({at})" for value, at in [*first.items()][:2])
            raise TableError(
                f"measured: rows are of different {name}s: {said}. Give files of one alone; where "
                f"both are the same, write the same into the column {name}."
            )


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        said = safe_read.read_text(path, MAX_CSV_BYTES)
        lines = [line for line in said.splitlines(keepends=True) if not line.startswith("#")]
        rows = list(csv.DictReader(lines))  # of a device that is still at it: cut off anywhere
    except OSError as error:
        raise TableError(f"measured={path} cannot be read: {error.strerror}.") from None
    except (safe_read.CorruptFileError, csv.Error) as error:
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
    raise TableError(
        f"{path} has {wrong}. {unknown_name('column', '', _UNITS).partition('Allowed')[2]}"
    )


def _genotype(row: Row, space: Space) -> Genotype:
    try:
        options = safe_read.parse_json(row["genotype"] or "null")
    except safe_read.CorruptFileError:
        options = None
    if not isinstance(options, dict):
        raise ValueError("genotype is not JSON with the choices of a network")
    name = row.get("search_space") or space.members[0].name
    members = {member.name: member for member in space.members}
    if name not in members:
        raise ValueError(unknown_name("search_space", name, members))
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


def _check_speed(readings: Sequence[_Reading], allowed: float) -> None:
    """Refuse a device that did not keep its speed: the fastest readings of either half differ."""
    sentinels = [each for each in readings if each.row.get("role") == "sentinel"]
    for genotype, watched in _by_genotype(sentinels).items():
        ms = [each.ms for each in watched]
        if len(ms) < _HALVES:
            continue
        middle = (len(ms) + 1) // 2
        before, after = min(ms[:middle]), min(ms[middle:])
        drift = max(before, after) / min(before, after) - 1
        if drift > allowed:
            raise TableError(
                f"measured: the device did not keep its speed: sentinel {genotype.id} took "
                f"{before:.4g} ms ({watched[0].at}), later {after:.4g} ms ({watched[middle].at}): "
                f"{drift:.1%} apart, {allowed:.0%} allowed. Cool it, fix its clocks, end other "
                f"programs, and measure again, or say drift={math.ceil(drift * 100 + 1) / 100:g}."
            )


def _agreed(
    genotype: Genotype, readings: Sequence[_Reading], allowed: float, notes: list[str]
) -> float | None:
    """Return the latency on which the two fastest passes of a network agree.

    What disturbs a device makes it slower, never faster.
    """
    values = sorted(each.ms for each in readings)
    if len(values) > 1 and (apart := values[1] / values[0] - 1) > allowed:
        lines = ", ".join(each.at for each in readings)
        notes.append(f"network {genotype.id} ({lines}): passes differ by {apart:.1%}")
        return None
    return statistics.mean(values[:2])
