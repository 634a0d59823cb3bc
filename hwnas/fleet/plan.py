"""A plan: machines, pools of each hour and routes of requests.

``plan.yaml`` holds everything that a simulation needs.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import yaml

from hwnas.core.errors import RunError
from hwnas.core.quantity import QuantityRow
from hwnas.core.safe_read import CorruptFileError, parse_yaml, read_text
from hwnas.core.schema import Fraction, NumberBounds, Positive, SchemaError, Size, validate
from hwnas.core.typed_files import check_format

FORMAT = 1
FILE = "plan.yaml"

_Rate = Annotated[float, NumberBounds(0, 1e9)]
MAX_MS = 1e9  #: largest latency
_Ms = Annotated[float, NumberBounds(0, MAX_MS)]
_Count = Annotated[int, NumberBounds(0, 1e9)]


@dataclass(frozen=True)
class PlannedMachine:
    """A machine type that the plan uses."""

    region: str
    buy: str
    price: _Rate  #: $ per hour
    slots: Size
    quota: _Count  #: machines that are up; 0: none
    idle_w: _Rate
    busy_w: _Rate
    start_s: _Rate
    bought: _Count  #: machines owned; 0 if rented by the hour


@dataclass(frozen=True)
class TimedRuntime:
    """The runtime of a model's timings, as far as known; servers run the model alike."""

    target: str  #: target of the latencies
    place: str = ""  #: source: run, export or latency table
    runtime: str = ""  #: runtime of the target
    provider: str = ""  #: execution provider: ``cpu``, ``cuda``, ...
    threads: Annotated[int, NumberBounds(0, 1024)] = 0


@dataclass(frozen=True)
class PoolType:
    """A serving config of a model on a device."""

    device: str
    model: str
    batch: Annotated[int, NumberBounds(1, 65_536)]
    wait_ms: _Ms
    limit_ms: Positive  #: limit of the pool's 99th percentile
    goodput: Positive  #: requests/s of a replica, by simulation
    least: Size  #: minimum replicas for this goodput
    accuracy: QuantityRow | None
    latency_ms: dict[str, QuantityRow]  #: by batch size
    memory_mib: _Rate
    place: str  #: source folder or file of the model
    ran: TimedRuntime | None = None  #: ``None`` in plans of earlier versions


@dataclass(frozen=True)
class ReplicaPool:
    """A pool in an hour."""

    kind: str
    replicas: Size
    spread: _Count  #: spare replicas = maximum on one machine; 0: no redundancy
    goodput: Positive  #: of a replica, corrected for the hour


@dataclass(frozen=True)
class RequestRoute:
    """A route of requests of a class."""

    klass: str
    rate: _Rate  #: requests/s, with spikes
    first: str
    second: str | None
    share: Fraction  #: fraction escalated to the second pool
    threshold: float  #: confidence of the first model below which requests are escalated
    accuracy: Fraction
    reach_ms: _Ms
    pass_ms: _Ms
    usd: _Rate  #: per request


@dataclass(frozen=True)
class HourPlan:
    """Machines, pools and routes of equal hours."""

    hours: Annotated[list[_Count], NumberBounds(1)]  #: hours of the demand
    machines: dict[str, _Count]
    pools: list[ReplicaPool]
    routes: list[RequestRoute]
    degraded: list[RequestRoute]  #: routes while all spot machines are down


@dataclass(frozen=True)
class ClassRequirements:
    """Requirements and demand of a class."""

    p99_ms: Positive
    accuracy_min: Fraction
    degraded_accuracy: Fraction
    regions: list[str]
    demand: list[_Rate]  #: requests/s by hour, behind the cache
    borne: list[_Rate]  #: the same with spikes: the provisioned rate
    trace: str


