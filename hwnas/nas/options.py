"""The options ``sampler.*`` and ``study.*``."""

from dataclasses import asdict, dataclass
from typing import Any

from hwnas.core import database
from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.options import bounded, check_bounds

SAMPLERS = ("gp", "nsga2", "pareto", "random", "tpe")
NAME = "hwnas"  #: default name of the study


@dataclass
class SamplerConfig:
    """The sampler and its options."""

    name: str = "pareto"  #: name of the sampler: pareto, nsga2, tpe, gp or random
    population_size: int = bounded("[2, 10_000]", 50)  #: candidates per generation of nsga2
    #: number of trials before the model of pareto, tpe and gp is used
    n_startup_trials: int = bounded("[1, 1_000_000]", 20)

    def __post_init__(self) -> None:
        if self.name not in SAMPLERS:
            raise ConfigError(unknown_name("sampler", self.name, SAMPLERS))
        check_bounds(self, "sampler.")

    def fingerprint_options(self) -> dict[str, Any]:
        """Return the options that enter digests of runs, with the empty one of a removed option."""
        return {**asdict(self), "features": []}


@dataclass
class StudyConfig:
    """The storage of the study, and the number of processes."""

    storage: str | None = None  #: URL of a database shared by workers: postgresql://USER@HOST/NAME
    name: str = NAME  #: name of the study in that database
    #: processes of this command; default: one, or one per core if candidates are trained alone
    workers: int | None = bounded("[1, 1024]", None)
    #: seconds without a heartbeat after which the trial of a worker is queued again
    heartbeat_timeout_s: int = bounded("[1, 604_800]", 60)
    #: seconds of retries while the database does not answer
    reconnect_timeout_s: int = bounded("[0, 604_800]", 60)

    def __post_init__(self) -> None:
        check_bounds(self, "study.")
        if self.storage is not None:
            self.storage = database.check_storage_url(self.storage)
