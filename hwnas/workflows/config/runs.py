"""Options of verbs that read runs or plans."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.options import SEED, bounded, check_bounds, limits
from hwnas.fleet.service_file import OBJECTIVES
from hwnas.tasks.metrics.budget import Budget
from hwnas.training.evaluation.interfaces import MIN_NETWORKS
from hwnas.training.finetuning.finetuning_options import FinetuningConfig


@dataclass
class AuditConfig:
    """Options of ``hwnas audit``."""

    run: str = ""  #: the folder of a search
    #: networks to train alone: half from the front, half from the whole space
    n_networks: int = bounded(f"[{MIN_NETWORKS}, 10_000]", 12)
    #: networks trained with a second seed, to estimate the noise
    n_repeated: int = bounded("[0, 10_000]", 3)
    #: epochs of each network; default: those of the supernet
    epochs: int | None = bounded("[1, 100_000]", None)
    seed: int = bounded(SEED, 0)  #: seed of the choice of networks and their training
    workers: int = bounded("[1, 1024]", 1)  #: processes; each trains one network

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
    """Options of ``hwnas why``."""

    run: str = ""  #: the folder of a search
    id: str = "front"  #: id of a candidate or its prefix; front: list the front

    def __post_init__(self) -> None:
        if not self.run:
            raise ConfigError("why needs the folder of a search: hwnas why RUN, or why RUN ID.")


@dataclass
class DeliveryConfig:
    """Options common to ``export`` and ``compress``."""

    run: str = ""  #: the folder of a search
    id: str = ""  #: id of a candidate or its prefix; as export's pick=ID; default: knee
    target_name: str | None = None  #: one target of a search for several; default: all
    dir: str | None = None  #: output folder; default: runs/<verb>/<time>
    #: epochs per training: fine-tuning (export), after pruning, for few bits, for int8; 0: none;
    #: default: as in the search, whose networks need no further training
    epochs: int | None = bounded("[0, 100_000]", None)
    #: weight of the distillation loss, as a fraction; default: as in the search
    alpha: float | None = bounded("[0, 1]", None)
    #: int8 loss in points that triggers training for int8; default: as in the search
    max_int8_drop: float | None = bounded("[0, 1000]", None)
    #: allowed loss by early exits in points on validation images
    max_exit_drop: float = bounded("[0, 100]", 0.3)
    #: c: also write the network as a C array, preprocessing in C, and a TFLite Micro example
    format: str | None = None
    sign: str | None = None  #: private key (Ed25519, PEM) to sign the proof; see verify key=
    #: True: export although no network is better than a constant answer, such as the majority class
    force: bool = False
    license: str = "unknown"  #: licence of the model, as a Hugging Face identifier


@dataclass
class ExportConfig(DeliveryConfig):
    """Options of ``hwnas export``."""

    #: knee, most_accurate, fastest, smallest, all, an id or its prefix, or an expression
    pick: str = "knee"
    prune: float = bounded("[0, 1)", 0.0)  #: fraction of channels to prune; 0: none

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.run:
            raise ConfigError("export needs run=DIR, the folder of a finished search.")
        if self.id and self.pick != "knee":
            raise ConfigError("pick and id both say what is exported: give one of them.")
        _ = self.finishing(FinetuningConfig())

    def finishing(self, searched: FinetuningConfig) -> FinetuningConfig:
        """Return the options of fine-tuning.

        Args:
            searched: The options in the search.

        Raises:
            ConfigError: an option is out of its range.
        """
        names = ("epochs", "alpha", "prune", "max_int8_drop")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(searched, **given)

    @property
    def wanted(self) -> str:
        """The selection."""
        return self.id or self.pick


@dataclass
class CompressConfig(DeliveryConfig):
    """Options of ``hwnas compress``; its ``id`` also accepts selections of export's pick."""

    budget: dict[str, Any] = field(default_factory=dict)  #: limits by metric, and a ``name``
    #: bits of weights to try, if the target compresses weights; []: unchanged
    weight_bits: list[int] = field(default_factory=lambda: [3, 4, 5, 6], metadata=limits("[3, 7]"))
    #: fractions of channels to prune if bits do not suffice
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
            ConfigError: a limit has an unknown metric, is not a number or not positive.
        """
        return Budget.of(self.budget)

    @property
    def export(self) -> ExportConfig:
        """The options to export the compressed network."""
        given = {f.name: getattr(self, f.name) for f in fields(DeliveryConfig)}
        return ExportConfig(**given | {"epochs": None})  # the search's fine-tuning is kept


@dataclass
class OutputConfig:
    """Output of a comparison."""

    dir: str | None = None  #: output folder; default: runs/<verb>/<time>


@dataclass
class CompareConfig:
    """Options of ``hwnas compare``."""

    runs: Any = None  #: folders of searches, CSV files, or patterns of them; one or a list
    #: names of the runs, in their order: [small,large]; default: those of the folders
    label: list[str] = field(default_factory=list)
    #: objectives with their direction, {NAME: max or min}; default: those of the runs
    objectives: dict[str, str] = field(default_factory=dict)
    group_by: str | None = None  #: a key of the runs' configurations: sampler, target, train.epochs
    figures: Any = None  #: searched or verified; default: verified if all runs have them
    reference: str | None = None  #: comparison.json of an earlier comparison, to use its bounds
    true_front: str | None = None  #: CSV file of the reference front of IGD+ and epsilon
    allow_mixed: bool = False  #: compare runs on different data or splits
    #: bootstrap samples of intervals; 0: no intervals
    n_bootstrap: int = bounded("[0, 100_000]", 1000)
    seed: int = bounded(SEED, 0)  #: seed of the bootstrap
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
        """The paths in ``runs``."""
        named = self.runs if isinstance(self.runs, list) else [self.runs]
        return [str(name) for name in named if name not in (None, "")]


# Options of verbs that plan deployments: ``plan``, ``simulate``, ``replan``, ``serve-check``.


@dataclass
class PlanConfig:
    """Options of ``hwnas plan``."""

    service: str = ""  #: service.yaml: fronts, request classes, failures to survive, budgets
    fleet: str = ""  #: fleet.yaml: devices, links, carbon
    objective: str = "cost"  #: minimised quantity: cost, carbon or energy
    #: start of hour 0: a date; daily plans use its time of day, weekly plans also its weekday;
    #: default: 0:00 UTC, on Mondays
    begin: str | None = None
    #: time limit of the first solution in seconds; corrections by simulation take extra time
    limit_s: float = bounded("[1, 86_400]", 120.0)
    #: number of alternative plans to search by cost, carbon, accuracy and latency; 0: none
    front: int = bounded("[0, 100]", 9)
    front_s: float = bounded("[1, 86_400]", 60.0)  #: seconds for alternative plans
    n_seeds: int = bounded("[1, 100]", 4)  #: simulations per hour
    seed: int = bounded(SEED, 0)  #: seed of the first simulation
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
    """Options of ``hwnas simulate``."""

    plan: str = ""  #: the folder of a plan
    trace: str | None = None  #: CSV file of arrivals; all classes get its bursts
    #: failures after a third of each hour: a device (loses one machine) or spot; one or a list;
    #: a repeated device loses another machine
    kill: Any = None
    throttle: str | None = None  #: DEVICE:SPEED after a third of each hour: cpu:0.5
    hours: Any = None  #: hours to simulate; default: all distinct hours
    load: float = bounded("(0, 1000]", 1.0)  #: factor of the demand
    spike: bool = False  #: whether to simulate the planned spikes in hours that have one
    detect_s: float = bounded(
        "[0, 3600]", 0.5
    )  #: seconds until requests of a failed machine are resent
    n_seeds: int = bounded("[1, 1000]", 5)  #: simulations per hour
    seed: int = bounded(SEED, 0)  #: seed of the first simulation
    run: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.plan:
            raise ConfigError("simulate needs plan=DIR, the folder of a plan.")

    @property
    def kills(self) -> list[str]:
        """The failures."""
        named = self.kill if isinstance(self.kill, list) else [self.kill]
        return [str(name) for name in named if name not in (None, "")]


@dataclass
class QueryConfig:
    """Prometheus queries in PromQL."""

    #: requests per second behind the cache; the series need a label class
    rate: str = "sum by (class) (rate(requests_total[5m]))"
    late: str | None = None  #: fraction of late requests; with a label class
    p99_ms: str | None = None  #: p99 latency in milliseconds; with a label class
    down: str | None = None  #: number of failed machines; with a label device
    window_h: float = bounded("(0, 8760]", 24.0)  #: hours until now that are queried
    step_s: float = bounded("[1, 86_400]", 300.0)  #: seconds between samples
    timeout_s: float = bounded("(0, 3600]", 10.0)  #: time limit of a query, in seconds


@dataclass
class ReplanConfig:
    """Options of ``hwnas replan``."""

    plan: str = ""  #: the folder of a plan
    telemetry: str = ""  #: a CSV file, or the URL of a Prometheus server
    service: str | None = None  #: a changed service file; default: that of the plan
    fleet: str | None = None  #: a changed fleet file; default: that of the plan
    #: cost of starting or stopping a replica for an hour, or of loading a model, relative to the
    #: cost of a replica per hour
    move_cost: float = bounded("[0, 1000]", 0.2)
    max_moved_fraction: float = bounded("[0, 1]", 0.2)  #: fraction of replicas stopped per hour
    tolerance: float = bounded("[0, 1]", 0.05)  #: relative change of demand that is ignored
    extrapolate: bool = True  #: whether to scale unobserved hours like the observed ones
    begin: str | None = None  #: start of hour 0: a date; default: as in the plan
    query: QueryConfig = field(default_factory=QueryConfig)
    in_place: bool = False  #: whether the new plan replaces the old one in its folder
    #: time limit of a solution in seconds, without corrections
    limit_s: float = bounded("[1, 86_400]", 30.0)
    n_seeds: int = bounded("[1, 100]", 4)  #: simulations per hour
    seed: int = bounded(SEED, 0)  #: seed of the first simulation
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
    """Options of ``hwnas serve-check``."""

    plan: str = ""  #: the folder of a plan
    pool: Any = None  #: names in its deploy/triton/models, one or a list; default: all distinct
    server: str = "auto"  #: triton; auto: the installed one
    python: str = ""  #: interpreter of the server; default: that of hwnas
    #: loads as fractions of the server's capacity
    loads: list[float] = field(
        default_factory=lambda: [0.3, 0.6, 0.8, 0.9], metadata=limits("(0, 0.99]")
    )
    seconds: float = bounded("[0.5, 3600]", 10.0)  #: seconds of requests per load and repeat
    repeats: int = bounded("[2, 100]", 3)  #: measurements per load, for the intervals
    #: allowed slowdown of the machine before, between and after measurements, as a fraction
    drift: float = bounded("(0, 1)", 0.05)
    retries: int = bounded("[0, 100]", 3)  #: repetitions of measurements with drift
    seed: int = bounded(SEED, 0)  #: seed of the request times
    run: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.plan:
            raise ConfigError("serve-check needs plan=DIR, the folder of a plan.")
        if not self.loads:
            raise ConfigError("loads=[] leaves nothing to measure: loads=[0.3,0.6].")

    @property
    def pools(self) -> list[str]:
        """The pools to check; empty: all distinct."""
        named = self.pool if isinstance(self.pool, list) else [self.pool]
        return [str(name) for name in named if name not in (None, "")]
