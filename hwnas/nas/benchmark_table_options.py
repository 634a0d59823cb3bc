"""The benchmark table and its columns: options ``benchmark.*``."""

from dataclasses import dataclass, field

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.options import check_bounds, limits
from hwnas.tasks import metrics


@dataclass
class BenchmarkConfig:
    """A table that replaces training and measuring."""

    path: str = ""  #: a Parquet or CSV file
    genotype: list[str] = field(default_factory=list)  #: columns of the choices
    accuracy: str = "accuracy"  #: column of the accuracy, a fraction or per cent
    costs: dict[str, str] = field(default_factory=dict)  #: columns of costs: {latency_ms: COLUMN}
    partial: bool = False  #: treat missing combinations of options as infeasible
    #: reference point of the hypervolume; default: the worst value of each column
    reference: dict[str, float] = field(default_factory=dict, metadata=limits("[-1e12, 1e12]"))

    def __post_init__(self) -> None:
        check_bounds(self, "benchmark.")

    def check(self) -> None:
        """Reject missing options and unknown names.

        Raises:
            ConfigError: an option is missing or unknown.
        """
        if not self.path or not self.genotype or not self.costs:
            raise ConfigError(
                "A benchmark table needs benchmark.path=FILE, benchmark.genotype=[COLUMN,...], "
                "benchmark.accuracy=COLUMN and benchmark.costs={latency_ms: COLUMN}."
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
