"""Models with accuracies, and how long a batch takes on which device: all that fronts say."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from hwnas.analysis import run_fronts
from hwnas.core import safe_read, schema
from hwnas.core.errors import ConfigError, HwnasError, RunError
from hwnas.core.quantity import Quantities, Quantity, QuantitySource, quantities_from_json
from hwnas.core.schema import Fraction, NumberBounds, Positive, SchemaError, Size, validate
from hwnas.export import proof_file
from hwnas.export.folder import PROOF
from hwnas.fleet.fleet_file import DeviceType, Fleet
from hwnas.fleet.plan import TimedRuntime
from hwnas.fleet.service_file import Service
from hwnas.hardware import backends
from hwnas.hardware.latency_tables import latency_table
from hwnas.hardware.memory import replica_mib
from hwnas.hardware.target import Target, from_facts
from hwnas.models.families import annotations
from hwnas.nas.member import artefact_metric, metric_of

# By what models were timed, as fronts say it: so servers must run them, too.


def as_it_ran(
    genotype: Mapping[str, object], batch: object, threads: object, where: str
) -> tuple[int, int]:
    """Return the batch and threads of a network, which may say so itself; else as its target does.

    Raises:
        RunError: neither says one number.
    """
    said = genotype.get(annotations.BATCH, batch), genotype.get(annotations.THREADS, threads)
    if not all(str(number).isdecimal() for number in said):
        raise RunError(f"{where}: a network's batch is {said[0]}, its threads are {said[1]}: "
                       "allowed is one number of each.")  # fmt: skip
    return int(str(said[0])), int(str(said[1]))


def ran_by(target: Target, place: Path, threads: int | None = None) -> TimedRuntime:
    """Return by what networks of a target are timed.

    Args:
        target: The target.
        place: What says so.
        threads: What a network chose; default: those of the target.
    """
    return ran_in(target.engine, target.name, place, threads or target.threads)


def ran_in(engine: str, target: str, place: Path, threads: int) -> TimedRuntime:
    """Return the same by the names of a target and of its engine, as tables are named by them.

    Of a target out of reach it is not known what runs networks.
    """
    runtime = next((n for n in backends.names() if f"{engine}-".startswith(f"{n}-")), "")
    variant = engine.removeprefix(runtime).removeprefix("-").partition(".")[0]
    is_known = runtime and backends.get(runtime).measured
    return TimedRuntime(
        target, str(place), runtime, (variant or "cpu") if is_known else "", threads
    )


def target_of_run(config: Mapping[str, Any], place: Path) -> Target:
    """Return the target of a run.

    Args:
        config: That of its manifest.
        place: Its folder, for messages.

    Raises:
        RunError: it is none.
    """
    try:
        return from_facts(config["target"])
    except (SchemaError, HwnasError) as problem:
        raise RunError(f"fronts: {place}: the target of its manifest: {problem}.") from None


MOST_BATCH = 256


@dataclass(frozen=True)
class FleetModel:
    """A network at a precision: what is loaded and answers."""

    id: str
    precision: str
    accuracy: Quantity
    memory_mib: float
    place: str  #: the folder or file that says so

    @property
    def name(self) -> str:
        """What it is called in plans: an id may be there in several precisions."""
        return f"{self.id}-{self.precision}"


@dataclass
class ModelCatalogue:
    """All models, and latencies of batches by target, model and batch size."""

    models: dict[str, FleetModel] = field(default_factory=dict)
    latency_ms: dict[tuple[str, str], dict[int, Quantity]] = field(default_factory=dict)
    ran: dict[tuple[str, str], dict[int, TimedRuntime]] = field(
        default_factory=dict
    )  #: of some of them
    profiled_mib: dict[str, float] = field(default_factory=dict)  #: memory, where profiles say it

    def add(self, model: FleetModel) -> None:
        """Take in a model; the accuracy that is known best stays."""
        known = self.models.get(model.name)
        if known is None or model.accuracy.lower > known.accuracy.lower:
            self.models[model.name] = model

    def memory_mib(self, name: str) -> float | None:
        """Return what a replica of a model, or of a part of one, takes; ``None``: not known."""
        model = self.models.get(name)
        return max(self.profiled_mib.get(name, 0.0), model.memory_mib if model else 0.0) or None

    def time(
        self, target: str, name: str, batch: int, figure: Quantity, ran: TimedRuntime | None = None
    ) -> None:
        """Take in how long a batch takes, and by what it was timed, where that is known.

        Raises:
            ConfigError: other latencies of the model on the target are of other threads.
        """
        if ran is not None:
            known = self.ran.setdefault((target, name), {})
            if other := next((o for o in known.values() if o.threads != ran.threads), None):
                raise ConfigError(
                    f"{ran.place} has latencies of {name} on target '{target}' on {ran.threads} "
                    f"threads, {other.place} on {other.threads}: name one of them, or call one of "
                    "the targets otherwise."
                )
            known[batch] = ran
        self.latency_ms.setdefault((target, name), {})[batch] = figure

    def on(self, fleet: Fleet, device: str, name: str) -> dict[int, Quantity]:
        """Return the latencies of a model on a device by batch size, heat and speed counted."""
        at: DeviceType = fleet.devices[device]
        if where := self._timed(device, at, name):
            found = self.latency_ms[where, name]
            return {b: _slower(f, at.derate) for b, f in sorted(found.items())}
        if at.like is None:
            return {}
        scale = at.speed * at.derate / fleet.devices[at.like].derate
        modelled = self.on(fleet, at.like, name)
        return {b: _slower(f, scale, "modelled") for b, f in modelled.items()}

    def ran_on(self, fleet: Fleet, device: str, name: str, batch: int) -> TimedRuntime:
        """Return by what a model was timed on a device; what the fleet says of that counts."""
        at: DeviceType = fleet.devices[device]
        if at.like is not None and not self._timed(device, at, name):
            found = self.ran_on(fleet, at.like, name, batch)
        else:
            where = self._timed(device, at, name) or device
            known = self.ran.get((where, name), {})
            found = known.get(batch) or next(iter(known.values()), TimedRuntime(where))
        return replace(
            found, provider=at.provider or found.provider, threads=at.threads or found.threads
        )

    def _timed(self, device: str, at: DeviceType, name: str) -> str:
        """Return the target on which a model was timed for a device; empty: there is none."""
        where = at.target or device
        return where if (where, name) in self.latency_ms else ""


def _slower(figure: Quantity, speed: float, source: QuantitySource | None = None) -> Quantity:
    """Return a latency at another speed; what was not measured so is modelled."""
    if speed == 1.0 and source is None:
        return figure
    ends = (None if end is None else end / speed for end in (figure.low, figure.high))
    return Quantity(figure.value / speed, source or figure.source, *ends)


def read_models(service: Service, beside: Path) -> ModelCatalogue:
    """Return what fronts, exports, tables and profiles say.

    Args:
        service: Names them.
        beside: The folder that relative paths begin in, if they are not there from here.

    Raises:
        RunError: one cannot be read.
        ConfigError: one is not there, or says nothing of models.
    """
    found = ModelCatalogue()
    for name in service.fronts:
        _read_front(found, located(name, beside))
    for name in service.profiles:
        path = located(name, beside)
        _read_table(found, path) if path.is_dir() else _read_csv(found, path)
    if not found.models:
        raise ConfigError(f"fronts={', '.join(service.fronts)}: no member of a front is in them.")
    return found


def located(name: str, beside: Path) -> Path:
    """Return a path that a file names: from here, or from the folder of the file."""
    return Path(name) if Path(name).exists() else beside / name


def _read_front(found: ModelCatalogue, path: Path) -> None:
    if not path.exists():
        raise ConfigError(f"fronts: {path}: there is no such folder or file.")
    if path.is_file():
        _read_csv(found, path)
    elif (path / PROOF).is_file():
        _read_export(found, path)
    elif not (path / "manifest.json").is_file() and (parts := sorted(path.glob(f"*/{PROOF}"))):
        for part in parts:
            _read_export(found, part.parent)
    else:
        _read_run(found, path)


def _read_export(found: ModelCatalogue, path: Path) -> None:
    proof = proof_file.read_proof(path)
    figures = quantities_from_json(proof["figures"])
    target = proof_file.target_of(proof)
    ran: dict[str, Any] = {**proof["artefacts"][proof["own_artefact"]]}
    if "accuracy" not in ran:
        raise RunError(f"fronts: {path}: its own artefact has no accuracy; plans need one.")
    model = FleetModel(
        proof_file.name_of(proof),
        target.dtype,
        Quantity(*ran["accuracy"]),
        replica_mib(figures),
        str(path),
    )
    said = proof["model"]["genotype"]
    batch, threads = as_it_ran(said, target.batch, target.threads, f"fronts: {path}")
    _take(found, model, batch, figures, ran_by(target, path, threads))


def _read_run(found: ModelCatalogue, path: Path) -> None:
    run = run_fronts.read_run_folder(path, "fronts")
    if not run.members or "batch" not in run.config.get("target", {}):
        raise RunError(
            f"fronts: {path} has no verified front for one target: let its search finish "
            f"(python -m hwnas search run.resume={path}), or name its part of one target."
        )
    target = target_of_run(run.config, path)
    for member in run.members:
        if not member.is_deliverable:
            continue
        if metric_of(member.figures) != "accuracy":
            raise RunError(f"fronts: {path} has no accuracies but errors; plans need accuracies.")
        accuracy = member.figures[artefact_metric("accuracy", member.figures)]
        memory = replica_mib(member.figures)
        dtype = member.dtype(target.dtype)
        model = FleetModel(member.candidate.id, dtype, accuracy, memory, str(path))
        said = member.candidate.genotype.to_dict()
        batch, threads = as_it_ran(said, target.batch, target.threads, f"fronts: {path}")
        _take(found, model, batch, member.figures, ran_by(target, path, threads))


def _take(
    found: ModelCatalogue, model: FleetModel, batch: int, figures: Quantities, ran: TimedRuntime
) -> None:
    found.add(model)
    if "latency_ms" in figures:
        found.time(ran.target, model.name, batch, figures["latency_ms"], ran)


class _ProfileRow(TypedDict):
    """A row of a front or a profile of one's own; columns that it does not name are not read."""

    id: Annotated[str, NumberBounds(1, 100)]
    precision: NotRequired[str]
    accuracy: NotRequired[Fraction]
    accuracy_low: NotRequired[Fraction]
    accuracy_high: NotRequired[Fraction]
    memory_mib: NotRequired[Annotated[float, NumberBounds(0, 1e6)]]
    target: NotRequired[str]
    batch: NotRequired[Annotated[Size, NumberBounds(1, MOST_BATCH)]]
    latency_ms: NotRequired[Positive]
    latency_ms_low: NotRequired[Positive]
    latency_ms_high: NotRequired[Positive]
    source: NotRequired[QuantitySource]


