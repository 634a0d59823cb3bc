"""The schema of targets: facts about a device. Limits are set by budgets."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.options import bounded, check_bounds, limits
from hwnas.core.renamed_options import RENAMED_VALUES
from hwnas.core.schema import validate
from hwnas.hardware import backends
from hwnas.hardware.backends.description import BackendSettings
from hwnas.hardware.energy import EnergyModel, PowerModel

CLASSES = ("edge", "datacenter")
METERS = ("none", "rapl", "nvml", "hwmon")
#: Fields that affect no figure of a network; digests leave them out.
NOT_IN_DIGESTS = ("spaces", "shared_spaces", "weight_sparsity", "batches", "thread_counts")
#: Fields that were added later, with their previous values: digests leave these values out.
_ADDED_LATER: Mapping[str, Mapping[str, object]] = {
    "power": {"per_device": False},
    "roofline": {"threads": 1},
}

#: Earlier names of runtimes and of their sections, which recorded targets may have.
_RENAMED = RENAMED_VALUES["target.runtime"]


@dataclass
class Roofline:
    """Peak rates and memory sizes of a device; see ``costs/roofline_cost.py``."""

    #: 10^9 multiply-accumulates per second, by dtype
    peak_gmacs: dict[str, float] = field(metadata=limits("(0, 1e12]"))
    #: bandwidth between the arithmetic units and on-chip memory, in GB/s
    on_chip_gbps: float = field(metadata=limits("(0, 1e12]"))
    #: bandwidth of off-chip memory, in GB/s
    off_chip_gbps: float = field(metadata=limits("(0, 1e12]"))
    #: on-chip memory for activations between two operators, in KiB
    on_chip_kib: float = field(metadata=limits("(0, 1e12]"))
    #: pixels, output and input channels that the hardware computes at once
    tile: list[int] = field(metadata=limits("[1, 65_536]"))
    #: fraction of the peak rate that depthwise convolutions reach
    depthwise: float = bounded("(0, 1]", 1.0)
    #: 10^9 results scaled or activated per second
    element_gops: float | None = bounded("(0, 1e12]", None)
    weights_stay: bool = False  #: weights that fit stay in on-chip memory between inferences
    launch_us: float = bounded("[0, 1e6]", 0.0)  #: start-up time of each operator, in microseconds
    threads: int = bounded("[1, 1024]", 1)  #: number of threads at which the rates hold

    def __post_init__(self) -> None:
        check_bounds(self, "target.roofline.")
        if not self.peak_gmacs:
            raise ConfigError("target.roofline.peak_gmacs names no dtype: {int8: 512}.")
        if len(self.tile) != 3:
            raise ConfigError(f"target.roofline.tile must be three sizes, got {self.tile}.")


T = TypeVar("T")
S = TypeVar("S")


def _with_sections(cls: type[T]) -> type[T]:
    """Add a section to ``Target`` for each backend with settings.

    The default is ``None``, or the defaults of a ``BackendSettings`` subclass.
    """
    for name, settings in backends.sections().items():
        has_defaults = issubclass(settings, BackendSettings)
        cls.__annotations__[name] = settings if has_defaults else settings | None
        setattr(cls, name, field(default_factory=settings) if has_defaults else None)
    return cls


@dataclass
@_with_sections
class Target:
    """Facts about a device and its compiler.

    In addition to these fields it has a section of settings for each backend that defines one, see
    ``section``.
    """

    name: str  #: name of the target, and of its folders
    description: str  #: one line that names the device
    caveat: str  #: what the figures do not include; repeated in every report
    source: str  #: source of the facts
    device_class: str = "edge"  #: ``edge`` or ``datacenter``
    runtime: str = backends.default()  #: name of the backend
    dtype: str = "int8"  #: dtype of weights and activations
    threads: int = bounded("[1, 1024]", 1)  #: threads of an inference
    #: images per inference; latency and energy are those of the whole batch
    batch: int = bounded("[1, 65_536]", 1)
    meter: str = "none"  #: energy meter: none, rapl, nvml or hwmon
    meter_channel: str = ""  #: index of a GPU, or names of a board's rails
    clock_mhz: float | None = bounded("(0, 1e6]", None)  #: clock frequency in MHz
    #: largest number of multiply-accumulates per clock cycle
    peak_macs_per_cycle: int | None = bounded("[1, 1e9]", None)
    roofline: Roofline | None = None  #: rates and memory sizes for ``cost=roofline``
    energy: EnergyModel | None = None  #: energy of arithmetic and memory accesses
    power: PowerModel | None = None  #: active power, if there is no meter
    #: values that metrics are derived from, such as price_usd_per_h or grid_g_per_kwh
    facts: dict[str, float] = field(default_factory=dict, metadata=limits("(0, 1e12]"))
    spaces: list[str] = field(default_factory=list)  #: default search spaces
    #: default search spaces if the search has targets of other runtimes, too
    shared_spaces: list[str] = field(default_factory=list)
    weight_sparsity: bool = False  #: True if 2:4 sparse weights are faster
    #: batch sizes that each network may choose from; empty: ``batch``
    batches: list[int] = field(default_factory=list, metadata=limits("[1, 65_536]"))
    #: numbers of threads that each network may choose from; empty: ``threads``
    thread_counts: list[int] = field(default_factory=list, metadata=limits("[1, 1024]"))

    def __post_init__(self) -> None:
        where = f"Target '{self.name}'"
        check_name(self.name, "target.name")
        check_bounds(self, "target.")
        if self.runtime in _RENAMED:
            raise ConfigError(
                f"{where}: target.runtime={self.runtime} is now target.runtime="
                f"{_RENAMED[self.runtime]}; its section target.{self.runtime} is now "
                f"target.{_RENAMED[self.runtime]}."
            )
        for name, value, allowed in (
            ("device_class", self.device_class, CLASSES),
            ("runtime", self.runtime, backends.names()),
            ("meter", self.meter, METERS),
        ):
            if value not in allowed:
                raise ConfigError(f"{where}: {unknown_name(name, value, allowed)}")
        self._check_running()
        backend = backends.get(self.runtime)
        if self.dtype not in backend.dtypes:
            raise ConfigError(f"{where}: {unknown_name('dtype', self.dtype, backend.dtypes)}")
        for name in backend.required:
            if getattr(self, name) is None:
                raise ConfigError(f"{where}: target.runtime={self.runtime} needs target.{name}.")

    def _check_running(self) -> None:
        """Refuse batch sizes and numbers of threads that do not suit the device."""
        for name, numbers in (("batches", self.batches), ("thread_counts", self.thread_counts)):
            if len({*numbers}) < len(numbers):
                raise ConfigError(f"target.{name}={numbers}: values must be different.")
        if len(self.thread_counts) == 1:  # its table would be that of ``threads``
            (one,) = self.thread_counts
            raise ConfigError(
                f"target.thread_counts={self.thread_counts} has one value: set target.threads={one}"
            )
        if self.batch > 1 and not backends.get(self.runtime).batched:
            raise ConfigError(
                f"target.batch={self.batch}: target.runtime={self.runtime} runs one image per "
                "inference."
            )
        if self.thread_counts and self.power is not None and self.power.per_device:
            raise ConfigError(
                f"target.thread_counts={self.thread_counts}: the speed and power of target "
                f"'{self.name}' do not depend on threads; remove the option."
            )

    def section(self, settings: type[S]) -> S:
        """Return the settings of the target's backend, which have this type."""
        section = getattr(self, backends.get(self.runtime).name)
        assert isinstance(section, settings)
        return section

    @property
    def running(self) -> Mapping[str, list[int]]:
        """Options of ``families.running`` that each network may choose; empty: none."""
        return {"batch": self.batches, "threads": self.thread_counts}

    @property
    def engine(self) -> str:
        """Runtime and variant that run the networks, such as ``onnxruntime-cuda``."""
        variant = _variant(getattr(self, backends.get(self.runtime).name, None))
        return f"{self.runtime}-{variant}" if variant else self.runtime


