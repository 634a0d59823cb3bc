"""Models with accuracies, and how long a batch takes on which device: all that fronts say."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from hwnas import latency_table
from hwnas.comparison import folder
from hwnas.errors import ConfigError, RunError
from hwnas.export import recorded
from hwnas.export.folder import PROOF
from hwnas.figure import Figure, Figures, Source, figures_of
from hwnas.memory import replica_mib
from hwnas.planning.fleet import Device, Fleet
from hwnas.planning.plan import Ran
from hwnas.planning.service import Service
from hwnas.planning.timed import as_it_ran, ran_by, ran_in, target_of_run
from hwnas.records import bounded, rows
from hwnas.records.schema import Bound, Fraction, Positive, Size, Unfit, fitted
from hwnas.searching.member import metric_of, own

MOST_BATCH = 256


@dataclass(frozen=True)
class Model:
    """A network at a precision: what is loaded and answers."""

    id: str
    precision: str
    accuracy: Figure
    memory_mib: float
    place: str  #: the folder or file that says so

    @property
    def name(self) -> str:
        """What it is called in plans: an id may be there in several precisions."""
        return f"{self.id}-{self.precision}"


@dataclass
class Catalogue:
    """All models, and latencies of batches by target, model and batch size."""

    models: dict[str, Model] = field(default_factory=dict)
    latency_ms: dict[tuple[str, str], dict[int, Figure]] = field(default_factory=dict)
    ran: dict[tuple[str, str], dict[int, Ran]] = field(default_factory=dict)  #: of some of them
    profiled_mib: dict[str, float] = field(default_factory=dict)  #: memory, where profiles say it

    def add(self, model: Model) -> None:
        """Take in a model; the accuracy that is known best stays."""
        known = self.models.get(model.name)
        if known is None or model.accuracy.lower > known.accuracy.lower:
            self.models[model.name] = model

    def memory_mib(self, name: str) -> float | None:
        """Return what a replica of a model, or of a part of one, takes; ``None``: not known."""
        model = self.models.get(name)
        return max(self.profiled_mib.get(name, 0.0), model.memory_mib if model else 0.0) or None

    def time(
        self, target: str, name: str, batch: int, figure: Figure, ran: Ran | None = None
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

    def on(self, fleet: Fleet, device: str, name: str) -> dict[int, Figure]:
        """Return the latencies of a model on a device by batch size, heat and speed counted."""
        at: Device = fleet.devices[device]
        if where := self._timed(device, at, name):
            found = self.latency_ms[where, name]
            return {b: _slower(f, at.derate) for b, f in sorted(found.items())}
        if at.like is None:
            return {}
        scale = at.speed * at.derate / fleet.devices[at.like].derate
        modelled = self.on(fleet, at.like, name)
        return {b: _slower(f, scale, "modelled") for b, f in modelled.items()}

    def ran_on(self, fleet: Fleet, device: str, name: str, batch: int) -> Ran:
        """Return by what a model was timed on a device; what the fleet says of that counts."""
        at: Device = fleet.devices[device]
        if at.like is not None and not self._timed(device, at, name):
            found = self.ran_on(fleet, at.like, name, batch)
        else:
            where = self._timed(device, at, name) or device
            known = self.ran.get((where, name), {})
            found = known.get(batch) or next(iter(known.values()), Ran(where))
        return replace(
            found, provider=at.provider or found.provider, threads=at.threads or found.threads
        )

    def _timed(self, device: str, at: Device, name: str) -> str:
        """Return the target on which a model was timed for a device; empty: there is none."""
        where = at.target or device
        return where if (where, name) in self.latency_ms else ""


def _slower(figure: Figure, speed: float, source: Source | None = None) -> Figure:
    """Return a latency at another speed; what was not measured so is modelled."""
    if speed == 1.0 and source is None:
        return figure
    ends = (None if end is None else end / speed for end in (figure.low, figure.high))
    return Figure(figure.value / speed, source or figure.source, *ends)


def read_models(service: Service, beside: Path) -> Catalogue:
    """Return what fronts, exports, tables and profiles say.

    Args:
        service: Names them.
        beside: The folder that relative paths begin in, if they are not there from here.

    Raises:
        RunError: one cannot be read.
        ConfigError: one is not there, or says nothing of models.
    """
    found = Catalogue()
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


def _read_front(found: Catalogue, path: Path) -> None:
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


def _read_export(found: Catalogue, path: Path) -> None:
    proof = recorded.read(path)
    figures = figures_of(proof["figures"])
    target = recorded.target_of(proof)
    ran: dict[str, Any] = {**proof["artefacts"][proof["own_artefact"]]}
    if "accuracy" not in ran:
        raise RunError(f"fronts: {path}: its own artefact has no accuracy; plans need one.")
    model = Model(
        recorded.name_of(proof),
        target.dtype,
        Figure(*ran["accuracy"]),
        replica_mib(figures),
        str(path),
    )
    said = proof["model"]["genotype"]
    batch, threads = as_it_ran(said, target.batch, target.threads, f"fronts: {path}")
    _take(found, model, batch, figures, ran_by(target, path, threads))


def _read_run(found: Catalogue, path: Path) -> None:
    run = folder.read(path, "fronts")
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
        accuracy = member.figures[own("accuracy", member.figures)]
        memory = replica_mib(member.figures)
        dtype = member.dtype(target.dtype)
        model = Model(member.candidate.id, dtype, accuracy, memory, str(path))
        said = member.candidate.genotype.to_dict()
        batch, threads = as_it_ran(said, target.batch, target.threads, f"fronts: {path}")
        _take(found, model, batch, member.figures, ran_by(target, path, threads))


def _take(found: Catalogue, model: Model, batch: int, figures: Figures, ran: Ran) -> None:
    found.add(model)
    if "latency_ms" in figures:
        found.time(ran.target, model.name, batch, figures["latency_ms"], ran)


class _Row(TypedDict):
    """A row of a front or a profile of one's own; columns that it does not name are not read."""

    id: Annotated[str, Bound(1, 100)]
    precision: NotRequired[str]
    accuracy: NotRequired[Fraction]
    accuracy_low: NotRequired[Fraction]
    accuracy_high: NotRequired[Fraction]
    memory_mib: NotRequired[Annotated[float, Bound(0, 1e6)]]
    target: NotRequired[str]
    batch: NotRequired[Annotated[Size, Bound(1, MOST_BATCH)]]
    latency_ms: NotRequired[Positive]
    latency_ms_low: NotRequired[Positive]
    latency_ms_high: NotRequired[Positive]
    source: NotRequired[Source]


