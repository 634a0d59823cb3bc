"""What each verb accepts: the Hydra schemas. Most are the domain types themselves."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from omegaconf import MISSING

from hwnas import backends, metrics, tasks
from hwnas.accuracy.options import MIN_NETWORKS, ScoringConfig, TrainedConfig
from hwnas.budget import Budget
from hwnas.errors import ConfigError, unknown
from hwnas.export.options import VerifyConfig as VerifyConfig
from hwnas.finishing.options import FinishConfig, FinishingConfig
from hwnas.latency_table import TableConfig
from hwnas.metrics.deriving import Deriving, check_facts, deriving
from hwnas.profiling.options import NetworksConfig
from hwnas.runtimes.options import TuningConfig
from hwnas.searching.options import SamplerConfig, StudyConfig
from hwnas.tabular_options import BenchmarkConfig
from hwnas.target import Remote, Target
from hwnas.timing import TimingConfig
from hwnas.training.config import TrainingConfig
from hwnas.training.dataset import DatasetConfig
from hwnas.union import named

EVALUATORS = ("trained", "supernet")


@dataclass
class RunConfig:
    """Where a run keeps its files."""

    dir: str | None = None  #: default: runs/<verb>/<time>
    resume: str | None = None  #: a run folder to continue
    supernets: str = "runs/supernets"  #: trained supernets, shared by runs


@dataclass
class SearchConfig:
    """What ``python -m hwnas search`` accepts."""

    target: Target = MISSING
    budget: dict[str, Any] = field(default_factory=dict)  #: limits by metric, and a ``name``
    dataset: DatasetConfig = MISSING
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    study: StudyConfig = field(default_factory=StudyConfig)
    train: TrainingConfig = field(default_factory=TrainingConfig)
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    run: RunConfig = field(default_factory=RunConfig)
    table: TableConfig = field(default_factory=TableConfig)
    timing: TimingConfig = field(default_factory=TimingConfig)
    tuning: TuningConfig = field(default_factory=TuningConfig)
    rpc: Remote = field(default_factory=Remote)
    trained: TrainedConfig = field(default_factory=TrainedConfig)
    finish: FinishConfig = field(default_factory=FinishConfig)
    #: what says it: trained (each candidate alone), supernet, or table (a benchmark's); default:
    #: trained where an epoch has at most 100 million pixels, else supernet
    accuracy: str | None = None
    cost: str | None = None  #: what says the costs; default: what suits the target's runtime
    search_space: Any = None  #: one or a list; default: those that suit the target
    #: the task's metric and costs; default: the metric, latency and energy
    objectives: list[str] = field(default_factory=list)
    n_trials: int = 100
    minutes: float | None = None  #: after which no other trial is begun
    seed: int = 0
    #: a run whose candidates come first: what it trained alone costs nothing again
    start_from: str | None = None
    baseline: str | None = None  #: a finished run, or a CSV file, that the front is held against

    def __post_init__(self) -> None:
        if self.accuracy not in (None, *EVALUATORS):
            raise ConfigError(unknown("accuracy", str(self.accuracy), (*EVALUATORS, "table")))
        self.cost = checked_cost(self.cost, self.target)
        if self.minutes is not None and not self.minutes > 0:
            raise ConfigError(f"minutes must be above 0, got {self.minutes}.")
        if self.cost == "measured" and (self.study.workers or 1) > 1:
            raise ConfigError(
                f"study.workers={self.study.workers}: with cost=measured, processes of one machine "
                "would disturb each other's measurements; start one on each machine instead."
            )
        metric = tasks.get(self.dataset.task).metric
        self.objectives = self.objectives or [metric, "latency_ms", "energy_mj"]
        allowed = (metric, *metrics.costs())
        for name in self.objectives:
            if name not in allowed:
                raise ConfigError(unknown("objective", name, allowed))
        check_facts(self.target, self.objectives, "objectives")
        check_facts(self.target, self.allowed.limits, "budget")
        if metric not in self.objectives or len(self.objectives) < 2:
            raise ConfigError(f"objectives must name '{metric}' and at least one cost.")
        if len(set(self.objectives)) < len(self.objectives):
            raise ConfigError(f"objectives must be different, got {self.objectives}.")
        if self.n_trials < 1:
            raise ConfigError(f"n_trials must be at least 1, got {self.n_trials}.")
        if self.sampler.name == "pareto" and len(self.objectives) > _MOST:
            raise ConfigError(_too_many(len(self.objectives)))

    @property
    def allowed(self) -> Budget:
        """The budget.

        Raises:
            ConfigError: a limit is of no metric, is not a number or not positive.
        """
        return Budget.of(self.budget)

    @property
    def derives(self) -> Deriving:
        """What is derived from costs, beside what cost models say."""
        return deriving(self.target, [*self.objectives, *self.allowed.limits])

    @property
    def metric(self) -> str:
        """The objective that says how well networks answer."""
        return metrics.quality(self.objectives)

    @property
    def spaces(self) -> list[str]:
        """The names and paths of the search spaces: one, or several that are searched at once."""
        return _spaces(self.search_space, self.target)

    @property
    def searched(self) -> str:
        """What is searched, in words."""
        return " + ".join(self.spaces)


_SPACE = "mbconv_small"  # where neither the user nor the target names one


def _spaces(search_space: object, target: Target) -> list[str]:
    return named(target.spaces or _SPACE if search_space is None else search_space)


_MOST = 3  # objectives of sampler=pareto


def _too_many(n: int) -> str:
    return (
        f"sampler=pareto takes at most {_MOST} objectives, got {n}: name fewer with "
        "objectives=[accuracy,latency_ms], or take sampler=nsga2."
    )


#: What may differ between the targets of one search.
_OWN = (
    "target", "budget", "cost", "objectives", "table", "timing", "tuning", "rpc", "baseline",
)  # fmt: skip


def check_common(configs: Sequence[object]) -> None:
    """Refuse several targets where one search cannot serve them.

    Raises:
        ConfigError: it says why.
    """
    checked = [config for config in configs if isinstance(config, SearchConfig)]
    if len(checked) < len(configs):
        raise ConfigError("Only 'search' takes several targets; give others one at a time.")
    first, *others = checked
    for f in fields(SearchConfig):
        if f.name not in _OWN and any(getattr(c, f.name) != getattr(first, f.name) for c in others):
            raise ConfigError(
                f"{f.name} is the same for all targets of a search: write {f.name} without a "
                f"target's name before it. Of their own, targets have: {', '.join(_OWN)}."
            )
    if len({config.target.name for config in checked}) < len(checked):
        raise ConfigError("Targets of one search must have different names (target.name).")
    n = 1 + sum(len(config.objectives) - 1 for config in checked)
    if first.sampler.name == "pareto" and n > _MOST:
        raise ConfigError(_too_many(n))


def agreed(configs: Sequence[SearchConfig]) -> list[SearchConfig]:
    """Return the configurations of a search's targets with one ``search_space``, spelt out.

    It is what was given, else all spaces that suit one of the targets, each once.

    Raises:
        SpaceError: two spaces have the same name.
    """
    names = named(list(dict.fromkeys(name for config in configs for name in config.spaces)))
    only = names[0] if len(names) == 1 else names
    return [replace(config, search_space=only) for config in configs]


@dataclass
class TabularConfig:
    """What ``python -m hwnas search accuracy=table`` accepts."""

    table: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    budget: dict[str, Any] = field(default_factory=dict)  #: limits by metric, and a ``name``
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    study: StudyConfig = field(default_factory=StudyConfig)
    run: RunConfig = field(default_factory=RunConfig)
    accuracy: str = "table"
    cost: str = "table"
    n_trials: int = 200
    minutes: float | None = None  #: after which no other trial is begun
    seed: int = 0

    def __post_init__(self) -> None:
        if self.cost != "table":
            raise ConfigError(f"cost={self.cost}: with accuracy=table costs come from the table.")
        if self.n_trials < 1:
            raise ConfigError(f"n_trials must be at least 1, got {self.n_trials}.")
        if self.sampler.features:
            raise ConfigError(
                f"sampler.features={self.sampler.features}: with accuracy=table there are no "
                "networks to read them from."
            )
        self.table.check()
        for name in self.allowed.limits:
            if name not in self.table.costs:
                raise ConfigError(f"budget.{name}: table.costs has no such cost.")

    @property
    def allowed(self) -> Budget:
        """The budget.

        Raises:
            ConfigError: a limit is of no metric, is not a number or not positive.
        """
        return Budget.of(self.budget)


def checked_cost(cost: str | None, target: Target) -> str:
    """Return the name of the cost model; refuse one that does not suit the target."""
    allowed = backends.get(target.runtime).costs
    if cost is not None and cost not in allowed:
        raise ConfigError(
            f"{unknown('cost', cost, allowed)} (target '{target.name}' has "
            f"target.runtime={target.runtime})"
        )
    if cost == "roofline" and target.roofline is None:
        raise ConfigError(f"cost=roofline: target '{target.name}' has no target.roofline.")
    return cost or allowed[0]


@dataclass
class ProfileConfig:
    """What ``python -m hwnas profile`` accepts."""

    target: Target = MISSING
    dataset: DatasetConfig = MISSING
    train: TrainingConfig = field(default_factory=TrainingConfig)  #: set by data sets, not read
    table: TableConfig = field(default_factory=TableConfig)
    timing: TimingConfig = field(default_factory=TimingConfig)
    tuning: TuningConfig = field(default_factory=TuningConfig)
    networks: NetworksConfig = field(default_factory=NetworksConfig)
    rpc: Remote = field(default_factory=Remote)
    search_space: Any = None  #: one or a list; default: those that suit the target
    genotype: str | None = None  #: show where the time of one network goes, instead
    transfer_from: str | None = None  #: a target whose table stands in, instead of tuning all
    n_samples: int = 30  #: networks that are measured to transfer a table
    seed: int = 0

    def __post_init__(self) -> None:
        if self.genotype is None and not backends.get(self.target.runtime).measured:
            raise ConfigError(
                f"Target '{self.target.name}' needs no latency table: "
                f"target.runtime={self.target.runtime} estimates every network whole."
            )
        if self.n_samples < 10:
            raise ConfigError(f"n_samples must be at least 10, got {self.n_samples}.")
        for name in ("genotype", "transfer_from"):
            if getattr(self, name) is not None and len(self.spaces) > 1:
                raise ConfigError(f"profile {name}=... takes one search space{_not(self.spaces)}")

    @property
    def spaces(self) -> list[str]:
        """The names and paths of the search spaces whose networks are profiled."""
        return _spaces(self.search_space, self.target)


def _not(spaces: Sequence[str]) -> str:
    return f", not {len(spaces)}: say search_space={spaces[0]}."


@dataclass
class TrainConfig:
    """What ``python -m hwnas train`` accepts."""

    dataset: DatasetConfig = MISSING
    train: TrainingConfig = field(default_factory=TrainingConfig)
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    run: RunConfig = field(default_factory=RunConfig)
    search_space: Any = _SPACE
    #: one network alone instead of the supernet: smallest, largest, random, an id or JSON
    genotype: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.train.from_supernet and self.genotype is None:
            raise ConfigError(
                "train.from_supernet=true is for one network: name it with genotype=..., for "
                "example genotype=largest."
            )
        if len(spaces := named(self.search_space)) > 1:
            raise ConfigError(f"train takes one search space at a time{_not(spaces)}")


@dataclass
class AuditConfig:
    """What ``python -m hwnas audit`` accepts."""

    run: str = ""  #: the folder of a search
    k: int = 12  #: networks that are trained alone: half of the front, half of the whole space
    n_repeated: int = 3  #: of them are trained with a second seed, to know the noise
    epochs: int | None = None  #: of each network alone; default: those of the supernet
    seed: int = 0  #: of the choice of networks, and of their training
    workers: int = 1  #: processes that train networks, one each

    def __post_init__(self) -> None:
        if not self.run:
            raise ConfigError("audit needs run=DIR, the folder of a finished search.")
        if self.k < MIN_NETWORKS:
            raise ConfigError(f"k must be at least {MIN_NETWORKS} networks, got {self.k}.")
        if not 0 <= self.n_repeated <= self.k:
            raise ConfigError(f"n_repeated must lie between 0 and k={self.k}.")
        if self.epochs is not None and self.epochs < 1:
            raise ConfigError(f"epochs must be at least 1, got {self.epochs}.")
        if self.workers < 1:
            raise ConfigError(f"workers must be at least 1, got {self.workers}.")


@dataclass
class WhyConfig:
    """What ``python -m hwnas why`` accepts."""

    run: str = ""  #: the folder of a search
    id: str = ""  #: of a candidate, or how it begins; or ``front``

    def __post_init__(self) -> None:
        if not self.run or not self.id:
            raise ConfigError(
                "why needs run=DIR, the folder of a search, and id=GENOTYPE, of one of its "
                "candidates; id=front lists the front."
            )


@dataclass
class ExportConfig:
    """What ``python -m hwnas export`` accepts."""

    run: str = ""  #: the folder of a search
    #: knee, most_accurate, fastest, smallest, all, an id or how it begins, or an expression
    pick: str = "knee"
    id: str = ""  #: of a candidate, or how it begins; the same as pick=ID
    only: str | None = None  #: of a search for several targets: one of them; default: all
    dir: str | None = None  #: where folders are made; default: runs/export/<time>
    #: of each training: fine-tuning, after pruning, for int8; 0: none; default: as the search
    #: finished its networks, which costs no training of those
    epochs: int | None = None
    alpha: float | None = None  #: share of the loss on what a teacher answers; default: likewise
    prune: float = 0.0  #: fraction of the channels that is taken out; 0: none
    #: points that int8 may lose; trained for it if more; default: likewise
    max_int8_drop: float | None = None
    license: str = "unknown"  #: of the model, as Hugging Face names it: apache-2.0, mit, ...

    def __post_init__(self) -> None:
        if not self.run:
            raise ConfigError("export needs run=DIR, the folder of a finished search.")
        if self.id and self.pick != "knee":
            raise ConfigError("pick and id both say what is exported: give one of them.")
        _ = self.finishing(FinishingConfig())

    def finishing(self, searched: FinishingConfig) -> FinishingConfig:
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
class OutputConfig:
    """Where a comparison is written."""

    dir: str | None = None  #: default: runs/compare/<time>


@dataclass
class CompareConfig:
    """What ``python -m hwnas compare`` accepts."""

    runs: Any = None  #: folders of searches, CSV files, or patterns of them; one or a list
    #: max or min each; default: those of the runs
    objectives: dict[str, str] = field(default_factory=dict)
    group_by: str | None = None  #: a key of the runs' configurations: sampler, target, train.epochs
    figures: Any = None  #: searched or verified; default: verified where all runs have them
    reference: str | None = None  #: comparison.json of an earlier comparison, whose frame is used
    true_front: str | None = None  #: a CSV file of points that IGD+ and epsilons refer to
    allow_mixed: bool = False  #: compare runs on different data or splits
    recost: bool = False  #: cost each front on the targets of the others
    n_bootstrap: int = 1000  #: how often values are drawn for intervals; 0: no intervals
    seed: int = 0  #: of what is drawn
    run: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        if not self.paths:
            raise ConfigError(
                "compare needs runs='[DIR,...]', folders of searches or CSV files, or a pattern "
                "such as runs='runs/search/*'."
            )
        if self.figures not in (None, "searched", "verified"):
            raise ConfigError(unknown("figures", str(self.figures), ("searched", "verified")))
        if self.n_bootstrap and self.n_bootstrap < 100:
            raise ConfigError(f"n_bootstrap must be 0 or at least 100, got {self.n_bootstrap}.")

    @property
    def paths(self) -> list[str]:
        """What is named in ``runs``."""
        named = self.runs if isinstance(self.runs, list) else [self.runs]
        return [str(name) for name in named if name not in (None, "")]


SCHEMAS: dict[str, type] = {
    "search": SearchConfig,
    "train": TrainConfig,
    "profile": ProfileConfig,
    "tabular": TabularConfig,  # search accuracy=table
    "why": WhyConfig,
    "audit": AuditConfig,
    "compare": CompareConfig,
    "export": ExportConfig,
    "verify": VerifyConfig,
}


def register() -> None:
    """Make the schemas known to Hydra, for ``defaults: [<verb>_schema]``."""
    from hydra.core.config_store import ConfigStore  # not above: help does without Hydra

    for verb, schema in SCHEMAS.items():
        ConfigStore.instance().store(name=f"{verb}_schema", node=schema)
