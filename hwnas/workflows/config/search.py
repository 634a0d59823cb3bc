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
from hwnas.training.options import DatasetConfig, FinishConfig, TrainingConfig

# Options common to several verbs.


@dataclass
class RunConfig:
    """Location of a run's files."""

    dir: str | None = None  #: output folder; default: runs/<verb>/<time>
    resume: str | None = None  #: run folder to continue, with the options recorded in it
    #: folder of trained networks and supernets, shared by runs
    supernets: str = "runs/supernets"

    @property
    def weights(self) -> Path | None:
        """Folder of network weights within the run folder; ``None`` if ``dir`` is not set."""
        return None if self.dir is None else Path(self.dir, WEIGHTS)


SPACE = "mbconv_small"  # if neither the user nor the target names one


def spaces_of(search_space: object, target: Target) -> list[str]:
    """Return the names and paths of the given search spaces, else those of the target.

    If the target has none, it is ``mbconv_small``.
    """
    return space_names(target.spaces or SPACE if search_space is None else search_space)


def not_several(spaces: Sequence[str]) -> str:
    """Return the end of an error message: several search spaces are given, one is allowed."""
    return f", not {len(spaces)}: choose one, as search_space={spaces[0]}."


EVALUATORS = ("trained", "supernet")

_WHY = "at 0.1 s per trial more would take over a day"
MAX_TRIALS = 1_000_000


def trials_within(minutes: float | None) -> int:
    """Return the default of ``n_trials``: 100, or with a time limit ``MAX_TRIALS``."""
    return 100 if minutes is None else MAX_TRIALS


MAX_OBJECTIVES = 3  #: maximum number of objectives of ``sampler=pareto``


def too_many(n: int, metric: str, n_targets: int = 1) -> str:
    """Return the error message for too many objectives of ``sampler=pareto``."""
    fewer = f"name fewer with objectives=[{metric},latency_ms], or " * (
        1 + n_targets <= MAX_OBJECTIVES
    )
    note = " (costs count on each target)" * (n_targets > 1)
    return (
        f"sampler=pareto supports at most {MAX_OBJECTIVES} objectives, got {n}{note}: "
        f"{fewer}use sampler=nsga2."
    )


def fidelities_within(epochs: int) -> list[int]:
    """Return the default of ``trained.fidelities``: none is longer than ``train.epochs``."""
    return [*dict.fromkeys(max(1, min(n, epochs)) for n in TrainedConfig().fidelities)]


