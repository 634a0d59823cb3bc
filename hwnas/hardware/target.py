"""The schema of targets: facts about a device. Limits are set by budgets."""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from hwnas.core.errors import ConfigError, unknown_name
from hwnas.core.options import bounded, check_bounds, limits
from hwnas.core.quantity import Quantity, from_log_widths
from hwnas.core.renamed_options import RENAMED_VALUES
from hwnas.core.schema import validate
from hwnas.hardware import backends
from hwnas.hardware.backends.description import BackendSettings

#: Factor of the 95 % interval of a power that is modelled from the load. An H200 took 10 to 77 W
#: (median 28) above idle with 12 networks in batches of 64, modelled with 3.6 to 11 W (6.7) by the
#: data sheet, and 2.3 W (0 to 5.7) with one of batch 1, modelled with 2.0 W
#: (experiments/providers).
_LOAD_ERROR = 8.0


@dataclass
class EnergyModel:
    """Energies per multiply-accumulate and per byte of one technology node, in picojoules.

    Dynamic energy of arithmetic and memory accesses only: no leakage, clock tree or CPU.
    """

    technology: str  #: technology node of the figures, such as 28 nm
    source: str  #: publication of the figures
    #: energy of one multiply-accumulate, in picojoules
    mac_pj: float = field(metadata=limits("(0, 1e9]"))
    #: energy of one byte read from or written to SRAM, in picojoules
    sram_pj_per_byte: float = field(metadata=limits("(0, 1e9]"))
    #: energy of one byte of off-chip memory, in picojoules: lower end
    off_chip_pj_per_byte_low: float = field(metadata=limits("(0, 1e9]"))
    #: energy of one byte of off-chip memory, in picojoules: upper end
    off_chip_pj_per_byte_high: float = field(metadata=limits("(0, 1e9]"))

    def __post_init__(self) -> None:
        check_bounds(self, "target.energy.")
        if self.off_chip_pj_per_byte_high < self.off_chip_pj_per_byte_low:
            raise ConfigError(
                "target.energy: off_chip_pj_per_byte_low must be at most "
                f"off_chip_pj_per_byte_high, got {self.off_chip_pj_per_byte_low:g} and "
                f"{self.off_chip_pj_per_byte_high:g}."
            )

    def energy(
        self, n_macs: int, sram_bytes: int, off_chip_bytes: int
    ) -> tuple[Quantity, Mapping[str, float]]:
        """Return the energy in mJ, and its components by name.

        These are ``energy_macs_mj``, ``energy_sram_mj`` and ``energy_off_chip_mj``. The interval
        covers only the range of off-chip energy; the value is at its middle.

        Args:
            n_macs: Number of multiply-accumulates.
            sram_bytes: Bytes read from or written to SRAM.
            off_chip_bytes: Bytes read from or written to off-chip memory.
        """
        pj_to_mj = 1e-9
        low, high = self.off_chip_pj_per_byte_low, self.off_chip_pj_per_byte_high
        components = {
            "energy_macs_mj": n_macs * self.mac_pj * pj_to_mj,
            "energy_sram_mj": sram_bytes * self.sram_pj_per_byte * pj_to_mj,
            "energy_off_chip_mj": off_chip_bytes * (low + high) / 2 * pj_to_mj,
        }
        total = sum(components.values())
        half_width = off_chip_bytes * (high - low) / 2 * pj_to_mj
        return Quantity(total, "modelled", total - half_width, total + half_width), components


