"""What a plan is made of: all that was asked for and all that is known, read once."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwnas.answers import Answers, read_answers
from hwnas.errors import ConfigError
from hwnas.planning.arrivals import Arrivals
from hwnas.planning.demand import Load, read_carbon, read_load
from hwnas.planning.fleet import Device, Fleet, Way, read_fleet, ways
from hwnas.planning.models import Catalogue, located, read_models
from hwnas.planning.service import Class, Service, read_service

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """Service, fleet, models and demand."""

    service: Service
    fleet: Fleet
    catalogue: Catalogue
    load: Load
    carbon: dict[str, Array]  #: kg a kWh by region and hour
    answers: Answers
    arrivals: tuple[Arrivals, ...]  #: the processes that there are
    process_of: tuple[int, ...]  #: of each class

    @cached_property
    def devices(self) -> list[tuple[str, Device]]:
        """All devices with their names."""
        return [*self.fleet.devices.items()]

    @cached_property
    def classes(self) -> list[tuple[str, Class]]:
        """All classes with their names."""
        return [*self.service.classes.items()]

    @cached_property
    def ways(self) -> dict[str, dict[str, Way]]:
        """The ways from each region to those that it reaches."""
        regions = self.fleet.regions | self.service.regions
        return {region: dict(ways(self.fleet, region)) for region in sorted(regions)}


def read_problem(service_path: Path, fleet_path: Path) -> Problem:
    """Return what two files and all that they name say.

    Raises:
        HwnasError: one cannot be read, or something is missing; it says what, and the cure.
    """
    service = read_service(service_path)
    fleet = read_fleet(fleet_path, service)
    load = read_load(service, service_path.parent)
    catalogue = read_models(service, fleet, service_path.parent)
    _check_splits(service, catalogue)
    answers = read_answers([located(name, service_path.parent) for name in service.answers])
    named = [*dict.fromkeys(load.trace_of)]
    processes = tuple(Arrivals(load.traces.get(name)) for name in named)
    carbon = read_carbon(fleet, load.n_hours, fleet_path.parent)
    process_of = tuple(named.index(name) for name in load.trace_of)
    return Problem(service, fleet, catalogue, load, carbon, answers, processes, process_of)


def _check_splits(service: Service, catalogue: Catalogue) -> None:
    timed = {name for _, name in catalogue.latency_ms}
    for split in service.splits:
        for name, known in (("model", {*catalogue.models}), ("head", timed), ("tail", timed)):
            if getattr(split, name) not in known:
                raise ConfigError(
                    f"splits: {name} '{getattr(split, name)}' is no "
                    f"{'model of the fronts' if name == 'model' else 'row of profiles'}; names are "
                    "ID-PRECISION, as 3f2a5c0d9e11-int8."
                )
