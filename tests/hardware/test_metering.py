import dataclasses
import math
import random
import time
from collections.abc import Callable

import numpy as np
import pytest

from hwnas.core.errors import ConfigError, RunError
from hwnas.hardware.meters.meter import PowerIntegral, measure

IDLE_W, ACTIVE_W, INFERENCE_S = 3.0, 13.0, 0.01
NET_MJ = (ACTIVE_W - IDLE_W) * INFERENCE_S * 1e3


@dataclasses.dataclass
class Device:
    """A simulated device with clock and meter, whose power is known."""

    idle_w: float = IDLE_W
    active_w: float = ACTIVE_W
    noise_w: float = 0.0
    overhead_s: float = 0.0  #: of every call, beside the inferences
    lag_s: float = 0.0  #: by which readings are late
    warm_w: float = 0.0  #: that idle power rises by once inferences ran for a second
    uncounted: int = 0  #: inferences of every call beside those that it is asked for
    units: float = 1.0  #: seconds in the unit that run() returns
    name: str = "rapl"
    source: str = "a simulated meter"

    def __post_init__(self) -> None:
        self.now, self.joules, self.calls = 100.0, 7.0, list[int]()
        self.random = random.Random(0)
        self.past = [(self.now, self.joules)]

    def _pass(self, seconds: float, watts: float) -> None:
        self.past.append((self.now, self.joules))
        self.now += seconds
        self.joules += seconds * (watts + self.random.gauss(0, self.noise_w))

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        warm = sum(self.calls) * INFERENCE_S > 3
        self._pass(seconds, self.idle_w + self.warm_w * warm)

    def run(self, n: int) -> float:
        self.calls.append(n)
        self._pass((n + self.uncounted) * INFERENCE_S, self.active_w)
        self._pass(self.overhead_s, self.active_w)
        return n * INFERENCE_S / self.units

    def read(self) -> float:
        times, joules = zip(*self.past, (self.now, self.joules), strict=True)
        return float(np.interp(self.now - self.lag_s, times, joules))

    def close(self) -> None:
        pass


def test_idle_power_is_subtracted_and_reported() -> None:
    device = Device()
    energy = measure(device, device.run, 1.0, 0.5, device.clock, device.sleep)
    assert energy.figure.value == pytest.approx(NET_MJ)
    assert energy.figure.source == "measured"
    assert energy.idle_w == pytest.approx(IDLE_W)
    assert energy.active_w == pytest.approx(ACTIVE_W)
    assert energy.idle_drift_w == pytest.approx(0, abs=1e-9)
    assert energy.n == sum(device.calls[-6:])
    assert device.calls[-1] * INFERENCE_S >= 0.5
    for text in ("a simulated meter", "13 W", "3 W", f"{energy.n} inferences"):
        assert text in energy.words


@pytest.mark.parametrize("min_s", [0.005, 0.05, 0.5])
def test_untimed_inferences_count(min_s: float) -> None:
    device = Device(uncounted=1)
    energy = measure(device, device.run, 1.0, min_s, device.clock, device.sleep, uncounted=1)
    assert energy.figure.value == pytest.approx(NET_MJ)
    assert energy.n == sum(device.calls[-6:]) + 6


def test_lag_of_meter_does_not_bias_energy() -> None:
    device = Device(lag_s=0.2)
    figure = measure(device, device.run, 1.0, 0.5, device.clock, device.sleep).figure
    assert figure.value == pytest.approx(NET_MJ)
    assert figure.low == pytest.approx(NET_MJ)


def test_interval_has_nominal_coverage() -> None:
    covered, n = 0, 300
    for seed in range(n):
        device = Device(noise_w=2.0)
        device.random.seed(seed)
        figure = measure(device, device.run, 1.0, 0.5, device.clock, device.sleep).figure
        assert figure.low is not None
        covered += figure.low <= NET_MJ <= figure.upper
    assert 0.92 * n <= covered <= 0.99 * n


def test_drift_of_idle_power_widens_interval() -> None:
    device = Device(warm_w=1.0)
    energy = measure(device, device.run, 1.0, 0.5, device.clock, device.sleep)
    assert energy.idle_drift_w == pytest.approx(1.0)
    assert energy.idle_w == pytest.approx(IDLE_W + 0.5)
    assert energy.figure.low is not None
    assert energy.figure.low < NET_MJ - 10 < energy.figure.value < NET_MJ < energy.figure.upper
    assert "+1 W" in energy.words


def test_energy_below_idle_is_an_error() -> None:
    for active_w in (IDLE_W, IDLE_W - 1.0):
        device = Device(active_w=active_w)
        with pytest.raises(
            RunError, match=r"idling 3 W, a difference of .* mJ per.*target\.meter_channel"
        ):
            measure(device, device.run, 1.0, 0.5, device.clock, device.sleep)


