"""The section ``tvm`` of a target."""

from dataclasses import dataclass, field

from hwnas.errors import ConfigError, unknown


@dataclass
class Tvm:
    """What TVM compiles for."""

    kind: str = "llvm"  #: there are no schedules for GPUs
    mcpu: str = "host"  #: as LLVM names it; ``host`` asks LLVM which this is
    mtriple: str = ""  #: of another machine; empty: this one's
    mattr: list[str] = field(default_factory=list)  #: features beyond those of ``mcpu``
    cc: str = ""  #: compiler that links libraries for the target; empty: this machine's

    def __post_init__(self) -> None:
        if self.kind != "llvm":
            raise ConfigError(f"target.tvm.kind: {unknown('kind', self.kind, ['llvm'])}")
