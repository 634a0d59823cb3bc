"""A target is facts about a device, as a Hydra schema; never wishes (see ``hwnas.budget``)."""

from dataclasses import asdict, dataclass, field
from typing import Any

from hwnas.energy import EnergyModel, PowerModel
from hwnas.errors import ConfigError, unknown

CLASSES = ("edge", "datacenter")
#: What compiles or runs a network, with the dtypes that it runs in.
RUNTIMES = {
    "vela": ("int8",),
    "tvm": ("float32",),
    "onnxruntime": ("float32", "int8"),
    "none": ("int8", "float16", "bfloat16", "float32"),  # hardware that does not exist: modelled
}
METERS = ("none", "rapl", "nvml", "hwmon")


@dataclass
class Vela:
    """What Arm's Vela compiles for."""

    accelerator: str
    system_config: str
    memory_mode: str
    config: str = "Arm/vela.ini"  #: shipped with Vela, or a path


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


@dataclass
class Roofline:
    """Rates and sizes from which a latency can be modelled; see ``cost/roofline.py``."""

    peak_gmacs: dict[str, float]  #: billions of multiply-accumulates a second, by dtype
    on_chip_gbps: float  #: between the arithmetic units and on-chip memory
    off_chip_gbps: float
    on_chip_kib: float  #: what stays on chip between two operators
    tile: list[int]  #: pixels, output and input channels that the hardware computes at once
    depthwise: float = 1.0  #: share of the peak that depthwise convolutions can reach
    element_gops: float | None = None  #: billions of results scaled or activated a second
    weights_stay: bool = False  #: a cache keeps weights for the next inference, if they fit
    launch_us: float = 0.0  #: of every operator

    def __post_init__(self) -> None:
        rates = [*self.peak_gmacs.values(), self.on_chip_gbps, self.off_chip_gbps, self.on_chip_kib]
        rates += [] if self.element_gops is None else [self.element_gops]
        if not self.peak_gmacs or min(rates) <= 0:
            raise ConfigError("target.roofline: rates and sizes must be positive.")
        if not 0 < self.depthwise <= 1:
            raise ConfigError(
                f"target.roofline.depthwise must be above 0 and at most 1, got {self.depthwise:g}."
            )
        if len(self.tile) != 3 or min(self.tile) < 1 or self.launch_us < 0:
            raise ConfigError(
                f"target.roofline.tile must be three sizes of at least 1, got {self.tile}."
            )


@dataclass
class Target:
    """Facts about a device and its compiler."""

    name: str
    description: str
    caveat: str  #: what the figures leave out, in the words every report repeats
    source: str  #: where the facts come from
    device_class: str = "edge"  #: or ``datacenter``
    runtime: str = "vela"  #: what runs a network: ``vela``, ``tvm``, ``onnxruntime``
    dtype: str = "int8"  #: in which weights and activations are kept
    threads: int = 1
    batch: int = 1  #: images of one inference; latency and energy are those of the whole batch
    meter: str = "none"  #: what measures energy: see ``meters.py``
    meter_channel: str = ""  #: which of several: a GPU's index, names of a board's rails
    clock_mhz: float | None = None
    peak_macs_per_cycle: int | None = None
    vela: Vela | None = None
    tvm: Tvm | None = None
    roofline: Roofline | None = None
    energy: EnergyModel | None = None  #: energies of arithmetic and accesses
    power: PowerModel | None = None  #: power while it computes, where there is no meter
    #: what metrics are derived with, by name (see ``hwnas.metrics``): a price, a grid's intensity
    facts: dict[str, float] = field(default_factory=dict)
    spaces: list[str] = field(default_factory=list)  #: search spaces that suit it: the default

    def __post_init__(self) -> None:
        where = f"Target '{self.name}'"
        for name, value, allowed in (
            ("device_class", self.device_class, CLASSES),
            ("runtime", self.runtime, RUNTIMES),
            ("dtype", self.dtype, RUNTIMES.get(self.runtime, ())),
            ("meter", self.meter, METERS),
        ):
            if value not in allowed:
                raise ConfigError(f"{where}: {unknown(name, value, allowed)}")
        if self.threads < 1 or self.batch < 1:
            raise ConfigError(f"{where}: threads and batch must be at least 1.")
        for name in ("clock_mhz", "peak_macs_per_cycle"):
            number = getattr(self, name)
            if number is not None and number <= 0:
                raise ConfigError(f"{where}: {name} must be positive, got {number:g}.")
        needs: dict[str, tuple[str, ...]] = {
            "vela": ("vela", "energy", "clock_mhz", "peak_macs_per_cycle"),
            "tvm": ("tvm", "power"),
            "onnxruntime": ("power",),
            "none": ("roofline",),
        }
        for name in needs[self.runtime]:
            if getattr(self, name) is None:
                raise ConfigError(f"{where}: target.runtime={self.runtime} needs target.{name}.")


def facts(target: Target) -> dict[str, Any]:
    """Return all that is known of a device: not which search spaces suit it.

    Facts of metrics are there if there are any: targets of earlier versions had none.
    """
    absent = ("spaces",) if target.facts else ("spaces", "facts")
    return {name: value for name, value in asdict(target).items() if name not in absent}


@dataclass
class Remote:
    """Where a device is reached that is not this machine, by TVM's RPC."""

    tracker: str = ""  #: ``HOST:PORT`` of the tracker at which devices register
    key: str = ""  #: under which they are registered
    timeout_s: float = 60.0  #: of waiting for a device, and of anything asked of it
    n_devices: int = 1  #: devices of that key that are used at once

    def __post_init__(self) -> None:
        host, _, port = self.tracker.rpartition(":")
        if self.tracker and not (host and port.isdigit()):
            raise ConfigError(f"rpc.tracker must be HOST:PORT, got '{self.tracker}'.")
        if bool(self.tracker) != bool(self.key):
            raise ConfigError("rpc.tracker and rpc.key go together: give both or none.")
        if self.timeout_s <= 0 or self.n_devices < 1:
            raise ConfigError("rpc.timeout_s must be positive and rpc.n_devices at least 1.")
