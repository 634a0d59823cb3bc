"""``service.yaml``: request classes, their demand, and failures that a plan must survive."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

from hwnas.core.errors import ConfigError
from hwnas.core.schema import POSITIVE, Fraction, NumberBounds, Positive
from hwnas.core.typed_files import read_yaml

MOST_HOURS = 168  #: a week
#: A small ``service.yaml``, for messages.
EXAMPLE = (
    "{fronts: [runs/search/A], classes: {web: {p99_ms: 60, accuracy_min: 0.7, regions: [site], "
    "demand: {rate: 90}}}}"
)
Name = Annotated[str, NumberBounds(1, 60)]
Rate = Annotated[float, NumberBounds(0, 1e7)]
Kib = Annotated[float, NumberBounds(0, 1e6)]


@dataclass(frozen=True)
class RequestDemand:
    """Requests/s of a class: one of ``rate``, ``hours`` and ``csv``."""

    rate: Rate | None = None  #: constant requests/s
    hours: Annotated[list[Rate], NumberBounds(1, MOST_HOURS)] | None = None  #: requests/s by hour
    csv: str | None = None  #: file with requests/s, one row per hour
    column: str | None = None  #: column of the file; default: the name of the class
    trace: str | None = None  #: CSV file of arrival times to replay; default: Poisson arrivals
    #: peak demand that the plan must serve, as a factor of the expected one
    spike: Annotated[float, NumberBounds(1, 100)] = 1.0


@dataclass(frozen=True)
class RequestClass:
    """Requirements and demand of a class of requests."""

    #: limit of the 99th percentile of latencies in ms, with the network
    p99_ms: Annotated[float, NumberBounds(0, 1e7, exclusive=True)]
    regions: Annotated[list[Name], NumberBounds(1, 100)]  #: regions that may serve requests
    demand: RequestDemand  #: requests/s and arrival times
    accuracy_min: Fraction = 0.0  #: minimum mean accuracy over the requests of an hour, in [0, 1]
    #: minimum mean accuracy while all spot machines are down; default: ``accuracy_min``
    degraded_accuracy: Fraction | None = None
    origin: Name | None = None  #: region of the requests; default: the first of ``regions``
    payload_kib: Kib = 0.0  #: size of a request in KiB
    #: fraction of requests that a cache answers, without a model
    cache_hit: Annotated[float, NumberBounds(0, 0.999)] = 0.0

    @property
    def source(self) -> str:
        """Name of the region that sends the requests."""
        return self.origin or self.regions[0]

    def floor(self, *, degraded: bool) -> float:
        """Return the required accuracy in [0, 1], during a failure if ``degraded``."""
        if degraded and self.degraded_accuracy is not None:
            return self.degraded_accuracy
        return self.accuracy_min


@dataclass(frozen=True)
class FailureTolerance:
    """Failures that a plan must survive with at most 1 % late requests in the minute after them."""

    any_one: Literal["device"] | None = None  #: ``device``: failure of any one machine
    #: ``spot``: failure of all spot machines together
    all_of: list[Literal["spot"]] = field(default_factory=list)


@dataclass(frozen=True)
class PlanBudgets:
    """Upper limits of a plan."""

    cost_per_day: Annotated[float, POSITIVE] | None = None  #: $ a day; default: unlimited
    #: CO2 a day in kg; default: unlimited
    carbon_kg_per_day: Annotated[float, POSITIVE] | None = None
    #: power in W of all machines of a region, by region; default: unlimited
    power_w: dict[str, Positive] = field(default_factory=dict)


@dataclass(frozen=True)
class SplitNetwork:
    """A network split into two parts, which are timed as separate models."""

    model: Name  #: whole network, as ``ID-PRECISION`` in fronts
    head: Name  #: first part, as ``ID-PRECISION`` in profiles
    tail: Name  #: second part, as ``ID-PRECISION`` in profiles
    activation_kib: Kib  #: size in KiB of the tensor that is sent between the parts for one image


@dataclass(frozen=True)
class Service:
    """Content of ``service.yaml``: models, request classes and requirements."""

    fronts: Annotated[list[str], NumberBounds(1, 1000)]  #: searches, exports or CSV files of models
    classes: Annotated[dict[Name, RequestClass], NumberBounds(1, 100)]  #: requests by name
    #: CSV files or tables of latencies of further batch sizes or devices; default: none
    profiles: list[str] = field(default_factory=list)
    #: runs or files with predictions of models on validation images, for cascades; default: none
    answers: list[str] = field(default_factory=list)
    #: split networks: folders that hwnas split wrote, or own measurements; default: none
    splits: list[str | SplitNetwork] = field(default_factory=list)
    #: failures that the plan must survive; default: none
    survive: FailureTolerance = field(default_factory=FailureTolerance)
    budgets: PlanBudgets = field(default_factory=PlanBudgets)  #: limits of the plan; default: none
    #: p99 limits of pools in ms; default: derived from those of the classes
    tiers_ms: Annotated[list[Positive], NumberBounds(1, 64)] | None = None
    #: maximum waits for full batches in ms, of which plans choose; as Triton's queue delay;
    #: default: [0]
    wait_ms: Annotated[list[Annotated[float, NumberBounds(0, 1e6)]], NumberBounds(1, 8)] = field(
        default_factory=lambda: [0.0]
    )
    #: standard deviation of the natural logarithm of service times
    jitter: Annotated[float, NumberBounds(0, 2)] = 0.05

    @property
    def regions(self) -> set[str]:
        """Names of the regions that send or may serve requests."""
        named = {region for c in self.classes.values() for region in c.regions}
        return named | {c.source for c in self.classes.values()}


def read_service(path: Path) -> Service:
    """Return the checked content of a ``service.yaml``.

    Raises:
        ConfigError: the file is missing or invalid.
    """
    try:
        result = read_yaml(Service, path, ConfigError)
    except FileNotFoundError:
        raise ConfigError(
            f"service={path}: file not found. Correct the path, or write one, as {EXAMPLE}"
        ) from None
    for name, request_class in result.classes.items():
        _check(request_class, f"{path}: class '{name}'")
    return result


def _check(request_class: RequestClass, place: str) -> None:
    demand = request_class.demand
    sources = [n for n in ("rate", "hours", "csv") if getattr(demand, n) is not None]
    if len(sources) != 1:
        raise ConfigError(
            f"{place}: demand needs one of rate, hours and csv; it has "
            f"{' and '.join(sources) or 'none'}."
        )
    low = request_class.degraded_accuracy
    if low is not None and low > request_class.accuracy_min:
        raise ConfigError(
            f"{place}: degraded_accuracy={low:g} is above accuracy_min="
            f"{request_class.accuracy_min:g}: give a lower one, or omit it."
        )


# Here, so that options are checked before a solver is loaded.

Objective = Literal["cost", "carbon", "energy"]

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
