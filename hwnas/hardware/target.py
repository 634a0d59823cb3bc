"""The schema of targets: facts about a device. Limits are in budgets."""

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
#: Fields that decide no figure of a network: digests do not know them.
UNSAID = ("spaces", "shared_spaces", "weight_sparsity", "batches", "thread_counts")
#: Facts that came later, by field, with what they were before: digests know nothing of that.
_LATER: Mapping[str, Mapping[str, object]] = {
    "power": {"per_device": False},
    "roofline": {"threads": 1},
}

#: Earlier names of runtimes and of their sections, which recorded targets may have.
_RENAMED = RENAMED_VALUES["target.runtime"]


@dataclass
class Roofline:
    """Rates and sizes from which a latency can be modelled; see ``cost/roofline.py``."""

    #: billions of multiply-accumulates a second, by dtype
    peak_gmacs: dict[str, float] = field(metadata=limits("(0, 1e12]"))
    #: between the arithmetic units and on-chip memory
    on_chip_gbps: float = field(metadata=limits("(0, 1e12]"))
    off_chip_gbps: float = field(metadata=limits("(0, 1e12]"))
    #: what stays on chip between two operators
    on_chip_kib: float = field(metadata=limits("(0, 1e12]"))
    #: pixels, output and input channels that the hardware computes at once
    tile: list[int] = field(metadata=limits("[1, 65_536]"))
    #: share of the peak that depthwise convolutions can reach
    depthwise: float = bounded("(0, 1]", 1.0)
    #: billions of results scaled or activated a second
    element_gops: float | None = bounded("(0, 1e12]", None)
    weights_stay: bool = False  #: a cache keeps weights for the next inference, if they fit
    launch_us: float = bounded("[0, 1e6]", 0.0)  #: of every operator
    threads: int = bounded("[1, 1024]", 1)  #: on which rates and bandwidths are reached

    def __post_init__(self) -> None:
        check_bounds(self, "target.roofline.")
        if not self.peak_gmacs:
            raise ConfigError("target.roofline.peak_gmacs names no dtype: {int8: 512}.")
        if len(self.tile) != 3:
            raise ConfigError(f"target.roofline.tile must be three sizes, got {self.tile}.")


T = TypeVar("T")
S = TypeVar("S")


def _with_sections(cls: type[T]) -> type[T]:
    """Give targets a section for each backend that has settings.

    It is ``None`` by default, but where ``Settings`` say what a target is that has none.
    """
    for name, settings in backends.sections().items():
        is_there = issubclass(settings, BackendSettings)
        cls.__annotations__[name] = settings if is_there else settings | None
        setattr(cls, name, field(default_factory=settings) if is_there else None)
    return cls


@dataclass
@_with_sections
class Target:
    """Facts about a device and its compiler.

    Beside these fields it has a section of settings for each backend that has some: ``section``.
    """

    name: str
    description: str
    caveat: str  #: what the figures leave out, in the words every report repeats
    source: str  #: where the facts come from
    device_class: str = "edge"  #: or ``datacenter``
    runtime: str = backends.default()  #: what runs networks: the name of a backend
    dtype: str = "int8"  #: in which weights and activations are kept
    threads: int = bounded("[1, 1024]", 1)
    #: images of one inference; latency and energy are those of the whole batch
    batch: int = bounded("[1, 65_536]", 1)
    meter: str = "none"  #: what measures energy: see ``meters.py``
    meter_channel: str = ""  #: which of several: a GPU's index, names of a board's rails
    clock_mhz: float | None = bounded("(0, 1e6]", None)
    peak_macs_per_cycle: int | None = bounded("[1, 1e9]", None)
    roofline: Roofline | None = None
    energy: EnergyModel | None = None  #: energies of arithmetic and accesses
    power: PowerModel | None = None  #: power while it computes, where there is no meter
    #: what metrics are derived with, by name (see ``hwnas.metrics``): a price, a grid's intensity
    facts: dict[str, float] = field(default_factory=dict, metadata=limits("(0, 1e12]"))
    spaces: list[str] = field(default_factory=list)  #: search spaces that suit it: the default
    #: those that suit it and other runtimes, too: the default where such are searched for as well
    shared_spaces: list[str] = field(default_factory=list)
    weight_sparsity: bool = False  #: whether it gains where two weights in four are zero
    #: numbers of images of one inference that each network chooses from; none: ``batch``
    batches: list[int] = field(default_factory=list, metadata=limits("[1, 65_536]"))
    #: numbers of threads that each network chooses from; none: ``threads``
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
        """Refuse images and threads of an inference that do not suit the device."""
        for name, numbers in (("batches", self.batches), ("thread_counts", self.thread_counts)):
            if len({*numbers}) < len(numbers):
                raise ConfigError(f"target.{name}={numbers}: each is named once.")
        if len(self.thread_counts) == 1:  # its table would be that of ``threads``
            (one,) = self.thread_counts
            raise ConfigError(
                f"target.thread_counts={self.thread_counts} is no choice: say target.threads={one}."
            )
        if self.batch > 1 and not backends.get(self.runtime).batched:
            raise ConfigError(
                f"target.batch={self.batch}: by target.runtime={self.runtime} an inference reads "
                "one image."
            )
        if self.thread_counts and self.power is not None and self.power.per_device:
            raise ConfigError(
                f"target.thread_counts={self.thread_counts}: Target '{self.name}' takes as much "
                "power and is as fast on any number of threads of its machine; leave them out."
            )

    def section(self, settings: type[S]) -> S:
        """Return the settings of the target's backend, which are of this type."""
        found = getattr(self, backends.get(self.runtime).name)
        assert isinstance(found, settings)
        return found

    @property
    def running(self) -> Mapping[str, list[int]]:
        """What networks choose from how they run: see ``families.running``; empty: nothing."""
        return {"batch": self.batches, "threads": self.thread_counts}

    @property
    def engine(self) -> str:
        """What runs networks: the runtime, with what its section chooses of it, if it does."""
        variant = _variant(getattr(self, backends.get(self.runtime).name, None))
        return f"{self.runtime}-{variant}" if variant else self.runtime