def csv_rows(path: Path, named: str = "") -> list[dict[str, str]]:
    """Return the rows of a CSV file.

    Args:
        path: The file.
        named: What names it, in messages.

    Raises:
        ConfigError: it is none, or there is no row.
    """
    try:
        found = schema.parse_csv(safe_read.read_text(path, schema.MAX_CSV_BYTES))
    except FileNotFoundError:
        where = f"{named}: {path}" if named else str(path)
        raise ConfigError(f"{where}: there is no such file.") from None
    except (safe_read.CorruptFileError, SchemaError) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}.") from None
    if not found:
        raise ConfigError(f"{path} is empty: it needs a row below its header.")
    return found


def _read_csv(found: ModelCatalogue, path: Path) -> None:
    for i, raw in enumerate(csv_rows(path)):
        if "verified_fits_budget" in raw:
            raise ConfigError(f"{path} is of a search: name its folder, {path.parent}.")
        try:
            take_row(found, raw, str(path), f"row {i}")
        except SchemaError as problem:
            raise ConfigError(f"{path} cannot be read: {problem}.") from None


def take_row(
    found: ModelCatalogue,
    raw: Mapping[str, str],
    place: str,
    at: str,
    ran: TimedRuntime | None = None,
) -> None:
    """Take in a row of a front or a profile.

    Args:
        found: What takes it in.
        raw: The row as text; what is empty is not said.
        place: The folder or file that it is of.
        at: The row, for messages.
        ran: By what it was timed, if that is known.

    Raises:
        SchemaError: a value is none of its type, or it says nothing.
    """
    row: _ProfileRow = schema.parse_row(_ProfileRow, {k: v for k, v in raw.items() if v != ""}, at)
    precision, source = row.get("precision", "float32"), row.get("source", "modelled")
    name = f"{row['id']}-{precision}"
    if "memory_mib" in row:
        found.profiled_mib[name] = max(found.profiled_mib.get(name, 0.0), row["memory_mib"])
    if "accuracy" in row:
        accuracy = _interval(row, "accuracy", source, at)
        found.add(FleetModel(row["id"], precision, accuracy, row.get("memory_mib", 0.0), place))
    if "latency_ms" in row:
        if "target" not in row:
            raise SchemaError(f"{at} has a latency, but does not say of which target")
        figure = _interval(row, "latency_ms", source, at)
        found.time(row["target"], name, row.get("batch", 1), figure, ran)
    elif "accuracy" not in row:
        raise SchemaError(f"{at} has neither an accuracy nor a latency_ms")


