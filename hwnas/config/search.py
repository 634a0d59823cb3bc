"""What ``search`` accepts, in a space or in a benchmark table."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from hwnas import backends, metrics, tasks
from hwnas.accuracy.options import ScoringConfig, TrainedConfig
from hwnas.bounds import SEED, check, within
from hwnas.budget import Budget
from hwnas.config.common import RunConfig, spaces_of
from hwnas.errors import ConfigError, unknown
from hwnas.finishing.options import FinishConfig
from hwnas.latency_table import TableConfig
from hwnas.metrics.deriving import Deriving, check_facts, deriving
from hwnas.runtimes.options import TuningConfig
from hwnas.searching.options import SamplerConfig, StudyConfig
from hwnas.tabular_options import BenchmarkConfig
from hwnas.target import Remote, Target
from hwnas.timing import TimingConfig
from hwnas.training.config import TrainingConfig
from hwnas.training.dataset import DatasetConfig

EVALUATORS = ("trained", "supernet")

_WHY = "at a tenth of a second a trial, so many take more than a day"
MOST = 3  #: objectives of ``sampler=pareto``


def too_many(n: int, metric: str, n_targets: int = 1) -> str:
    """Return why ``sampler=pareto`` refuses so many objectives."""
    fewer = f"name fewer with objectives=[{metric},latency_ms], or " * (1 + n_targets <= MOST)
    each = " (costs count on each target)" * (n_targets > 1)
    return (
        f"sampler=pareto takes at most {MOST} objectives, got {n}{each}: {fewer}take sampler=nsga2."
    )


@dataclass
class LinkConfig:
    """The way from other targets to one, where cascades go on."""

    to: str | None = None  #: the target of this search that it leads to
    latency_ms: float = within("[0, 1e9]", 0.0)  #: there and back, of an image and its answer
    usd_per_m: float = within("[0, 1e9]", 0.0)  #: price of a million images on the way

    def __post_init__(self) -> None:
        check(self, "link.")
        if self.to is None and (self.latency_ms or self.usd_per_m):
            raise ConfigError("link.latency_ms and link.usd_per_m need link.to=TARGET.")


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
    link: LinkConfig = field(default_factory=LinkConfig)
    #: what says it: trained (each candidate alone), supernet, or table (a benchmark's); default:
    #: trained where an epoch has at most 100 million pixels, else supernet
    accuracy: str | None = None
    cost: str | None = None  #: what says the costs; default: what suits the target's runtime
    search_space: Any = None  #: one or a list; default: those that suit the target
    #: the task's metric and costs; default: the metric, latency and energy
    objectives: list[str] = field(default_factory=list)
    n_trials: int = within("[1, 1_000_000]", 100, _WHY)
    minutes: float | None = within("(0, 525_600]", None)  #: after which no other trial is begun
    seed: int = within(SEED, 0)
    #: a run whose candidates come first: what it trained alone costs nothing again
    start_from: str | None = None
    baseline: str | None = None  #: a finished run, or a CSV file, that the front is held against

    def __post_init__(self) -> None:
        check(self)
        if self.accuracy not in (None, *EVALUATORS):
            raise ConfigError(unknown("accuracy", str(self.accuracy), (*EVALUATORS, "table")))
        self.cost = checked_cost(self.cost, self.target)
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
        if self.sampler.name == "pareto" and len(self.objectives) > MOST:
            raise ConfigError(too_many(len(self.objectives), metric))

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
        return spaces_of(self.search_space, self.target)

    @property
    def searched(self) -> str:
        """What is searched, in words."""
        return " + ".join(self.spaces)


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
    """Refuse threads that take power, and of which the roofline knows nothing."""
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
    """What ``python -m hwnas search accuracy=table`` accepts."""

    table: BenchmarkConfig = field(default_factory=BenchmarkConfig)
    budget: dict[str, Any] = field(default_factory=dict)  #: limits by metric, and a ``name``
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    study: StudyConfig = field(default_factory=StudyConfig)
    run: RunConfig = field(default_factory=RunConfig)
    accuracy: str = "table"
    cost: str = "table"
    n_trials: int = within("[1, 1_000_000]", 200, _WHY)
    minutes: float | None = within("(0, 525_600]", None)  #: after which no other trial is begun
    seed: int = within(SEED, 0)

    def __post_init__(self) -> None:
        check(self)
        if self.cost != "table":
            raise ConfigError(f"cost={self.cost}: with accuracy=table costs come from the table.")
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
