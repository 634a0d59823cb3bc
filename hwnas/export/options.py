"""Options of ``verify`` and ``split``; apart from others, because they need no torch."""

from dataclasses import dataclass, field

from hwnas.core.errors import ConfigError
from hwnas.core.options import bounded, check_bounds, limits
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.timing import TimingConfig


@dataclass
class VerifyConfig:
    """What ``python -m hwnas verify`` accepts."""

    export: str = ""  #: the folder of an export
    key: str | None = None  #: a public key (Ed25519, PEM): the export must be signed by its owner
    data: str | None = None  #: where its data set is on this machine; default: as in the proof
    target: Target | None = None  #: a device on which it is measured, too
    timing: TimingConfig = field(default_factory=TimingConfig)
    rpc: Remote = field(default_factory=Remote)
    #: of one measurement; what takes longer is killed
    limit_s: float = bounded("(0, 86_400]", 120.0)

    def __post_init__(self) -> None:
        if not self.export:
            raise ConfigError("verify needs the folder of an export: python -m hwnas verify DIR")
        check_bounds(self)


@dataclass
class SplitConfig:
    """What ``python -m hwnas split`` accepts."""

    export: str = ""  #: the folder of an export
    target: Target | None = None  #: where parts may run, [A,B]: several; default: the export's own
    cuts: int = bounded("[1, 100]", 4)  #: ways to cut, at most
    #: images of an inference; one alone where a target reads no more
    batches: list[int] = field(default_factory=lambda: [1, 2, 4, 8], metadata=limits("[1, 256]"))
    dir: str | None = None  #: default: runs/split/<time>
    timing: TimingConfig = field(default_factory=TimingConfig)
    rpc: Remote = field(default_factory=Remote)
    #: of one measurement; what takes longer is killed
    limit_s: float = bounded("(0, 86_400]", 120.0)

    def __post_init__(self) -> None:
        if not self.export:
            raise ConfigError("split needs the folder of an export: python -m hwnas split DIR")
        check_bounds(self)
        if not self.batches:
            raise ConfigError("batches=[] leaves nothing to be timed: say batches=[1].")
