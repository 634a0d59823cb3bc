"""Options of ``search``, in a search space or in a benchmark table."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from hwnas import tasks
from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.options import SEED, bounded, check_bounds
from hwnas.core.renamed_options import RENAMED_VALUES
from hwnas.core.run_folder import WEIGHTS
from hwnas.hardware import backends
from hwnas.hardware.derived_metrics import DerivedMetrics, check_facts, derived_metrics
from hwnas.hardware.latency_tables.latency_table import TableConfig
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.timing import TimingConfig, TuningConfig
from hwnas.models.spaces.union import space_names
from hwnas.nas.options import BenchmarkConfig, SamplerConfig, StudyConfig
from hwnas.tasks import metrics
from hwnas.tasks.metrics.budget import Budget
from hwnas.training.evaluation.interfaces import ScoringConfig, TrainedConfig
from hwnas.training.finetuning.finetuning_options import FinishConfig
from hwnas.training.options import DatasetConfig, TrainingConfig

# Options common to several verbs.


@dataclass
class RunConfig:
    """Location of a run's files."""

    dir: str | None = None  #: output folder; default: runs/<verb>/<time>
    resume: str | None = None  #: a run folder to continue with its own options
    #: folder of trained networks and supernets, shared by runs
    supernets: str = "runs/supernets"

    @property
    def weights(self) -> Path | None:
        """The folder in the run that keeps the weights of its networks, if the run has a folder."""
        return None if self.dir is None else Path(self.dir, WEIGHTS)


SPACE = "mbconv_small"  # if neither the user nor the target names one


def spaces_of(search_space: object, target: Target) -> list[str]:
    """Return the given search spaces, else those of the target."""
    return space_names(target.spaces or SPACE if search_space is None else search_space)


def not_several(spaces: Sequence[str]) -> str:
    """Return the end of an error message if only one search space is allowed."""
    return f", not {len(spaces)}: say search_space={spaces[0]}."


EVALUATORS = ("trained", "supernet")

_WHY = "at a tenth of a second a trial, so many take more than a day"
MAX_TRIALS = 1_000_000


def trials_within(minutes: float | None) -> int:
    """Return the default of ``n_trials``: with a time limit, as many as fit."""
    return 100 if minutes is None else MAX_TRIALS


MAX_OBJECTIVES = 3  #: maximum number of objectives of ``sampler=pareto``


def too_many(n: int, metric: str, n_targets: int = 1) -> str:
    """Return the error message for too many objectives of ``sampler=pareto``."""
    fewer = f"name fewer with objectives=[{metric},latency_ms], or " * (
        1 + n_targets <= MAX_OBJECTIVES
    )
    each = " (costs count on each target)" * (n_targets > 1)
    return (
        f"sampler=pareto takes at most {MAX_OBJECTIVES} objectives, got {n}{each}: "
        f"{fewer}take sampler=nsga2."
    )


@dataclass
class LinkConfig:
    """The network link from other targets to one that continues cascades."""

    to: str | None = None  #: the target of this search at the end of the link
    latency_ms: float = bounded("[0, 1e9]", 0.0)  #: round trip of an image, in milliseconds
    usd_per_m: float = bounded("[0, 1e9]", 0.0)  #: price of a million images, in USD

    def __post_init__(self) -> None:
        check_bounds(self, "link.")
        if self.to is None and (self.latency_ms or self.usd_per_m):
            raise ConfigError("link.latency_ms and link.usd_per_m need link.to=TARGET.")


