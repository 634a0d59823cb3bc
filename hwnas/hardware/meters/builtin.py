"""Meters that measure energy: RAPL, NVML and hwmon; ``target.meter`` chooses.

Not through Zeus (0.16.0): besides a dozen more packages, it counts RAPL's ``psys`` as another CPU,
notices wrap-around late and from a child process that wakes up on the cores being measured, and of
hwmon it knows Jetson's alone.

A meter that is absent or cannot be read is a ``ConfigError``: no other is taken instead.
"""

import importlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast, final

from hwnas.core.errors import ConfigError, HwnasError, unknown_name
from hwnas.hardware.meters.meter import EnergyMeter, PowerIntegral
from hwnas.hardware.target import METERS

POWERCAP = Path("/sys/class/powercap")
HWMON = Path("/sys/class/hwmon")

_INSTEAD = "or set target.meter=none"
_R = TypeVar("_R")


@final
class Rapl:
    """Energy of all CPU packages and the DRAM attached to them, from Linux's powercap.

    ``core`` and ``uncore`` are parts of a package and ``psys`` contains packages: not counted. DRAM
    stands below its package in the tree, but its energy is not part of the package's.
    ``intel-rapl-mmio`` shows the same counters once more: not counted. Counters wrap around after
    some minutes at full power: read the meter more often than that.

    Source: Khan et al., "RAPL in Action", 2018, https://doi.org/10.1145/3177754;
    https://docs.kernel.org/power/powercap/powercap.html.
    """

    name = "rapl"

    def __init__(self, root: Path = POWERCAP):
        names = [zone / "name" for zone in sorted(root.glob("intel-rapl:*"))]
        zones = {name.parent: _text(name) for name in names if name.exists()}
        counted = {z: n for z, n in zones.items() if n == "dram" or n.startswith("package-")}
        if not any(n != "dram" for n in counted.values()):
            raise ConfigError(
                f"target.meter=rapl: no CPU package in '{root}' (containers and virtual machines "
                "rarely show one); load its driver with 'sudo modprobe intel_rapl_msr' "
                f"{_INSTEAD}."
            )
        self._cure = (
            f"let users read it with 'sudo chmod a+r {root}/intel-rapl:*/energy_uj', which a udev "
            f"rule can do at every boot, {_INSTEAD}"
        )
        self._range = {z: _number(z / "max_energy_range_uj", self._cure) for z in counted}
        self._last = {z: _number(z / "energy_uj", self._cure) for z in counted}
        self._total = 0.0  # microjoules
        self.source = f"RAPL {' + '.join(counted.values())}, {root}"

    def read(self) -> float:
        """Return the joules since the meter was opened."""
        for zone, last in self._last.items():
            now = _number(zone / "energy_uj", self._cure)
            self._total += now - last if now >= last else now - last + self._range[zone]
            self._last[zone] = now
        return self._total / 1e6

    def close(self) -> None:
        """Nothing is held."""


class _NvmlLibrary(Protocol):
    """The functions of ``pynvml`` (package nvidia-ml-py) that are used."""

    NVMLError: type[Exception]
    NVMLError_NotSupported: type[Exception]

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Any: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlSystemGetDriverVersion(self) -> str: ...
    def nvmlDeviceGetName(self, handle: Any, /) -> str: ...
    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, /) -> int: ...
    def nvmlDeviceGetPowerUsage(self, handle: Any, /) -> int: ...


