"""Energy meters: RAPL, NVML and hwmon, selected by ``target.meter``.

Zeus (0.16.0) is not used: it needs a dozen more packages, counts RAPL's ``psys`` as another CPU,
detects wrap-around late and from a child process on the measured cores, and supports hwmon only on
Jetson.

A meter that is missing or cannot be read is a ``ConfigError``; there is no fallback.
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
_OTHER_PROVIDER = ", or set the execution provider of the target to cpu"
_R = TypeVar("_R")


@final
class Rapl:
    """Energy of all CPU packages and their DRAM, from Linux's powercap in the folder ``root``.

    ``core`` and ``uncore`` are parts of a package and ``psys`` contains packages: not counted. DRAM
    is below its package in the tree, but not part of its energy. ``intel-rapl-mmio`` repeats the
    same counters: not counted. Counters wrap around after some minutes at full power; read the
    meter more often.

    Raises:
        ConfigError: there is no CPU package, or a counter cannot be read.

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
        self._fix_command = (
            f"let users read it with 'sudo chmod a+r {root}/intel-rapl:*/energy_uj', which a udev "
            f"rule can do at every boot, {_INSTEAD}"
        )
        self._range = {z: _number(z / "max_energy_range_uj", self._fix_command) for z in counted}
        self._last = {z: _number(z / "energy_uj", self._fix_command) for z in counted}
        self._total = 0.0  # microjoules
        self.source = f"RAPL {' + '.join(counted.values())}, {root}"

    def read(self) -> float:
        """Return the joules since the meter was opened; for errors see ``EnergyMeter.read``."""
        for zone, last in self._last.items():
            now = _number(zone / "energy_uj", self._fix_command)
            self._total += now - last if now >= last else now - last + self._range[zone]
            self._last[zone] = now
        return self._total / 1e6

    def close(self) -> None:
        """Do nothing: no resource is held."""


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
    """Energy of one NVIDIA GPU: its counter (Volta and later), else its integrated power.

    ``index`` is the index in ``nvidia-smi -L``, independent of CUDA_VISIBLE_DEVICES.

    Raises:
        ConfigError: nvidia-ml-py is not installed, or the GPU's energy cannot be read.
    """

    name = "nvml"

    def __init__(self, index: int = 0, library: _NvmlLibrary | None = None):
        self._library = _pynvml("target.meter=nvml") if library is None else library
        self._error_prefix = f"target.meter=nvml: no energy of GPU {index}"
        self._device: Any = None
        self._power: PowerIntegral | None = None
        self._call(lambda _: self._library.nvmlInit())
        try:
            self._device = self._call(lambda _: self._library.nvmlDeviceGetHandleByIndex(index))
            gpu = self._call(self._library.nvmlDeviceGetName)
            has_counter = self._call(self._has_counter)
            self._power = None if has_counter else PowerIntegral(self._watts)
        except HwnasError:
            self.close()
            raise
        kind = "energy counter" if has_counter else "power, integrated"
        self.source = f"NVML {kind}, GPU {index} ({gpu})"

    def read(self) -> float:
        """Return the joules since an arbitrary start; for errors see ``EnergyMeter.read``."""
        if self._power is not None:
            return self._power.read()
        return self._call(self._library.nvmlDeviceGetTotalEnergyConsumption) / 1e3

    def close(self) -> None:
        """Stop sampling the power, if it is sampled, and shut down NVML."""
        if self._power is not None:
            self._power.close()
        self._library.nvmlShutdown()

    def _watts(self) -> float:
        return self._call(self._library.nvmlDeviceGetPowerUsage) / 1e3

    def _has_counter(self, device: Any) -> bool:
        try:
            self._library.nvmlDeviceGetTotalEnergyConsumption(device)
        except self._library.NVMLError_NotSupported:
            return False
        return True

    def _call(self, function: Callable[[Any], _R]) -> _R:
        try:
            return function(self._device)
        except self._library.NVMLError as error:
            raise ConfigError(
                f"{self._error_prefix} ({error}): check 'nvidia-smi -L', install NVIDIA's driver "
                f"{_INSTEAD}."
            ) from error


@dataclass(frozen=True)
class _Channel:
    """A rail of a hwmon chip; the product of ``files`` is in microjoules or microwatts."""

    files: tuple[Path, ...]
    has_counter: bool  #: True for energy, False for power
    description: str  #: its label, and the kind of measurement

    def read(self) -> float:
        """Return joules or watts."""
        fix_command = f"let users read it with 'sudo chmod a+r {self.files[0]}' {_INSTEAD}"
        return math.prod(_number(file, fix_command) for file in self.files) / 1e6


