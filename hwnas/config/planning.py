"""What verbs accept that plan deployments: ``plan``, ``simulate``, ``replan``, ``serve-check``."""

from dataclasses import dataclass, field
from typing import Any

from hwnas.bounds import SEED, check, limits, within
from hwnas.config.runs import OutputConfig
from hwnas.errors import ConfigError, unknown
from hwnas.planning.objective import OBJECTIVES


@dataclass
class PlanConfig:
    """What ``python -m hwnas plan`` accepts."""

    service: str = ""  #: service.yaml: fronts, classes of requests, what to survive, budgets
    fleet: str = ""  #: fleet.yaml: devices, links, carbon
    objective: str = "cost"  #: what is made least: cost, carbon or energy
    #: when hour 0 begins: a date, of which the time counts, and of a plan for a week the weekday;
    #: default: 0:00 UTC, on Mondays
    begin: str | None = None
    #: of the first solution; corrections by simulation come on top
    limit_s: float = within("[1, 86_400]", 120.0)
    #: plans beside it, over cost, carbon, accuracy and latency, that are looked for; 0: none
    front: int = within("[0, 100]", 9)
    front_s: float = within("[1, 86_400]", 60.0)  #: seconds that they may take
    n_seeds: int = within("[1, 100]", 4)  #: simulations of each hour
    seed: int = within(SEED, 0)  #: of the first simulation
    run: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        check(self)
        if not self.service or not self.fleet:
            raise ConfigError(
                "plan needs service=FILE, what is asked for, and fleet=FILE, what there is; "
                "experiments/fleet has one of each."
            )
        if self.objective not in OBJECTIVES:
            raise ConfigError(unknown("objective", self.objective, OBJECTIVES))


@dataclass
class SimulateConfig:
    """What ``python -m hwnas simulate`` accepts."""

    plan: str = ""  #: the folder of a plan
    trace: str | None = None  #: a CSV file of arrivals, whose bursts all classes have
    #: what fails a third into each hour: a device of which one machine dies, or spot; one or a list
    #: in which a device that is named again loses another machine
    kill: Any = None
    throttle: str | None = None  #: DEVICE:SPEED, from a third into each hour on: cpu:0.5
    hours: Any = None  #: which hours; default: all that differ
    load: float = within("(0, 1000]", 1.0)  #: times the demand
    spike: bool = False  #: whether the spikes come that the plan must bear, in hours that have one
    detect_s: float = within("[0, 3600]", 0.5)  #: until what a dead machine held is sent again
    n_seeds: int = within("[1, 1000]", 5)  #: simulations of each hour
    seed: int = within(SEED, 0)  #: of the first
    run: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        check(self)
        if not self.plan:
            raise ConfigError("simulate needs plan=DIR, the folder of a plan.")

    @property
    def kills(self) -> list[str]:
        """What fails."""
        named = self.kill if isinstance(self.kill, list) else [self.kill]
        return [str(name) for name in named if name not in (None, "")]


@dataclass
class QueryConfig:
    """What Prometheus is asked, in PromQL."""

    #: requests a second behind the cache; the series need a label class
    rate: str = "sum by (class) (rate(requests_total[5m]))"
    late: str | None = None  #: share of requests that are late; a label class
    p99_ms: str | None = None  #: milliseconds; a label class
    down: str | None = None  #: machines that are down; a label device
    window_h: float = within("(0, 8760]", 24.0)  #: hours until now
    step_s: float = within("[1, 86_400]", 300.0)  #: between samples
    timeout_s: float = within("(0, 3600]", 10.0)  #: of each query


@dataclass
class ReplanConfig:
    """What ``python -m hwnas replan`` accepts."""

    plan: str = ""  #: the folder of a plan
    telemetry: str = ""  #: a CSV file, or the URL of a Prometheus server
    service: str | None = None  #: default: that of the plan
    fleet: str | None = None  #: likewise
    #: what a replica started or stopped for an hour, and a model loaded, counts, in what an hour of
    #: a replica takes on the mean
    move_cost: float = within("[0, 1000]", 0.2)
    most_moved: float = within("[0, 1]", 0.2)  #: of an hour's replicas that may be stopped
    tolerance: float = within("[0, 1]", 0.05)  #: by which demand may differ without being new
    extrapolate: bool = True  #: whether hours that were not seen follow those that were
    begin: str | None = None  #: when hour 0 began: a date; default: as the plan has it
    query: QueryConfig = field(default_factory=QueryConfig)
    in_place: bool = False  #: whether the plan's own folder takes the new plan
    limit_s: float = within("[1, 86_400]", 30.0)  #: of a solution; corrections come on top
    n_seeds: int = within("[1, 100]", 4)  #: simulations of each hour
    seed: int = within(SEED, 0)  #: of the first simulation
    run: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        check(self)
        check(self.query, "query.")
        if not self.plan or not self.telemetry:
            raise ConfigError(
                "replan needs plan=DIR, the folder of a plan, and telemetry=FILE or a URL, what "
                "was seen since."
            )
        if self.in_place and self.run.dir:
            raise ConfigError(
                "in_place=true writes into the folder of the plan: leave out run.dir."
            )


@dataclass
class ServeCheckConfig:
    """What ``python -m hwnas serve-check`` accepts."""

    plan: str = ""  #: the folder of a plan
    pool: Any = None  #: names in its deploy/triton/models, one or a list; default: all that differ
    server: str = "auto"  #: triton or ray; auto: Triton where it is installed, else Ray Serve
    python: str = ""  #: the interpreter that has the server; default: that which runs hwnas
    #: of what the server can answer at most
    loads: list[float] = field(
        default_factory=lambda: [0.3, 0.6, 0.8, 0.9], metadata=limits("(0, 0.99]")
    )
    seconds: float = within("[0.5, 3600]", 10.0)  #: of requests, for each load and repeat
    repeats: int = within("[2, 100]", 3)  #: of each load: intervals are over these
    #: share by which the machine may be slower than it can be, before, between and after
    drift: float = within("(0, 1)", 0.05)
    retries: int = within("[0, 100]", 3)  #: times that what drifted is measured again
    seed: int = within(SEED, 0)  #: of when requests are due
    run: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        check(self)
        if not self.plan:
            raise ConfigError("serve-check needs plan=DIR, the folder of a plan.")
        if not self.loads:
            raise ConfigError("loads=[] leaves nothing to measure: loads=[0.3,0.6].")

    @property
    def pools(self) -> list[str]:
        """Which pools are checked; empty: all that differ."""
        named = self.pool if isinstance(self.pool, list) else [self.pool]
        return [str(name) for name in named if name not in (None, "")]