@final
class Nvml:
    """Energy of one NVIDIA GPU: its counter (Volta and later), else its power, integrated.

    ``index`` counts all GPUs in the order of ``nvidia-smi -L``, whatever CUDA_VISIBLE_DEVICES says.
    """

    name = "nvml"

    def __init__(self, index: int = 0, library: _NvmlLibrary | None = None):
        self._library = _pynvml("target.meter=nvml") if library is None else library
        self._what = f"target.meter=nvml: no energy of GPU {index}"
        self._device: Any = None
        self._power: PowerIntegral | None = None
        self._ask(lambda _: self._library.nvmlInit())
        try:
            self._device = self._ask(lambda _: self._library.nvmlDeviceGetHandleByIndex(index))
            gpu = self._ask(self._library.nvmlDeviceGetName)
            counts = self._ask(self._has_counter)
            self._power = None if counts else PowerIntegral(self._watts)
        except HwnasError:
            self.close()
            raise
        how = "energy counter" if counts else "power, integrated"
        self.source = f"NVML {how}, GPU {index} ({gpu})"

    def read(self) -> float:
        """Return the joules since the driver was loaded, or since the meter was opened."""
        if self._power is not None:
            return self._power.read()
        return self._ask(self._library.nvmlDeviceGetTotalEnergyConsumption) / 1e3

    def close(self) -> None:
        """Stop sampling and leave NVML."""
        if self._power is not None:
            self._power.close()
        self._library.nvmlShutdown()

    def _watts(self) -> float:
        return self._ask(self._library.nvmlDeviceGetPowerUsage) / 1e3

    def _has_counter(self, device: Any) -> bool:
        try:
            self._library.nvmlDeviceGetTotalEnergyConsumption(device)
        except self._library.NVMLError_NotSupported:
            return False
        return True

    def _ask(self, question: Callable[[Any], _R]) -> _R:
        try:
            return question(self._device)
        except self._library.NVMLError as error:
            raise ConfigError(
                f"{self._what} ({error}); see what 'nvidia-smi -L' says, install NVIDIA's driver "
                f"{_INSTEAD}."
            ) from error


@dataclass(frozen=True)
class _Channel:
    """One rail of a hwmon chip: the product of ``files`` is in microjoules or microwatts."""

    files: tuple[Path, ...]
    counts: bool  #: energy; else power
    words: str  #: its label, and how its energy is known

    def read(self) -> float:
        """Return joules or watts."""
        cure = f"let users read it with 'sudo chmod a+r {self.files[0]}' {_INSTEAD}"
        return math.prod(_number(file, cure) for file in self.files) / 1e6


@final
class Hwmon:
    """Energy of rails with a power monitor (INA219, INA226, INA3221 ...), from Linux's hwmon.

    A rail's energy counter is read where it has one; else its power (INA3221: voltage x current) is
    sampled and integrated. Rails often contain each other, so they are never summed unasked:
    ``channel`` names one or, with commas between, several that are to be summed; it can be left
    out where there is only one.

    Source: https://docs.kernel.org/hwmon/sysfs-interface.html.
    """

    name = "hwmon"

    def __init__(self, root: Path = HWMON, channel: str = ""):
        known = {k: c for chip in sorted(root.glob("hwmon*")) for k, c in _channels(chip).items()}
        if not known:
            raise ConfigError(
                f"target.meter=hwmon: no energy or power in '{root}'; load the driver of the "
                f"board's power monitor (ina2xx, ina3221) {_INSTEAD}."
            )
        if not channel and len(known) > 1:
            every = ", ".join(f"{name} ({c.words})" for name, c in known.items())
            raise ConfigError(
                f"target.meter=hwmon: '{root}' has several channels, which may contain each other: "
                f"name the one to measure, or those to sum with commas between; there are {every}."
            )
        names = [name.strip() for name in channel.split(",")] if channel else list(known)
        for name in names:
            if name not in known:
                raise ConfigError(f"target.meter=hwmon: {unknown_name('channel', name, known)}")
        chosen = {name: known[name] for name in names}
        self._counters = [c for c in chosen.values() if c.counts]
        powers = [c for c in chosen.values() if not c.counts]
        for counter in self._counters:
            counter.read()  # an unreadable meter is told when it is opened
        self._power = PowerIntegral(lambda: sum(c.read() for c in powers)) if powers else None
        rails = " + ".join(f"{name} ({c.words})" for name, c in chosen.items())
        self.source = f"hwmon {rails}, {root}"

    def read(self) -> float:
        """Return the joules since an arbitrary start."""
        counted = sum(counter.read() for counter in self._counters)
        return counted if self._power is None else counted + self._power.read()

    def close(self) -> None:
        """Stop sampling."""
        if self._power is not None:
            self._power.close()


