"""A plan: what is bought, which pools run in which hour, and which requests go where.

``plan.yaml`` is a plan for people and programs; it holds all that a simulation needs.
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
_Ms = Annotated[float, NumberBounds(0, 1e9)]
_Count = Annotated[int, NumberBounds(0, 1e9)]


@dataclass(frozen=True)
class PlannedMachine:
    """A kind of machine that the plan uses."""

    region: str
    buy: str
    price: _Rate  #: $ an hour
    slots: Size
    quota: _Count  #: that are not down; 0: all are
    idle_w: _Rate
    busy_w: _Rate
    start_s: _Rate
    bought: _Count  #: machines that are owned; 0 where they are rented by the hour


@dataclass(frozen=True)
class TimedRuntime:
    """By what a model was timed on its device, as far as it is known: so servers run it, too."""

    target: str  #: whose latencies they are
    place: str = ""  #: the run, export or latency table that says so
    runtime: str = ""  #: that of the target
    provider: str = ""  #: of onnxruntime, or what is like it: ``cpu``, ``cuda``
    threads: Annotated[int, NumberBounds(0, 1024)] = 0


@dataclass(frozen=True)
class PoolType:
    """A way to run a model on a device: what a pool is made of."""

    device: str
    model: str
    batch: Annotated[int, NumberBounds(1, 65_536)]
    wait_ms: _Ms
    limit_ms: Positive  #: of the pool's own 99th percentile
    goodput: Positive  #: requests a second of a replica, by simulation
    least: Size  #: replicas that it holds for, at least
    accuracy: QuantityRow | None
    latency_ms: dict[str, QuantityRow]  #: of batches, by their size
    memory_mib: _Rate
    place: str  #: the folder or file that the model is of
    ran: TimedRuntime | None = None  #: none: plans of earlier versions do not say it


@dataclass(frozen=True)
class ReplicaPool:
    """A pool in an hour."""

    kind: str
    replicas: Size
    spread: _Count  #: replicas on one machine, at most, which are spare; 0: none is
    goodput: Positive  #: of a replica, as it was corrected for the hour


@dataclass(frozen=True)
class RequestRoute:
    """Where requests of a class go."""

    klass: str
    rate: _Rate  #: requests a second, as it must be borne
    first: str
    second: str | None
    share: Fraction  #: that goes on to the second
    threshold: float  #: of the first's confidence, below which it goes on
    accuracy: Fraction
    reach_ms: _Ms
    pass_ms: _Ms
    usd: _Rate  #: of a request


@dataclass(frozen=True)
class HourPlan:
    """What runs in hours that are alike."""

    hours: Annotated[list[_Count], NumberBounds(1)]  #: of the demand: those that are alike
    machines: dict[str, _Count]
    pools: list[ReplicaPool]
    routes: list[RequestRoute]
    degraded: list[RequestRoute]  #: while all spot machines are gone


@dataclass(frozen=True)
class ClassRequirements:
    """What a class asks for."""

    p99_ms: Positive
    accuracy_min: Fraction
    degraded_accuracy: Fraction
    regions: list[str]
    demand: list[_Rate]  #: requests a second, by hour, behind the cache
    borne: list[_Rate]  #: likewise, with spikes
    trace: str


@dataclass(frozen=True)
class DeploymentPlan:
    """``plan.yaml``."""

    format: int
    objective: Literal["cost", "carbon", "energy"]
    unit: str
    value: float  #: of the objective over all hours
    bound_kept: float  #: no plan of the options that were kept has less
    bound_all: float  #: nor of all options
    jitter: Annotated[float, NumberBounds(0, 2)]
    classes: dict[str, ClassRequirements]
    devices: dict[str, PlannedMachine]
    kinds: dict[str, PoolType]
    hours: list[HourPlan]
    carbon: dict[str, list[_Rate]]
    notes: list[str] = field(default_factory=list)
    #: minutes after 0:00 UTC, of a week after Monday's, at which hour 0 begins; ``None``: 0
    begin_min: Annotated[int, NumberBounds(0, 168 * 60)] | None = None

    def is_split(self, first: str, second: str | None) -> bool:
        """Return whether two pools of a route are a network that was cut: one reads the other's."""
        return second is not None and self.kinds[second].accuracy is None

    def sent(self, route: "RequestRoute", hour: int) -> float:
        """Return the requests a second that take a route, without those of spikes."""
        asked = self.classes[route.klass]
        borne = asked.borne[hour]
        return route.rate * asked.demand[hour] / borne if borne else 0.0

    def spikes(self, hour: int) -> bool:
        """Return whether more must be borne in an hour than is expected."""
        return any(c.borne[hour] > c.demand[hour] for c in self.classes.values())

    @property
    def gap(self) -> float:
        """How far the value may be above the best of the options that were kept."""
        return max(0.0, 1 - self.bound_kept / self.value) if self.value > 0 else 0.0


UNITS = {"cost": "$", "carbon": "kg of CO2", "energy": "kWh"}
_MOST = 16 << 20  # bytes


def to_yaml(plan: DeploymentPlan) -> bytes:
    """Return a plan as the text of its file; equal plans give equal bytes."""
    content = asdict(plan)
    # As plans are that were made before one could say these.
    if plan.begin_min is None:
        del content["begin_min"]
    for kind in content["kinds"].values():
        if kind["ran"] is None:
            del kind["ran"]
    return yaml.safe_dump(content, sort_keys=False, width=110, default_flow_style=None).encode()


def read_plan(folder: Path) -> DeploymentPlan:
    """Return the plan in a folder.

    Raises:
        RunError: there is none, or it is damaged.
    """
    path = folder / FILE
    try:
        content = parse_yaml(read_text(path, _MOST))
        check_format(content, FORMAT)
        found: DeploymentPlan = validate(DeploymentPlan, content)
        _check(found)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"plan={folder} is no plan: there is no {FILE}.") from None
    except (CorruptFileError, SchemaError) as problem:
        raise RunError(f"{path} cannot be read: {problem}.") from None
    return found


def _check(plan: DeploymentPlan) -> None:
    """Refuse names that nothing has, and hours that are there twice or not at all."""
    said = sorted(h for each in plan.hours for h in each.hours)
    if said != list(range(len(said))):
        raise SchemaError("'hours' do not say of each hour once what runs in it")
    for i, each in enumerate(plan.hours):
        names = {pool.kind for pool in each.pools}
        for route in (*each.routes, *each.degraded):
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
                raise SchemaError(
                    f"'hours[{i}]' has a pool of '{kind}', which is not among the kinds"
                )
    for name, asked in plan.classes.items():
        if not len(asked.demand) == len(asked.borne) == len(said):
            raise SchemaError(f"'classes.{name}' has not a demand for each of {len(said)} hours")
