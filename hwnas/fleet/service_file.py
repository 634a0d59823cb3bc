"""``service.yaml``: classes of requests, what they demand, and what a plan must survive."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

from hwnas.core.errors import ConfigError
from hwnas.core.schema import POSITIVE, Fraction, NumberBounds, Positive
from hwnas.core.typed_files import read_yaml

MOST_HOURS = 168  #: a week
Name = Annotated[str, NumberBounds(1, 60)]
Rate = Annotated[float, NumberBounds(0, 1e7)]
Kib = Annotated[float, NumberBounds(0, 1e6)]


@dataclass(frozen=True)
class RequestDemand:
    """How many requests come a second: a constant, one rate an hour, or a column of a CSV file."""

    rate: Rate | None = None
    hours: Annotated[list[Rate], NumberBounds(1, MOST_HOURS)] | None = None
    csv: str | None = None  #: a file with a row for each hour
    column: str | None = None  #: of the file; default: the name of the class
    trace: str | None = None  #: a CSV file of arrivals, which come in its bursts
    spike: Annotated[float, NumberBounds(1, 100)] = 1.0  #: times the rate that must be borne


@dataclass(frozen=True)
class RequestClass:
    """Requests of one kind."""

    p99_ms: Annotated[float, NumberBounds(0, 1e7, exclusive=True)]
    regions: Annotated[list[Name], NumberBounds(1, 100)]  #: where they may be served; nowhere else
    demand: RequestDemand
    accuracy_min: Fraction = 0.0  #: of the mean over all requests of an hour
    degraded_accuracy: Fraction | None = None  #: while a failure lasts; default: the same
    origin: Name | None = None  #: the region that they come from; default: the first of regions
    payload_kib: Kib = 0.0
    cache_hit: Annotated[float, NumberBounds(0, 0.999)] = 0.0  #: share that a cache answers

    @property
    def source(self) -> str:
        """The region that requests come from."""
        return self.origin or self.regions[0]

    def floor(self, *, degraded: bool) -> float:
        """Return the accuracy that is asked for."""
        if degraded and self.degraded_accuracy is not None:
            return self.degraded_accuracy
        return self.accuracy_min


@dataclass(frozen=True)
class FailureTolerance:
    """Failures that a plan must survive without a late answer more than one in a hundred."""

    any_one: Literal["device"] | None = None  #: any one machine
    all_of: list[Literal["spot"]] = field(default_factory=list)  #: all machines of that kind


@dataclass(frozen=True)
class PlanBudgets:
    """What a plan may take at most."""

    cost_per_day: Annotated[float, POSITIVE] | None = None
    carbon_kg_per_day: Annotated[float, POSITIVE] | None = None
    power_w: dict[str, Positive] = field(default_factory=dict)  #: by region


@dataclass(frozen=True)
class SplitNetwork:
    """A network that is cut in two: both parts are timed as models of their own."""

    model: Name  #: whose accuracy it has
    head: Name
    tail: Name
    activation_kib: Kib  #: what goes from one to the other, as measured


@dataclass(frozen=True)
class Service:
    """``service.yaml``."""

    fronts: Annotated[list[str], NumberBounds(1, 1000)]
    classes: Annotated[dict[Name, RequestClass], NumberBounds(1, 100)]
    profiles: list[str] = field(default_factory=list)  #: CSV files of latencies by batch size
    answers: list[str] = field(default_factory=list)  #: what models answer to validation images
    #: networks that are cut: what the verb split made of one, or what somebody measured
    splits: list[str | SplitNetwork] = field(default_factory=list)
    survive: FailureTolerance = field(default_factory=FailureTolerance)
    budgets: PlanBudgets = field(default_factory=PlanBudgets)
    tiers_ms: Annotated[list[Positive], NumberBounds(1, 64)] | None = (
        None  #: limits that pools may have
    )
    wait_ms: Annotated[list[Annotated[float, NumberBounds(0, 1e6)]], NumberBounds(1, 8)] = field(
        default_factory=lambda: [0.0]
    )  #: how long a batch may wait to become full, as Triton has it
    jitter: Annotated[float, NumberBounds(0, 2)] = (
        0.05  #: standard deviation of the log of a service time
    )

    @property
    def regions(self) -> set[str]:
        """All regions that classes name."""
        named = {region for c in self.classes.values() for region in c.regions}
        return named | {c.source for c in self.classes.values()}


def read_service(path: Path) -> Service:
    """Return what ``service.yaml`` says.

    Raises:
        ConfigError: there is none, or it contradicts itself.
    """
    try:
        found = read_yaml(Service, path, ConfigError)
    except FileNotFoundError:
        raise ConfigError(f"service={path}: there is no such file.") from None
    for name, each in found.classes.items():
        _check(each, f"{path}: class '{name}'")
    return found


def _check(asked: RequestClass, where: str) -> None:
    demand = asked.demand
    said = [n for n in ("rate", "hours", "csv") if getattr(demand, n) is not None]
    if len(said) != 1:
        raise ConfigError(
            f"{where}: demand needs one of rate, hours and csv, got {', '.join(said) or 'none'}."
        )
    low = asked.degraded_accuracy
    if low is not None and low > asked.accuracy_min:
        raise ConfigError(
            f"{where}: degraded_accuracy {low:g} is above accuracy_min {asked.accuracy_min:g}."
        )


# What a plan makes least; needs nothing, so that options are checked before a solver is loaded.

Objective = Literal["cost", "carbon", "energy"]

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
