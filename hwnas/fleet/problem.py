"""What a plan is made of: all that was asked for and all that is known, read once."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import ConfigError
from hwnas.export.folder import PROOF
from hwnas.fleet.demand import ArrivalRates, Arrivals, read_carbon, read_load
from hwnas.fleet.fleet_file import DeviceType, Fleet, RegionPath, read_fleet, unreachable, ways
from hwnas.fleet.model_sources import check_latencies, listed, read_splits
from hwnas.fleet.models import ModelCatalogue, located, read_models
from hwnas.fleet.service_file import RequestClass, Service, SplitNetwork, read_service
from hwnas.tasks.predictions import PredictionSet, read_prediction_files

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PlanningProblem:
    """Service, fleet, models and demand."""

    service: Service
    fleet: Fleet
    catalogue: ModelCatalogue
    load: ArrivalRates
    carbon: dict[str, Array]  #: kg a kWh by region and hour
    answers: PredictionSet
    arrivals: tuple[Arrivals, ...]  #: the processes that there are
    process_of: tuple[int, ...]  #: of each class
    splits: tuple[SplitNetwork, ...] = ()  #: networks that are cut in two
    notes: tuple[str, ...] = ()  #: sentences on what was said and does not count

    @cached_property
    def devices(self) -> list[tuple[str, DeviceType]]:
        """All devices with their names."""
        return [*self.fleet.devices.items()]

    @cached_property
    def classes(self) -> list[tuple[str, RequestClass]]:
        """All classes with their names."""
        return [*self.service.classes.items()]

    @cached_property
    def ways(self) -> dict[str, dict[str, RegionPath]]:
        """The ways from each region to those that it reaches."""
        regions = self.fleet.regions | self.service.regions
        return {region: dict(ways(self.fleet, region)) for region in sorted(regions)}


def untold(problem: PlanningProblem) -> dict[str, list[str]]:
    """Return which keys of ``fleet.yaml`` energy and carbon would need, and nobody gave."""
    devices = problem.devices
    energy = [f"devices.{name}.busy_w" for name, device in devices if device.busy_w is None]
    regions = sorted({device.region for _, device in devices})
    dark = [f"carbon.{region}" for region in regions if region not in problem.fleet.carbon]
    return {"energy": energy, "carbon": [*dark, *energy]}


def counted_as_nothing(problem: PlanningProblem) -> list[str]:
    """Return a sentence on what was not said, where there is such."""
    keys = [*untold(problem)["carbon"], *(f"memory_mib of {name}" for name in _unsized(problem))]
    return [f"Not said, and counted as 0: {', '.join(keys)}."] if keys else []


def _unsized(problem: PlanningProblem) -> list[str]:
    """Return models whose memory nobody said, of those on devices that have so much and no more."""
    limited = [name for name, device in problem.devices if device.memory_mib is not None]
    parts = {part for split in problem.splits for part in (split.head, split.tail)}
    return [
        name
        for name in sorted(parts | {*problem.catalogue.models})
        if problem.catalogue.memory_mib(name) is None
        and any(problem.catalogue.on(problem.fleet, device, name) for device in limited)
    ]


def unheard(problem: PlanningProblem) -> list[str]:
    """Return a sentence on models whose answers were left out, where there are such."""
    names = problem.answers.left_out
    if not names:
        return []
    places = {problem.catalogue.models[name].place for name in names}
    return [
        f"Answers that are known of {listed(names)} are of other weights, and were left out: name "
        f"{listed(places)} in answers, or there is no cascade of them."
    ]


def check_told(problem: PlanningProblem, objective: str, path: Path) -> None:
    """Refuse to minimise or limit what would count as nothing, since it was not said.

    Raises:
        ConfigError: it names the keys.
    """
    budgets, missing = problem.service.budgets, untold(problem)
    asked = {f"objective={objective}": missing.get(objective, [])}
    if budgets.carbon_kg_per_day is not None:
        asked["budgets.carbon_kg_per_day"] = missing["carbon"]
    powered = [
        f"devices.{name}.busy_w"
        for name, device in problem.devices
        if device.region in budgets.power_w and device.busy_w is None
    ]
    for what, keys in {**asked, "budgets.power_w": powered}.items():
        if keys:
            raise ConfigError(
                f"{path}: {what} needs {', '.join(keys)}: busy_w in W of a busy machine, carbon in "
                "kg of CO2 a kWh (about 0.02 to 0.8; 0 if there is none)."
            )


def read_problem(
    service_path: Path, fleet_path: Path, begin_s: float | None = None
) -> PlanningProblem:
    """Return what two files and all that they name say.

    Args:
        service_path: ``service.yaml``.
        fleet_path: ``fleet.yaml``.
        begin_s: When hour 0 began once, in seconds since 1970; ``None``: at 0:00 UTC.

    Raises:
        HwnasError: one cannot be read, or something is missing; it says what, and the cure.
    """
    service = read_service(service_path)
    fleet = read_fleet(fleet_path, service)
    load = read_load(service, service_path.parent, begin_s)
    catalogue = read_models(service, service_path.parent)
    splits = read_splits(service, catalogue, service_path.parent)
    check_latencies(catalogue, fleet)
    paths = [located(name, service_path.parent) for name in service.answers]
    answers = read_prediction_files(paths, _runs(catalogue))
    named = [*dict.fromkeys(load.trace_of)]
    processes = tuple(Arrivals(load.traces.get(name)) for name in named)
    carbon, left_out = read_carbon(fleet, load.n_hours, fleet_path.parent, begin_s)
    process_of = tuple(named.index(name) for name in load.trace_of)
    notes = (*left_out, *unreachable(service, fleet))
    return PlanningProblem(
        service, fleet, catalogue, load, carbon, answers, processes, process_of, splits, notes
    )


def _runs(catalogue: ModelCatalogue) -> dict[str, Path]:
    """Return the runs of models, by name, as far as they are not of exports or files."""
    places = {name: Path(model.place) for name, model in catalogue.models.items()}
    return {
        name: place
        for name, place in places.items()
        if (place / "manifest.json").is_file() and not (place / PROOF).is_file()
    }
