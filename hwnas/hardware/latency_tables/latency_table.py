"""Latency tables: measurements of operators and networks on one device.

A table is a folder of files that other tools can read: ``operators.csv`` (one row per fused
operator, with its compilation plan), ``networks.csv`` (whole networks, measured and predicted),
``calibration.json`` (coefficients that turn a sum of operators into a network's latency, and
errors) and ``provenance.json`` (device, versions, settings, dates, digests of the other files).
"""

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict, final

from hwnas.core import files, safe_read, schema
from hwnas.core.errors import ConfigError, TableError
from hwnas.core.options import bounded, check_bounds
from hwnas.core.schema import OPEN, Count, NumberBounds, Positive, SchemaError, Size, validate
from hwnas.core.typed_files import check_format
from hwnas.hardware.target import Target
from hwnas.hardware.timing import Timing
from hwnas.models.graph import OpSpec

#: Prefix of the plan of an operator whose latency was transferred from another device's table. The
#: rest, if any, is its plan there.
TRANSFERRED = "transferred"
#: Plan of an operator that was not timed: its latency is predicted from others timed here.
PREDICTED = "foretold"

FORMAT = 1  #: format of tables that are written; the first tables have no format
TableRow = dict[str, Any]  #: a row of a CSV file, by column
_SHAPES = ("in_shape", "out_shape")
_OPTIONAL = "threads"  # column of operators, absent if all have the same number of threads
_PROVENANCE = "provenance.json"
_FILES = ("operators.csv", "networks.csv", "calibration.json")
_MAX_SHOWN = 3
MIN_NETWORKS = 10  #: minimum number of networks to calibrate a table


class _Provenance(TypedDict):
    format: NotRequired[int]
    digests: dict[str, list[str]]
    device: NotRequired[dict[str, Any]]
    versions: NotRequired[dict[str, str]]
    target: NotRequired[dict[str, Any]]


class _Coefficients(TypedDict):
    """The fields of ``Calibration``."""

    scale: float
    operator_ms: float
    weights_ms_per_kib: float
    interval: Annotated[float, NumberBounds(0)]
    n_fitted: Count
    n_interval: Count


class _Calibrated(TypedDict):
    coefficients: _Coefficients
    unit: Literal["ms"]
    error: NotRequired[dict[str, Any]]
    transfer: NotRequired[dict[str, Any]]
    foretold: NotRequired[dict[str, Any]]


class _Operator(TypedDict):
    kind: str
    in_shape: str
    out_shape: str
    kernel: Size
    stride: Size
    groups: Size
    dtype: str
    batch: Size
    threads: NotRequired[Annotated[int, NumberBounds(0)]]
    plan: str
    latency_ms: Positive
    latency_ms_low: Positive
    latency_ms_high: Positive
    n_repeats: Size
    n_passes: Size
    drifted: bool


class _Network(TypedDict):
    search_space: str
    network: str
    genotype: NotRequired[str]
    measured_ms: Positive
    measured_ms_low: Positive
    measured_ms_high: Positive
    n_repeats: Size
    n_passes: Size
    drifted: bool


@dataclass
class TableConfig:
    """Location and use of latency tables."""

    dir: str = "latency_tables"  #: folder of your own tables; shipped ones are found without it
    #: use a table of another CPU or version if this machine has none; results are labelled
    allow_other_machine: bool = False
    #: networks measured per round before a search, if this machine has no table for its space; up
    #: to four rounds; 0: none are measured, else at least 10
    networks: int = bounded("[0, 10_000]", 16)

    def __post_init__(self) -> None:
        check_bounds(self, "table.")
        if 0 < self.networks < MIN_NETWORKS:
            raise ConfigError(
                f"table.networks must be 0, or {MIN_NETWORKS} or more, got {self.networks}."
            )


@dataclass(frozen=True)
class OperatorEntry:
    """An operator's compilation plan and latency."""

    #: compilation plan as the runtime's text; it begins with ``TRANSFERRED``, or is ``PREDICTED``,
    #: if the operator was not timed on this device
    plan: str
    timing: Timing  #: latency of the operator
    n_passes: int = 1  #: number of measurements, minutes apart, that ``timing`` combines


def table_name(target: Target) -> str:
    """Return the folder name of a target's table: engine, dtype, threads and batch sizes.

    For example ``onnxruntime-cuda-float32-1t-b1+8``.
    """
    batches = "+".join(map(str, target.batches or [target.batch]))
    threads = "+".join(map(str, target.thread_counts or [target.threads]))
    return f"{target.engine}-{target.dtype}-{threads}t-b{batches}"


def is_transferred(plan: str) -> bool:
    """Return True if ``OperatorEntry.plan`` marks a latency from another device's table."""
    return plan.startswith(TRANSFERRED)


def is_timed(plan: str) -> bool:
    """Return True if ``OperatorEntry.plan`` is of an operator that was timed on this device."""
    return not plan.startswith((TRANSFERRED, PREDICTED))