@dataclass(frozen=True)
class DeploymentPlan:
    """``plan.yaml``."""

    format: int
    objective: Literal["cost", "carbon", "energy"]
    unit: str
    value: float  #: of the objective over all hours
    bound_kept: float  #: lower bound over the pruned options
    bound_all: float  #: lower bound over all options
    jitter: Annotated[float, NumberBounds(0, 2)]
    classes: dict[str, ClassRequirements]
    devices: dict[str, PlannedMachine]
    kinds: dict[str, PoolType]
    hours: list[HourPlan]
    carbon: dict[str, list[_Rate]]
    notes: list[str] = field(default_factory=list)
    #: minutes from 0:00 UTC (of a week: Monday) to hour 0; ``None``: 0
    begin_min: Annotated[int, NumberBounds(0, 168 * 60)] | None = None

    @property
    def n_hours(self) -> int:
        """Number of hours."""
        return sum(len(hour_plan.hours) for hour_plan in self.hours)

    def at(self, hour: int) -> HourPlan:
        """Return the record of an hour."""
        return next(hour_plan for hour_plan in self.hours if hour in hour_plan.hours)

    def by_hour(self) -> dict[int, HourPlan]:
        """Return the record of each hour, in order."""
        return {hour: self.at(hour) for hour in range(self.n_hours)}

    def is_split(self, first: str, second: str | None) -> bool:
        """Return True if a route's pools are the two parts of a split network."""
        return second is not None and self.kinds[second].accuracy is None

    def sent(self, route: "RequestRoute", hour: int) -> float:
        """Return the requests/s of a route in an hour, without spikes."""
        request_class = self.classes[route.klass]
        borne = request_class.borne[hour]
        return route.rate * request_class.demand[hour] / borne if borne else 0.0

    def spikes(self, hour: int) -> bool:
        """Return True if an hour has a spike."""
        return any(c.borne[hour] > c.demand[hour] for c in self.classes.values())

    @property
    def gap(self) -> float:
        """Relative distance of the value to ``bound_kept``."""
        return max(0.0, 1 - self.bound_kept / self.value) if self.value > 0 else 0.0


UNITS = {"cost": "$", "carbon": "kg of CO2", "energy": "kWh"}
_MOST = 16 << 20  # bytes


def to_yaml(plan: DeploymentPlan) -> bytes:
    """Return a plan as the text of its file; equal plans give equal bytes."""
    content = asdict(plan)
    # Omitted when not given, as in plans of earlier versions.
    if plan.begin_min is None:
        del content["begin_min"]
    for kind in content["kinds"].values():
        if kind["ran"] is None:
            del kind["ran"]
    return yaml.safe_dump(content, sort_keys=False, width=110, default_flow_style=None).encode()


def read_plan(folder: Path) -> DeploymentPlan:
    """Return the plan in a folder.

    Raises:
        RunError: the plan is missing or damaged.
    """
    path = folder / FILE
    try:
        content = parse_yaml(read_text(path, _MOST))
        check_format(content, FORMAT)
        result: DeploymentPlan = validate(DeploymentPlan, content)
        _check(result)
        _check_latencies(result)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"plan={folder} is not a plan: it has no {FILE}.") from None
    except (CorruptFileError, SchemaError) as problem:
        raise RunError(f"{path} cannot be read: {problem}.") from None
    return result


def _check(plan: DeploymentPlan) -> None:
    """Refuse unknown names, and hours that are missing or duplicated."""
    text = sorted(h for hour_plan in plan.hours for h in hour_plan.hours)
    if text != list(range(len(text))):
        raise SchemaError("'hours' must contain every hour once")
    for i, hour_plan in enumerate(plan.hours):
        names = {pool.kind for pool in hour_plan.pools}
        for route in (*hour_plan.routes, *hour_plan.degraded):
            if route.klass not in plan.classes or not {route.first} <= names:
                raise SchemaError(
                    f"'hours[{i}]' has a route of '{route.klass}' to no pool of the hour"
                )
            if route.second is not None and route.second not in names:
                raise SchemaError(
                    f"'hours[{i}]' has a route of '{route.klass}' to no pool of the hour"
                )
        for kind in names:
            if kind not in plan.kinds or plan.kinds[kind].device not in plan.devices:
                raise SchemaError(f"'hours[{i}]' has a pool of unknown kind '{kind}'")
    for name, requirements in plan.classes.items():
        if not len(requirements.demand) == len(requirements.borne) == len(text):
            raise SchemaError(f"'classes.{name}' must have a demand for each of {len(text)} hours")


def _check_latencies(plan: DeploymentPlan) -> None:
    for name, kind in plan.kinds.items():
        for batch, row in kind.latency_ms.items():
            if not 0 < row[0] <= (row[3] or row[0]) <= MAX_MS:
                raise SchemaError(f"'kinds.{name}': latency {batch} must be in (0, {MAX_MS:g}] ms")
