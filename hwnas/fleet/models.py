"""Models with their accuracies, and latencies of batches per device, from fronts and profiles."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from hwnas.analysis import run_fronts
from hwnas.core import safe_read, schema
from hwnas.core.errors import ConfigError, HwnasError, RunError
from hwnas.core.quantity import Quantities, Quantity, QuantitySource, quantities_from_json
from hwnas.core.schema import Fraction, NumberBounds, SchemaError, Size, validate
from hwnas.export import proof_file
from hwnas.export.folder import PROOF
from hwnas.fleet.fleet_file import DeviceType, Fleet
from hwnas.fleet.plan import MAX_MS, MIN_MS, TimedRuntime
from hwnas.fleet.service_file import Service
from hwnas.hardware import backends
from hwnas.hardware.latency_tables import latency_table
from hwnas.hardware.memory import replica_mib
from hwnas.hardware.target import Target, from_facts
from hwnas.models.families import annotations
from hwnas.nas.member import artefact_metric, metric_of


def batch_and_threads(
    genotype: Mapping[str, object], batch: object, threads: object, where: str
) -> tuple[int, int]:
    """Return the batch size and threads of a genotype; without such choices, the given ones.

    ``where`` is the source of the network, for the message.

    Raises:
        RunError: either is not one positive integer.
    """
    text = genotype.get(annotations.BATCH, batch), genotype.get(annotations.THREADS, threads)
    if not all(str(number).isdecimal() and int(str(number)) for number in text):
        raise RunError(f"{where}: a network has batch size {text[0]} and threads {text[1]}; plans "
                       "need one positive integer each. Measure it with one of each.")  # fmt: skip
    return int(str(text[0])), int(str(text[1]))


def runtime_of_target(target: Target, place: Path, threads: int | None = None) -> TimedRuntime:
    """Return the runtime of the latencies in ``place``; ``threads``: default: the target's."""
    return runtime_by_name(target.engine, target.name, place, threads or target.threads)


def runtime_by_name(engine: str, target: str, place: Path, threads: int) -> TimedRuntime:
    """Return the runtime of an engine, as in names of latency tables: ``onnxruntime-cuda``.

    ``provider`` is the variant, ``cpu`` without one; empty if the runtime is unknown or its
    latencies are not measured. The other arguments are fields of the result.
    """
    runtime = next((n for n in backends.names() if f"{engine}-".startswith(f"{n}-")), "")
    variant = engine.removeprefix(runtime).removeprefix("-").partition(".")[0]
    is_known = runtime and backends.get(runtime).measured
    return TimedRuntime(
        target, str(place), runtime, (variant or "cpu") if is_known else "", threads
    )


def target_of_run(config: Mapping[str, Any], place: Path) -> Target:
    """Return the target in the config of a run's manifest; ``place`` is the folder of the run.

    Raises:
        RunError: the target is invalid.
    """
    try:
        return from_facts(config["target"])
    except (SchemaError, HwnasError) as problem:
        reason = f"its target is invalid: {str(problem).rstrip('.')}"
        raise RunError(f"fronts: {place}: {reason}. Restore its manifest.json.") from None


MAX_BATCH = 256


@dataclass(frozen=True)
class FleetModel:
    """A network at a precision."""

    id: str  #: id of the genotype, or of a row of a CSV file
    precision: str  #: ``float32``, ``int8``, ...
    accuracy: Quantity  #: fraction in [0, 1]
    memory_mib: float  #: memory of a replica in MiB; 0: unknown
    place: str  #: source folder or file

    @property
    def name(self) -> str:
        """Name in plans, ``ID-PRECISION``, as an id may have several precisions."""
        return f"{self.id}-{self.precision}"


