"""Measurement files of devices: latencies, and rows that cannot be used.

A sentinel is a network that is measured again and again, to notice a change of the device's speed.
"""

import contextlib
import csv
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from hwnas.core import safe_read
from hwnas.core.errors import SpaceError, TableError
from hwnas.core.schema import MAX_CSV_BYTES
from hwnas.hardware.device_models.model_files import DATA_FACTS, FACTS, with_genotypes
from hwnas.hardware.device_models.predictor import MIN_NETWORKS
from hwnas.models.spaces import Genotype, Space

Row = Mapping[str, str]

#: Milliseconds per unit, by the last word of a column's name.
_UNITS = {
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1.0),
    **dict.fromkeys(("us", "µs", "usec", "microsecond", "microseconds"), 1e-3),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1e3),
    **dict.fromkeys(("ns", "nsec", "nanosecond", "nanoseconds"), 1e-6),
}
_LATENCIES = ("", "latency", "time", "p50", "median")  #: words before the unit
#: Columns of images per second.
_RATES = ("throughput_ips", "images_per_s", "ips", "fps")
_NAMES = "latency_ms, latency_us, latency_s or latency_ns, or fps (images per second)"
_MODELS = ("model", "file", "name")  #: columns with paths of model files, in this order
_SEPARATORS = ",;\t"
_MIN_MS, _MAX_MS = 1e-6, 1e8  #: a clock cycle, and a day
_MIN_READINGS = 2  #: minimum number of sentinel readings to check the speed
_MIN_FOR_STEP = 5  #: fewer values may have a common divisor by chance
_SAME_IN_ALL = ("machine", "runtime", "provider")  #: columns that must have one value, if present


@dataclass(frozen=True)
class Measurements:
    """Usable measurements of a file."""

    ms: Mapping[Genotype, float]  #: latency of a batch in ms, by network
    left_out: Sequence[str]  #: rows and networks that were left out, with the reason, one line each


@dataclass(frozen=True)
class _Reading:
    """One row of a file."""

    genotype: Genotype
    ms: float
    text: str  #: the value as written, in the unit of its column
    row: Row
    at: str  #: its line, and file if there are several


def read_measurements(
    paths: Sequence[Path], space: Space, facts: Mapping[str, object], allowed: float
) -> Measurements:
    """Return the latency of each network in CSV files, of kits or your own.

    It is the mean of the two fastest measurements of the network, in ms for a whole batch. Rows
    that cannot be used are left out, and networks whose two fastest measurements differ by more
    than ``allowed``.

    Networks are identified by the column ``genotype`` (JSON) and, for several spaces,
    ``search_space``; or by the column ``model``, ``file`` or ``name``. It has names of files in the
    ``kit.json`` beside the CSV file; or paths, relative to the folder of the CSV file, of an
    export's folder, of a file in one, or of a file in ``RUN/models``.

    The latency column is named after its unit, such as ``latency_ms``, ``latency (us)`` or
    ``milliseconds``; images per second, such as ``fps``, are converted. Values are separated by
    commas; or by semicolons or tabs, and may have decimal commas then. Lines that begin with ``#``
    are ignored.

    Args:
        paths: The files of one device, in the order of measurement.
        space: The search space of the networks.
        facts: ``batch``, ``dtype`` and ``threads`` of the target, and ``channels`` (of images) and
            ``outputs`` of the data set, which rows must match.
        allowed: Allowed relative difference of repeated measurements of a network (0.03: 3 %).

    Raises:
        TableError: a file cannot be read, has no column of latencies with a unit or no usable row;
            no network is left; the timer was too coarse; the speed of the device changed by more
            than ``allowed``; or rows are of several devices, runtimes or providers.
    """
    notes: list[str] = []
    all_readings: list[_Reading] = []
    for path in paths:
        readings = list(_readings(path, f"{path} " * (len(paths) > 1), space, facts, notes))
        if not readings:
            raise TableError(f"measured={path}: no row can be used. The last one: {notes[-1]}.")
        _check_timer(path, readings, allowed)
        _check_speed(readings, allowed)
        all_readings += readings
    _check_one(all_readings)
    _check_speed(all_readings, allowed)
    used = {}
    for genotype, readings in _by_genotype(all_readings).items():
        if (ms := _agreed_ms(genotype, readings, allowed, notes)) is not None:
            used[genotype] = ms
    if not used:
        raise TableError(
            f"measured: no network can be used. The reason for the last one: {notes[-1]}. End "
            "other programs on the device and measure again, or set a larger drift."
        )
    return Measurements(used, notes)


def _readings(
    path: Path, prefix: str, space: Space, facts: Mapping[str, object], notes: list[str]
) -> Iterator[_Reading]:
    """Yield the usable rows of a file; note the others."""
    rows, column = _rows(path)
    for row in rows:
        location = f"{prefix}line {row['#']}"
        try:
            _check_facts(row, facts)
            ms = _milliseconds(row, column, facts)
            yield _Reading(_genotype(row, space), ms, row[column], row, location)
        except (ValueError, SpaceError) as error:
            notes.append(f"{location}: {error}")


