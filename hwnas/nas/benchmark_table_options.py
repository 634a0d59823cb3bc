"""Which benchmark table is searched, and what its columns are: options ``benchmark.*``."""

from dataclasses import dataclass, field

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.options import check_bounds, limits
from hwnas.tasks import metrics


@dataclass
class BenchmarkConfig:
    """A table that answers instead of training and measuring."""

    path: str = ""  #: a Parquet or CSV file
    genotype: list[str] = field(default_factory=list)  #: columns that say which network it is
    accuracy: str = "accuracy"  #: the column of the accuracy, a fraction or per cent
    costs: dict[str, str] = field(default_factory=dict)  #: columns of costs: {latency_ms: COLUMN}
    partial: bool = False  #: combinations of options that are not in it count as infeasible
    #: values beyond which nothing counts towards the hypervolume; default: the table's worst
    reference: dict[str, float] = field(default_factory=dict, metadata=limits("[-1e12, 1e12]"))

    def __post_init__(self) -> None:
        check_bounds(self, "benchmark.")

    def check(self) -> None:
        """Refuse what says too little, or what is not known.

        Raises:
            ConfigError: it says what.
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
