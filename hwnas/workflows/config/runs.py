"""Options of verbs that read runs or plans."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

from hwnas.core import database
from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.options import SEED, bounded, check_bounds, limits
from hwnas.tasks.metrics.budget import Budget
from hwnas.training.evaluation.interfaces import MIN_NETWORKS
from hwnas.training.options import FinetuningConfig


def _texts(value: object) -> list[str]:
    """Return an option that is a text or a list as a list, without empty texts."""
    values = value if isinstance(value, list) else [value]
    return [str(item) for item in values if item not in (None, "")]


@dataclass
class AuditConfig:
    """Options of ``hwnas audit``."""

    run: str = ""  #: folder of a search
    #: number of networks to train separately: half from the front, half from the whole space
    n_networks: int = bounded(f"[{MIN_NETWORKS}, 10_000]", 12)
    #: number of these networks trained with a second seed, too, to estimate the noise
    n_repeated: int = bounded("[0, 10_000]", 3)
    #: epochs of each network; default: those of the supernet
    epochs: int | None = bounded("[1, 100_000]", None)
    seed: int = bounded(SEED, 0)  #: seed of the choice of networks and their training
    workers: int = bounded("[1, 1024]", 1)  #: number of processes; each trains one network

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.run:
            raise ConfigError("audit needs the folder of a finished search: write hwnas audit RUN.")
        if self.n_repeated > self.n_networks:
            raise ConfigError(
                f"n_repeated must be at most n_networks={self.n_networks}, got {self.n_repeated}."
            )


@dataclass
class StoredStudyConfig:
    """The database of runs whose study is not in their folder."""

    #: URL of the database, as in the search: runs may not choose databases by themselves
    storage: str | None = None

    def __post_init__(self) -> None:
        if self.storage is not None:
            self.storage = database.check_storage_url(self.storage)


@dataclass
class WhyConfig:
    """Options of ``hwnas why``."""

    run: str = ""  #: folder of a search
    #: candidate whose evaluation is explained: its id or prefix, or knee, fastest, most_accurate,
    #: smallest; front: list the front
    id: str = "front"
    study: StoredStudyConfig = field(default_factory=StoredStudyConfig)

    def __post_init__(self) -> None:
        if not self.run:
            raise ConfigError(
                "why needs the folder of a search: write hwnas why RUN, or hwnas why RUN ID."
            )


@dataclass
class DeliveryConfig:
    """Options common to ``export`` and ``compress``."""

    run: str = ""  #: folder of a search
    id: str = ""  #: id of a candidate or its prefix; as pick=ID of export; default: knee
    #: name of one target, of a search for several; default: all targets
    target_name: str | None = None
    dir: str | None = None  #: output folder; default: runs/<verb>/<time>
    #: epochs of each training: after pruning, for few bits and for int8; for export also of
    #: fine-tuning, where 0 means none; default: as in the search
    epochs: int | None = bounded("[0, 100_000]", None)
    #: weight of the distillation loss, as a fraction; default: as in the search
    alpha: float | None = bounded("[0, 1]", None)
    #: loss by int8 above which the network is trained for int8, in points of accuracy or in percent
    #: of the error of a constant prediction; default: as in the search
    max_int8_drop: float | None = bounded("[0, 1000]", None)
    #: allowed loss by early exits on validation images, in points of accuracy
    max_exit_drop: float = bounded("[0, 100]", 0.3)
    #: c: also write the network as a C array, preprocessing in C, a TFLite Micro example, and a
    #: test; c_cpu: the same for a microcontroller without an NPU
    format: str | None = None
    #: file of a private key (Ed25519, PEM) that signs the proof; default: not signed
    sign: str | None = None
    #: True: include networks that are not significantly better than a constant answer, such as the
    #: majority class
    force: bool = False
    license: str = "unknown"  #: licence of the model, as a Hugging Face identifier


@dataclass
class ExportConfig(DeliveryConfig):
    """Options of ``hwnas export``."""

    #: knee, most_accurate, fastest, smallest, all, an id or its prefix, an expression; or a list
    pick: Any = "knee"
    prune: float = bounded("[0, 1)", 0.0)  #: fraction of channels to prune; 0: none

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.run:
            raise ConfigError(
                "export needs the folder of a finished search: write hwnas export RUN."
            )
        if not self.wanted:
            raise ConfigError("pick=[] is empty: give one or more networks, as pick=[3f2a,77bc].")
        if self.id and self.pick != "knee":
            raise ConfigError(
                f"pick={self.pick} and id={self.id} both choose a network: give one of them."
            )
        _ = self.finishing(FinetuningConfig())

    def finishing(self, searched: FinetuningConfig) -> FinetuningConfig:
        """Return the options of fine-tuning: the given ones, else those of the search.

        Args:
            searched: The options of fine-tuning in the search.

        Raises:
            ConfigError: an option is out of its range.
        """
        names = ("epochs", "alpha", "prune", "max_int8_drop")
        options = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(searched, **options)

    @property
    def wanted(self) -> list[str]:
        """The selections of networks: ids, names such as ``knee``, or expressions."""
        return _texts(self.id or self.pick)


@dataclass
class CompressConfig(DeliveryConfig):
    """Options of ``hwnas compress``; its ``id`` also accepts selections of export's pick."""

    budget: dict[str, Any] = field(default_factory=dict)  #: limits by metric, and a ``name``
    #: numbers of bits of weights to try, if the target compresses weights; []: none
    weight_bits: list[int] = field(default_factory=lambda: [3, 4, 5, 6], metadata=limits("[3, 7]"))
    #: fractions of channels to prune if fewer bits do not suffice; []: none
    prune: list[float] = field(
        default_factory=lambda: [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], metadata=limits("[0, 1)")
    )

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.run:
            raise ConfigError(
                "compress needs the folder of a finished search: write hwnas compress RUN."
            )
        if self.epochs == 0:
            raise ConfigError("epochs must be 1 or more: compressed networks need training.")
        if not self.allowed.limits:
            raise ConfigError(
                "compress needs limits for the network: add budget.flash_kib=NUMBER, "
                "budget.latency_ms=NUMBER, ..."
            )
        if not self.weight_bits and not self.prune:
            raise ConfigError(
                "weight_bits=[] and prune=[] are both empty, so nothing would be compressed: give "
                "one of them, as weight_bits=[4,5]."
            )

    @property
    def allowed(self) -> Budget:
        """The limits in ``budget``.

        Raises:
            ConfigError: a limit has an unknown metric, is not a number or not positive.
        """
        return Budget.of(self.budget)

    @property
    def export(self) -> ExportConfig:
        """The options with which the compressed network is exported."""
        options = {f.name: getattr(self, f.name) for f in fields(DeliveryConfig)}
        return ExportConfig(**options | {"epochs": None})  # the search's fine-tuning is kept


