"""Measurement files of devices: latencies, and rows that cannot be used."""

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

#: Latency columns, with milliseconds per unit.
_UNITS = {
    **dict.fromkeys(("p50_ms", "latency_ms", "median_ms", "ms"), 1.0),
    **dict.fromkeys(("latency_us", "us"), 1e-3),
    **dict.fromkeys(("latency_s", "s"), 1e3),
    **dict.fromkeys(("latency_ns", "ns"), 1e-6),
}
_MIN_READINGS = 2  #: minimum number of sentinel readings to check the speed
_FACTS = ("batch", "dtype", "threads")  #: columns that must match the target, if present
_SAME_IN_ALL = ("machine", "runtime", "provider")  #: columns that must have one value, if present


@dataclass(frozen=True)
class Measurements:
    """Usable measurements of a file."""

    ms: Mapping[Genotype, float]
    left_out: Sequence[str]  #: reasons for rows that were left out, one line each


@dataclass(frozen=True)
class _Reading:
    """One row of a file."""

    genotype: Genotype
    ms: float
    row: Row
    at: str  #: its line, and file if there are several


def read_measurements(
    paths: Sequence[Path], space: Space, facts: Mapping[str, object], allowed: float
) -> Measurements:
    """Return the latency of each network in CSV files, of kits or your own.

    Networks are identified by the column ``genotype`` (JSON) and, for several spaces,
    ``search_space``. The latency column is named after its unit, such as ``latency_ms`` or
    ``latency_us``.

    Args:
        paths: The files of one device, in the order of measurement.
        space: The search space of the networks.
        facts: Facts of the target that rows must match.
        allowed: Allowed relative difference of passes and sentinel readings.

    Raises:
        TableError: a file cannot be read, has no unit, the speed of the device changed, or rows are
            of several devices, runtimes or providers.
    """
    notes: list[str] = []
    all_readings: list[_Reading] = []
    for path in paths:
        prefix = f"{path} " * (len(paths) > 1)
        readings = list(_readings(path, prefix, space, facts, notes))
        if not readings:
            raise TableError(f"measured={path} has no row that can be used: {notes[-1]}")
        _check_speed(readings, allowed)
        all_readings += readings
    _check_one(all_readings)
    _check_speed(all_readings, allowed)
    by_genotype = _by_genotype(all_readings)
    agreed = {g: _agreed(g, readings, allowed, notes) for g, readings in by_genotype.items()}
    used = {g: ms for g, ms in agreed.items() if ms is not None}
    if not used:
        raise TableError(f"measured: no row can be used: {notes[0]}")
    return Measurements(used, notes)


def _readings(
    path: Path, prefix: str, space: Space, facts: Mapping[str, object], notes: list[str]
) -> Iterator[_Reading]:
    """Yield the usable rows of a file; note the others."""
    rows = _rows(path)
    column = _latency_column(path, rows[0])
    for line, row in enumerate(rows, 2):
        at = f"{prefix}line {line}"
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
    """Refuse rows of several devices, runtimes or providers."""
    for name in _SAME_IN_ALL:
        first: dict[str, str] = {}
        for each in readings:
            if value := each.row.get(name):
                first.setdefault(value, each.at)
        if len(first) > 1:
            values = ", ".join(f"'{value}' ({at})" for value, at in [*first.items()][:2])
            raise TableError(
                f"measured: rows are of different {name}s: {values}. Use files of one; if "
                f"both are the same, write the same value into the column {name}."
            )


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        text = safe_read.read_text(path, MAX_CSV_BYTES)
        lines = [line for line in text.splitlines(keepends=True) if not line.startswith("#")]
        # the file may be incomplete: the device is still measuring
        rows = list(csv.DictReader(lines))
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
    """Refuse a device whose speed changed: the fastest readings of both halves differ."""
    sentinels = [each for each in readings if each.row.get("role") == "sentinel"]
    for genotype, watched in _by_genotype(sentinels).items():
        ms = [each.ms for each in watched]
        if len(ms) < _MIN_READINGS:
            continue
        middle = (len(ms) + 1) // 2
        before, after = min(ms[:middle]), min(ms[middle:])
        drift = max(before, after) / min(before, after) - 1
        if drift > allowed:
            raise TableError(
                f"measured: the speed of the device changed: sentinel {genotype.id} took "
                f"{before:.4g} ms ({watched[0].at}), later {after:.4g} ms ({watched[middle].at}): "
                f"{drift:.1%} apart, {allowed:.0%} allowed. Cool it, fix its clocks, end other "
                f"programs, and measure again, or set drift={math.ceil(drift * 100 + 1) / 100:g}."
            )


def _agreed(
    genotype: Genotype, readings: Sequence[_Reading], allowed: float, notes: list[str]
) -> float | None:
    """Return the latency if the two fastest passes of a network agree, else ``None``.

    Disturbances make a device slower, never faster.
    """
    values = sorted(each.ms for each in readings)
    if len(values) > 1 and (apart := values[1] / values[0] - 1) > allowed:
        lines = ", ".join(each.at for each in readings)
        notes.append(f"network {genotype.id} ({lines}): passes differ by {apart:.1%}")
        return None
    return statistics.mean(values[:2])