@final
class Hwmon:
    """Energy of rails with a power monitor (INA219, INA226, INA3221 ...), from Linux's hwmon.

    The energy counter of a rail is read if it has one; else its power (INA3221: voltage x current)
    is sampled and integrated. Rails often contain each other, so they are summed only on request:
    ``channel`` has one name, or several separated by commas. It is optional if there is only one
    rail.

    Raises:
        ConfigError: ``root`` has no rail or none of a given name, there are several and ``channel``
            is empty, or a rail cannot be read.

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
            channels = ", ".join(f"{name} ({c.description})" for name, c in known.items())
            raise ConfigError(
                f"target.meter=hwmon: '{root}' has several channels, which may overlap: "
                f"set target.meter_channel to one, or to several with commas: {channels}."
            )
        names = [name.strip() for name in channel.split(",")] if channel else list(known)
        for name in names:
            if name not in known:
                raise ConfigError(f"target.meter=hwmon: {unknown_name('channel', name, known)}")
        selected = {name: known[name] for name in names}
        self._counters = [c for c in selected.values() if c.has_counter]
        powers = [c for c in selected.values() if not c.has_counter]
        for counter in self._counters:
            counter.read()  # an unreadable meter is reported when it is opened
        self._power = PowerIntegral(lambda: sum(c.read() for c in powers)) if powers else None
        rails = " + ".join(f"{name} ({c.description})" for name, c in selected.items())
        self.source = f"hwmon {rails}, {root}"

    def read(self) -> float:
        """Return the joules of all selected rails since an arbitrary start.

        For errors see ``EnergyMeter.read``.
        """
        joules = sum(counter.read() for counter in self._counters)
        return joules if self._power is None else joules + self._power.read()

    def close(self) -> None:
        """Stop sampling the power, if it is sampled."""
        if self._power is not None:
            self._power.close()


def open_meter(
    name: str, channel: str = "", root: Path | None = None, library: _NvmlLibrary | None = None
) -> EnergyMeter:
    """Return the opened meter of a target; call its ``close`` at the end.

    Args:
        name: ``rapl``, ``nvml`` or ``hwmon``.
        channel: For nvml the index of the GPU, for hwmon the names of the rails to sum, separated
            by commas; empty for rapl.
        root: Folder of sysfs for rapl and hwmon; ``None``: the system's.
        library: Replacement for the module ``pynvml``.

    Raises:
        ConfigError: the name is not one of these, ``channel`` does not suit the meter, or the meter
            is missing or cannot be read.
    """
    if name == "hwmon":
        return Hwmon(root or HWMON, channel)
    if name == "nvml":
        if not re.fullmatch(r"\d*", channel):
            raise ConfigError(
                f"target.meter=nvml: target.meter_channel must be the index of a GPU in "
                f"'nvidia-smi -L', such as 0; got '{channel}'."
            )
        return Nvml(int(channel or 0), library)
    if name == "rapl":
        if channel:
            raise ConfigError(
                f"target.meter=rapl has no channels, got target.meter_channel='{channel}'. Remove "
                "target.meter_channel."
            )
        return Rapl(root or POWERCAP)
    meters = [meter for meter in METERS if meter != "none"]
    if name == "none":
        raise ConfigError(f"target.meter=none measures nothing. Allowed: {', '.join(meters)}.")
    raise ConfigError(unknown_name("target.meter", name, meters))


def gpus(library: _NvmlLibrary | None = None) -> dict[str, str]:
    """Return ``gpu``, the models of all NVIDIA GPUs of this machine, and ``driver``.

    The models are joined by plus signs; ``driver`` is the version of NVIDIA's driver. ``library``
    replaces the module ``pynvml``.

    Raises:
        ConfigError: nvidia-ml-py is not installed, or finds no GPU.
    """
    known = _pynvml("The GPU's name for a latency table") if library is None else library
    try:
        known.nvmlInit()
        try:
            handles = map(known.nvmlDeviceGetHandleByIndex, range(known.nvmlDeviceGetCount()))
            names = [str(known.nvmlDeviceGetName(handle)) for handle in handles]
            driver = str(known.nvmlSystemGetDriverVersion())
        finally:
            known.nvmlShutdown()
    except known.NVMLError as error:
        raise ConfigError(
            f"No NVIDIA GPU was found ({error}): check 'nvidia-smi -L'{_OTHER_PROVIDER}."
        ) from error
    if not names:
        raise ConfigError(f"No NVIDIA GPU was found: check 'nvidia-smi -L'{_OTHER_PROVIDER}.")
    return {"gpu": " + ".join(names), "driver": driver}


def _channels(chip: Path) -> dict[str, _Channel]:
    """Return the energy and power channels of a hwmon chip, by ``name@device/input``."""
    if not (chip / "name").exists():
        return {}
    kind = _text(chip / "name")
    device = chip / "device"  # unlike hwmon's number, its address is the same after a reboot
    address = device.resolve().name if device.exists() else chip.name
    # On this chip, voltage and current of the same number belong together.
    pairs = {"1", "2", "3"} if kind.startswith("ina3221") else set()
    channels = {}
    inputs = (re.fullmatch(r"(?:energy|power|curr)(\d+)_input", f.name) for f in chip.iterdir())
    for number in sorted({match[1] for match in inputs if match}, key=int):
        options = [("energy",), ("power",)] + [("in", "curr")] * (number in pairs)
        for option in options:
            files = tuple(chip / f"{stem}{number}_input" for stem in option)
            if all(file.exists() for file in files):
                label = chip / f"{option[0]}{number}_label"
                parts = [_text(label)] if label.exists() else []
                parts.append("energy counter" if option == ("energy",) else "power, integrated")
                channels[f"{kind}@{address}/{option[0]}{number}"] = _Channel(
                    files, option == ("energy",), ", ".join(parts)
                )
                break
    return channels


def _pynvml(subject: str) -> _NvmlLibrary:
    try:
        return cast(_NvmlLibrary, importlib.import_module("pynvml"))
    # Not the extra that contains it: pip would install the CPU's onnxruntime over the GPU's.
    except ModuleNotFoundError as error:
        raise ConfigError(f"{subject} needs NVIDIA's library: pip install nvidia-ml-py.") from error


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


def _number(path: Path, fix_command: str) -> float:
    """Return the number in a file of sysfs."""
    try:
        return float(_text(path))
    except PermissionError as error:
        raise ConfigError(f"Cannot read '{path}' ({error.strerror}); {fix_command}.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"Cannot read '{path}' ({reason}): check the meter and its driver, {_INSTEAD}."
        ) from error
