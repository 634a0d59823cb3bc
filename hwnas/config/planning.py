"""What verbs accept that plan deployments: ``plan``, ``simulate`` and ``serve-check``."""

from dataclasses import dataclass, field
from typing import Any

from hwnas.bounds import SEED, check, limits, within
from hwnas.config.runs import OutputConfig
from hwnas.errors import ConfigError, unknown

_OBJECTIVES = ("cost", "carbon", "energy")


@dataclass
class PlanConfig:
    """What ``python -m hwnas plan`` accepts."""

    service: str = ""  #: service.yaml: fronts, classes of requests, what to survive, budgets
    fleet: str = ""  #: fleet.yaml: devices, links, carbon
    objective: str = "cost"  #: what is made least: cost, carbon or energy
    #: of the first solution; corrections by simulation come on top
    limit_s: float = within("[1, 86_400]", 120.0)
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
        if self.objective not in _OBJECTIVES:
            raise ConfigError(unknown("objective", self.objective, _OBJECTIVES))


@dataclass
class SimulateConfig:
    """What ``python -m hwnas simulate`` accepts."""

    plan: str = ""  #: the folder of a plan
    trace: str | None = None  #: a CSV file of arrivals, whose bursts all classes have
    #: what fails a third into each hour: a device of which one machine dies, or spot; one or a list
    kill: Any = None
    throttle: str | None = None  #: DEVICE:SPEED, from a third into each hour on: cpu:0.5
    hours: Any = None  #: which hours; default: all that differ
    load: float = within("(0, 1000]", 1.0)  #: times the demand
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
