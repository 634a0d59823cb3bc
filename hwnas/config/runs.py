"""What verbs accept that read runs: ``audit``, ``why``, ``export`` and ``compare``."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

from hwnas.accuracy.options import MIN_NETWORKS
from hwnas.bounds import SEED, check, limits, within
from hwnas.budget import Budget
from hwnas.errors import ConfigError, unknown
from hwnas.finishing.options import FinishingConfig


@dataclass
class AuditConfig:
    """What ``python -m hwnas audit`` accepts."""

    run: str = ""  #: the folder of a search
    #: networks that are trained alone: half of the front, half of the whole space
    k: int = within(f"[{MIN_NETWORKS}, 10_000]", 12)
    #: of them are trained with a second seed, to know the noise
    n_repeated: int = within("[0, 10_000]", 3)
    #: of each network alone; default: those of the supernet
    epochs: int | None = within("[1, 100_000]", None)
    seed: int = within(SEED, 0)  #: of the choice of networks, and of their training
    workers: int = within("[1, 1024]", 1)  #: processes that train networks, one each

    def __post_init__(self) -> None:
        check(self)
        if not self.run:
            raise ConfigError("audit needs run=DIR, the folder of a finished search.")
        if self.n_repeated > self.k:
            raise ConfigError(f"n_repeated must be at most k={self.k}, got {self.n_repeated}.")


@dataclass
class WhyConfig:
    """What ``python -m hwnas why`` accepts."""

    run: str = ""  #: the folder of a search
    id: str = ""  #: of a candidate, or how it begins; or ``front``

    def __post_init__(self) -> None:
        if not self.run or not self.id:
            raise ConfigError(
                "why needs run=DIR, the folder of a search, and id=GENOTYPE, of one of its "
                "candidates; id=front lists the front."
            )


@dataclass
class DeliveryConfig:
    """What is said of a model that is taken out of a search."""

    run: str = ""  #: the folder of a search
    id: str = ""  #: of a candidate, or how it begins; the same as export's pick=ID; default: knee
    only: str | None = None  #: of a search for several targets: one of them; default: all
    dir: str | None = None  #: where folders are made; default: runs/<verb>/<time>
    #: of each training: fine-tuning (by export), after pruning, for few bits, for int8; 0: none;
    #: default: as the search finished its networks, which costs no training of those
    epochs: int | None = within("[0, 100_000]", None)
    #: share of the loss on what a teacher answers; default: likewise
    alpha: float | None = within("[0, 1]", None)
    #: points that int8 may lose; trained for it if more; default: likewise
    max_int8_drop: float | None = within("[0, 1000]", None)
    #: points that leaving early may lose on validation images, of networks with exits
    max_exit_drop: float = within("[0, 100]", 0.3)
    sign: str | None = None  #: a private key (Ed25519, PEM) that signs the proof: see verify key=
    license: str = "unknown"  #: of the model, as Hugging Face names it: apache-2.0, mit, ...


@dataclass
class ExportConfig(DeliveryConfig):
    """What ``python -m hwnas export`` accepts."""

    #: knee, most_accurate, fastest, smallest, all, an id or how it begins, or an expression
    pick: str = "knee"
    prune: float = within("[0, 1)", 0.0)  #: fraction of the channels that is taken out; 0: none

    def __post_init__(self) -> None:
        check(self)
        if not self.run:
            raise ConfigError("export needs run=DIR, the folder of a finished search.")
        if self.id and self.pick != "knee":
            raise ConfigError("pick and id both say what is exported: give one of them.")
        _ = self.finishing(FinishingConfig())

    def finishing(self, searched: FinishingConfig) -> FinishingConfig:
        """Return how weights are finished.

        Args:
            searched: How the search finished those of its networks.

        Raises:
            ConfigError: an option is out of its range.
        """
        names = ("epochs", "alpha", "prune", "max_int8_drop")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(searched, **given)

    @property
    def wanted(self) -> str:
        """What is picked."""
        return self.id or self.pick


@dataclass
class CompressConfig(DeliveryConfig):
    """What ``python -m hwnas compress`` accepts; its ``id`` may be what export's pick takes."""

    budget: dict[str, Any] = field(default_factory=dict)  #: limits by metric, and a ``name``
    #: that weights may have, where the target packs them; []: they stay
    weight_bits: list[int] = field(default_factory=lambda: [3, 4, 5, 6], metadata=limits("[3, 7]"))
    #: fractions of the channels that may be taken out, where bits do not suffice
    prune: list[float] = field(
        default_factory=lambda: [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], metadata=limits("[0, 1)")
    )

    def __post_init__(self) -> None:
        check(self)
        if not self.run:
            raise ConfigError("compress needs run=DIR, the folder of a finished search.")
        if self.epochs == 0:
            raise ConfigError("epochs must be 1 or more: compress trains for what it changes.")
        if not self.allowed.limits:
            raise ConfigError(
                "compress needs limits: budget.latency_ms=NUMBER, budget.flash_kib=NUMBER, ..."
            )
        if not self.weight_bits and not self.prune:
            raise ConfigError("weight_bits=[] and prune=[] leave nothing to be done.")

    @property
    def allowed(self) -> Budget:
        """The budget.

        Raises:
            ConfigError: a limit is of no metric, is not a number or not positive.
        """
        return Budget.of(self.budget)

    @property
    def export(self) -> ExportConfig:
        """How the compressed network is written."""
        given = {f.name: getattr(self, f.name) for f in fields(DeliveryConfig)}
        return ExportConfig(**given | {"epochs": None})  # the search's fine-tuning stays


@dataclass
class OutputConfig:
    """Where a comparison is written."""

    dir: str | None = None  #: default: runs/compare/<time>


@dataclass
class CompareConfig:
    """What ``python -m hwnas compare`` accepts."""

    runs: Any = None  #: folders of searches, CSV files, or patterns of them; one or a list
    #: max or min each; default: those of the runs
    objectives: dict[str, str] = field(default_factory=dict)
    group_by: str | None = None  #: a key of the runs' configurations: sampler, target, train.epochs
    figures: Any = None  #: searched or verified; default: verified where all runs have them
    reference: str | None = None  #: comparison.json of an earlier comparison, whose frame is used
    true_front: str | None = None  #: a CSV file of points that IGD+ and epsilons refer to
    allow_mixed: bool = False  #: compare runs on different data or splits
    recost: bool = False  #: cost each front on the targets of the others
    #: how often values are drawn for intervals; 0: no intervals
    n_bootstrap: int = within("[0, 100_000]", 1000)
    seed: int = within(SEED, 0)  #: of what is drawn
    run: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        check(self)
        if not self.paths:
            raise ConfigError(
                "compare needs runs='[DIR,...]', folders of searches or CSV files, or a pattern "
                "such as runs='runs/search/*'."
            )
        if self.figures not in (None, "searched", "verified"):
            raise ConfigError(unknown("figures", str(self.figures), ("searched", "verified")))
        if self.n_bootstrap and self.n_bootstrap < 100:
            raise ConfigError(f"n_bootstrap must be 0 or at least 100, got {self.n_bootstrap}.")

    @property
    def paths(self) -> list[str]:
        """What is named in ``runs``."""
        named = self.runs if isinstance(self.runs, list) else [self.runs]
        return [str(name) for name in named if name not in (None, "")]
