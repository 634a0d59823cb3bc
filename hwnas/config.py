"""What each verb accepts: the Hydra schemas. Most are the domain types themselves."""

from dataclasses import dataclass, field

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from hwnas.accuracy.supernet import ScoringConfig
from hwnas.errors import ConfigError, unknown
from hwnas.figure import COLUMNS
from hwnas.search.sampler import SamplerConfig
from hwnas.target import Budget, Target
from hwnas.training.data import DatasetConfig
from hwnas.training.loop import TrainingConfig


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
    budget: Budget = field(default_factory=Budget)
    dataset: DatasetConfig = MISSING
    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    run: RunConfig = field(default_factory=RunConfig)
    search_space: str = "mbconv_small"
    objectives: list[str] = field(default_factory=lambda: ["accuracy", "latency_ms", "energy_mj"])
    n_trials: int = 300
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.objectives:
            if name not in COLUMNS:
                raise ConfigError(unknown("objective", name, COLUMNS))
        if "accuracy" not in self.objectives or len(self.objectives) < 2:
            raise ConfigError("objectives must name 'accuracy' and at least one cost.")
        if len(set(self.objectives)) < len(self.objectives):
            raise ConfigError(f"objectives must be different, got {self.objectives}.")
        if self.n_trials < 1:
            raise ConfigError(f"n_trials must be at least 1, got {self.n_trials}.")


SCHEMAS: dict[str, type] = {"search": SearchConfig}


def register() -> None:
    """Make the schemas known to Hydra, for ``defaults: [<verb>_schema]``."""
    for verb, schema in SCHEMAS.items():
        ConfigStore.instance().store(name=f"{verb}_schema", node=schema)
