"""A plan: machines, pools of each hour and routes of requests.

``plan.yaml`` holds everything that a simulation needs.
"""

from collections.abc import Sequence
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
MIN_MS, MAX_MS = 1e-6, 1e9  #: smallest latency, a clock cycle, and largest
_Ms = Annotated[float, NumberBounds(0, MAX_MS)]
_Count = Annotated[int, NumberBounds(0, 1e9)]


@dataclass(frozen=True)
class PlannedMachine:
    """A type of machine that the plan uses."""

    region: str
    buy: str  #: ``bought``, ``reserved``, ``on_demand`` or ``spot``
    price: _Rate  #: $ per machine-hour
    slots: Size  #: maximum replicas per machine
    quota: _Count  #: maximum number of machines, without those that are down
    idle_w: _Rate  #: power in W of an idle machine
    busy_w: _Rate  #: power in W of a busy machine
    start_s: _Rate  #: seconds from order to first response
    bought: _Count  #: machines paid in all hours; 0 if rented by the hour


@dataclass(frozen=True)
class TimedRuntime:
    """The runtime with which a model's latencies were measured, as far as known.

    Servers run the model with the same settings.
    """

    target: str  #: target of the latencies
    place: str = ""  #: source: run, export or latency table
    runtime: str = ""  #: runtime of the target
    provider: str = ""  #: execution provider: ``cpu``, ``cuda``, ...
    threads: Annotated[int, NumberBounds(0, 1024)] = 0  #: 0: unknown


@dataclass(frozen=True)
class PoolType:
    """A model on a device with a batch size, wait and latency limit."""

    device: str  #: name of the device in the fleet file
    model: str  #: ``ID-PRECISION``, or a part of a split network
    batch: Annotated[int, NumberBounds(1, 65_536)]  #: maximum batch size
    wait_ms: _Ms  #: maximum wait in ms of a request for a full batch
    limit_ms: Positive  #: limit of the 99th percentile of the pool's latencies in ms
    goodput: Positive  #: requests/s of a replica, by simulation
    least: Size  #: minimum replicas for this goodput
    accuracy: QuantityRow | None  #: fraction in [0, 1]; ``None``: a part of a split network
    latency_ms: Annotated[dict[str, QuantityRow], NumberBounds(1)]  #: ms of a batch, by batch size
    memory_mib: _Rate  #: memory of a replica in MiB; 0: unknown
    place: str  #: source folder or file of the model
    ran: TimedRuntime | None = None  #: ``None`` in plans of earlier versions


@dataclass(frozen=True)
class ReplicaPool:
    """A pool in an hour: equal replicas that share a queue."""

    kind: str  #: name of its ``PoolType``
    replicas: Size  #: number of replicas, including spare ones
    spread: _Count  #: spare replicas, and maximum on one machine; 0: no redundancy
    goodput: Positive  #: requests/s of a replica, corrected for the hour


@dataclass(frozen=True)
class RequestRoute:
    """A route of requests of a class through one or two pools."""

    klass: str  #: class of requests
    rate: _Rate  #: requests/s at the peak demand, ``demand.spike`` included
    first: str  #: name of the type of the first pool
    second: str | None  #: name of the type of the pool of escalated requests; ``None``: none
    share: Fraction  #: fraction of requests escalated to the second pool
    threshold: float  #: confidence of the first model below which requests are escalated
    accuracy: Fraction  #: lower end of the interval of the accuracy of the route
    reach_ms: _Ms  #: round trip in ms from the requests' region to the first pool
    pass_ms: _Ms  #: round trip in ms from the first pool to the second
    usd: _Rate  #: transfer cost in $ per request


@dataclass(frozen=True)
class HourPlan:
    """Machines, pools and routes of hours in which they are the same."""

    hours: Annotated[list[_Count], NumberBounds(1)]  #: hours of the plan, from 0 on
    machines: dict[str, _Count]  #: number by device
    pools: list[ReplicaPool]
    routes: list[RequestRoute]
    degraded: list[RequestRoute]  #: routes while all spot machines are down