def _interval(row: _ProfileRow, name: str, source: QuantitySource, at: str) -> Quantity:
    said = {**row}
    low, value, high = (said.get(f"{name}{end}") for end in ("_low", "", "_high"))
    figure = Quantity(value, source, low, high)  # type: ignore[arg-type]
    if not figure.lower <= figure.value <= figure.upper:
        raise SchemaError(f"{at}: the interval of {name} does not hold its value {value}")
    return figure


def _read_table(found: ModelCatalogue, path: Path) -> None:
    """Take in the whole networks of a latency table that fronts hold, too."""
    table = latency_table.load_table(path)
    numbers = r"(\d+(?:\+\d+)*)"
    setting = re.fullmatch(rf"(.+?)-(\w+)-{numbers}t-b{numbers}(?:-[0-9a-f]+)?", path.name)
    if setting is None:
        raise RunError(f"profiles: {path} is not named as tables are: RUNTIME-DTYPE-1t-b1.")
    engine, dtype, said_threads, said_batch = setting.groups()
    for row in table.networks:
        name, at = f"{row.get('id')}-{dtype}", f"profiles: {path}"
        if name in found.models:
            batch, threads = as_it_ran(_genotype(row, path), said_batch, said_threads, at)
            low, high = (float(row[f"measured_ms_{end}"]) for end in ("low", "high"))
            figure = Quantity(float(row["measured_ms"]), "measured", low, high)
            ran = ran_in(engine, path.parent.name, path, threads)
            found.time(ran.target, name, batch, figure, ran)


def _genotype(row: latency_table.TableRow, path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = validate(
            dict[str, Any], safe_read.parse_json(row.get("genotype", "{}"))
        )
    except (safe_read.CorruptFileError, SchemaError) as problem:
        raise RunError(f"profiles: {path}: a genotype cannot be read: {problem}.") from None
    return found
