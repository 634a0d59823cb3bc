"""Test the energy meters of this machine, and simulated meters with a known true value.

    python -m experiments.energy.simulate

First opens every meter at its default path and prints the result. Then simulates meters: writes the
files that the kernel documents, and updates them at the rate and resolution of the hardware while
"inferences" sleep. The simulated device has a known power when idle and when busy. hwnas measures
the energy of an inference as ``search`` does for the members of a front. Writes ``simulated.csv``
with a row for each simulated meter.

Sources:
    RAPL: https://docs.kernel.org/power/powercap/powercap.html
    hwmon: https://docs.kernel.org/hwmon/ina2xx.html, ina3221.html and ltc2947.html
"""

import csv
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from hwnas.core.errors import HwnasError
from hwnas.hardware.meters.builtin import open_meter
from hwnas.hardware.meters.meter import measure

IDLE_S, BLOCK_S = 4.0, 1.0  # as in hwnas.hardware.runtimes.bench
INFERENCE_S = 0.002
_N_BLOCKS = 6  # number of last runs that hwnas.hardware.meters.meter evaluates
RAPL_RANGE_UJ = 262_143_328_850
RAPL_STEP_UJ = 1e6 / 2**16  # resolution of the counters of Intel and AMD

Values = Callable[[float, float], Mapping[str, float]]  # (joules, watts): content of each file


@dataclass(frozen=True)
class Layout:
    """The files of a meter."""

    name: str
    meter: str
    channel: str
    period_s: float  #: update interval of the hardware in seconds
    constants: Mapping[str, str]  #: content of files that do not change
    values: Values
    idle_w: float
    active_w: float
    drift_w_per_s: float = 0.0  #: increase of the idle power while the device warms up


def _rapl(joules: float, watts: float) -> Mapping[str, float]:
    """Return the counters of two packages and of memory; one counter wraps around."""
    steps = int(joules * 1e6 / RAPL_STEP_UJ)
    near_end = RAPL_RANGE_UJ - 30_000_000
    return {
        "intel-rapl:0/energy_uj": (near_end + int(steps * 0.7 * RAPL_STEP_UJ)) % RAPL_RANGE_UJ,
        "intel-rapl:0:0/energy_uj": int(steps * 0.5 * RAPL_STEP_UJ),  # core: part of the package
        "intel-rapl:0:1/energy_uj": int(steps * 0.1 * RAPL_STEP_UJ),  # dram
        "intel-rapl:1/energy_uj": int(steps * 0.2 * RAPL_STEP_UJ),
        "intel-rapl:2/energy_uj": int(steps * 1.5 * RAPL_STEP_UJ),  # psys contains both packages
    }


_ZONES = {"0": "package-0", "0:0": "core", "0:1": "dram", "1": "package-1", "2": "psys"}
_RAPL = {f"intel-rapl:{zone}/name": name for zone, name in _ZONES.items()} | {
    f"intel-rapl:{zone}/max_energy_range_uj": str(RAPL_RANGE_UJ) for zone in _ZONES
}

LAYOUTS = (
    Layout("RAPL, two packages and DRAM", "rapl", "", 0.001, _RAPL, _rapl, 40.0, 95.0),
    Layout(
        "RAPL, idle power rising by 0.3 W/s", "rapl", "", 0.001, _RAPL, _rapl, 40.0, 95.0, 0.3
    ),
    Layout(
        "hwmon, LTC2947, energy counter", "hwmon", "", 0.1,
        {"hwmon0/name": "ltc2947"},
        lambda joules, watts: {"hwmon0/energy1_input": int(joules * 1e6)},
        2.0, 6.0,
    ),
    Layout(
        "hwmon, INA226, power in steps of 25 mW", "hwmon", "", 0.0352,
        {"hwmon0/name": "ina226"},
        lambda joules, watts: {"hwmon0/power1_input": round(watts / 0.025) * 25_000},
        2.0, 6.0,
    ),
    Layout(
        "hwmon, INA3221, voltage x current, one rail of three", "hwmon", "ina3221@hwmon0/in1",
        0.0066,
        {"hwmon0/name": "ina3221", "hwmon0/in1_label": "VDD_GPU", "hwmon0/in2_input": "5000",
         "hwmon0/curr2_input": "300"},
        lambda joules, watts: {"hwmon0/in1_input": 5000, "hwmon0/curr1_input": int(watts / 5e-3)},
        2.0, 6.0,
    ),
)  # fmt: skip