@dataclass
class SearchConfig:
    """Options of ``hwnas search``."""

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
    link: LinkConfig = field(default_factory=LinkConfig)
    #: source of accuracies: trained (each candidate alone), supernet or table (of a
    #: benchmark); default: trained if an epoch has at most 100 million pixels, else supernet; with
    #: ``minutes`` a supernet only if its full schedule fits into half of them
    accuracy: str | None = None
    cost: str | None = None  #: cost model; default: that of the target's runtime
    #: search space: a name, a path or a list of them; default: those of the target
    search_space: Any = None
    #: metrics that the front trades: the task's metric and costs; default: the task's metric,
    #: latency_ms and energy_mj
    objectives: list[str] = field(default_factory=list)
    #: candidates to propose; with ``minutes`` the default is as many as fit
    n_trials: int = bounded("[1, 1_000_000]", 100, _WHY)
    #: time limit of the whole command in minutes, over all resumes: preparation, supernet,
    #: search, fine-tuning, verification
    minutes: float | None = bounded("(0, 525_600]", None)
    seed: int = bounded(SEED, 0)  #: seed of sampling and training
    #: a run whose candidates are tried first; its separately trained networks are reused
    start_from: str | None = None
    baseline: str | None = None  #: a finished run, or a CSV file, to compare the front with

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.accuracy not in (None, *EVALUATORS):
            raise ConfigError(unknown_name("accuracy", str(self.accuracy), (*EVALUATORS, "table")))
        self.cost = checked_cost(self.cost, self.target)
        if self.cost == "measured" and (self.study.workers or 1) > 1:
            raise ConfigError(
                f"study.workers={self.study.workers}: with cost=measured, processes of one machine "
                "would disturb each other's measurements; start one on each machine instead."
            )
        of_task = tasks.get(self.dataset.task).metrics
        metric = next((name for name in self.objectives if name in of_task), of_task[0])
        self.objectives = self.objectives or [metric, "latency_ms", "energy_mj"]
        allowed = (*of_task, *metrics.cost_names())
        for name in self.objectives:
            if name not in allowed:
                raise ConfigError(unknown_name("objective", name, allowed))
        check_facts(self.target, self.objectives, "objectives")
        check_facts(self.target, self.allowed.limits, "budget")
        n_costs = sum(name not in of_task for name in self.objectives)
        if not n_costs or n_costs != len(self.objectives) - 1:
            names = " or ".join(f"'{name}'" for name in of_task)
            raise ConfigError(f"objectives must name {names}, and at least one cost.")
        if len(set(self.objectives)) < len(self.objectives):
            raise ConfigError(f"objectives must be different, got {self.objectives}.")
        if self.sampler.name == "pareto" and len(self.objectives) > MAX_OBJECTIVES:
            raise ConfigError(too_many(len(self.objectives), metric))

    @property
    def allowed(self) -> Budget:
        """The budget.

        Raises:
            ConfigError: a limit has an unknown metric, is not a number or not positive.
        """
        return Budget.of(self.budget)

    @property
    def derives(self) -> DerivedMetrics:
        """The metrics derived from costs."""
        return derived_metrics(self.target, [*self.objectives, *self.allowed.limits])

    @property
    def metric(self) -> str:
        """The objective that measures prediction quality."""
        return metrics.quality_in(self.objectives)

    @property
    def spaces(self) -> list[str]:
        """The names and paths of the search spaces: one, or several that are searched together."""
        return spaces_of(self.search_space, self.target)

    @property
    def searched(self) -> str:
        """The searched spaces as text."""
        return " + ".join(self.spaces)


def checked_cost(cost: str | None, target: Target) -> str:
    """Return the name of the cost model; reject one that does not support the target."""
    if (new := RENAMED_VALUES["cost"].get(str(cost))) is not None:
        raise ConfigError(f"cost={cost} is now cost={new}.")
    allowed = backends.get(target.runtime).costs
    if cost is not None and cost not in allowed:
        raise ConfigError(
            f"{unknown_name('cost', cost, allowed)} (target '{target.name}' has "
            f"target.runtime={target.runtime})"
        )
    if cost == "roofline" and target.roofline is None:
        raise ConfigError(f"cost=roofline: target '{target.name}' has no target.roofline.")
    found = cost or allowed[0]
    if found == "roofline" and target.thread_counts:
        raise ConfigError(
            "cost=roofline: a roofline is of one number of threads; leave "
            f"target.thread_counts={target.thread_counts} out."
        )
    if found == "roofline":
        _check_threads(target)
    return found


