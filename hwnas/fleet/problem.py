"""The inputs of a plan, read from files."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import ConfigError
from hwnas.export.folder import PROOF
from hwnas.fleet.demand import ArrivalRates, Arrivals, read_carbon, read_load
from hwnas.fleet.fleet_file import (
    DeviceType,
    Fleet,
    RegionPath,
    network_paths,
    read_fleet,
    unused_entries,
)
from hwnas.fleet.model_sources import (
    check_classes,
    check_latencies,
    join_names,
    read_splits,
    unused_latencies,
)
from hwnas.fleet.models import ModelCatalogue, read_models, resolve_path
from hwnas.fleet.service_file import RequestClass, Service, SplitNetwork, read_service
from hwnas.tasks.predictions import PredictionSet, read_prediction_files

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PlanningProblem:
    """Inputs of a plan: service, fleet, models and demand."""

    service: Service
    fleet: Fleet
    catalogue: ModelCatalogue  #: accuracies and latencies
    load: ArrivalRates  #: demand
    carbon: dict[str, Array]  #: kg of CO2 per kWh in each hour, by region
    answers: PredictionSet  #: predictions of models on the same images, for cascades
    arrivals: tuple[Arrivals, ...]  #: distinct arrival processes
    process_of: tuple[int, ...]  #: index of the arrival process of each class
    splits: tuple[SplitNetwork, ...] = ()  #: split networks
    notes: tuple[str, ...] = ()  #: messages on ignored inputs

    @cached_property
    def devices(self) -> list[tuple[str, DeviceType]]:
        """(name, device) pairs, as in ``fleet.yaml``; arrays over devices have this order."""
        return [*self.fleet.devices.items()]

    @cached_property
    def classes(self) -> list[tuple[str, RequestClass]]:
        """(name, class) pairs, as in ``service.yaml``; arrays over classes have this order."""
        return [*self.service.classes.items()]

    @cached_property
    def network_paths(self) -> dict[str, dict[str, RegionPath]]:
        """Network path from each region (first key) to each reachable one (second key)."""
        regions = self.fleet.regions | self.service.regions
        return {region: dict(network_paths(self.fleet, region)) for region in sorted(regions)}


def missing_keys(problem: PlanningProblem) -> dict[str, list[str]]:
    """Return two lists of missing keys of ``fleet.yaml``: those of ``energy`` and ``carbon``."""
    devices = problem.devices
    energy = [f"devices.{name}.busy_w" for name, device in devices if device.busy_w is None]
    regions = sorted({device.region for _, device in devices})
    dark = [f"carbon.{region}" for region in regions if region not in problem.fleet.carbon]
    return {"energy": energy, "carbon": [*dark, *energy]}


def missing_key_notes(problem: PlanningProblem) -> list[str]:
    """Return a list with one message on missing values that count as 0; empty if none are missing.

    A missing ``busy_w`` counts as ``idle_w``.
    """
    idle = {f"devices.{name}.busy_w" for name, device in problem.devices if device.idle_w}
    keys = [
        *(f"{key} (as idle_w)" if key in idle else key for key in missing_keys(problem)["carbon"]),
        *(f"memory_mib of {name}" for name in _models_without_memory(problem)),
    ]
    return [f"Missing values, counted as 0: {', '.join(keys)}."] if keys else []


def _models_without_memory(problem: PlanningProblem) -> list[str]:
    """Return models of unknown memory on devices of limited memory."""
    limited = [name for name, device in problem.devices if device.memory_mib is not None]
    parts = {part for split in problem.splits for part in (split.head, split.tail)}
    return [
        name
        for name in sorted(parts | {*problem.catalogue.models})
        if problem.catalogue.memory_mib(name) is None
        and any(problem.catalogue.on(problem.fleet, device, name) for device in limited)
    ]


def ignored_predictions(problem: PlanningProblem) -> list[str]:
    """Return a list with one message on models whose predictions are ignored; empty if none are.

    Predictions are ignored if they are of other weights than the model in ``fronts``.
    """
    names = problem.answers.left_out
    if not names:
        return []
    places = {problem.catalogue.models[name].place for name in names}
    return [
        f"The predictions of {join_names(names)} are of other weights than in fronts and were "
        f"ignored: add {join_names(places)} to answers to use these models in cascades."
    ]


_UNITS = {
    "busy_w": "busy_w in W of a busy machine",
    "carbon": "carbon in kg of CO2 per kWh (about 0.02 to 0.8; 0 if there is none)",
}


def check_required_keys(problem: PlanningProblem, objective: str, path: Path) -> None:
    """Check that ``fleet.yaml`` has the values that the objective and the budgets need.

    ``path`` is that of the file, for the message.

    Raises:
        ConfigError: keys are missing; the message names them.
    """
    budgets, missing = problem.service.budgets, missing_keys(problem)
    request_class = {f"objective={objective}": missing.get(objective, [])}
    if budgets.carbon_kg_per_day is not None:
        request_class["budgets.carbon_kg_per_day"] = missing["carbon"]
    powered = [
        f"devices.{name}.busy_w"
        for name, device in problem.devices
        if device.region in budgets.power_w and device.busy_w is None
    ]
    for entry, keys in {**request_class, "budgets.power_w": powered}.items():
        if keys:
            raise ConfigError(
                f"{path}: {entry} needs {', '.join(keys)}: give "
                f"{' and '.join(text for name, text in _UNITS.items() if name in str(keys))}."
            )


def read_problem(
    service_path: Path, fleet_path: Path, begin_s: float | None = None
) -> PlanningProblem:
    """Return the planning problem of ``service.yaml`` and ``fleet.yaml``, with all named files.

    ``begin_s`` is the time of hour 0 in seconds since 1970; ``None``: 0:00 UTC.

    Raises:
        HwnasError: a file is invalid or incomplete; the message says how to fix it.
    """
    service = read_service(service_path)
    fleet = read_fleet(fleet_path, service)
    load = read_load(service, service_path.parent, begin_s)
    check_classes(service, service_path.parent)
    catalogue = read_models(service, service_path.parent)
    splits = read_splits(service, catalogue, service_path.parent)
    check_latencies(catalogue, fleet)
    paths = [resolve_path(name, service_path.parent) for name in service.answers]
    answers = read_prediction_files(paths, _runs_by_model(catalogue))
    named = [*dict.fromkeys(load.trace_of)]
    processes = tuple(Arrivals(load.traces.get(name)) for name in named)
    carbon, left_out = read_carbon(fleet, load.n_hours, fleet_path.parent, begin_s)
    process_of = tuple(named.index(name) for name in load.trace_of)
    notes = (*left_out, *unused_entries(service, fleet), *unused_latencies(catalogue, splits))
    return PlanningProblem(
        service, fleet, catalogue, load, carbon, answers, processes, process_of, splits, notes
    )


def _runs_by_model(catalogue: ModelCatalogue) -> dict[str, Path]:
    """Return the run folders of models that come from runs."""
    places = {name: Path(model.place) for name, model in catalogue.models.items()}
    return {
        name: place
        for name, place in places.items()
        if (place / "manifest.json").is_file() and not (place / PROOF).is_file()
    }
