"""Options of ``verify``; apart from others, because it needs no torch."""

from dataclasses import dataclass, field

from hwnas.bounds import check, within
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
    #: of one measurement; what takes longer is killed
    limit_s: float = within("(0, 86_400]", 120.0)

    def __post_init__(self) -> None:
        if not self.export:
            raise ConfigError("verify needs the folder of an export: python -m hwnas verify DIR")
        check(self)