@dataclass
class PowerModel:
    """Active power of a device above idle, in watts per busy core or for the whole device.

    For devices without a meter: energy is power times latency.

    For a core, the range is the uncertainty: the power is its geometric mean. For a whole device,
    such as a GPU, the range is from no load to full load, and power is linear in the load.

    Source: linear in the load: Barroso and Hoelzle, "The case for energy-proportional computing",
    IEEE Computer 40(12), 2007.
    """

    #: active power above idle in watts, lower end
    active_w_low: float = field(metadata=limits("(0, 1e6]"))
    #: active power above idle in watts, upper end
    active_w_high: float = field(metadata=limits("(0, 1e6]"))
    source: str  #: source of the power figures
    per_device: bool = False  #: True if the watts are those of the whole device, such as a GPU

    def __post_init__(self) -> None:
        check_bounds(self, "target.power.")
        if self.active_w_low > self.active_w_high:
            raise ConfigError(
                "target.power: active_w_low must be at most active_w_high, got "
                f"{self.active_w_low:g} and {self.active_w_high:g}."
            )

    def energy(
        self, latency: Quantity, threads: int, full_load_ms: float | None = None
    ) -> tuple[Quantity, Mapping[str, float]]:
        """Return the energy above idle in mJ, and ``power_active_w``, the power above idle in W.

        The second is a dict. Errors of power and latency are independent: their relative
        half-widths add in quadrature.

        Args:
            latency: Latency in ms.
            threads: Number of busy cores; not used if the power is that of the device.
            full_load_ms: Time that the work takes at the peak rates of the device, in ms; only used
                for the power of a device. ``None``: the power is the geometric mean of its range.
        """
        busy = 1 if self.per_device else threads
        power = math.sqrt(self.active_w_low * self.active_w_high) * busy
        half = math.log(self.active_w_high / self.active_w_low) / 2
        power_widths = half, half
        if self.per_device and full_load_ms is not None:
            load = min(1.0, full_load_ms / latency.value)
            power = self.active_w_low + (self.active_w_high - self.active_w_low) * load
            error = math.log(_LOAD_ERROR)
            power_widths = error, min(error, math.log(self.active_w_high / power))
        below, above = map(math.hypot, power_widths, latency.log_widths)
        return from_log_widths(latency.value * power, "modelled", below, above), {
            "power_active_w": power
        }