@dataclass
class ModelCatalogue:
    """Models with their accuracies, latencies and memory."""

    models: dict[str, FleetModel] = field(default_factory=dict)  #: by name, ``ID-PRECISION``
    #: ms of a batch, by (target, model) and batch size
    latency_ms: dict[tuple[str, str], dict[int, Quantity]] = field(default_factory=dict)
    #: runtimes with which latencies were measured, where known; keys as of ``latency_ms``
    ran: dict[tuple[str, str], dict[int, TimedRuntime]] = field(default_factory=dict)
    #: memory of a replica in MiB by model, according to profiles
    profiled_mib: dict[str, float] = field(default_factory=dict)

    def add(self, model: FleetModel) -> None:
        """Add a model; of two of one name, that with the higher lower end of accuracy is kept."""
        known = self.models.get(model.name)
        if known is None or model.accuracy.lower > known.accuracy.lower:
            self.models[model.name] = model

    def memory_mib(self, name: str) -> float | None:
        """Return the memory of a replica of a model or part in MiB; ``None`` if unknown."""
        model = self.models.get(name)
        return max(self.profiled_mib.get(name, 0.0), model.memory_mib if model else 0.0) or None

    def time(
        self, target: str, name: str, batch: int, figure: Quantity, ran: TimedRuntime | None = None
    ) -> None:
        """Add or replace the latency in ms of a batch on a target, and its runtime if known.

        Raises:
            ConfigError: other latencies of the model on the target have another number of threads.
        """
        if ran is not None:
            known = self.ran.setdefault((target, name), {})
            if other := next((o for o in known.values() if o.threads != ran.threads), None):
                raise ConfigError(
                    f"{ran.place} has latencies of {name} on target '{target}' with {ran.threads} "
                    f"threads, {other.place} with {other.threads}: remove one of them from fronts "
                    "or profiles, or give the targets different names."
                )
            known[batch] = ran
        self.latency_ms.setdefault((target, name), {})[batch] = figure

    def on(self, fleet: Fleet, device: str, name: str) -> dict[int, Quantity]:
        """Return latencies in ms of a model on a device by batch size (key, ascending).

        They are divided by ``derate``. A device without timings of the model has those of its
        ``like``, divided by ``speed``. Empty if neither has any.
        """
        at: DeviceType = fleet.devices[device]
        if target := self._timing_target(device, at, name):
            result = self.latency_ms[target, name]
            return {b: _scale_latency(f, at.derate) for b, f in sorted(result.items())}
        if at.like is None:
            return {}
        scale = at.speed * at.derate / fleet.devices[at.like].derate
        modelled = self.on(fleet, at.like, name)
        return {b: _scale_latency(f, scale, "modelled") for b, f in modelled.items()}

    def ran_on(self, fleet: Fleet, device: str, name: str, batch: int) -> TimedRuntime:
        """Return the runtime of a latency of ``on``; settings of ``fleet.yaml`` take precedence."""
        at: DeviceType = fleet.devices[device]
        if at.like is not None and not self._timing_target(device, at, name):
            result = self.ran_on(fleet, at.like, name, batch)
        else:
            target = self._timing_target(device, at, name) or device
            known = self.ran.get((target, name), {})
            result = known.get(batch) or next(iter(known.values()), TimedRuntime(target))
        return replace(
            result, provider=at.provider or result.provider, threads=at.threads or result.threads
        )

    def _timing_target(self, device: str, at: DeviceType, name: str) -> str:
        """Return the target of a model's timings for a device; empty if there is none."""
        target = at.target or device
        return target if (target, name) in self.latency_ms else ""


def _scale_latency(
    figure: Quantity, speed: float, source: QuantitySource | None = None
) -> Quantity:
    """Return a latency at another speed; its source is then *modelled*."""
    if speed == 1.0 and source is None:
        return figure
    ends = (None if end is None else end / speed for end in (figure.low, figure.high))
    return Quantity(figure.value / speed, source or figure.source, *ends)


def read_models(service: Service, folder: Path) -> ModelCatalogue:
    """Return models and latencies of a service; ``folder`` is that of ``service.yaml``.

    Raises:
        RunError: a run, export or table cannot be read, or has no accuracy.
        ConfigError: a file or folder is missing or invalid, or there are no models.
    """
    result = ModelCatalogue()
    for name in service.fronts:
        _read_front(result, resolve_path(name, folder))
    for name in service.profiles:
        path = resolve_path(name, folder)
        _read_table(result, path) if path.is_dir() else _read_csv(result, path)
    if not result.models:
        raise ConfigError(f"fronts={', '.join(service.fronts)}: they contain no network: give "
                          "searches, exports, or CSV files with id and accuracy.")  # fmt: skip
    return result


def resolve_path(name: str, folder: Path) -> Path:
    """Return ``folder / name`` if it exists or nothing does, else the path as given."""
    return folder / name if (folder / name).exists() or not Path(name).exists() else Path(name)