def _check_threads(target: Target) -> None:
    """Reject threads with a power draw if costs come from the roofline, which ignores threads."""
    roofline, power = target.roofline, target.power
    of_cores = target.energy is None and power is not None and not power.per_device
    if of_cores and roofline is not None and roofline.threads != target.threads:
        raise ConfigError(
            f"cost=roofline: rates of target.roofline are of threads={roofline.threads}, not of "
            f"target.threads={target.threads}: state those, and "
            f"target.roofline.threads={target.threads}."
        )


@dataclass
class TabularConfig:
    """Options of ``hwnas search accuracy=table``."""

    benchmark: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    budget: dict[str, Any] = field(default_factory=dict)  #: limits by metric, and a ``name``
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    study: StudyConfig = field(default_factory=StudyConfig)
    run: RunConfig = field(default_factory=RunConfig)
    accuracy: str = "table"  #: source of accuracies: table
    cost: str = "table"  #: source of costs: table
    n_trials: int = bounded("[1, 1_000_000]", 200, _WHY)  #: candidates to propose
    #: time limit of the search in minutes, over all resumes: no trial starts later
    minutes: float | None = bounded("(0, 525_600]", None)
    seed: int = bounded(SEED, 0)  #: seed of sampling

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.cost != "table":
            raise ConfigError(f"cost={self.cost}: with accuracy=table costs come from the table.")
        self.benchmark.check()
        for name in self.allowed.limits:
            if name not in self.benchmark.costs:
                raise ConfigError(f"budget.{name}: benchmark.costs has no such cost.")

    @property
    def allowed(self) -> Budget:
        """The budget.

        Raises:
            ConfigError: a limit has an unknown metric, is not a number or not positive.
        """
        return Budget.of(self.budget)


# One search for several targets: options that must be equal.

#: Options that may differ between the targets of a search.
_OWN = (
    "target", "budget", "cost", "objectives", "table", "timing", "tuning", "rpc", "baseline",
)  # fmt: skip


def check_common(configs: Sequence[object]) -> None:
    """Reject options of several targets that one search cannot support.

    Raises:
        ConfigError: an option differs or is not supported.
    """
    checked = [config for config in configs if isinstance(config, SearchConfig)]
    if len(checked) < len(configs):
        raise ConfigError(
            "Only 'search' and 'split' take several targets; give others one at a time."
        )
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
    if first.sampler.name == "pareto" and n > MAX_OBJECTIVES:
        raise ConfigError(too_many(n, first.metric, len(checked)))


def check_link(configs: Sequence[SearchConfig]) -> None:
    """Reject a link to an unknown target.

    Raises:
        ConfigError: the message names the known targets.
    """
    to, names = configs[0].link.to, [config.target.name for config in configs]
    if to is not None and (to not in names or len(names) < 2):
        raise ConfigError(
            f"link.to={to}: a link leads from one target of a search to another; this one's: "
            f"{', '.join(names)}. Search for both: +target=[A,B]."
        )


def agreed(configs: Sequence[SearchConfig]) -> list[SearchConfig]:
    """Return the configurations of a search's targets with the same explicit ``search_space``.

    These are the given spaces, else all default spaces of the targets, without duplicates. With
    different runtimes, the default spaces of other targets are included, too.

    Raises:
        SpaceError: two spaces have the same name.
    """
    if len({config.target.runtime for config in configs}) > 1:
        configs = [_sharing(config) for config in configs]
    names = space_names(list(dict.fromkeys(name for config in configs for name in config.spaces)))
    only = names[0] if len(names) == 1 else names
    return [replace(config, search_space=only) for config in configs]


def _sharing(config: SearchConfig) -> SearchConfig:
    shared = config.target.shared_spaces
    if not shared or config.search_space is not None:
        return config
    return replace(config, search_space=shared)
