"""Options of verbs that train or measure networks: ``profile`` and ``train``."""

from dataclasses import dataclass, field, fields
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

#: Options of ``profile`` that have no effect without another one.
_NEEDED = {
    "n": "kit", "front_of": "kit", "drift": "measured", "n_samples": "transfer_from",
    "coverage": "tolerance",
}  # fmt: skip


@dataclass
class ProfileConfig:
    """Options of ``hwnas profile``."""

    target: Target = MISSING
    dataset: DatasetConfig = MISSING
    #: no effect: profile does not train; files of data sets set it
    train: TrainingConfig = field(default_factory=TrainingConfig)
    #: no effect: profile does not train; files of data sets set it
    trained: TrainedConfig = field(default_factory=TrainedConfig)
    table: TableConfig = field(default_factory=TableConfig)
    timing: TimingConfig = field(default_factory=TimingConfig)
    tuning: TuningConfig = field(default_factory=TuningConfig)
    networks: NetworksConfig = field(default_factory=NetworksConfig)
    rpc: Remote = field(default_factory=Remote)
    #: search space: a name, a path or a list of them; default: those of the target
    search_space: Any = None
    #: one network whose latency is shown by operator: an id, JSON, smallest, largest, random, or
    #: an ONNX file; default: measure a table of all operators of the search space
    genotype: str | None = None
    #: name of a target whose latency table is scaled, instead of measuring all operators; default:
    #: none
    transfer_from: str | None = None
    #: number of networks measured to scale the table of ``transfer_from``
    n_samples: int = bounded("[10, 10_000]", 30)
    #: folder of a kit to write: networks and a script that measures them on a device that is not
    #: connected
    kit: str | None = None
    n: int = bounded("[4, 400]", 20)  #: number of networks of a kit
    #: folder of a search: the kit has the networks whose measurements say most about its front
    front_of: str | None = None
    #: CSV files with measurements of kits or your own, one or a list
    measured: Any = None
    #: maximum relative difference between repeated measurements in a kit: of one network, and of
    #: a constant workload
    drift: float = bounded("(0, 1)", 0.03)
    seed: int = bounded(SEED, 0)  #: seed of the choice of networks
    #: fraction of networks whose prediction error must be within ``tolerance``
    coverage: float = bounded("(0, 1)", 0.95)
    #: stop measuring when the fraction ``coverage`` of networks outside the fit has a relative
    #: prediction error of at most this value; starts from the table of another CPU, if there is
    #: one; default: measure all operators
    tolerance: float | None = bounded("(0, 1)", None)

    def __post_init__(self) -> None:
        check_bounds(self)
        self._check_offline()
        self._check_effects()
        needs_no_table = (
            self.genotype is not None or self.kit is not None or self.measured is not None
        )
        if not needs_no_table and not backends.get(self.target.runtime).measured:
            raise ConfigError(
                f"Target '{self.target.name}' needs no latency table, as "
                f"target.runtime={self.target.runtime} estimates whole networks: search without a "
                "table, or profile one network with genotype=largest."
            )
        if self.transfer_from is not None and self.tolerance is not None:
            raise ConfigError("transfer_from and tolerance cannot be combined: give one of them.")
        if self.transfer_from is not None:
            check_name(self.transfer_from, "transfer_from")
        if self.transfer_from == self.target.name:
            raise ConfigError(
                f"transfer_from={self.transfer_from} is the target itself: name another target, or "
                "leave it out."
            )
        for name in ("genotype", "transfer_from", "tolerance"):
            if getattr(self, name) is not None and len(self.spaces) > 1:
                raise ConfigError(
                    f"profile {name}=... supports one search space{not_several(self.spaces)}"
                )

    def _check_effects(self) -> None:
        """Refuse options that have no effect, with others or without them."""
        for name in ("genotype", "transfer_from", "tolerance"):
            others = ("kit", "measured") + ("genotype",) * (name != "genotype")
            if self._is_given(name) and (given := [*filter(self._is_given, others)]):
                raise ConfigError(
                    f"{name} has no effect with {' and '.join(given)}: leave one of them out."
                )
        for name, needed in _NEEDED.items():
            if self._is_given(name) and not self._is_given(needed):
                raise ConfigError(f"{name} has no effect without {needed}: add that, or remove it.")

    def _is_given(self, name: str) -> bool:
        default = next(f.default for f in fields(self) if f.name == name)
        return bool(getattr(self, name) != default)

    @property
    def is_offline(self) -> bool:
        """Whether ``kit`` or ``measured`` is given, for devices that are not connected."""
        return self.kit is not None or self.measured is not None

    def _check_offline(self) -> None:
        name, kits = self.target.name, backends.get(self.target.runtime).is_offline
        if self.is_offline and not kits:
            raise ConfigError(
                f"kit and measured are for devices that are not connected, but target '{name}' has "
                f"target.runtime={self.target.runtime}: leave them out, or use +target=pixel or a "
                "target file of your own with 'defaults: [pixel]'."
            )
        if kits and not self.is_offline and self.genotype is None:
            raise ConfigError(
                f"Target '{name}' is not connected: write a kit with kit=DIR n=20, run its script "
                "on the device, and give the results to profile by measured=results.csv."
            )
        if kits and self.table.dir != TableConfig().dir:
            raise ConfigError(
                f"table.dir={self.table.dir} has no effect: target '{name}' has no latency table. "
                "Name the file of its measurements with target.offline.file=FILE.json."
            )
        if self.measured is not None and not self.measured:
            raise ConfigError("measured is empty: give measured=results.csv, or [A.csv,B.csv].")
        if self.kit is not None and self.measured is not None:
            raise ConfigError(
                "kit and measured are two steps, before and after measuring: give one of them."
            )

    @property
    def spaces(self) -> list[str]:
        """The names and paths of the search spaces to profile."""
        return spaces_of(self.search_space, self.target)


@dataclass
class TrainConfig:
    """Options of ``hwnas train``."""

    dataset: DatasetConfig = MISSING
    train: TrainingConfig = field(default_factory=TrainingConfig)
    #: no effect: train has its own schedule; files of data sets set it
    trained: TrainedConfig = field(default_factory=TrainedConfig)
    scoring: ScoringConfig = field(default_factory=ScoringConfig)
    run: RunConfig = field(default_factory=RunConfig)
    search_space: Any = SPACE  #: search space: a name or a path
    #: train one network instead of the supernet: smallest, largest, random, an id or JSON
    genotype: str | None = None
    seed: int = bounded(SEED, 0)  #: seed of training

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.train.from_supernet and self.genotype is None:
            raise ConfigError(
                "train.from_supernet=true is for one network: choose it, as genotype=largest."
            )
        given = self.train.fine_tuning_epochs != TrainingConfig().fine_tuning_epochs
        if given and not self.train.from_supernet and self.run.resume is None:
            raise ConfigError(
                "train.fine_tuning_epochs has no effect without train.from_supernet=true: add "
                "that, or set train.epochs."
            )
        if len(spaces := space_names(self.search_space)) > 1:
            raise ConfigError(f"train supports one search space{not_several(spaces)}")