def _variant(section: object) -> str:
    return section.variant if isinstance(section, BackendSettings) else ""


def check_name(name: str, option: str) -> None:
    """Refuse a name that cannot be a folder name: tables and runs have a folder per target.

    Raises:
        ConfigError: it names the option and what is allowed.
    """
    if not re.fullmatch(r"[\w][\w .+-]{0,99}", name):
        raise ConfigError(
            f"{option}={name!r} cannot be a folder name: allowed are up to 100 letters, digits, "
            "spaces and _ . + -, starting with a letter or a digit."
        )


def facts(target: Target) -> dict[str, Any]:
    """Return all facts of a device, for records and digests.

    Search spaces are left out. So that digests stay the same, unset values of fields and sections
    that were added later, or belong to other packages, are left out, too.
    """
    unset = {
        name for name in backends.added_after_release() if _is_unset(getattr(target, name, None))
    }
    absent = {*NOT_IN_DIGESTS, *unset} | ({"facts"} if not target.facts else set())
    recorded = {name: value for name, value in asdict(target).items() if name not in absent}
    for name, before in _ADDED_LATER.items():
        if recorded[name] is not None:
            values = recorded[name].items()
            recorded[name] = {k: v for k, v in values if k not in before or v != before[k]}
    return recorded


def _is_unset(section: object) -> bool:
    return section is None or (isinstance(section, BackendSettings) and section.is_default)


def from_facts(recorded: Mapping[str, Any]) -> Target:
    """Return the target of ``facts``, or of a target file.

    Raises:
        SchemaError: it has unknown or missing fields.
        ConfigError: a value is not allowed.
    """
    current = {_RENAMED.get(name, name): value for name, value in recorded.items()}
    runtime = current.get("runtime")
    if runtime in _RENAMED:
        current["runtime"] = _RENAMED[str(runtime)]
    target: Target = validate(Target, current, "target")
    return target


@dataclass
class Remote:
    """How to reach a device on another machine, if the backend supports it."""

    tracker: str = ""  #: ``HOST:PORT`` of the tracker at which devices register
    key: str = ""  #: key under which devices register
    #: seconds to wait for a free device, and time limit of each call on it
    timeout_s: float = bounded("(0, 86_400]", 60.0)
    n_devices: int = bounded("[1, 1000]", 1)  #: number of devices that are used at the same time

    def __post_init__(self) -> None:
        host, _, port = self.tracker.rpartition(":")
        if self.tracker and not (host and port.isdigit()):
            raise ConfigError(f"rpc.tracker must be HOST:PORT, got '{self.tracker}'.")
        if bool(self.tracker) != bool(self.key):
            raise ConfigError("rpc.tracker and rpc.key must be set together.")
        check_bounds(self, "rpc.")
