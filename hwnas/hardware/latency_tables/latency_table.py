"""Latency tables: what was measured on a device, operator by operator, and how.

A table is a folder of files that other tools read: ``operators.csv`` (one row a fused operator,
with the plan by which it was compiled), ``networks.csv`` (whole networks, measured and predicted),
``calibration.json`` (what turns a sum of operators into a network's latency, and its errors) and
``provenance.json`` (device, versions, settings, dates, digests of the other files).
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

#: How the plan begins of an operator whose latency comes from another device: it was not timed on
#: this one. What follows, if anything, is the plan that it has there.
TRANSFERRED = "transferred"
#: The plan of an operator that was not timed at all: its latency follows from others timed here.
FORETOLD = "foretold"

FORMAT = 1  #: of tables that are written; earlier ones say none
TableRow = dict[str, Any]
_SHAPES = ("in_shape", "out_shape")
_LATER = "threads"  # of operators: absent where a table has one number for all
_PROVENANCE = "provenance.json"
_FILES = ("operators.csv", "networks.csv", "calibration.json")
_SHOWN = 3
FEWEST = 10  #: networks from which a table may follow


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
    """Where latency tables are, and which are trusted."""

    dir: str = "latency_tables"  #: tables of your own; those that ship are found without it
    allow_other_machine: bool = False  #: use a table of another CPU or another version, labelled so
    #: networks measured before a search of a space that no table of this machine knows: from so
    #: many, and as many again up to four times, latencies follow; 0: none, else 10 or more
    networks: int = bounded("[0, 10_000]", 16)

    def __post_init__(self) -> None:
        check_bounds(self, "table.")
        if 0 < self.networks < FEWEST:
            raise ConfigError(
                f"table.networks must be 0, or {FEWEST} or more, got {self.networks}."
            )


@dataclass(frozen=True)
class OperatorEntry:
    """An operator as it was compiled and measured."""

    plan: str  #: how the compiler was told to schedule it
    timing: Timing
    n_passes: int = 1  #: times that it was timed, minutes apart


def setting(target: Target) -> str:
    """Return the name of a target's table: what else decides its figures."""
    batches = "+".join(map(str, target.batches or [target.batch]))
    threads = "+".join(map(str, target.thread_counts or [target.threads]))
    return f"{target.engine}-{target.dtype}-{threads}t-b{batches}"


def is_transferred(plan: str) -> bool:
    """Return whether the latency of an operator of that plan comes from another device."""
    return plan.startswith(TRANSFERRED)


def is_timed(plan: str) -> bool:
    """Return whether an operator of that plan was timed on this device."""
    return not plan.startswith((TRANSFERRED, FORETOLD))


@final
@dataclass
class LatencyTable:
    """The operators of one target, and where they are kept."""

    path: Path
    entries: dict[OpSpec, OperatorEntry] = field(default_factory=dict)
    networks: list[TableRow] = field(default_factory=list)
    calibration: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    from_another_machine: str = ""  #: why the table is not of this machine, if it is not

    def digest(self, spaces: Iterable[str], ops: Iterable[OpSpec]) -> str:
        """Return a digest of what the table predicts from, for some spaces and operators.

        What it comes to know of others changes nothing.
        """
        calibration = {space: self.calibration.get(space) for space in spaces}
        known = self.only(ops).entries
        return digest_of(_csv(_operators(known)) + json.dumps(calibration))

    def only(self, ops: Iterable[OpSpec]) -> "LatencyTable":
        """Return the table without its other operators."""
        return replace(self, entries={op: self.entries[op] for op in ops if op in self.entries})

    def missing(self, ops: Iterable[OpSpec]) -> list[OpSpec]:
        """Return the operators that were not measured here."""
        plans = self.plans()
        return [op for op in dict.fromkeys(ops) if op not in plans]

    def plans(self) -> Mapping[OpSpec, str]:
        """Return how each operator that was measured here is compiled."""
        return {op: e.plan for op, e in self.entries.items() if is_timed(e.plan)}

    def taken_over(self) -> Mapping[OpSpec, str]:
        """Return how operators are compiled whose plans come from another device."""
        found = {op: e.plan for op, e in self.entries.items() if is_transferred(e.plan)}
        plans = {op: plan.removeprefix(TRANSFERRED).strip() for op, plan in found.items()}
        return {op: plan for op, plan in plans.items() if plan}

    def forget_transfer(self) -> None:
        """Forget the calibrations that followed from another device's table.

        They are of operators as that table has them, not as they are when each is timed here.
        """
        self.calibration = {n: c for n, c in self.calibration.items() if "transfer" not in c}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing the table meanwhile.

        Raises:
            RunError: one is about to.
        """
        made = [p for p in (self.path, *self.path.parents) if not p.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        with files.lock_folder(self.path) as lock:
            try:
                yield
            finally:
                if made and not (self.path / _PROVENANCE).is_file():  # nothing was measured
                    Path(lock.name).unlink()
                    for folder in made:
                        folder.rmdir()

    def save(self) -> None:
        """Write all files, each atomically; at any moment those on the disk belong together."""
        contents = _contents(self)
        # Whenever this is cut off, the provenance knows each file that is there: as it was, or as
        # it becomes. The first provenance goes last: without one there is no table yet.
        self.provenance["format"] = FORMAT
        self.provenance["digests"] = {
            name: list(dict.fromkeys([*_digest_on_disk(self.path / name), digest_of(text)]))
            for name, text in contents.items()
        }
        last = {_PROVENANCE: json.dumps(self.provenance, indent=2) + "\n"}
        is_new = not (self.path / _PROVENANCE).is_file()
        for name, text in ({**contents, **last} if is_new else {**last, **contents}).items():
            files.write_file(self.path / name, text.encode())


def load_table(path: Path) -> LatencyTable:
    """Read a table.

    Raises:
        TableError: it is damaged, was changed by hand, or is of a newer version.
    """
    try:
        said = _json(path / _PROVENANCE)
        check_format(said, FORMAT)
        provenance: TableRow = validate(Annotated[_Provenance, OPEN], said)
        texts = {name: safe_read.read_text(path / name, schema.MAX_CSV_BYTES) for name in _FILES}
        for name, text in texts.items():
            if digest_of(text) not in provenance["digests"].get(name, ()):
                raise TableError(
                    f"Latency table {path}: {name} is not what was measured (its digest differs). "
                    "Restore it, or remove the folder and profile again."
                )
        entries, networks = (
            schema.parse_csv(texts["operators.csv"]),
            schema.parse_csv(texts["networks.csv"]),
        )
        for i, row in enumerate(networks):
            schema.parse_row(_Network, row, f"networks.csv[{i}]")
        calibration = validate(
            dict[str, _Calibrated], safe_read.parse_json(texts["calibration.json"])
        )
        found = dict(_entry(row, f"operators.csv[{i}]") for i, row in enumerate(entries))
        return LatencyTable(path, found, [*networks], calibration, provenance)
    except (OSError, safe_read.CorruptFileError, SchemaError) as problem:
        raise TableError(
            f"Latency table {path} cannot be read: {problem}. Remove the folder and profile again."
        ) from None


def _json(path: Path) -> Any:
    return safe_read.parse_json(safe_read.read_text(path, safe_read.MAX_JSON_BYTES))


def find(target: Target, roots: Iterable[Path]) -> Path | None:
    """Return the folder of a target's table, if there is one under any of ``roots``."""
    return next((path for root in roots if is_table(path := folder(target, root))), None)


