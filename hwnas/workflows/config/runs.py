"""What verbs accept that read runs: ``audit``, ``why``, ``export`` and ``compare``."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.options import SEED, bounded, check_bounds, limits
from hwnas.fleet.service_file import OBJECTIVES
from hwnas.tasks.metrics.budget import Budget
from hwnas.training.evaluation.scoring_options import MIN_NETWORKS
from hwnas.training.finetuning.finetuning_options import FinetuningConfig


@dataclass
class AuditConfig:
    """What ``hwnas audit`` accepts."""

    run: str = ""  #: the folder of a search
    #: networks that are trained alone: half of the front, half of the whole space
    n_networks: int = bounded(f"[{MIN_NETWORKS}, 10_000]", 12)
    #: of them are trained with a second seed, to know the noise
    n_repeated: int = bounded("[0, 10_000]", 3)
    #: of each network alone; default: those of the supernet
    epochs: int | None = bounded("[1, 100_000]", None)
    seed: int = bounded(SEED, 0)  #: of the choice of networks, and of their training
    workers: int = bounded("[1, 1024]", 1)  #: processes that train networks, one each

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.run:
            raise ConfigError("audit needs run=DIR, the folder of a finished search.")
        if self.n_repeated > self.n_networks:
            raise ConfigError(
                f"n_repeated must be at most n_networks={self.n_networks}, got {self.n_repeated}."
            )


@dataclass
class WhyConfig:
    """What ``hwnas why`` accepts."""

    run: str = ""  #: the folder of a search
    id: str = ""  #: of a candidate, or how it begins; or ``front``

    def __post_init__(self) -> None:
        if not self.run or not self.id:
            raise ConfigError(
                "why needs run=DIR, the folder of a search, and id=GENOTYPE, of one of its "
                "candidates; id=front lists the front."
            )


@dataclass
class DeliveryConfig:
    """What is said of a model that is taken out of a search."""

    run: str = ""  #: the folder of a search
    id: str = ""  #: of a candidate, or how it begins; the same as export's pick=ID; default: knee
    target_name: str | None = None  #: one target of a search for several; default: all
    dir: str | None = None  #: where folders are made; default: runs/<verb>/<time>
    #: of each training: fine-tuning (by export), after pruning, for few bits, for int8; 0: none;
    #: default: as the search finished its networks, which costs no training of those
    epochs: int | None = bounded("[0, 100_000]", None)
    #: share of the loss on what a teacher answers; default: likewise
    alpha: float | None = bounded("[0, 1]", None)
    #: points that int8 may lose; trained for it if more; default: likewise
    max_int8_drop: float | None = bounded("[0, 1000]", None)
    #: points that leaving early may lose on validation images, of networks with exits
    max_exit_drop: float = bounded("[0, 100]", 0.3)
    sign: str | None = None  #: a private key (Ed25519, PEM) that signs the proof: see verify key=
    license: str = "unknown"  #: of the model, as Hugging Face names it: apache-2.0, mit, ...


@dataclass
class ExportConfig(DeliveryConfig):
    """What ``hwnas export`` accepts."""

    #: knee, most_accurate, fastest, smallest, all, an id or how it begins, or an expression
    pick: str = "knee"
    prune: float = bounded("[0, 1)", 0.0)  #: fraction of the channels that is taken out; 0: none

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.run:
            raise ConfigError("export needs run=DIR, the folder of a finished search.")
        if self.id and self.pick != "knee":
            raise ConfigError("pick and id both say what is exported: give one of them.")
        _ = self.finishing(FinetuningConfig())

    def finishing(self, searched: FinetuningConfig) -> FinetuningConfig:
        """Return how weights are finished.

        Args:
            searched: How the search finished those of its networks.

        Raises:
            ConfigError: an option is out of its range.
        """
        names = ("epochs", "alpha", "prune", "max_int8_drop")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(searched, **given)

    @property
    def wanted(self) -> str:
        """What is picked."""
        return self.id or self.pick


@dataclass
class CompressConfig(DeliveryConfig):
    """What ``hwnas compress`` accepts; its ``id`` may be what export's pick takes."""

    budget: dict[str, Any] = field(default_factory=dict)  #: limits by metric, and a ``name``
    #: that weights may have, where the target packs them; []: they stay
    weight_bits: list[int] = field(default_factory=lambda: [3, 4, 5, 6], metadata=limits("[3, 7]"))
    #: fractions of the channels that may be taken out, where bits do not suffice
    prune: list[float] = field(
        default_factory=lambda: [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], metadata=limits("[0, 1)")
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.run:
            raise ConfigError("compress needs run=DIR, the folder of a finished search.")
        if self.epochs == 0:
            raise ConfigError("epochs must be 1 or more: compress trains for what it changes.")
        if not self.allowed.limits:
            raise ConfigError(
                "compress needs limits: budget.latency_ms=NUMBER, budget.flash_kib=NUMBER, ..."
            )
        if not self.weight_bits and not self.prune:
            raise ConfigError("weight_bits=[] and prune=[] leave nothing to be done.")

    @property
    def allowed(self) -> Budget:
        """The budget.

        Raises:
            ConfigError: a limit is of no metric, is not a number or not positive.
        """
        return Budget.of(self.budget)

    @property
    def export(self) -> ExportConfig:
        """How the compressed network is written."""
        given = {f.name: getattr(self, f.name) for f in fields(DeliveryConfig)}
        return ExportConfig(**given | {"epochs": None})  # the search's fine-tuning stays


@dataclass
class OutputConfig:
    """Where a comparison is written."""

    dir: str | None = None  #: default: runs/compare/<time>


@dataclass
class CompareConfig:
    """What ``hwnas compare`` accepts."""

    runs: Any = None  #: folders of searches, CSV files, or patterns of them; one or a list
    #: max or min each; default: those of the runs
    objectives: dict[str, str] = field(default_factory=dict)
    group_by: str | None = None  #: a key of the runs' configurations: sampler, target, train.epochs
    figures: Any = None  #: searched or verified; default: verified where all runs have them
    reference: str | None = None  #: comparison.json of an earlier comparison, whose frame is used
    true_front: str | None = None  #: a CSV file of points that IGD+ and epsilons refer to
    allow_mixed: bool = False  #: compare runs on different data or splits
    #: how often values are drawn for intervals; 0: no intervals
    n_bootstrap: int = bounded("[0, 100_000]", 1000)
    seed: int = bounded(SEED, 0)  #: of what is drawn
    run: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.paths:
            raise ConfigError(
                "compare needs runs='[DIR,...]', folders of searches or CSV files, or a pattern "
                "such as runs='runs/search/*'."
            )
        if self.figures not in (None, "searched", "verified"):
            raise ConfigError(unknown_name("figures", str(self.figures), ("searched", "verified")))
        if self.n_bootstrap and self.n_bootstrap < 100:
            raise ConfigError(f"n_bootstrap must be 0 or at least 100, got {self.n_bootstrap}.")

    @property
    def paths(self) -> list[str]:
        """What is named in ``runs``."""
        named = self.runs if isinstance(self.runs, list) else [self.runs]
        return [str(name) for name in named if name not in (None, "")]


# What verbs accept that plan deployments: ``plan``, ``simulate``, ``replan``, ``serve-check``.


@dataclass
class PlanConfig:
    """What ``hwnas plan`` accepts."""

    service: str = ""  #: service.yaml: fronts, classes of requests, what to survive, budgets
    fleet: str = ""  #: fleet.yaml: devices, links, carbon
    objective: str = "cost"  #: what is made least: cost, carbon or energy
    #: when hour 0 begins: a date, of which the time counts, and of a plan for a week the weekday;
    #: default: 0:00 UTC, on Mondays
    begin: str | None = None
    #: of the first solution; corrections by simulation come on top
    limit_s: float = bounded("[1, 86_400]", 120.0)
    #: plans beside it, over cost, carbon, accuracy and latency, that are looked for; 0: none
    front: int = bounded("[0, 100]", 9)
    front_s: float = bounded("[1, 86_400]", 60.0)  #: seconds that they may take
    n_seeds: int = bounded("[1, 100]", 4)  #: simulations of each hour
    seed: int = bounded(SEED, 0)  #: of the first simulation
    run: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.service or not self.fleet:
            raise ConfigError(
                "plan needs service=FILE, what is asked for, and fleet=FILE, what there is; "
                "experiments/fleet has one of each."
            )
        if self.objective not in OBJECTIVES:
            raise ConfigError(unknown_name("objective", self.objective, OBJECTIVES))


@dataclass
class SimulateConfig:
    """What ``hwnas simulate`` accepts."""

    plan: str = ""  #: the folder of a plan
    trace: str | None = None  #: a CSV file of arrivals, whose bursts all classes have
    #: what fails a third into each hour: a device of which one machine dies, or spot; one or a list
    #: in which a device that is named again loses another machine
    kill: Any = None
    throttle: str | None = None  #: DEVICE:SPEED, from a third into each hour on: cpu:0.5
    hours: Any = None  #: which hours; default: all that differ
    load: float = bounded("(0, 1000]", 1.0)  #: times the demand
    spike: bool = False  #: whether the spikes come that the plan must bear, in hours that have one
    detect_s: float = bounded("[0, 3600]", 0.5)  #: until what a dead machine held is sent again
    n_seeds: int = bounded("[1, 1000]", 5)  #: simulations of each hour
    seed: int = bounded(SEED, 0)  #: of the first
    run: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
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
    window_h: float = bounded("(0, 8760]", 24.0)  #: hours until now
    step_s: float = bounded("[1, 86_400]", 300.0)  #: between samples
    timeout_s: float = bounded("(0, 3600]", 10.0)  #: of each query


@dataclass
class ReplanConfig:
    """What ``hwnas replan`` accepts."""

    plan: str = ""  #: the folder of a plan
    telemetry: str = ""  #: a CSV file, or the URL of a Prometheus server
    service: str | None = None  #: default: that of the plan
    fleet: str | None = None  #: likewise
    #: what a replica started or stopped for an hour, and a model loaded, counts, in what an hour of
    #: a replica takes on the mean
    move_cost: float = bounded("[0, 1000]", 0.2)
    max_moved_fraction: float = bounded("[0, 1]", 0.2)  #: of an hour's replicas that may be stopped
    tolerance: float = bounded("[0, 1]", 0.05)  #: by which demand may differ without being new
    extrapolate: bool = True  #: whether hours that were not seen follow those that were
    begin: str | None = None  #: when hour 0 began: a date; default: as the plan has it
    query: QueryConfig = field(default_factory=QueryConfig)
    in_place: bool = False  #: whether the plan's own folder takes the new plan
    limit_s: float = bounded("[1, 86_400]", 30.0)  #: of a solution; corrections come on top
    n_seeds: int = bounded("[1, 100]", 4)  #: simulations of each hour
    seed: int = bounded(SEED, 0)  #: of the first simulation
    run: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        check_bounds(self.query, "query.")
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
    """What ``hwnas serve-check`` accepts."""

    plan: str = ""  #: the folder of a plan
    pool: Any = None  #: names in its deploy/triton/models, one or a list; default: all that differ
    server: str = "auto"  #: triton; auto: the installed one
    python: str = ""  #: the interpreter that has the server; default: that which runs hwnas
    #: of what the server can answer at most
    loads: list[float] = field(
        default_factory=lambda: [0.3, 0.6, 0.8, 0.9], metadata=limits("(0, 0.99]")
    )
    seconds: float = bounded("[0.5, 3600]", 10.0)  #: of requests, for each load and repeat
    repeats: int = bounded("[2, 100]", 3)  #: of each load: intervals are over these
    #: share by which the machine may be slower than it can be, before, between and after
    drift: float = bounded("(0, 1)", 0.05)
    retries: int = bounded("[0, 100]", 3)  #: times that what drifted is measured again
    seed: int = bounded(SEED, 0)  #: of when requests are due
    run: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.plan:
            raise ConfigError("serve-check needs plan=DIR, the folder of a plan.")
        if not self.loads:
            raise ConfigError("loads=[] leaves nothing to measure: loads=[0.3,0.6].")

    @property
    def pools(self) -> list[str]:
        """Which pools are checked; empty: all that differ."""
        named = self.pool if isinstance(self.pool, list) else [self.pool]
        return [str(name) for name in named if name not in (None, "")]