CLASSES = ("edge", "datacenter")  #: allowed values of ``target.device_class``
METERS = ("none", "rapl", "nvml", "hwmon")  #: allowed values of ``target.meter``
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
    """Peak rates and memory sizes of a device, for ``cost=roofline``."""

    #: 10^9 multiply-accumulates per second, by dtype
    peak_gmacs: dict[str, float] = field(metadata=limits("(0, 1e12]"))
    #: bandwidth between the arithmetic units and on-chip memory, in GB/s
    on_chip_gbps: float = field(metadata=limits("(0, 1e12]"))
    #: bandwidth of off-chip memory, in GB/s
    off_chip_gbps: float = field(metadata=limits("(0, 1e12]"))
    #: on-chip memory for activations between two operators, in KiB
    on_chip_kib: float = field(metadata=limits("(0, 1e12]"))
    #: pixels, output channels and input channels that the hardware computes at once
    tile: list[int] = field(metadata=limits("[1, 65_536]"))
    #: fraction of the peak rate that depthwise convolutions reach
    depthwise: float = bounded("(0, 1]", 1.0)
    #: 10^9 elements scaled, added or activated per second; unset: their time is not modelled
    element_gops: float | None = bounded("(0, 1e12]", None)
    #: True if weights that fit beside the activations stay on chip between inferences
    weights_stay: bool = False
    launch_us: float = bounded("[0, 1e6]", 0.0)  #: start-up time of each operator, in microseconds
    threads: int = bounded("[1, 1024]", 1)  #: number of threads for which the rates are given

    def __post_init__(self) -> None:
        check_bounds(self, "target.roofline.")
        if not self.peak_gmacs:
            raise ConfigError(
                "target.roofline.peak_gmacs is empty. Give 10^9 multiply-accumulates per second by "
                "dtype, such as {int8: 512}."
            )
        if len(self.tile) != 3:
            raise ConfigError(
                "target.roofline.tile must be three numbers (pixels, output channels, input "
                f"channels), got {self.tile}."
            )


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
    #: index of the GPU (nvml), or names of rails, separated by commas (hwmon)
    meter_channel: str = ""
    clock_mhz: float | None = bounded("(0, 1e6]", None)  #: clock frequency in MHz
    #: largest number of multiply-accumulates per clock cycle
    peak_macs_per_cycle: int | None = bounded("[1, 1e9]", None)
    roofline: Roofline | None = None  #: rates and memory sizes for ``cost=roofline``
    energy: EnergyModel | None = None  #: energies of arithmetic and memory accesses
    power: PowerModel | None = None  #: active power, for energy without a meter
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
        subject = f"Target '{self.name}'"
        check_name(self.name, "target.name")
        check_bounds(self, "target.")
        if self.runtime in _RENAMED:
            raise ConfigError(
                f"{subject}: target.runtime={self.runtime} is now target.runtime="
                f"{_RENAMED[self.runtime]}; its section target.{self.runtime} is now "
                f"target.{_RENAMED[self.runtime]}."
            )
        for name, value, allowed in (
            ("device_class", self.device_class, CLASSES),
            ("runtime", self.runtime, backends.names()),
            ("meter", self.meter, METERS),
        ):
            if value not in allowed:
                raise ConfigError(f"{subject}: {unknown_name(name, value, allowed)}")
        self._check_running()
        backend = backends.get(self.runtime)
        if self.dtype not in backend.dtypes:
            raise ConfigError(f"{subject}: {unknown_name('dtype', self.dtype, backend.dtypes)}")
        if missing := [name for name in backend.required if getattr(self, name) is None]:
            needed = ", ".join(f"target.{name}" for name in missing)
            raise ConfigError(
                f"{subject}: target.runtime={self.runtime} needs {needed}. Add it to the target's "
                "file, or choose another target.runtime."
            )

    def _check_running(self) -> None:
        """Refuse batch sizes and numbers of threads that do not suit the device."""
        for name, numbers in (("batches", self.batches), ("thread_counts", self.thread_counts)):
            if len({*numbers}) < len(numbers):
                raise ConfigError(
                    f"target.{name}={numbers}: values must be different. Remove the repeated ones."
                )
        if len(self.thread_counts) == 1:  # its table would be that of ``threads``
            (n_threads,) = self.thread_counts
            raise ConfigError(
                f"target.thread_counts={self.thread_counts} has one value: set "
                f"target.threads={n_threads} instead."
            )
        if self.batch > 1 and not backends.get(self.runtime).batched:
            raise ConfigError(
                f"target.batch={self.batch}: target.runtime={self.runtime} runs one image per "
                "inference. Set target.batch=1."
            )
        if self.thread_counts and self.power is not None and self.power.per_device:
            raise ConfigError(
                f"target.thread_counts={self.thread_counts}: the speed and power of target "
                f"'{self.name}' do not depend on threads; remove the option."
            )

    def section(self, settings: type[S]) -> S:
        """Return the target's section of its backend, which is of the type ``settings``."""
        section = getattr(self, backends.get(self.runtime).name)
        assert isinstance(section, settings)
        return section

    @property
    def running(self) -> Mapping[str, list[int]]:
        """Values of ``batch`` and ``threads`` that a search may choose for each network, by name.

        An empty list: the target's value applies.
        """
        return {"batch": self.batches, "threads": self.thread_counts}

    @property
    def artefact(self) -> str:
        """Name of the artefact on which its results are measured, such as ``model.int8.onnx``."""
        return backends.get(self.runtime).dtypes[self.dtype]

    @property
    def engine(self) -> str:
        """Runtime and, if its settings have one, their variant, such as ``onnxruntime-cuda``."""
        variant = _variant(getattr(self, backends.get(self.runtime).name, None))
        return f"{self.runtime}-{variant}" if variant else self.runtime


def _variant(section: object) -> str:
    return section.variant if isinstance(section, BackendSettings) else ""


def check_name(name: str, option: str) -> None:
    """Check that a name can be used as a folder name, for tables and runs.

    Raises:
        ConfigError: it cannot; the message names ``option``, from which the name is.
    """
    if not re.fullmatch(r"[\w][\w .+-]{0,99}", name):
        raise ConfigError(
            f"{option}={name!r} cannot be a folder name: allowed are up to 100 letters, digits, "
            "spaces and _ . + -, starting with a letter, a digit or _."
        )


def facts(target: Target) -> dict[str, Any]:
    """Return the fields of a target by name, for records and digests; ``from_facts`` reads them.

    The fields ``NOT_IN_DIGESTS``, such as search spaces, are left out even if they are set. So that
    digests stay the same, fields and sections that were added after the first release, or belong to
    other packages, are left out if they have their defaults.
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
    """Return the target from the result of ``facts``, or from the content of a target file.

    Earlier names of runtimes are accepted.

    Raises:
        SchemaError: ``recorded`` has unknown or missing fields, or values of wrong types.
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
    key: str = ""  #: key under which devices register; set together with ``tracker``
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