@dataclass
class OutputConfig:
    """Output of the command."""

    dir: str | None = None  #: output folder; default: runs/<verb>/<time>


@dataclass
class CompareConfig:
    """Options of ``hwnas compare``."""

    runs: Any = None  #: folders of searches, CSV files, or patterns of them; one or a list
    #: names of the runs, in their order: [small,large]; default: those of the folders
    label: list[str] = field(default_factory=list)
    #: objectives with their direction, {NAME: max or min}; default: those of the runs
    objectives: dict[str, str] = field(default_factory=dict)
    #: option of the runs whose value groups them, such as sampler, target or train.epochs; default:
    #: each run is a group
    group_by: str | None = None
    #: figures to compare, searched or verified; default: verified if all runs have them
    figures: Any = None
    #: comparison.json of an earlier comparison, whose ideal and reference point are used; default:
    #: from the compared points
    reference: str | None = None
    #: CSV file of the reference front of IGD+ and epsilons; default: the best points of all runs
    true_front: str | None = None
    allow_mixed: bool = False  #: True: compare runs on different data, splits or image sizes, too
    #: number of bootstrap samples for intervals; 0: no intervals
    n_bootstrap: int = bounded("[0, 100_000]", 1000)
    seed: int = bounded(SEED, 0)  #: seed of the bootstrap
    study: StoredStudyConfig = field(default_factory=StoredStudyConfig)
    run: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.paths:
            raise ConfigError(
                "compare needs folders of searches or CSV files: write hwnas compare RUN RUN, or a "
                "pattern as runs='runs/search/*'."
            )
        if self.figures not in (None, "searched", "verified"):
            raise ConfigError(unknown_name("figures", str(self.figures), ("searched", "verified")))
        if self.n_bootstrap and self.n_bootstrap < 100:
            raise ConfigError(f"n_bootstrap must be 0 or at least 100, got {self.n_bootstrap}.")

    @property
    def paths(self) -> list[str]:
        """The paths and patterns in ``runs``, a text or a list; empty if it is not given."""
        return _texts(self.runs)