@final
@dataclass
class SimulatedDevice:
    """Updates the files of a layout in a thread, as the hardware does."""

    layout: Layout
    root: Path
    busy: bool = False
    inference_s: list[float] = field(default_factory=list)  #: seconds per inference of each run
    _joules: float = 0.0
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "SimulatedDevice":
        for name, content in self.layout.constants.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(f"{content}\n")
        self._write_values(self.layout.idle_w)
        self._thread = threading.Thread(target=self._update, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def run(self, n: int) -> float:
        """Sleep for the duration of ``n`` inferences; return the seconds."""
        start, self.busy = time.monotonic(), True
        time.sleep(n * INFERENCE_S)
        self.busy = False
        seconds = time.monotonic() - start
        self.inference_s.append(seconds / n)
        return seconds

    def _update(self) -> None:
        start = last = time.monotonic()
        while not self._stop.wait(self.layout.period_s):
            now = time.monotonic()
            idle_w = self.layout.idle_w + self.layout.drift_w_per_s * (now - start)
            watts = idle_w + (self.layout.active_w - self.layout.idle_w) * self.busy
            self._joules += watts * (now - last)
            last = now
            self._write_values(watts)

    def _write_values(self, watts: float) -> None:
        """Replace each file atomically, because readers never see a partial kernel file."""
        for name, value in self.layout.values(self._joules, watts).items():
            path = self.root / name
            temporary = path.with_name(".new")
            temporary.write_text(f"{value:.0f}\n")
            os.replace(temporary, path)


def read_real_meters() -> list[str]:
    """Read each meter of this machine for a second; return a line with the result of each."""
    lines = []
    for name in ("rapl", "nvml", "hwmon"):
        try:
            meter = open_meter(name)
            start_j = meter.read()
            time.sleep(1)
            lines.append(f"{name}: {meter.source}: {meter.read() - start_j:.3f} J in a second")
            meter.close()
        except HwnasError as error:
            lines.append(f"{name}: {error}")
    return lines


def measure_simulated(layout: Layout) -> dict[str, str | float | bool]:
    """Return the measured and the true energy of a simulated inference."""
    with tempfile.TemporaryDirectory() as folder, SimulatedDevice(layout, Path(folder)) as device:
        meter = open_meter(layout.meter, layout.channel, Path(folder))
        energy = measure(meter, device.run, IDLE_S, BLOCK_S)
        meter.close()
    # Not INFERENCE_S: sleeping takes slightly longer than requested.
    seconds = statistics.fmean(device.inference_s[-_N_BLOCKS:])
    true_mj, figure = (layout.active_w - layout.idle_w) * seconds * 1e3, energy.figure
    return {
        "meter": layout.name,
        "true_mj": round(true_mj, 4),
        "measured_mj": round(figure.value, 4),
        "low_mj": round(figure.lower, 4),
        "high_mj": round(figure.upper, 4),
        "error": f"{figure.value / true_mj - 1:+.2%}",
        "holds": figure.lower <= true_mj <= figure.upper,
        "idle_w": round(energy.idle_w, 3),
        "n": energy.n,
    }


def main() -> None:
    """Test the real meters, then the simulated ones."""
    print("Meters of this machine:", *read_real_meters(), sep="\n  ")
    rows = []
    for layout in LAYOUTS:
        rows.append(measure_simulated(layout))
        print(rows[-1], flush=True)
    with (Path(__file__).parent / "simulated.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