@final
@dataclass
class LatencyTable:
    """The operators and networks of one target, and the folder of the table."""

    path: Path  #: folder of the table, which may not exist yet
    entries: dict[OpSpec, OperatorEntry] = field(default_factory=dict)  #: latencies by operator
    networks: list[TableRow] = field(default_factory=list)  #: rows of ``networks.csv``
    #: content of ``calibration.json``, by name of the search space
    calibration: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)  #: content of ``provenance.json``
    #: how its device and versions differ from this machine's; empty if they are the same
    from_another_machine: str = ""

    def digest(self, spaces: Iterable[str], ops: Iterable[OpSpec]) -> str:
        """Return the SHA-256, 64 hex digits, of some spaces' calibrations and some operators.

        Other content of the table does not change it; neither do operators that the table lacks.
        """
        calibration = {space: self.calibration.get(space) for space in spaces}
        known = self.only(ops).entries
        return text_digest(_csv(_operators(known)) + json.dumps(calibration))

    def only(self, ops: Iterable[OpSpec]) -> "LatencyTable":
        """Return a copy of the table with only those of ``ops`` that it has; it is not saved."""
        return replace(self, entries={op: self.entries[op] for op in ops if op in self.entries})

    def missing(self, ops: Iterable[OpSpec]) -> list[OpSpec]:
        """Return those of ``ops`` that were not timed on this device, each once."""
        plans = self.plans()
        return [op for op in dict.fromkeys(ops) if op not in plans]

    def plans(self) -> Mapping[OpSpec, str]:
        """Return the compilation plan of each operator that was timed on this device."""
        return {op: e.plan for op, e in self.entries.items() if is_timed(e.plan)}

    def transferred_plans(self) -> Mapping[OpSpec, str]:
        """Return the compilation plans from another device's table, by operator.

        Only operators that were not timed on this device, and have such a plan, are included.
        """
        all_plans = {op: e.plan for op, e in self.entries.items() if is_transferred(e.plan)}
        plans = {op: plan.removeprefix(TRANSFERRED).strip() for op, plan in all_plans.items()}
        return {op: plan for op, plan in plans.items() if plan}

    def forget_transfer(self) -> None:
        """Remove calibrations that follow from another device's table; nothing is saved.

        They do not hold once operators are timed on this device.
        """
        self.calibration = {n: c for n, c in self.calibration.items() if "transfer" not in c}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Return a context that locks the table's folder against writes by other processes.

        The folder is created; new folders are removed at the end if no table was saved.

        Raises:
            LockedError: another process has locked it.
        """
        new_folders = [p for p in (self.path, *self.path.parents) if not p.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        with files.lock_folder(self.path) as lock:
            try:
                yield
            finally:
                if new_folders and not (self.path / _PROVENANCE).is_file():  # nothing was measured
                    Path(lock.name).unlink()
                    files.remove_empty_folders(new_folders)

    def save(self) -> None:
        """Write all files of the table; the table on disk is complete at any time.

        ``provenance`` gets the current format and the digests of the files.
        """
        contents = _contents(self)
        # The provenance lists the old and the new digest of each file, so that an interrupted save
        # is consistent. The first provenance is written last: without it there is no table.
        self.provenance["format"] = FORMAT
        self.provenance["digests"] = {
            name: list(dict.fromkeys([*_digest_on_disk(self.path / name), text_digest(text)]))
            for name, text in contents.items()
        }
        last = {_PROVENANCE: json.dumps(self.provenance, indent=2) + "\n"}
        is_new = not (self.path / _PROVENANCE).is_file()
        for name, text in ({**contents, **last} if is_new else {**last, **contents}).items():
            files.write_file(self.path / name, text.encode())


def load_table(path: Path) -> LatencyTable:
    """Return the table in a folder.

    Raises:
        TableError: a file is missing, cannot be read, does not match its digest, or has a newer
            format.
    """
    try:
        content = _json(path / _PROVENANCE)
        check_format(content, FORMAT)
        provenance: TableRow = validate(Annotated[_Provenance, OPEN], content)
        texts = {name: safe_read.read_text(path / name, schema.MAX_CSV_BYTES) for name in _FILES}
        for name, text in texts.items():
            if text_digest(text) not in provenance["digests"].get(name, ()):
                raise TableError(
                    f"Latency table {path}: {name} was changed (its digest differs). "
                    "Restore it, or remove the folder and profile again (hwnas profile)."
                )
        entries, networks = (schema.parse_csv(texts[name]) for name in _FILES[:2])
        for i, row in enumerate(networks):
            schema.parse_row(_Network, row, f"networks.csv[{i}]")
        calibration = validate(
            dict[str, _Calibrated], safe_read.parse_json(texts["calibration.json"])
        )
        operators = dict(_entry(row, f"operators.csv[{i}]") for i, row in enumerate(entries))
        return LatencyTable(path, operators, [*networks], calibration, provenance)
    except (OSError, safe_read.CorruptFileError, SchemaError) as problem:
        raise TableError(
            f"Latency table {path} cannot be read: {problem}. Restore it, or remove the folder and "
            "profile again (hwnas profile)."
        ) from None


def _json(path: Path) -> Any:
    return safe_read.parse_json(safe_read.read_text(path, safe_read.MAX_JSON_BYTES))


def find_table(target: Target, roots: Iterable[Path]) -> Path | None:
    """Return the folder of a target's table in the first of ``roots`` that has one.

    ``None`` if none has one. The device of the table is not checked; see
    ``provenance.matching_table``.
    """
    return next((path for root in roots if is_table(path := table_folder(target, root))), None)


def table_folder(target: Target, root: Path) -> Path:
    """Return the folder ``root/TARGET/TABLE`` of a target's table, which may not exist.

    TABLE is ``table_name(target)``.
    """
    return root / target.name / table_name(target)


def is_table(path: Path) -> bool:
    """Return True if a folder contains ``provenance.json``: a table that was saved."""
    return (path / _PROVENANCE).is_file()


def check_complete(path: Path) -> None:
    """Check that a folder with other files of a table has ``provenance.json``, too.

    Raises:
        TableError: it has not, so that the device and the versions of the table are unknown.
    """
    if not is_table(path) and any((path / name).is_file() for name in _FILES):
        raise TableError(
            f"Latency table {path} has no {_PROVENANCE}: its device and versions are unknown. "
            "Restore the file, or remove the folder to measure again."
        )


def missing_operators_error(missing: list[OpSpec], target: Target, command: str) -> TableError:
    """Return the error for operators that a table lacks, with the command that measures them."""
    shown = "; ".join(map(str, missing[:_MAX_SHOWN])) + "; ..." * (len(missing) > _MAX_SHOWN)
    return TableError(
        f"The latency table of target '{target.name}' lacks {len(missing)} operators: "
        f"{shown}. Measure them with: {command}"
    )


def _contents(table: LatencyTable) -> dict[str, str]:
    return {
        "operators.csv": _csv(_operators(table.entries)),
        "networks.csv": _csv(table.networks),
        "calibration.json": json.dumps(table.calibration, indent=2) + "\n",
    }


def _operators(entries: Mapping[OpSpec, OperatorEntry]) -> list[TableRow]:
    """Return a row per operator; optional columns are there if any operator has them."""
    with_optional = any(getattr(op, _OPTIONAL) for op in entries)
    names = [item.name for item in fields(OpSpec) if with_optional or item.name != _OPTIONAL]
    return [_row(op, entry, names) for op, entry in entries.items()]


def _row(op: OpSpec, entry: OperatorEntry, names: Iterable[str]) -> TableRow:
    values, timing = {name: getattr(op, name) for name in names}, entry.timing
    shapes = {name: "x".join(map(str, values[name])) for name in _SHAPES}
    return {
        **values,
        **shapes,
        "plan": entry.plan,
        "latency_ms": f"{timing.median_ms:.7g}",
        "latency_ms_low": f"{timing.low_ms:.7g}",
        "latency_ms_high": f"{timing.high_ms:.7g}",
        "n_repeats": timing.n_repeats,
        "n_passes": entry.n_passes,
        "drifted": timing.drifted,
    }


def _entry(row: Mapping[str, str], location: str) -> tuple[OpSpec, OperatorEntry]:
    cells = schema.parse_row(_Operator, row, location)
    low, value, high = (cells[f"latency_ms{part}"] for part in ("_low", "", "_high"))
    if not low <= value <= high:
        raise SchemaError(
            f"'{location}.latency_ms' is {value:g}, outside the interval from its columns "
            f"latency_ms_low, {low:g}, to latency_ms_high, {high:g}"
        )
    values = {item.name: cells[item.name] for item in fields(OpSpec) if item.name in cells}
    values |= {name: _shape(values[name], f"{location}.{name}") for name in _SHAPES}
    timing = Timing(value, low, high, cells["n_repeats"], cells["drifted"])
    return OpSpec(**values), OperatorEntry(cells["plan"], timing, cells["n_passes"])


def _shape(text: str, location: str) -> Any:
    numbers = [int(part) if part.isdecimal() else part for part in text.split("x")]
    return validate(tuple[Size, Size, Size], numbers, location)


def _csv(content: list[TableRow]) -> str:
    text = io.StringIO(newline="")
    if content:
        names = dict.fromkeys(name for row in content for name in row)  # rows may lack columns
        writer = csv.DictWriter(text, list(names), lineterminator="\n")
        writer.writeheader()
        writer.writerows(content)
    return text.getvalue()


def text_digest(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8, 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def _digest_on_disk(path: Path) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest()] if path.is_file() else []
