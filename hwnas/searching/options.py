"""Who proposes candidates, and where trials are kept: the options ``sampler.*`` and ``study.*``."""

from dataclasses import dataclass, field

from hwnas import database
from hwnas.accuracy.options import FEATURES
from hwnas.errors import ConfigError, unknown

SAMPLERS = ("gp", "nsga2", "pareto", "random", "tpe")
NAME = "hwnas"  #: of the study in a file


@dataclass
class SamplerConfig:
    """Which sampler proposes candidates."""

    name: str = "pareto"
    population_size: int = 50  #: of nsga2
    n_startup_trials: int = 20  #: trials before the model of pareto, tpe and gp
    #: what pareto reads of untrained candidates: params, macs, synflow, naswot
    features: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.name not in SAMPLERS:
            raise ConfigError(unknown("sampler", self.name, SAMPLERS))
        if self.population_size < 2 or self.n_startup_trials < 1:
            raise ConfigError(
                "sampler.population_size must be at least 2, n_startup_trials at least 1."
            )
        for name in self.features:
            if name not in FEATURES:
                raise ConfigError(unknown("feature in sampler.features", name, FEATURES))
        if self.features and self.name != "pareto":
            raise ConfigError(
                f"sampler.features={self.features}: only sampler=pareto reads features, not "
                f"sampler={self.name}."
            )
        if len(set(self.features)) < len(self.features):
            raise ConfigError(f"sampler.features must be different, got {self.features}.")


@dataclass
class StudyConfig:
    """Where the study is kept, and how many processes work on it."""

    storage: str | None = None  #: a database that workers share: postgresql://USER@HOST/NAME
    name: str = NAME  #: of the study in that database
    #: processes of this command; default: one, or one a core where candidates are trained alone
    workers: int | None = None
    grace_s: int = 60  #: a worker without a sign of life for so long is dead; its trial is retried
    patience_s: int = 60  #: how long a database that does not answer is waited for

    def __post_init__(self) -> None:
        if (self.workers or 1) < 1 or self.workers == 0 or self.grace_s < 1 or self.patience_s < 0:
            raise ConfigError(
                "study.workers and study.grace_s must be at least 1, study.patience_s at least 0."
            )
        if self.storage is not None:
            self.storage = database.checked(self.storage)