# Options of verbs that plan deployments: ``plan``, ``simulate``, ``replan``, ``serve-check``.


@dataclass
class PlanConfig:
    """Options of ``hwnas plan``."""

    service: str = ""  #: service.yaml: models, request classes, failures to survive, budgets
    fleet: str = ""  #: fleet.yaml: devices, network links, carbon intensities
    objective: str = "cost"  #: minimised quantity: cost, carbon or energy
    #: time of hour 0, as 2026-01-31T14:00 (UTC); daily plans use its time of day, weekly plans also
    #: its weekday; default: 0:00 UTC, on Mondays
    begin: str | None = None
    #: time limit of the first solution in seconds; corrections by simulation take extra time
    limit_s: float = bounded("[1, 86_400]", 120.0)
    #: number of alternative plans to try, each with a tighter limit on carbon, accuracy or latency;
    #: 0: none
    front: int = bounded("[0, 100]", 9)
    front_s: float = bounded("[1, 86_400]", 60.0)  #: time limit of all alternative plans in seconds
    n_seeds: int = bounded("[1, 100]", 4)  #: number of simulations per hour
    seed: int = bounded(SEED, 0)  #: seed of the first simulation
    run: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        from hwnas.fleet import fleet_file, service_file  # imported here: other verbs have no plan

        check_bounds(self)
        if not self.service or not self.fleet:
            raise ConfigError(
                "plan needs service=FILE (requests and requirements) and fleet=FILE (devices). "
                f"Examples: {service_file.EXAMPLE} and {fleet_file.EXAMPLE}"
            )
        if self.objective not in service_file.OBJECTIVES:
            raise ConfigError(unknown_name("objective", self.objective, service_file.OBJECTIVES))


@dataclass
class SimulateConfig:
    """Options of ``hwnas simulate``."""

    plan: str = ""  #: folder of a plan
    #: CSV file of arrival times, replayed for all classes; default: as in the plan
    trace: str | None = None
    #: devices that fail after a third of each hour, one or a list: one machine of a device, one
    #: more each time that it is repeated, or spot: all spot machines; default: none
    kill: Any = None
    #: DEVICE:SPEED, thermal throttling after a third of each hour, as cpu:0.5; default: none
    throttle: str | None = None
    hours: Any = None  #: hours to simulate; default: one of each group of equal hours
    load: float = bounded("(0, 1000]", 1.0)  #: factor of the demand
    #: True: simulate the peak demand (demand.spike of service.yaml), in hours that have one
    spike: bool = False
    #: seconds until requests of a failed machine are sent again
    detect_s: float = bounded("[0, 3600]", 0.5)
    n_seeds: int = bounded("[1, 1000]", 5)  #: number of simulations per hour
    seed: int = bounded(SEED, 0)  #: seed of the first simulation
    run: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.plan:
            raise ConfigError("simulate needs the folder of a plan: write hwnas simulate PLAN.")

    @property
    def kills(self) -> list[str]:
        """The failing devices in ``kill``, a text or a list; empty if it is not given."""
        return _texts(self.kill)