def folder(target: Target, root: Path) -> Path:
    """Return the usual folder of a target's table."""
    return root / target.name / setting(target)


def is_table(path: Path) -> bool:
    """Return whether a folder holds a table."""
    return (path / _PROVENANCE).is_file()


def incomplete(missing: list[OpSpec], target: Target, command: str) -> TableError:
    """Return the error that names operators which a table lacks, and the cure."""
    shown = "; ".join(map(str, missing[:_SHOWN])) + "; ..." * (len(missing) > _SHOWN)
    return TableError(
        f"{len(missing)} operators are not in the latency table of target '{target.name}': "
        f"{shown}. Measure them with: {command}"
    )


def _contents(table: LatencyTable) -> dict[str, str]:
    return {
        "operators.csv": _csv(_operators(table.entries)),
        "networks.csv": _csv(table.networks),
        "calibration.json": json.dumps(table.calibration, indent=2) + "\n",
    }


def _operators(entries: Mapping[OpSpec, OperatorEntry]) -> list[TableRow]:
    """Return a row for each operator; all have what any has."""
    later = any(getattr(op, _LATER) for op in entries)
    names = [item.name for item in fields(OpSpec) if later or item.name != _LATER]
    return [_row(op, entry, names) for op, entry in entries.items()]


def _row(op: OpSpec, entry: OperatorEntry, names: Iterable[str]) -> TableRow:
    found, timing = {name: getattr(op, name) for name in names}, entry.timing
    shapes = {name: "x".join(map(str, found[name])) for name in _SHAPES}
    return {
        **found,
        **shapes,
        "plan": entry.plan,
        "latency_ms": f"{timing.median_ms:.7g}",
        "latency_ms_low": f"{timing.low_ms:.7g}",
        "latency_ms_high": f"{timing.high_ms:.7g}",
        "n_repeats": timing.n_repeats,
        "n_passes": entry.n_passes,
        "drifted": timing.drifted,
    }


def _entry(row: Mapping[str, str], at: str) -> tuple[OpSpec, OperatorEntry]:
    found = schema.parse_row(_Operator, row, at)
    low, value, high = (found[f"latency_ms{part}"] for part in ("_low", "", "_high"))
    if not low <= value <= high:
        raise SchemaError(f"'{at}.latency_ms' is {value:g}, which its interval does not hold")
    values = {item.name: found[item.name] for item in fields(OpSpec) if item.name in found}
    values |= {name: _shape(values[name], f"{at}.{name}") for name in _SHAPES}
    timing = Timing(value, low, high, found["n_repeats"], found["drifted"])
    return OpSpec(**values), OperatorEntry(found["plan"], timing, found["n_passes"])


def _shape(text: str, at: str) -> Any:
    numbers = [int(part) if part.isdecimal() else part for part in text.split("x")]
    return validate(tuple[Size, Size, Size], numbers, at)


def _csv(content: list[TableRow]) -> str:
    text = io.StringIO(newline="")
    if content:
        names = dict.fromkeys(name for row in content for name in row)  # some may have fewer
        writer = csv.DictWriter(text, list(names), lineterminator="\n")
        writer.writeheader()
        writer.writerows(content)
    return text.getvalue()


def digest_of(text: str) -> str:
    """Return the digest by which a file of a table is known."""
    return hashlib.sha256(text.encode()).hexdigest()


def _digest_on_disk(path: Path) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest()] if path.is_file() else []
