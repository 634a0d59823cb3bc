"""Options of verbs that train or measure networks: ``profile`` and ``train``."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from hwnas.core.errors import ConfigError
from hwnas.core.options import SEED, bounded, check_bounds
from hwnas.hardware import backends
from hwnas.hardware.latency_tables.latency_table import TableConfig
from hwnas.hardware.target import Remote, Target, check_name
from hwnas.hardware.timing import NetworksConfig, TimingConfig, TuningConfig
from hwnas.models.spaces.union import space_names
from hwnas.training.evaluation.interfaces import ScoringConfig, TrainedConfig
from hwnas.training.options import DatasetConfig, TrainingConfig
from hwnas.workflows.config.search import SPACE, RunConfig, not_several, spaces_of


@dataclass
class ProfileConfig:
    """Options of ``hwnas profile``."""

    target: Target = MISSING
    dataset: DatasetConfig = MISSING
    train: TrainingConfig = field(default_factory=TrainingConfig)  #: set by data sets, not read
    trained: TrainedConfig = field(default_factory=TrainedConfig)  #: the same
    table: TableConfig = field(default_factory=TableConfig)
    timing: TimingConfig = field(default_factory=TimingConfig)
    tuning: TuningConfig = field(default_factory=TuningConfig)
    networks: NetworksConfig = field(default_factory=NetworksConfig)
    rpc: Remote = field(default_factory=Remote)
    #: search space: a name, a path or a list of them; default: those of the target
    search_space: Any = None
    #: one network whose latency is shown by operator: an id, JSON, smallest, largest, random, or
    #: an ONNX file
    genotype: str | None = None
    transfer_from: str | None = None  #: a target whose table is scaled, instead of tuning
    n_samples: int = bounded("[10, 10_000]", 30)  #: networks measured to transfer a table
    kit: str | None = None  #: folder to write, with networks to measure on the device
    n: int = bounded("[4, 400]", 20)  #: number of networks of a kit
    front_of: str | None = None  #: a search for whose front a kit is most informative
    measured: Any = None  #: CSV files with measurements of kits or your own, one or a list
    #: maximum difference between passes of a network, and between sentinel readings
    drift: float = bounded("(0, 1)", 0.03)
    seed: int = bounded(SEED, 0)  #: seed of the choice of networks
    #: fraction of networks whose prediction error must be within ``tolerance``
    coverage: float = bounded("(0, 1)", 0.95)
    #: relative error: stop as soon as ``coverage`` of the networks left out of the fit are
    #: predicted within it; starts from the table of another CPU if there is one
    tolerance: float | None = bounded("(0, 1)", None)

    def __post_init__(self) -> None:
        check_bounds(self)
        self._check_offline()
        here = self.genotype is not None or self.kit is not None or self.measured is not None
        if not here and not backends.get(self.target.runtime).measured:
            raise ConfigError(
                f"Target '{self.target.name}' needs no latency table: "
                f"target.runtime={self.target.runtime} estimates every network whole."
            )
        if self.transfer_from is not None and self.tolerance is not None:
            raise ConfigError("transfer_from and tolerance are two ways: give one of them.")
        if self.transfer_from is not None:
            check_name(self.transfer_from, "transfer_from")
        for name in ("genotype", "transfer_from", "tolerance"):
            if getattr(self, name) is not None and len(self.spaces) > 1:
                raise ConfigError(
                    f"profile {name}=... takes one search space{not_several(self.spaces)}"
                )

    @property
    def is_offline(self) -> bool:
        """Whether the device is not connected."""
        return self.kit is not None or self.measured is not None

    def _check_offline(self) -> None:
        name, kits = self.target.name, backends.get(self.target.runtime).is_offline
        if self.is_offline and not kits:
            raise ConfigError(
                f"kit and measured are for devices that are not connected: target '{name}' has "
                f"target.runtime={self.target.runtime}."
            )
        if kits and not self.is_offline and self.genotype is None:
            raise ConfigError(
                f"Target '{name}' is not connected: write a kit with kit=DIR n=20, measure it "
                "there, and say measured=results.csv."
            )
        if kits and self.table.dir != TableConfig().dir:
            raise ConfigError(
                f"table.dir={self.table.dir} has no effect: target '{name}' has no latency table. "
                "Name the file of its measurements with target.offline.file=FILE.json."
            )
        if self.measured is not None and not self.measured:
            raise ConfigError("measured names no file: measured=results.csv, or [A.csv,B.csv].")
        if self.kit is not None and self.measured is not None:
            raise ConfigError("kit and measured are two steps: give one of them.")
        if self.front_of is not None and self.kit is None:
            raise ConfigError("front_of=RUN chooses the networks of a kit: add kit=DIR.")

    @property
    def spaces(self) -> list[str]:
        """The names and paths of the search spaces to profile."""
        return spaces_of(self.search_space, self.target)


@dataclass
class TrainConfig:
    """Options of ``hwnas train``."""

    dataset: DatasetConfig = MISSING
    train: TrainingConfig = field(default_factory=TrainingConfig)
    trained: TrainedConfig = field(default_factory=TrainedConfig)  #: set by data sets, not read
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    run: RunConfig = field(default_factory=RunConfig)
    search_space: Any = SPACE  #: search space: a name or a path
    #: one network alone instead of the supernet: smallest, largest, random, an id or JSON
    genotype: str | None = None
    seed: int = bounded(SEED, 0)  #: seed of training

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.train.from_supernet and self.genotype is None:
            raise ConfigError(
                "train.from_supernet=true is for one network: name it with genotype=..., for "
                "example genotype=largest."
            )
        if len(spaces := space_names(self.search_space)) > 1:
            raise ConfigError(f"train takes one search space at a time{not_several(spaces)}")