def csv_rows(path: Path, named: str = "") -> list[dict[str, str]]:
    """Return the rows of a CSV file.

    Args:
        path: The file.
        named: What names it, in messages.

    Raises:
        ConfigError: it is none, or there is no row.
    """
    try:
        found = rows.rows(bounded.text(path, rows.MOST))
    except FileNotFoundError:
        where = f"{named}: {path}" if named else str(path)
        raise ConfigError(f"{where}: there is no such file.") from None
    except (bounded.Damaged, Unfit) as problem:
        raise ConfigError(f"{path} cannot be read: {problem}.") from None
    if not found:
        raise ConfigError(f"{path} is empty: it needs a row below its header.")
    return found


def _read_csv(found: Catalogue, path: Path) -> None:
    for i, raw in enumerate(csv_rows(path)):
        if "verified_fits_budget" in raw:
            raise ConfigError(f"{path} is of a search: name its folder, {path.parent}.")
        try:
            take_row(found, raw, str(path), f"row {i}")
        except Unfit as problem:
            raise ConfigError(f"{path} cannot be read: {problem}.") from None


def take_row(
    found: Catalogue, raw: Mapping[str, str], place: str, at: str, ran: Ran | None = None
) -> None:
    """Take in a row of a front or a profile.

    Args:
        found: What takes it in.
        raw: The row as text; what is empty is not said.
        place: The folder or file that it is of.
        at: The row, for messages.
        ran: By what it was timed, if that is known.

    Raises:
        Unfit: a value is none of its type, or it says nothing.
    """
    row: _Row = rows.typed(_Row, {k: v for k, v in raw.items() if v != ""}, at)
    precision, source = row.get("precision", "float32"), row.get("source", "modelled")
    name = f"{row['id']}-{precision}"
    if "memory_mib" in row:
        found.profiled_mib[name] = max(found.profiled_mib.get(name, 0.0), row["memory_mib"])
    if "accuracy" in row:
        accuracy = _interval(row, "accuracy", source, at)
        found.add(Model(row["id"], precision, accuracy, row.get("memory_mib", 0.0), place))
    if "latency_ms" in row:
        if "target" not in row:
            raise Unfit(f"{at} has a latency, but does not say of which target")
        figure = _interval(row, "latency_ms", source, at)
        found.time(row["target"], name, row.get("batch", 1), figure, ran)
    elif "accuracy" not in row:
        raise Unfit(f"{at} has neither an accuracy nor a latency_ms")


def _interval(row: _Row, name: str, source: Source, at: str) -> Figure:
    said = {**row}
    low, value, high = (said.get(f"{name}{end}") for end in ("_low", "", "_high"))
    figure = Figure(value, source, low, high)  # type: ignore[arg-type]
    if not figure.lower <= figure.value <= figure.upper:
        raise Unfit(f"{at}: the interval of {name} does not hold its value {value}")
    return figure


def _read_table(found: Catalogue, path: Path) -> None:
    """Take in the whole networks of a latency table that fronts hold, too."""
    table = latency_table.load(path)
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
            figure = Figure(float(row["measured_ms"]), "measured", low, high)
            ran = ran_in(engine, path.parent.name, path, threads)
            found.time(ran.target, name, batch, figure, ran)


def _genotype(row: latency_table.Row, path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = fitted(dict[str, Any], bounded.from_json(row.get("genotype", "{}")))
    except (bounded.Damaged, Unfit) as problem:
        raise RunError(f"profiles: {path}: a genotype cannot be read: {problem}.") from None
    return found