@dataclass(frozen=True)
class ClassRequirements:
    """Requirements and demand of a class of requests."""

    p99_ms: Positive  #: limit of the 99th percentile of latencies, with the network
    accuracy_min: Fraction  #: minimum mean accuracy over the requests of an hour
    degraded_accuracy: Fraction  #: minimum mean accuracy while all spot machines are down
    regions: list[str]  #: regions in which requests may be served
    demand: list[_Rate]  #: expected requests/s by hour, without those answered by the cache
    borne: list[_Rate]  #: requests/s by hour that the plan must serve: ``demand`` times the spike
    trace: str  #: file of arrival times; empty: Poisson arrivals


@dataclass(frozen=True)
class DeploymentPlan:
    """Content of ``plan.yaml``."""

    format: int
    objective: Literal["cost", "carbon", "energy"]
    unit: str  #: unit of ``value``: ``$``, ``kg of CO2`` or ``kWh``
    value: float  #: value of the objective, summed over all hours
    bound_kept: float  #: lower bound of ``value`` over the options left after pruning
    bound_all: float  #: lower bound of ``value`` over all options
    jitter: Annotated[float, NumberBounds(0, 2)]  #: standard deviation of log service times
    classes: dict[str, ClassRequirements]  #: by name
    devices: dict[str, PlannedMachine]  #: by name
    kinds: dict[str, PoolType]  #: types of pools by name
    hours: list[HourPlan]
    carbon: dict[str, list[_Rate]]  #: kg of CO2 per kWh by region and hour
    notes: list[str] = field(default_factory=list)  #: messages on ignored or missing inputs
    #: minutes from 0:00 UTC (of a week: Monday) to hour 0; ``None``: 0
    begin_min: Annotated[int, NumberBounds(0, 168 * 60)] | None = None

    @property
    def n_hours(self) -> int:
        """Number of hours of the plan, which are counted from 0."""
        return sum(len(hour_plan.hours) for hour_plan in self.hours)

    def at(self, hour: int) -> HourPlan:
        """Return the machines, pools and routes of an hour, from 0 to ``n_hours - 1``."""
        return next(hour_plan for hour_plan in self.hours if hour in hour_plan.hours)

    def by_hour(self) -> dict[int, HourPlan]:
        """Return the machines, pools and routes by hour, from hour 0 on."""
        return {hour: self.at(hour) for hour in range(self.n_hours)}

    def is_split(self, first: str, second: str | None) -> bool:
        """Return True if a route's pools are the two parts of a split network."""
        return second is not None and self.kinds[second].accuracy is None

    def sent(self, route: "RequestRoute", hour: int) -> float:
        """Return the expected requests/s of a route in an hour, without ``demand.spike``."""
        request_class = self.classes[route.klass]
        borne = request_class.borne[hour]
        return route.rate * request_class.demand[hour] / borne if borne else 0.0

    def spikes(self, hour: int) -> bool:
        """Return True if the peak demand (``demand.spike``) of an hour exceeds the expected one."""
        return any(c.borne[hour] > c.demand[hour] for c in self.classes.values())

    @property
    def gap(self) -> float:
        """Relative distance of ``value`` to ``bound_kept``, in [0, 1]."""
        return max(0.0, 1 - self.bound_kept / self.value) if self.value > 0 else 0.0


UNITS = {"cost": "$", "carbon": "kg of CO2", "energy": "kWh"}
_MAX_BYTES = 16 << 20  # bytes


def to_yaml(plan: DeploymentPlan) -> bytes:
    """Return the content of ``plan.yaml``; equal plans give equal bytes."""
    content = asdict(plan)
    # Omitted when not given, as in plans of earlier versions.
    if plan.begin_min is None:
        del content["begin_min"]
    for kind in content["kinds"].values():
        if kind["ran"] is None:
            del kind["ran"]
    return yaml.safe_dump(content, sort_keys=False, width=110, default_flow_style=None).encode()


