import dataclasses
import importlib
import os
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hwnas.core.errors import ConfigError
from hwnas.hardware.meters.builtin import Hwmon, Nvml, Rapl, gpus, open_meter
from hwnas.hardware.meters.meter import measure

RANGE_UJ = 262_143_328_850


def _write(folder: Path, **files: str | int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")
    return folder


def _zone(root: Path, zone: str, name: str, energy_uj: int = 0) -> Path:
    return _write(root / zone, name=name, energy_uj=energy_uj, max_energy_range_uj=RANGE_UJ)


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two packages with all other kinds of zones, as listed by the kernel."""
    _write(tmp_path / "intel-rapl", enabled=1)
    for package, energy_uj in enumerate((5_000_000, 7_000_000)):
        zone = f"intel-rapl:{package}"
        _zone(tmp_path, zone, f"package-{package}", energy_uj)
        _zone(tmp_path, f"{zone}:0", "core", 3_000_000)
        _zone(tmp_path, f"{zone}:1", "dram", 1_000_000)
        (tmp_path / zone / f"{zone}:1").symlink_to(tmp_path / f"{zone}:1")
    _zone(tmp_path, "intel-rapl:2", "psys", 90_000_000)
    _zone(tmp_path, "intel-rapl-mmio:0", "package-0", 5_000_000)
    return tmp_path


def _add(zone: Path, energy_uj: int) -> None:
    file = zone / "energy_uj"
    file.write_text(f"{(int(file.read_text()) + energy_uj) % RANGE_UJ}\n")


# RAPL


def test_rapl_sums_packages_and_dram_once(powercap: Path) -> None:
    meter = Rapl(powercap)
    start = meter.read()
    for n, zone in enumerate(sorted(powercap.glob("intel-rapl*:*"))):
        _add(zone, 10**n * 1_000)  # 10**n mJ
    # mmio, package-0, its core, its dram, package-1, its core, its dram, psys
    assert meter.read() - start == pytest.approx(0.01 + 1 + 10 + 1_000)
    assert meter.source == f"RAPL package-0 + dram + package-1 + dram, {powercap}"


def test_rapl_handles_counter_overflow(powercap: Path) -> None:
    meter = Rapl(powercap)
    start = meter.read()
    _add(powercap / "intel-rapl:0", RANGE_UJ - 6_000_000)
    _add(powercap / "intel-rapl:1", 1_000_000)
    before = meter.read()
    _add(powercap / "intel-rapl:0", 2_000_000)  # passes the end of its range
    assert int((powercap / "intel-rapl:0" / "energy_uj").read_text()) < 2_000_000
    assert meter.read() - before == pytest.approx(2.0)
    _add(powercap / "intel-rapl:0", 3_000_000)
    assert meter.read() - start == pytest.approx((RANGE_UJ - 6e6) / 1e6 + 1 + 2 + 3)


@pytest.mark.parametrize("zones", [[], ["intel-rapl:0 psys"], ["intel-rapl:0:0 dram"]])
def test_rapl_without_package_is_refused(tmp_path: Path, zones: list[str]) -> None:
    for zone in zones:
        folder, name = zone.split()
        _zone(tmp_path, folder, name)
    (tmp_path / "intel-rapl:7").symlink_to(tmp_path / "hidden")  # masked, as in containers
    with pytest.raises(ConfigError, match=r"no CPU package in .*modprobe.*target\.meter=none"):
        open_meter("rapl", root=tmp_path)
    with pytest.raises(ConfigError, match="no CPU package"):
        open_meter("rapl", root=tmp_path / "nowhere")


def test_error_for_unreadable_rapl_gives_command(
    powercap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_text = Path.read_text

    def refuse(self: Path, *args: Any, **options: Any) -> str:
        if self == powercap / "intel-rapl:1" / "energy_uj":
            raise PermissionError(13, os.strerror(13))
        return read_text(self, *args, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(
        ConfigError, match=r"intel-rapl:1/energy_uj' \(Permission denied\)"
    ) as error:
        open_meter("rapl", root=powercap)
    assert f"sudo chmod a+r {powercap}/intel-rapl:*/energy_uj" in str(error.value)
    assert "udev" in str(error.value)


@pytest.mark.parametrize("content", [None, "", "n/a"])
def test_unreadable_rapl_counter_is_an_error(powercap: Path, content: str | None) -> None:
    meter = Rapl(powercap)
    file = powercap / "intel-rapl:1:1" / "energy_uj"
    file.unlink()
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match="Cannot read"):
        meter.read()


def test_constant_counter_is_refused(powercap: Path) -> None:
    def run(n: int) -> float:
        start = time.monotonic()
        time.sleep(n * 0.002)
        return time.monotonic() - start

    with pytest.raises(ConfigError, match=r"target\.meter=rapl: .*RAPL .* did not advance"):
        measure(Rapl(powercap), run, 0.01, 0.002)


# NVML


class NvmlError(Exception):
    pass


class NotSupportedError(NvmlError):
    pass


@dataclasses.dataclass
class Library:
    """A fake NVML with two GPUs; ``fails`` has the exceptions of functions."""

    energy_mj: int = 5_000_000
    power_mw: int = 250_000
    fails: dict[str, Exception] = dataclasses.field(default_factory=dict)
    opened: int = 0
    n_gpus: int = 2
    NVMLError: type[Exception] = NvmlError
    NVMLError_NotSupported: type[Exception] = NotSupportedError

    def _answer(self, function: str) -> None:
        assert self.opened or function == "init"
        if function in self.fails:
            raise self.fails[function]

    def nvmlInit(self) -> None:
        self._answer("init")
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        self._answer("count")
        return self.n_gpus

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.1"

    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Any:
        self._answer("handle")
        if index > 1:
            raise NvmlError("Invalid Argument")
        return f"handle {index}"

    def nvmlDeviceGetName(self, handle: Any, /) -> str:
        self._answer("name")
        return f"GPU of {handle}"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, /) -> int:
        self._answer("energy")
        return self.energy_mj + int(handle == "handle 1")

    def nvmlDeviceGetPowerUsage(self, handle: Any, /) -> int:
        self._answer("power")
        return self.power_mw


def test_nvml_reads_counter_of_gpu_in_joules() -> None:
    library = Library()
    meter = open_meter("nvml", channel="1", library=library)
    start = meter.read()
    assert start == pytest.approx(5000.001)
    library.energy_mj += 1500
    assert meter.read() - start == pytest.approx(1.5)
    assert meter.source == "NVML energy counter, GPU 1 (GPU of handle 1)"
    meter.close()
    assert library.opened == 0


def _check_integral(meter: Nvml | Hwmon, watts: float) -> None:
    outside = time.monotonic()
    start = meter.read()
    inside = time.monotonic()
    time.sleep(0.1)
    seconds = time.monotonic() - inside
    joules = meter.read() - start
    outside = time.monotonic() - outside
    assert watts * seconds <= joules * (1 + 1e-9)
    assert joules <= watts * outside * (1 + 1e-9)


def test_nvml_integrates_power_without_counter() -> None:
    library = Library(fails={"energy": NotSupportedError()})
    meter = Nvml(0, library)
    _check_integral(meter, 250.0)
    assert meter.source == "NVML power, integrated, GPU 0 (GPU of handle 0)"
    meter.close()
    assert library.opened == 0


@pytest.mark.parametrize(
    "fails",
    [
        {"init": NvmlError("Driver Not Loaded")},
        {"handle": NvmlError("GPU is lost")},
        {"energy": NvmlError("Insufficient Permissions")},
        {"energy": NotSupportedError("Not Supported"), "power": NotSupportedError("Not Supported")},
    ],
)
def test_nvml_failure_at_start_is_an_error(fails: dict[str, Exception]) -> None:
    library = Library(fails=fails)
    reason = str(list(fails.values())[-1])
    with pytest.raises(ConfigError, match=rf"no energy of GPU 0 \({reason}\): .*driver"):
        open_meter("nvml", library=library)
    assert library.opened == 0


def test_nvml_failure_in_reading_is_an_error() -> None:
    library = Library()
    meter = Nvml(0, library)
    library.fails["energy"] = NvmlError("GPU is lost")
    with pytest.raises(ConfigError, match="GPU is lost"):
        meter.read()


@pytest.mark.parametrize("channel", ["2", "GPU-1234", "-1"])
def test_nvml_refuses_unknown_gpu(channel: str) -> None:
    with pytest.raises(ConfigError, match=r"target\.meter=nvml"):
        open_meter("nvml", channel=channel, library=Library())


def test_error_for_missing_nvml_gives_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        assert name == "pynvml"
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install nvidia-ml-py\."):
        open_meter("nvml")


def test_real_library_has_used_functions() -> None:
    pynvml = pytest.importorskip("pynvml")
    for name in (*dir(Library), "NVMLError", "NVMLError_NotSupported"):
        if name.lower().startswith("nvml"):
            assert hasattr(pynvml, name), name
    assert issubclass(pynvml.NVMLError_NotSupported, pynvml.NVMLError)


# hwmon


def _chip(root: Path, number: int, kind: str, **files: str | int) -> Path:
    chip = _write(root / f"hwmon{number}", name=kind, **files)
    address = _write(root / "devices" / f"{number}-0040")
    (chip / "device").symlink_to(address)
    return chip


def test_hwmon_prefers_energy_counter_to_power(tmp_path: Path) -> None:
    _chip(tmp_path, 0, "coretemp", temp1_input=40_000)
    chip = _chip(
        tmp_path, 1, "ina238", energy1_input=4_000_000, power1_input=9, in1_input=1, curr1_input=1
    )
    meter = Hwmon(tmp_path)
    start = meter.read()
    _write(chip, energy1_input=6_500_000)
    assert meter.read() - start == pytest.approx(2.5)
    assert meter.source == f"hwmon ina238@1-0040/energy1 (energy counter), {tmp_path}"
    meter.close()


def test_hwmon_integrates_power(tmp_path: Path) -> None:
    files = {"in0_input": 5, "in1_input": 12_000, "curr1_input": 2, "power1_input": 3_500_000}
    _chip(tmp_path, 0, "ina226", **files)
    meter = Hwmon(tmp_path)
    _check_integral(meter, 3.5)
    assert "ina226@0-0040/power1 (power, integrated)" in meter.source
    meter.close()


def _ina3221(root: Path) -> None:
    bus = {f"in{n}_input": 5_000 * n for n in (1, 2, 3)}
    labels = {f"in{n}_label": f"VDD_{n}" for n in (1, 2, 3)}
    currents = {f"curr{n}_input": 100 * n for n in (1, 2, 3, 4)}
    shunts = {f"in{n}_input": 40 for n in (4, 5, 6, 7)}  # in microvolts; curr4 is the sum
    _chip(root, 0, "ina3221", **bus, **labels, **currents, **shunts)


@pytest.mark.parametrize(
    ("channel", "watts"),
    [("ina3221@0-0040/in2", 2.0), ("ina3221@0-0040/in1, ina3221@0-0040/in3", 0.5 + 4.5)],
)
def test_hwmon_multiplies_and_sums_channels(tmp_path: Path, channel: str, watts: float) -> None:
    _ina3221(tmp_path)
    meter = Hwmon(tmp_path, channel)
    _check_integral(meter, watts)
    assert all(f"VDD_{c.strip()[-1]}" in meter.source for c in channel.split(","))
    meter.close()


def test_hwmon_sums_counter_and_power(tmp_path: Path) -> None:
    chip = _chip(tmp_path, 0, "ina238", energy1_input=0)
    _chip(tmp_path, 1, "ina226", power1_input=0)
    meter = Hwmon(tmp_path, "ina226@1-0040/power1,ina238@0-0040/energy1")
    start = meter.read()
    _write(chip, energy1_input=3_000_000)
    assert meter.read() - start == pytest.approx(3.0)
    meter.close()


def test_hwmon_requires_choice_of_channel(tmp_path: Path) -> None:
    _ina3221(tmp_path)
    with pytest.raises(ConfigError, match="several channels") as error:
        open_meter("hwmon", root=tmp_path)
    assert "ina3221@0-0040/in1 (VDD_1, power, integrated)" in str(error.value)
    assert "in4" not in str(error.value)
    with pytest.raises(ConfigError, match="Unknown channel 'ina3221@0-0040/in4'"):
        open_meter("hwmon", channel="ina3221@0-0040/in4", root=tmp_path)


def test_hwmon_ignores_other_chips(tmp_path: Path) -> None:
    _chip(tmp_path, 0, "nct6775", in1_input=12_000, curr1_input=100)
    with pytest.raises(ConfigError, match=r"no energy or power in .*driver.*target\.meter=none"):
        open_meter("hwmon", root=tmp_path)
    with pytest.raises(ConfigError, match="no energy or power"):
        open_meter("hwmon", root=tmp_path / "nowhere")


@pytest.mark.parametrize("file", ["energy1_input", "power1_input"])
def test_unreadable_hwmon_is_refused_at_start(tmp_path: Path, file: str) -> None:
    chip = _chip(tmp_path, 0, "ina226")
    (chip / file).mkdir()  # cannot be read, not even by root
    with pytest.raises(ConfigError, match=rf"Cannot read '.*{file}' \(.*\): check the meter and"):
        open_meter("hwmon", root=tmp_path)


# any


def test_unknown_and_missing_meters_are_refused(powercap: Path) -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'rapl'.*Allowed: hwmon, nvml, rapl"):
        open_meter("rappl")
    with pytest.raises(ConfigError, match=r"measures nothing\. Allowed: rapl, nvml, hwmon"):
        open_meter("none")
    with pytest.raises(ConfigError, match="no channels"):
        open_meter("rapl", channel="0", root=powercap)
    assert open_meter("rapl", root=powercap).name == "rapl"


def test_gpus_are_described_by_model_and_driver() -> None:
    library = Library()
    result = gpus(library)
    assert result["driver"] == "570.1"
    assert result["gpu"].count(" + ") == 1
    assert library.opened == 0


@pytest.mark.parametrize("function", ["init", "count"])
def test_machine_without_gpu_is_refused(function: str) -> None:
    library = Library(fails={function: NvmlError("Driver Not Loaded")})
    with pytest.raises(ConfigError, match=r"No NVIDIA GPU was found \(Driver Not Loaded\)"):
        gpus(library)
    assert library.opened == 0


def test_driver_without_gpus_is_refused() -> None:
    library = Library(n_gpus=0)
    with pytest.raises(ConfigError, match="No NVIDIA GPU was found: check"):
        gpus(library)
    assert library.opened == 0