def test_interval_including_zero_is_reported() -> None:
    device = Device(active_w=IDLE_W + 0.5, noise_w=2.0)
    energy = measure(device, device.run, 1.0, 0.5, device.clock, device.sleep)
    assert energy.figure.low == 0.0 < energy.figure.value < energy.figure.upper
    assert energy.words.endswith("; not significantly above idle")


@pytest.mark.parametrize("above_w", [0.0, 0.5, 2.0])
def test_interval_near_idle_has_coverage_and_is_positive(above_w: float) -> None:
    """Like a GPU with high clocks between kernels: half of the readings are below idle."""
    covered, n = 0, 300
    truth = above_w * INFERENCE_S * 1e3
    for seed in range(n):
        device = Device(idle_w=30.0, active_w=30.0 + above_w, noise_w=4.0)
        device.random.seed(seed)
        figure = measure(device, device.run, 1.0, 0.5, device.clock, device.sleep).figure
        assert figure.low is not None
        assert 0 <= figure.low <= figure.value <= figure.upper
        assert figure.value > 0
        covered += figure.low <= truth <= figure.upper
    assert covered >= 0.92 * n


def test_significantly_negative_energy_is_an_error() -> None:
    device = Device(active_w=IDLE_W - 2.0, noise_w=0.1)
    with pytest.raises(RunError, match=r"a difference of -20 \+- 1\.8 mJ"):
        measure(device, device.run, 1.0, 0.5, device.clock, device.sleep)


def test_constant_meter_is_refused() -> None:
    device = Device(idle_w=0.0, active_w=0.0)
    with pytest.raises(ConfigError, match=r"a simulated meter\) did not advance in 0\.5\d* s"):
        measure(device, device.run, 1.0, 0.5, device.clock, device.sleep)


@pytest.mark.parametrize("change", [{"overhead_s": 0.2}, {"units": 1e-3}, {"units": 1e3}])
def test_block_with_other_work_is_refused(change: dict[str, float]) -> None:
    device = Device(**change)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="but inferences took"):
        measure(device, device.run, 1.0, 0.5, device.clock, device.sleep)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan])
def test_run_of_zero_duration_is_refused(seconds: float) -> None:
    device = Device()

    def run(n: int) -> float:
        device.run(1)
        return seconds

    with pytest.raises(RunError, match="inferences took"):
        measure(device, run, 1.0, 0.5, device.clock, device.sleep)


@pytest.mark.parametrize(("idle_s", "min_s"), [(0.0, 1.0), (1.0, 0.0), (math.nan, 1.0)])
def test_times_must_be_positive(idle_s: float, min_s: float) -> None:
    device = Device()
    with pytest.raises(ConfigError, match="must be above 0"):
        measure(device, device.run, idle_s, min_s, device.clock, device.sleep)


def _integral(watts: Callable[[], float], clock: Callable[[], float]) -> PowerIntegral:
    return PowerIntegral(watts, period_s=3600, clock=clock)  # only read() samples


def test_sampled_power_is_integrated_by_trapezoids() -> None:
    samples = iter([(0.0, 2.0), (0.5, 4.0), (0.7, 4.0), (1.7, 0.0)])
    power, now = 0.0, 0.0

    def watts() -> float:
        nonlocal power, now
        now, power = next(samples)
        return power

    integral = _integral(watts, lambda: now)
    try:
        assert integral.read() == pytest.approx(1.5)
        assert integral.read() == pytest.approx(1.5 + 0.8)
        assert integral.read() == pytest.approx(1.5 + 0.8 + 2.0)
    finally:
        integral.close()


def test_gap_in_samples_is_an_error_once() -> None:
    now = 0.0
    integral = _integral(lambda: 1.0, lambda: now)
    try:
        now = 1.1
        with pytest.raises(RunError, match=r"not sampled for 1\.1 s"):
            integral.read()
        assert integral.read() == pytest.approx(1.1)
    finally:
        integral.close()


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    assert condition()


def test_thread_samples_until_closed() -> None:
    n = 0

    def watts() -> float:
        nonlocal n
        n += 1
        return 1.0

    integral = PowerIntegral(watts, period_s=0.001)
    _wait_for(lambda: n > 5)
    integral.close()
    stopped = n
    time.sleep(0.02)
    assert n == stopped


def test_error_in_thread_is_raised_by_next_reading() -> None:
    n = 0

    def watts() -> float:
        nonlocal n
        n += 1
        if n == 3:
            raise ConfigError("the bus is gone")
        return 1.0

    integral = PowerIntegral(watts, period_s=0.001)
    _wait_for(lambda: n == 3)
    with pytest.raises(ConfigError, match="the bus is gone"):
        integral.read()
    integral.close()