def open_meter(
    name: str, channel: str = "", root: Path | None = None, library: _NvmlLibrary | None = None
) -> EnergyMeter:
    """Open the meter that ``target.meter`` names.

    Args:
        name: One of ``target.METERS``.
        channel: For nvml the index of the GPU, for hwmon the channels to sum; else empty.
        root: Of sysfs's class, for rapl and hwmon; None: the system's.
        library: In place of ``pynvml``.

    Raises:
        ConfigError: There is no such meter here, or it cannot be read.
    """
    if name == "hwmon":
        return Hwmon(root or HWMON, channel)
    if name == "nvml":
        if not re.fullmatch(r"\d*", channel):
            raise ConfigError(f"target.meter=nvml: a GPU is named by its index, got '{channel}'.")
        return Nvml(int(channel or 0), library)
    if name == "rapl":
        if channel:
            raise ConfigError(f"target.meter=rapl has no channels to choose from, got '{channel}'.")
        return Rapl(root or POWERCAP)
    meters = [meter for meter in METERS if meter != "none"]
    if name == "none":
        raise ConfigError(f"target.meter=none measures nothing. Allowed: {', '.join(meters)}.")
    raise ConfigError(unknown_name("target.meter", name, meters))


def gpus(library: _NvmlLibrary | None = None) -> dict[str, str]:
    """Return the models of this machine's NVIDIA GPUs, in one line, and the driver's version.

    Raises:
        ConfigError: NVML is not installed, or finds none.
    """
    known = _pynvml("The GPU's name for a latency table") if library is None else library
    try:
        known.nvmlInit()
        try:
            handles = map(known.nvmlDeviceGetHandleByIndex, range(known.nvmlDeviceGetCount()))
            names = [str(known.nvmlDeviceGetName(handle)) for handle in handles]
            return {"gpu": " + ".join(names), "driver": str(known.nvmlSystemGetDriverVersion())}
        finally:
            known.nvmlShutdown()
    except known.NVMLError as error:
        raise ConfigError(
            f"No NVIDIA GPU is found here ({error}); see what 'nvidia-smi -L' says."
        ) from error


def _channels(chip: Path) -> dict[str, _Channel]:
    """Return what a hwmon chip says of energy and power, by ``name@device/input``."""
    if not (chip / "name").exists():
        return {}
    kind = _text(chip / "name")
    device = chip / "device"  # its address stays the same at every boot, hwmon's number does not
    where = device.resolve().name if device.exists() else chip.name
    # The chip whose voltages and currents belong together where their numbers are equal.
    pairs = {"1", "2", "3"} if kind.startswith("ina3221") else set()
    channels = {}
    inputs = (re.fullmatch(r"(?:energy|power|curr)(\d+)_input", f.name) for f in chip.iterdir())
    for number in sorted({found[1] for found in inputs if found}, key=int):
        options = [("energy",), ("power",)] + [("in", "curr")] * (number in pairs)
        for option in options:
            files = tuple(chip / f"{stem}{number}_input" for stem in option)
            if all(file.exists() for file in files):
                label = chip / f"{option[0]}{number}_label"
                words = [_text(label)] if label.exists() else []
                words.append("energy counter" if option == ("energy",) else "power, integrated")
                channels[f"{kind}@{where}/{option[0]}{number}"] = _Channel(
                    files, option == ("energy",), ", ".join(words)
                )
                break
    return channels


def _pynvml(what: str) -> _NvmlLibrary:
    try:
        return cast(_NvmlLibrary, importlib.import_module("pynvml"))
    # Not the extra that has it: pip would install the CPU's onnxruntime over the GPU's.
    except ModuleNotFoundError as error:
        raise ConfigError(f"{what} needs NVIDIA's library: pip install nvidia-ml-py.") from error


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


def _number(path: Path, cure: str) -> float:
    """Return the number that a file of sysfs holds."""
    try:
        return float(_text(path))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"Cannot read '{path}' ({why}); {cure}.") from error