def _variant(section: object) -> str:
    return section.variant if isinstance(section, BackendSettings) else ""


def check_name(name: str, option: str) -> None:
    """Refuse a name that cannot be that of a folder, which tables and runs have for each target.

    Raises:
        ConfigError: it names the option and what is allowed.
    """
    if not re.fullmatch(r"[\w][\w .+-]{0,99}", name):
        raise ConfigError(
            f"{option}={name!r} names folders: it takes up to 100 letters, digits, spaces and "
            "any of _ . + -, the first of them a letter or a digit."
        )


def facts(target: Target) -> dict[str, Any]:
    """Return all that is known of a device: not which search spaces suit it, or what they add.

    Facts of metrics are there if there are any: targets of earlier versions had none. Sections of
    backends that came later, or that other packages bring, are left out where they say nothing. So
    digests stay.
    """
    unsaid = {
        name
        for name in backends.added_after_release()
        if _says_nothing(getattr(target, name, None))
    }
    absent = {*UNSAID, *unsaid} | ({"facts"} if not target.facts else set())
    found = {name: value for name, value in asdict(target).items() if name not in absent}
    for name, before in _LATER.items():
        if found[name] is not None:
            said = found[name].items()
            found[name] = {k: v for k, v in said if k not in before or v != before[k]}
    return found


def _says_nothing(section: object) -> bool:
    return section is None or (isinstance(section, BackendSettings) and section.silent)


def from_facts(recorded: Mapping[str, Any]) -> Target:
    """Return the target that ``facts`` described, or a file of targets does.

    Raises:
        SchemaError: it is none.
        ConfigError: what it says is not allowed.
    """
    current = {_RENAMED.get(name, name): value for name, value in recorded.items()}
    runtime = current.get("runtime")
    if runtime in _RENAMED:
        current["runtime"] = _RENAMED[str(runtime)]
    found: Target = validate(Target, current, "target")
    return found


@dataclass
class Remote:
    """Where a device is reached that is not this machine, if the backend reaches others."""

    tracker: str = ""  #: ``HOST:PORT`` of the tracker at which devices register
    key: str = ""  #: under which they are registered
    #: of waiting for a device, and of anything asked of it
    timeout_s: float = bounded("(0, 86_400]", 60.0)
    n_devices: int = bounded("[1, 1000]", 1)  #: devices of that key that are used at once

    def __post_init__(self) -> None:
        host, _, port = self.tracker.rpartition(":")
        if self.tracker and not (host and port.isdigit()):
            raise ConfigError(f"rpc.tracker must be HOST:PORT, got '{self.tracker}'.")
        if bool(self.tracker) != bool(self.key):
            raise ConfigError("rpc.tracker and rpc.key go together: give both or none.")
        check_bounds(self, "rpc.")