@dataclass
class QueryConfig:
    """Prometheus queries in PromQL."""

    #: requests per second that a cache does not answer; the series must have a label class
    rate: str = "sum by (class) (rate(requests_total[5m]))"
    #: fraction of late requests; the series must have a label class; default: not queried
    late: str | None = None
    #: p99 latency in ms; the series must have a label class; default: not queried
    p99_ms: str | None = None
    #: number of failed machines; the series must have a label device; default: not queried
    down: str | None = None
    window_h: float = bounded("(0, 8760]", 24.0)  #: number of hours until now that are queried
    step_s: float = bounded("[1, 86_400]", 300.0)  #: seconds between samples
    timeout_s: float = bounded("(0, 3600]", 10.0)  #: time limit of each query in seconds


@dataclass
class ReplanConfig:
    """Options of ``hwnas replan``."""

    plan: str = ""  #: folder of a plan
    telemetry: str = ""  #: CSV file, or URL of a Prometheus server
    service: str | None = None  #: changed service.yaml; default: that of the plan
    fleet: str | None = None  #: changed fleet.yaml; default: that of the plan
    #: penalty for each replica that is started or stopped in an hour, and for each loaded model;
    #: unit: the cost of one replica for one hour
    move_cost: float = bounded("[0, 1000]", 0.2)
    #: maximum fraction of an hour's replicas that may be stopped
    max_moved_fraction: float = bounded("[0, 1]", 0.2)
    tolerance: float = bounded("[0, 1]", 0.05)  #: relative change of demand that is ignored
    extrapolate: bool = True  #: True: scale unobserved hours like the observed ones
    #: time of hour 0, as 2026-01-31T14:00 (UTC); default: as in the plan
    begin: str | None = None
    query: QueryConfig = field(default_factory=QueryConfig)
    in_place: bool = False  #: True: the new plan replaces the old one in its folder
    #: time limit of a solution in seconds, without corrections
    limit_s: float = bounded("[1, 86_400]", 30.0)
    n_seeds: int = bounded("[1, 100]", 4)  #: number of simulations per hour
    seed: int = bounded(SEED, 0)  #: seed of the first simulation
    run: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        check_bounds(self.query, "query.")
        if not self.plan or not self.telemetry:
            raise ConfigError(
                "replan needs the folder of a plan and observed requests: write hwnas replan PLAN "
                "TELEMETRY, a CSV file or the URL of a Prometheus server."
            )
        if self.in_place and self.run.dir:
            raise ConfigError(
                f"in_place=true writes into the folder of the plan, so run.dir={self.run.dir} has "
                "no effect: leave one of them out."
            )


@dataclass
class ServeCheckConfig:
    """Options of ``hwnas serve-check``."""

    plan: str = ""  #: folder of a plan
    #: pools to check, by their folders in deploy/triton/models of the plan; one or a list; default:
    #: one of each combination of model, batch size and wait
    pool: Any = None
    server: str = "auto"  #: triton, or auto: the one that is installed
    python: str = ""  #: Python interpreter of the server; default: that of hwnas
    #: loads as fractions of the server's capacity
    loads: list[float] = field(
        default_factory=lambda: [0.3, 0.6, 0.8, 0.9], metadata=limits("(0, 0.99]")
    )
    seconds: float = bounded("[0.5, 3600]", 10.0)  #: duration of each measurement in seconds
    repeats: int = bounded("[2, 100]", 3)  #: number of measurements per load, for the intervals
    #: allowed slowdown of the machine before, between and after measurements, as a fraction
    drift: float = bounded("(0, 1)", 0.05)
    retries: int = bounded("[0, 100]", 3)  #: maximum repetitions of a measurement with more drift
    seed: int = bounded(SEED, 0)  #: seed of the request times
    run: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.plan:
            raise ConfigError("serve-check needs a plan: write hwnas serve-check FOLDER.")
        if not self.loads:
            raise ConfigError("loads=[] is empty: give one or more fractions, as loads=[0.3,0.6].")

    @property
    def pools(self) -> list[str]:
        """The names of pools in ``pool``, a text or a list; empty if it is not given."""
        return _texts(self.pool)