def _read_front(catalogue: ModelCatalogue, path: Path) -> None:
    if not path.exists():
        raise ConfigError(f"fronts: {path}: no such folder or file; correct the service file.")
    if path.is_file():
        _read_csv(catalogue, path)
    elif (path / PROOF).is_file():
        _read_export(catalogue, path)
    elif not (path / "manifest.json").is_file() and (parts := sorted(path.glob(f"*/{PROOF}"))):
        for part in parts:
            _read_export(catalogue, part.parent)
    else:
        _read_run(catalogue, path)


def _read_export(catalogue: ModelCatalogue, path: Path) -> None:
    proof = proof_file.read_proof(path)
    figures = quantities_from_json(proof["figures"])
    target = proof_file.target_of(proof)
    artefact: dict[str, Any] = {**proof["artefacts"][proof["own_artefact"]]}
    if "accuracy" not in artefact:
        raise RunError(f"fronts: {path} is an export without accuracy: remove it from fronts.")
    accuracy, memory = Quantity(*artefact["accuracy"]), replica_mib(figures)
    model = FleetModel(proof_file.name_of(proof), target.dtype, accuracy, memory, str(path))
    text = proof["model"]["genotype"]
    batch, threads = batch_and_threads(text, target.batch, target.threads, f"fronts: {path}")
    _add_model(catalogue, model, batch, figures, runtime_of_target(target, path, threads))


def _read_run(catalogue: ModelCatalogue, path: Path) -> None:
    run = run_fronts.read_run_folder(path, "fronts")
    if "batch" not in run.config.get("target", {}):
        raise RunError(f"fronts: {path} has several targets: give the folder of one of them.")
    if not run.members:
        command = shlex.join(["hwnas", "resume", str(path)])
        raise RunError(f"fronts: {path} has no verified front; finish it: {command}")
    target = target_of_run(run.config, path)
    for member in run.members:
        if not member.is_deliverable:
            continue
        if metric_of(member.figures) != "accuracy":
            raise RunError(f"fronts: {path} has no accuracy (a regression): remove it from fronts.")
        accuracy = member.figures[artefact_metric("accuracy", member.figures)]
        memory = replica_mib(member.figures)
        dtype = member.dtype(target.dtype)
        model = FleetModel(member.candidate.id, dtype, accuracy, memory, str(path))
        text = member.candidate.genotype.to_dict()
        batch, threads = batch_and_threads(text, target.batch, target.threads, f"fronts: {path}")
        _add_model(
            catalogue, model, batch, member.figures, runtime_of_target(target, path, threads)
        )


def _add_model(
    catalogue: ModelCatalogue, model: FleetModel, batch: int, figures: Quantities, ran: TimedRuntime
) -> None:
    catalogue.add(model)
    if "latency_ms" in figures:
        catalogue.time(ran.target, model.name, batch, figures["latency_ms"], ran)


_Ms = Annotated[float, NumberBounds(MIN_MS, MAX_MS)]


class _ProfileRow(TypedDict):
    """A row of a front or profile; other columns are ignored."""

    id: Annotated[str, NumberBounds(1, 100)]
    precision: NotRequired[str]
    accuracy: NotRequired[Fraction]
    accuracy_low: NotRequired[Fraction]
    accuracy_high: NotRequired[Fraction]
    memory_mib: NotRequired[Annotated[float, NumberBounds(0, 1e6)]]
    target: NotRequired[str]
    batch: NotRequired[Annotated[Size, NumberBounds(1, MAX_BATCH)]]
    latency_ms: NotRequired[_Ms]
    latency_ms_low: NotRequired[Annotated[float, NumberBounds(0, MAX_MS)]]
    latency_ms_high: NotRequired[_Ms]
    source: NotRequired[QuantitySource]


def csv_rows(path: Path, named: str = "") -> list[dict[str, str]]:
    """Return the rows of a CSV file, each from column to text; ``named`` is the file's option.

    Raises:
        ConfigError: the file is missing, invalid, or has no rows.
    """
    try:
        result = schema.parse_csv(safe_read.read_text(path, schema.MAX_CSV_BYTES))
    except FileNotFoundError:
        place = f"{named}: {path}" if named else str(path)
        raise ConfigError(f"{place}: file not found; correct the path.") from None
    except (safe_read.CorruptFileError, SchemaError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}. Correct the file.") from None
    if not result:
        raise ConfigError(f"{path} has no rows: add at least one below the names of columns.")
    return result


#: What rows with the same values in these columns have the same value of.
_ONCE = {
    "accuracy": ("id", "precision"),
    "latency_ms": ("id", "precision", "target", "batch"),
}