@dataclass
class LinkConfig:
    """The network link from the other targets to the one that runs second stages of cascades."""

    to: str | None = None  #: the target of the search that runs second stages; default: no link
    latency_ms: float = bounded("[0, 1e9]", 0.0)  #: round trip of an image in ms
    usd_per_m: float = bounded("[0, 1e9]", 0.0)  #: price of sending a million images in USD

    def __post_init__(self) -> None:
        check_bounds(self, "link.")
        if self.to is None and (self.latency_ms or self.usd_per_m):
            raise ConfigError(
                "link.latency_ms and link.usd_per_m need link.to=TARGET, the target that receives "
                "images: add it, or leave them out."
            )


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
    #: source of accuracies: trained (each candidate separately), supernet or table (of a
    #: benchmark); default: trained for up to 100 million pixel values per epoch, else supernet;
    #: with ``minutes`` a supernet only if its full schedule fits into half of them
    accuracy: str | None = None
    cost: str | None = None  #: cost model; default: that of the target's runtime
    #: search space: a name, a path or a list of them; default: those of the target
    search_space: Any = None
    #: objectives of the front: the task's metric and one or more costs; default: the task's metric,
    #: latency_ms and, for one target, energy_mj
    objectives: list[str] = field(default_factory=list)
    #: number of candidates to propose; with ``minutes`` the default is as many as fit
    n_trials: int = bounded("[1, 1_000_000]", 100, _WHY)
    #: time limit of the whole command in minutes, including time before a resume: preparation,
    #: supernet, search, fine-tuning, verification; default: none
    minutes: float | None = bounded("(0, 525_600]", None)
    seed: int = bounded(SEED, 0)  #: seed of sampling and training
    #: folder of a search whose candidates are tried first; its separately trained networks are
    #: reused
    start_from: str | None = None
    #: folder of a finished search, or a CSV file, with which the front is compared
    baseline: str | None = None

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.accuracy not in (None, *EVALUATORS):
            raise ConfigError(unknown_name("accuracy", str(self.accuracy), (*EVALUATORS, "table")))
        self.cost = checked_cost(self.cost, self.target)
        unused, own = TrainingConfig(), self.train
        for name in ("from_supernet", "fine_tuning_epochs", "tensorboard"):
            if getattr(own, name) != getattr(unused, name):
                raise ConfigError(
                    f"train.{name} has no effect on a search, only on hwnas train: leave it out. "
                    "Members of the front are fine-tuned for finish.epochs."
                )
        if self.cost == "measured" and (self.study.workers or 1) > 1:
            raise ConfigError(
                f"study.workers={self.study.workers}: with cost=measured, processes on one machine "
                "would disturb each other's measurements: set study.workers=1, and start the "
                "search on several machines of one kind instead."
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
            raise ConfigError(
                f"objectives must name exactly one metric ({names}) and at least one cost, got "
                f"{', '.join(self.objectives)}: write objectives=[{metric},latency_ms]."
            )
        if len(set(self.objectives)) < len(self.objectives):
            raise ConfigError(
                f"objectives must be different, got {', '.join(self.objectives)}: name each once."
            )
        if self.sampler.name == "pareto" and len(self.objectives) > MAX_OBJECTIVES:
            raise ConfigError(too_many(len(self.objectives), metric))

    @property
    def allowed(self) -> Budget:
        """The limits in ``budget``.

        Raises:
            ConfigError: a limit has an unknown metric, is not a number or not positive.
        """
        return Budget.of(self.budget)

    @property
    def derives(self) -> DerivedMetrics:
        """Function that adds the derived metrics of ``objectives`` and ``budget`` to costs."""
        return derived_metrics(self.target, [*self.objectives, *self.allowed.limits])

    @property
    def expected_costs(self) -> list[str]:
        """Names of costs expected with early exits, among ``objectives`` and ``budget``."""
        return metrics.expected_costs([*self.objectives, *self.allowed.limits])

    @property
    def metric(self) -> str:
        """The name of the objective that measures prediction quality, as ``accuracy``."""
        return metrics.quality_in(self.objectives)

    @property
    def spaces(self) -> list[str]:
        """The names and paths of the search spaces, which are searched together."""
        return spaces_of(self.search_space, self.target)

    @property
    def searched(self) -> str:
        """The names of the search spaces, joined by `` + ``."""
        return " + ".join(self.spaces)


def checked_cost(cost: str | None, target: Target) -> str:
    """Return the name of the cost model; ``None``: the default of the target's runtime.

    Raises:
        ConfigError: the cost model is unknown, was renamed, or does not support the target; or it
            is ``roofline``, and the target has no roofline or one for another number of threads.
    """
    if (new := RENAMED_VALUES["cost"].get(str(cost))) is not None:
        raise ConfigError(f"cost={cost} was renamed: write cost={new}.")
    allowed = backends.get(target.runtime).costs
    if cost is not None and cost not in allowed:
        raise ConfigError(
            f"{unknown_name('cost', cost, allowed)} (target '{target.name}' has "
            f"target.runtime={target.runtime})"
        )
    if cost == "roofline" and target.roofline is None:
        raise ConfigError(
            f"cost=roofline: target '{target.name}' has no target.roofline: add its peak rates and "
            "bandwidths to the target file (example: conf/target/sketch.yaml)."
        )
    model = cost or allowed[0]
    if model == "roofline" and target.thread_counts:
        raise ConfigError(
            "cost=roofline: a roofline is for one number of threads; leave out "
            f"target.thread_counts={target.thread_counts}."
        )
    if model == "roofline":
        _check_threads(target)
    return model


def _check_threads(target: Target) -> None:
    """Reject threads with a power draw if costs come from the roofline, which ignores threads."""
    roofline, power = target.roofline, target.power
    of_cores = target.energy is None and power is not None and not power.per_device
    if of_cores and roofline is not None and roofline.threads != target.threads:
        raise ConfigError(
            f"cost=roofline: the rates in target.roofline are for threads={roofline.threads}, but "
            f"target.threads={target.threads}: give the rates for {target.threads} threads, and "
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
            raise ConfigError(
                f"cost={self.cost}: with accuracy=table costs come from the table, too: leave cost "
                "out."
            )
        self.benchmark.check()
        for name in self.allowed.limits:
            if name not in self.benchmark.costs:
                raise ConfigError(
                    f"budget.{name}: benchmark.costs has no such cost: add its column there, or "
                    f"limit one of {', '.join(self.benchmark.costs)}."
                )

    @property
    def allowed(self) -> Budget:
        """The limits in ``budget``.

        Raises:
            ConfigError: a limit has an unknown metric, is not a number or not positive.
        """
        return Budget.of(self.budget)


# One search for several targets: options that must be equal.

#: Options that may differ between the targets of a search.
_PER_TARGET = (
    "target", "budget", "cost", "objectives", "table", "timing", "tuning", "rpc", "baseline",
)  # fmt: skip


def check_common(configs: Sequence[object]) -> None:
    """Check that the configurations of several targets can be one search.

    Raises:
        ConfigError: the verb supports one target only, a common option differs, two targets have
            the same name, or there are too many objectives.
    """
    checked = [config for config in configs if isinstance(config, SearchConfig)]
    if len(checked) < len(configs):
        raise ConfigError(
            "Only the verbs search and split support several targets: give one, as +target=NAME."
        )
    first, *others = checked
    for f in fields(SearchConfig):
        if f.name not in _PER_TARGET and any(
            getattr(c, f.name) != getattr(first, f.name) for c in others
        ):
            raise ConfigError(
                f"{f.name} must be the same for all targets of a search: write {f.name} without "
                f"the name of a target before it. Different values are possible for: "
                f"{', '.join(_PER_TARGET)}."
            )
    if len({config.target.name for config in checked}) < len(checked):
        raise ConfigError(
            "Targets of one search must have different names: change target.name in one of the "
            "target files."
        )
    n = 1 + sum(len(config.objectives) - 1 for config in checked)
    if first.sampler.name == "pareto" and n > MAX_OBJECTIVES:
        raise ConfigError(too_many(n, first.metric, len(checked)))


def check_link(configs: Sequence[SearchConfig]) -> None:
    """Check that ``link.to`` is one of the targets of a search.

    Raises:
        ConfigError: it is not, or there is only one target.
    """
    to, names = configs[0].link.to, [config.target.name for config in configs]
    if to is None or (to in names and len(names) > 1):
        return
    if len(names) > 1:
        raise ConfigError(f"link.to: {unknown_name('target', to, names)}")
    raise ConfigError(
        f"link.to={to}: a link leads from one target of a search to another, but the only target "
        f"is {names[0]}. Search for two or more, as +target=[A,B], or leave out link.to."
    )


def with_common_spaces(configs: Sequence[SearchConfig]) -> list[SearchConfig]:
    """Return the configurations of a search's targets, all with the same ``search_space``.

    These are the given spaces, else the default spaces of all targets, without duplicates; with
    different runtimes those that the targets can share.

    Raises:
        SpaceError: two spaces have the same name.
    """
    if len({config.target.runtime for config in configs}) > 1:
        configs = [_with_shared_spaces(config) for config in configs]
    names = space_names(list(dict.fromkeys(name for config in configs for name in config.spaces)))
    only = names[0] if len(names) == 1 else names
    return [replace(config, search_space=only) for config in configs]


def _with_shared_spaces(config: SearchConfig) -> SearchConfig:
    shared = config.target.shared_spaces
    if not shared or config.search_space is not None:
        return config
    return replace(config, search_space=shared)