def _by_genotype(readings: Sequence[_Reading]) -> dict[Genotype, list[_Reading]]:
    groups: dict[Genotype, list[_Reading]] = {}
    for reading in readings:
        groups.setdefault(reading.genotype, []).append(reading)
    return groups


def _check_one(readings: Sequence[_Reading]) -> None:
    """Refuse rows of several devices, runtimes or providers."""
    for name in _SAME_IN_ALL:
        first: dict[str, str] = {}
        for reading in readings:
            if value := reading.row.get(name):
                first.setdefault(value, reading.at)
        if len(first) > 1:
            values = ", ".join(f"'{value}' ({line})" for value, line in [*first.items()][:2])
            raise TableError(
                f"measured: rows are of different {name}s: {values}. Give rows of one {name} only; "
                f"if both names mean the same, write one of them into the column {name}."
            )


def _rows(path: Path) -> tuple[list[dict[str, str]], str]:
    """Return rows with their genotypes and lines (``#``), and the column of the latency."""
    try:
        text = safe_read.read_text(path, MAX_CSV_BYTES)
        every = enumerate(text.splitlines(keepends=True), 1)
        numbered = [(number, line) for number, line in every if not line.startswith("#")]
        lines = [line for _, line in numbered]
        separator = max(_SEPARATORS, key=lines[0].count) if lines else ","
        reader = csv.DictReader(lines, delimiter=separator)
        reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
        rows = [row | {"#": str(numbered[reader.reader.line_num - 1][0])} for row in reader]
    except (OSError, safe_read.CorruptFileError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise TableError(
            f"measured={path} cannot be read: {reason}. Give the path of a CSV file in UTF-8."
        ) from None
    if not rows:
        raise TableError(
            f"measured={path} has no rows. Run measure.py of the kit on the device: it writes them."
        )
    columns = [*reader.fieldnames]
    if twice := sorted({name for name in columns if columns.count(name) > 1}):
        raise TableError(f"measured={path} has two columns '{twice[0]}'. Rename or remove one.")
    column = _latency_column(path, columns)
    if separator != ",":
        rows = [row | {column: (row[column] or "").replace(",", ".")} for row in rows]
    if "genotype" in columns:
        return rows, column
    if names := [name for name in _MODELS if name in columns]:
        rows = [row | {"model": row[names[0]] or ""} for row in rows]
        return with_genotypes(rows, path.parent), column
    raise TableError(
        f"measured={path} has no column 'model', only: {', '.join(columns)}. Write the columns "
        "model,latency_ms and rows such as runs/a/models/3f2a5c0d9e11.onnx,1.31: paths of "
        "files of an export, of RUN/models or of a kit, from the folder of the table on. See "
        "docs/how-to/own-latencies.md. Or add a column 'genotype' with the choices of each network "
        "in JSON. Networks that are not of a search space of hwnas cannot be used."
    )


def _latency_column(path: Path, columns: Sequence[str]) -> str:
    given = [name for name in columns if name in _RATES or _unit(name) is not None]
    if len(given) == 1:
        return given[0]
    if given:
        raise TableError(
            f"measured={path} has several columns with latencies ({', '.join(given)}): keep one of "
            "them."
        )
    raise TableError(
        f"measured={path} has no column with the latency and its unit: its columns are "
        f"{', '.join(columns)}. Name one of them {_NAMES}."
    )


def _unit(column: str) -> float | None:
    """Return the milliseconds per unit of a column; ``None`` if it holds no latency."""
    *words, unit = re.findall(r"[^\W_]+", column.replace("\N{GREEK SMALL LETTER MU}", "µ")) or [""]
    return _UNITS.get(unit) if "_".join(words) in _LATENCIES else None


def _genotype(row: Row, space: Space) -> Genotype:
    try:
        options = safe_read.parse_json(row["genotype"] or "null")
    except safe_read.CorruptFileError:
        options = None
    if "model" in row and not row["genotype"]:
        raise ValueError(
            f"model {row['model']!r} is no file of a kit (kit.json beside this file), of an export "
            "(neither pruned nor a segment) or of RUN/models; write its path, from the folder of "
            "this file on; if you have only its id, write RUN/models/ID"
        )
    if not isinstance(options, dict):
        text = (row["genotype"] or "")[:40]
        raise ValueError(f"genotype is not JSON with the choices of a network, got {text!r}")
    members = {member.name: member for member in space.members}
    known_id = row.get("file_id")
    name = row.get("search_space") or _space_of(known_id, options, space)
    if name not in members:
        raise ValueError(
            f"the network is of search_space={name}: set it, or, if the target refuses it, measure "
            "networks of another one, such as dense_small"
        )
    genotype = members[name].genotype(options)
    if extra := options.keys() - genotype.to_dict().keys() - members[name].choices.keys():
        raise ValueError(
            f"genotype has choices that space '{name}' does not have: {', '.join(sorted(extra))}"
        )
    if known_id and genotype.id != known_id:
        raise ValueError(
            f"network {known_id} is of another space than '{name}': give search_space of its run"
        )
    return genotype


def _space_of(known_id: str | None, options: Mapping[str, Any], space: Space) -> str:
    """Return the name of the member space with a network of this id; else of the first one."""
    for member in space.members:
        with contextlib.suppress(SpaceError):
            if member.genotype(options).id == known_id:
                return member.name
    return space.members[0].name


def _milliseconds(row: Row, column: str, facts: Mapping[str, object]) -> float:
    try:
        value = float(row[column] or "")
    except (TypeError, ValueError):
        raise ValueError(f"{column} must be a number like 1.5, got {row[column] or ''!r}") from None
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{column} must be above 0, got {row[column]}")
    unit_ms = _unit(column)
    ms = 1e3 * float(str(facts["batch"])) / value if unit_ms is None else value * unit_ms
    if not _MIN_MS <= ms <= _MAX_MS:
        raise ValueError(
            f"{column} {row[column]} is {ms:g} ms; allowed: {_MIN_MS:g} to {_MAX_MS:g} ms"
        )
    return ms


def _check_timer(path: Path, readings: Sequence[_Reading], allowed: float) -> None:
    """Refuse latencies that were rounded too coarsely to distinguish networks."""
    n_networks = len({reading.genotype for reading in readings})
    if n_networks < MIN_NETWORKS:
        return
    values = [Decimal(reading.text.strip()) for reading in readings]
    step, is_constant = _step(values), len({*values}) == 1
    if (half := float(step / 2 / statistics.median(values))) <= allowed and not is_constant:
        return
    cause = (
        f"all {n_networks} networks have the value {values[0]}"
        if is_constant
        else f"values are multiples of {step:f}, up to {half:.0%} off; {allowed:.0%} allowed"
    )
    n_runs = math.ceil(half / allowed) + 1
    raise TableError(
        f"measured={path}: the timer is too coarse: {cause}. Time {n_runs} or more consecutive "
        "runs and divide by their number, or write more digits (columns latency_us, latency_ns)."
    )


def _step(values: Sequence[Decimal]) -> Decimal:
    """Return the resolution of decimal numbers: their greatest common divisor."""
    digits = [value.normalize().as_tuple() for value in values]
    exponent = min(0, *(int(number.exponent) for number in digits))
    if len({*values}) > 1 and len(values) < _MIN_FOR_STEP:
        return Decimal((0, (1,), exponent))
    divisor = math.gcd(*(int(value.scaleb(-exponent)) for value in values))
    return Decimal(divisor).scaleb(exponent)


def _check_facts(row: Row, facts: Mapping[str, object]) -> None:
    for name in FACTS:
        if row.get(name) and row[name] != str(facts[name]):
            raise ValueError(f"measured with {name}={row[name]}: set target.{name}={row[name]}")
    stored = row.get("file_dtype")  # files in float32 are also measured in float16 and bfloat16
    if stored and (stored == "int8") != (facts["dtype"] == "int8"):
        raise ValueError(f"measured with dtype={stored}: set target.dtype={stored}")
    for name in DATA_FACTS:
        if row.get(name) and row[name] != str(facts[name]):
            raise ValueError(
                f"its network has {row[name]} {name}, those of the data set have {facts[name]}: "
                "give the dataset options of its kit or run"
            )


def _check_speed(readings: Sequence[_Reading], allowed: float) -> None:
    """Refuse a device whose speed changed: the fastest readings of both halves differ."""
    sentinels = [reading for reading in readings if reading.row.get("role") == "sentinel"]
    for genotype, watched in _by_genotype(sentinels).items():
        ms = [reading.ms for reading in watched]
        if len(ms) < _MIN_READINGS:
            continue
        middle = (len(ms) + 1) // 2
        before, after = min(ms[:middle]), min(ms[middle:])
        if (drift := max(before, after) / min(before, after) - 1) > allowed:
            larger = math.ceil(drift * 100 + 1) / 100
            accept = f", or set drift={larger:g}" if larger < 1 else ""
            raise TableError(
                f"measured: the speed of the device changed: network {genotype.id} took "
                f"{before:.4g} ms ({watched[0].at}), later {after:.4g} ms ({watched[middle].at}): "
                f"{drift:.1%} apart, {allowed:.0%} allowed. Cool it, fix its clocks, end other "
                f"programs, and measure again{accept}."
            )


def _agreed_ms(
    genotype: Genotype, readings: Sequence[_Reading], allowed: float, notes: list[str]
) -> float | None:
    """Return the latency if the two fastest passes of a network agree, else ``None``.

    Disturbances make a device slower, never faster.
    """
    values = sorted(reading.ms for reading in readings)
    if len(values) > 1 and (apart := values[1] / values[0] - 1) > allowed:
        lines = ", ".join(reading.at for reading in readings)
        notes.append(
            f"network {genotype.id} ({lines}): the two fastest passes differ by {apart:.1%}, "
            f"{allowed:.1%} allowed"
        )
        return None
    return statistics.mean(values[:2])
