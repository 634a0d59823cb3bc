"""Options of ``verify``; apart from others, because it needs no torch."""

from dataclasses import dataclass, field

from hwnas.errors import ConfigError
from hwnas.target import Remote, Target
from hwnas.timing import TimingConfig


@dataclass
class VerifyConfig:
    """What ``python -m hwnas verify`` accepts."""

    export: str = ""  #: the folder of an export
    key: str | None = None  #: a public key (Ed25519, PEM): the export must be signed by its owner
    data: str | None = None  #: where its data set is on this machine; default: as in the proof
    target: Target | None = None  #: a device on which it is measured, too
    timing: TimingConfig = field(default_factory=TimingConfig)
    rpc: Remote = field(default_factory=Remote)
    limit_s: float = 120.0  #: of one measurement; what takes longer is killed

    def __post_init__(self) -> None:
        if not self.export:
            raise ConfigError("verify needs the folder of an export: python -m hwnas verify DIR")
        if self.limit_s <= 0:
            raise ConfigError(f"limit_s must be positive, got {self.limit_s}.")
