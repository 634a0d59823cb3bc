"""The options ``sampler.*`` and ``study.*``."""

from dataclasses import asdict, dataclass, field
from typing import Any

from hwnas.core import database
from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.options import bounded, check_bounds, limits
from hwnas.tasks import metrics

SAMPLERS = ("gp", "nsga2", "pareto", "random", "tpe")
NAME = "hwnas"  #: default name of the study


@dataclass
class SamplerConfig:
    """The sampler and its options."""

    name: str = "pareto"  #: name of the sampler: pareto, nsga2, tpe, gp or random
    population_size: int = bounded("[2, 10_000]", 50)  #: candidates per generation of nsga2
    #: number of trials before the model of pareto, tpe and gp is used; default: 10 for pareto, 20
    #: for tpe and gp
    n_startup_trials: int = bounded("[1, 1_000_000]", 20)

    def __post_init__(self) -> None:
        if self.name not in SAMPLERS:
            raise ConfigError(unknown_name("sampler", self.name, SAMPLERS))
        check_bounds(self, "sampler.")

    def fingerprint_options(self) -> dict[str, Any]:
        """Return the options for digests of searches, by name, with the removed ``features``."""
        return {**asdict(self), "features": []}


@dataclass
class StudyConfig:
    """The storage of the study, and the number of processes."""

    storage: str | None = None  #: URL of a database shared by workers: postgresql://USER@HOST/NAME
    name: str = NAME  #: name of the study in that database
    #: processes of this command; default: one, or one per core if candidates are trained alone and
    #: costs are not measured; for fine-tuning, one per core
    workers: int | None = bounded("[1, 1024]", None)
    #: seconds without a heartbeat after which the trial of a worker is queued again
    heartbeat_timeout_s: int = bounded("[1, 604_800]", 60)
    #: seconds of retries while the database does not answer
    reconnect_timeout_s: int = bounded("[0, 604_800]", 60)

    def __post_init__(self) -> None:
        check_bounds(self, "study.")
        if self.storage is not None:
            self.storage = database.check_storage_url(self.storage)


@dataclass
class BenchmarkConfig:
    """Options of a benchmark table, which replaces training and measuring."""

    path: str = ""  #: a Parquet or CSV file
    genotype: list[str] = field(default_factory=list)  #: columns of the choices
    accuracy: str = "accuracy"  #: column of the accuracy, a fraction or per cent
    costs: dict[str, str] = field(default_factory=dict)  #: columns of costs: {latency_ms: COLUMN}
    partial: bool = False  #: treat missing combinations of options as infeasible
    #: reference point of the hypervolume, by name of the objective; default: the worst values
    reference: dict[str, float] = field(default_factory=dict, metadata=limits("[-1e12, 1e12]"))

    def __post_init__(self) -> None:
        check_bounds(self, "benchmark.")

    def check(self) -> None:
        """Check that the required options are set, and the names of costs.

        Raises:
            ConfigError: ``path``, ``genotype`` or ``costs`` is empty, or ``costs`` or
                ``reference`` has an unknown name.
        """
        missing = [name for name in ("path", "genotype", "costs") if not getattr(self, name)]
        if missing:
            raise ConfigError(
                f"benchmark.{missing[0]} is empty. A benchmark table needs benchmark.path=FILE, "
                "benchmark.genotype=[COLUMN,...] and benchmark.costs={latency_ms: COLUMN}, and "
                "benchmark.accuracy=COLUMN unless that column is named accuracy."
            )
        for name in self.costs:
            if name not in metrics.cost_names():
                raise ConfigError(
                    unknown_name("cost in benchmark.costs", name, metrics.cost_names())
                )
        for name in self.reference:
            if name not in ("accuracy", *self.costs):
                allowed = ("accuracy", *self.costs)
                raise ConfigError(unknown_name("objective in benchmark.reference", name, allowed))
