"""Options of ``verify`` and ``split``; separate from others, because they need no torch."""

from dataclasses import dataclass, field

from hwnas.core.errors import ConfigError
from hwnas.core.options import bounded, check_bounds, limits
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.timing import TimingConfig


@dataclass
class VerifyConfig:
    """Options of ``hwnas verify``."""

    export: str = ""  #: folder of an export
    #: file of a public key (Ed25519, PEM) that the signature must match; default: not checked
    key: str | None = None
    data: str | None = None  #: path of the data set on this machine; default: as in the proof
    #: target on which costs are measured or estimated again; default: costs are not repeated
    target: Target | None = None
    timing: TimingConfig = field(default_factory=TimingConfig)  #: options of time measurements
    rpc: Remote = field(default_factory=Remote)  #: connection to a device in the network
    #: time limit of one measurement in seconds
    limit_s: float = bounded("(0, 86_400]", 120.0)

    def __post_init__(self) -> None:
        if not self.export:
            raise ConfigError("verify needs the folder of an export: write hwnas verify DIR.")
        check_bounds(self)


@dataclass
class SplitConfig:
    """Options of ``hwnas split``."""

    export: str = ""  #: folder of an export
    #: targets on which the parts are timed, several as [A,B]; default: that of the export
    target: Target | None = None
    #: maximum number of splits; each divides the network at another place into two parts
    cuts: int = bounded("[1, 100]", 4)
    #: batch sizes to time, in images per inference
    batches: list[int] = field(default_factory=lambda: [1, 2, 4, 8], metadata=limits("[1, 256]"))
    dir: str | None = None  #: output folder; default: runs/split/<time>
    timing: TimingConfig = field(default_factory=TimingConfig)
    rpc: Remote = field(default_factory=Remote)
    #: time limit of one measurement in seconds
    limit_s: float = bounded("(0, 86_400]", 120.0)

    def __post_init__(self) -> None:
        if not self.export:
            raise ConfigError("split needs the folder of an export: write hwnas split DIR.")
        check_bounds(self)
        if not self.batches:
            raise ConfigError("batches=[] is empty: give one or more batch sizes, as batches=[1].")