def _read_csv(catalogue: ModelCatalogue, path: Path) -> None:
    known: dict[tuple[str, ...], str] = {}
    for i, raw in enumerate(csv_rows(path)):
        if "verified_fits_budget" in raw:
            raise ConfigError(f"{path} is part of a search: give its folder, {path.parent}.")
        try:
            add_row(catalogue, raw, str(path), f"row {i}")
        except SchemaError as problem:
            raise ConfigError(f"{path} cannot be read: {problem}. Correct the file.") from None
        for name, keys in _ONCE.items():
            value, key = raw.get(name) or "", (name, *(raw.get(key) or "" for key in keys))
            if value and (other := known.setdefault(key, value)) != value:
                raise ConfigError(
                    f"{path}, row {i}: {name} of '{raw['id']}' is {value}, and {other} in an "
                    "earlier row: use different ids, or remove one of the rows."
                )


def add_row(
    catalogue: ModelCatalogue,
    raw: Mapping[str, str],
    place: str,
    at: str,
    ran: TimedRuntime | None = None,
) -> None:
    """Add accuracy, latency and memory of the row ``raw`` of a CSV file ``place``.

    ``at`` names the row in messages; ``ran`` is the runtime of the latency, if known.

    Raises:
        SchemaError: a value is invalid, or neither accuracy nor latency on a target is given.
        ConfigError: other latencies of the model on the target have another number of threads.
    """
    row: _ProfileRow = schema.parse_row(_ProfileRow, {k: v for k, v in raw.items() if v != ""}, at)
    precision, source = row.get("precision", "float32"), row.get("source", "modelled")
    name = f"{row['id']}-{precision}"
    if "memory_mib" in row:
        catalogue.profiled_mib[name] = max(catalogue.profiled_mib.get(name, 0.0), row["memory_mib"])
    if "accuracy" in row:
        accuracy = _interval(row, "accuracy", source, at)
        catalogue.add(FleetModel(row["id"], precision, accuracy, row.get("memory_mib", 0.0), place))
    if "latency_ms" in row:
        if "target" not in row:
            raise SchemaError(f"{at} has a latency_ms but no target: give its target")
        figure = _interval(row, "latency_ms", source, at)
        catalogue.time(row["target"], name, row.get("batch", 1), figure, ran)
    elif "accuracy" not in row:
        raise SchemaError(f"{at} has neither accuracy nor latency_ms: give one of them")


def _interval(row: _ProfileRow, name: str, source: QuantitySource, place: str) -> Quantity:
    text = {**row}
    low, value, high = (text.get(f"{name}{end}") for end in ("_low", "", "_high"))
    figure = Quantity(value, source, low, high)  # type: ignore[arg-type]
    if not figure.lower <= figure.value <= figure.upper:
        raise SchemaError(f"{place}: {name}={value} is not between {name}_low and {name}_high")
    return figure


def _read_table(catalogue: ModelCatalogue, path: Path) -> None:
    """Add the whole networks of a latency table that are in fronts, too."""
    table = latency_table.load_table(path)
    numbers = r"(\d+(?:\+\d+)*)"
    setting = re.fullmatch(rf"(.+?)-(\w+)-{numbers}t-b{numbers}(?:-[0-9a-f]+)?", path.name)
    if setting is None:
        raise RunError(
            f"profiles: {path} is not named like a table, as RUNTIME-DTYPE-1t-b1 (runtime, "
            "precision, threads, batch size): give a table with the name that hwnas profile chose."
        )
    engine, dtype, named_threads, named_batch = setting.groups()
    for row in table.networks:
        name, at = f"{row.get('id')}-{dtype}", f"profiles: {path}"
        if name in catalogue.models:
            batch, threads = batch_and_threads(_genotype(row, path), named_batch, named_threads, at)
            low, high = (float(row[f"measured_ms_{end}"]) for end in ("low", "high"))
            figure = Quantity(float(row["measured_ms"]), "measured", low, high)
            runtime = runtime_by_name(engine, path.parent.name, path, threads)
            catalogue.time(runtime.target, name, batch, figure, runtime)


def _genotype(row: latency_table.TableRow, path: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = validate(
            dict[str, Any], safe_read.parse_json(row.get("genotype", "{}"))
        )
    except (safe_read.CorruptFileError, SchemaError) as problem:
        raise RunError(f"profiles: {path}: a genotype in it cannot be read: {problem}. Write the "
                       "table again with hwnas profile.") from None  # fmt: skip
    return result