def read_plan(folder: Path) -> DeploymentPlan:
    """Return the plan in a folder, from ``plan.yaml``.

    Raises:
        RunError: the file is missing, damaged, of a newer version, or contradicts itself.
    """
    path = folder / FILE
    try:
        content = parse_yaml(read_text(path, _MAX_BYTES))
        check_format(content, FORMAT)
        result: DeploymentPlan = validate(DeploymentPlan, content)
        _check(result)
        _check_latencies(result)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(
            f"plan={folder} has no {FILE}: give the folder of a plan (hwnas plan writes one)."
        ) from None
    except (CorruptFileError, SchemaError) as problem:
        raise RunError(
            f"{path} cannot be read: {problem}. Restore the file, or plan again with hwnas plan."
        ) from None
    return result


def _check(plan: DeploymentPlan) -> None:
    """Refuse unknown names, and hours that are missing or duplicated."""
    text = sorted(h for hour_plan in plan.hours for h in hour_plan.hours)
    if text != list(range(len(text))):
        raise SchemaError("'hours' must contain every hour from 0 on exactly once")
    for i, hour_plan in enumerate(plan.hours):
        names = {pool.kind for pool in hour_plan.pools}
        for route in (*hour_plan.routes, *hour_plan.degraded):
            _check_route(route, f"'hours[{i}]'", {*plan.classes}, names)
        for kind in names:
            _check_pool(plan, kind, f"'hours[{i}]'")
    for name, device in plan.devices.items():
        if len(plan.carbon.get(device.region, ())) != len(text):
            raise SchemaError(
                f"'carbon' must have {len(text)} values, one per hour, for '{device.region}', the "
                f"region of 'devices.{name}'"
            )
    for name, requirements in plan.classes.items():
        if not len(requirements.demand) == len(requirements.borne) == len(text):
            raise SchemaError(
                f"'classes.{name}': demand and borne must have a value for each of {len(text)} "
                "hours"
            )


def _check_pool(plan: DeploymentPlan, kind: str, place: str) -> None:
    if kind not in plan.kinds:
        raise SchemaError(f"{place}: the pool '{kind}' is not in 'kinds'")
    if (device := plan.kinds[kind].device) not in plan.devices:
        raise SchemaError(f"'kinds.{kind}': the device '{device}' is not in 'devices'")


def _check_route(route: RequestRoute, place: str, classes: set[str], pools: set[str]) -> None:
    if route.klass not in classes:
        raise SchemaError(
            f"{place}: a route has the class '{route.klass}', which is not in 'classes'"
        )
    for pool in (route.first, route.second):
        if pool is not None and pool not in pools:
            raise SchemaError(
                f"{place}: a route of class '{route.klass}' leads to '{pool}', which is no pool of "
                "the hour"
            )


def _check_latencies(plan: DeploymentPlan) -> None:
    for name, kind in plan.kinds.items():
        for batch, (value, _, _, high) in kind.latency_ms.items():
            if not batch.isdecimal() or not int(batch):
                raise SchemaError(
                    f"'kinds.{name}': latency_ms has the batch size '{batch[:40]}'; allowed: a "
                    "positive integer"
                )
            is_value = f"'kinds.{name}': latency_ms of batch {batch} is {value:g}"
            if not MIN_MS <= value <= MAX_MS:
                raise SchemaError(f"{is_value}; it must be from {MIN_MS:g} to {MAX_MS:g}")
            if high is not None and not value <= high <= MAX_MS:
                raise SchemaError(
                    f"{is_value} with the upper end {high:g}; the upper end must be from "
                    f"{value:g} to {MAX_MS:g}"
                )


def format_hours(hours: Sequence[int]) -> str:
    """Return ascending hours as text with ranges, as ``0-3 5`` for 0, 1, 2, 3 and 5."""
    parts: list[list[int]] = []
    for hour in hours:
        if parts and hour == parts[-1][-1] + 1:
            parts[-1].append(hour)
        else:
            parts.append([hour])
    return " ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)
