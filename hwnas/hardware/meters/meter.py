"""Measurement of the energy of an inference with any meter (``builtin`` has the meters).

A meter that is dead or cannot be read is a ``ConfigError``; a measurement without a result is a
``RunError``. No other value is used instead.
"""

import math
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar, final

from hwnas.core.errors import ConfigError, HwnasError, RunError
from hwnas.core.quantity import Quantity

_PERIOD_S = 0.02  # seconds between samples, if a meter has only power
_MAX_GAP_S = 1.0  # maximum seconds between two samples
_N = 6  # number of blocks, and of idle slices: half of these before the blocks, half after
_T = 2.5705818  # Student's t for 95 % and _N - 1 degrees of freedom
_MAX_INFERENCES = 10**9
_TOLERANCE = 0.1  # fraction of a block that may pass outside the inferences
_MIN_FRACTION = 1e-6  # minimum energy above idle, relative to the energy of a block
_MAX_BELOW_ZERO = 3  # half widths below zero that are attributed to chance (1 of 3,000)
_COVERAGE = 0.95
_R = TypeVar("_R")


class EnergyMeter(Protocol):
    """A counter of the energy that a device takes."""

    @property
    def name(self) -> str:
        """Name of the meter in ``target.meter``."""
        ...

    @property
    def source(self) -> str:
        """What is counted and where it is read, as text for reports."""
        ...

    def read(self) -> float:
        """Return the joules since an arbitrary start; they never decrease.

        Raises:
            ConfigError: the meter cannot be read.
            RunError: the power of a meter without a counter was not sampled for over a second.
        """
        ...

    def close(self) -> None:
        """Release the meter's resources; it cannot be read afterwards."""
        ...


@dataclass(frozen=True)
class MeasuredEnergy:
    """Measured energy of an inference above idle."""

    figure: Quantity  #: mJ per inference (of the whole batch), idle power subtracted
    idle_w: float  #: mean idle power in W, which was subtracted
    idle_drift_w: float  #: idle power after the inferences minus that before, in W
    active_w: float  #: power during inferences in W, idle power included
    n: int  #: number of counted inferences
    meter: str  #: ``source`` of the meter

    @property
    def words(self) -> str:
        """Meter, powers and number of inferences as text, for reports."""
        note = "" if self.figure.low else "; not significantly above idle"
        return (
            f"{self.meter}; {self.active_w:.3g} W over {self.n} inferences, less idle power of "
            f"{self.idle_w:.3g} W (which drifted by {self.idle_drift_w:+.2g} W){note}"
        )


def measure(  # noqa: PLR0913
    meter: EnergyMeter,
    run: Callable[[int], float],
    idle_s: float,
    min_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    *,
    uncounted: int = 0,
) -> MeasuredEnergy:
    """Return the measured energy of an inference above idle, in mJ.

    Six blocks of inferences are counted, after one that is not, because counters lag behind. Idle
    power is measured before and after them, with all resources of inferences allocated; the first
    quarter of each idle time is not counted. The interval (95 %, Student's t) includes the spread
    of the blocks and of idle power, with its drift. If the interval includes zero, the value is the
    mean of the normal distribution truncated at zero, and the interval reaches from 0 to its upper
    end, because energy above idle cannot be negative.

    Args:
        meter: The meter. It should update many times in ``min_s`` and ``idle_s / 4``.
        run: Runs n inferences, nothing else, and returns the seconds.
        idle_s: Idle time in seconds before, and again after the blocks.
        min_s: Minimum duration of a block in seconds.
        clock: Returns seconds since an arbitrary start.
        sleep: Waits for a number of seconds.
        uncounted: Number of additional inferences of each call of ``run``, which its seconds do not
            include.

    Raises:
        ConfigError: ``idle_s`` or ``min_s`` is not above 0, or the meter did not advance during a
            block or cannot be read.
        RunError: inferences took significantly less power than idling, or exactly as much; other
            work ran during a block; inferences are too short; or a power meter was not sampled for
            more than a second.
    """
    if not (idle_s > 0 and min_s > 0):
        raise ConfigError(f"idle_s and min_s must be above 0, got {idle_s:g} and {min_s:g}.")

    def idle_watts() -> list[float]:
        sleep(idle_s / 4)
        slices = [_watch(meter, lambda: sleep(idle_s / 4), clock) for _ in range(_N // 2)]
        return [joules / seconds for _, joules, seconds in slices]

    n = _block_size(run, min_s)
    n_total = n + uncounted
    before = idle_watts()
    run(n)
    blocks = [_watch(meter, lambda: run(n), clock) for _ in range(_N)]
    after = idle_watts()
    for taken, joules, seconds in blocks:
        _check_block(meter, taken * n_total / n, joules, seconds)
    drift_w = statistics.fmean(after) - statistics.fmean(before)
    return _energy(meter, n_total, [block[1:] for block in blocks], before + after, drift_w)


def _energy(
    meter: EnergyMeter,
    n: int,
    blocks: list[tuple[float, float]],
    idle_w: list[float],
    drift_w: float,
) -> MeasuredEnergy:
    """Return the energy of an inference from (joules, seconds) of blocks with ``n`` inferences."""
    joules, seconds = (statistics.fmean(column) for column in zip(*blocks, strict=True))
    idle, idle_half = _mean(idle_w)
    net, half = _mean([(j - idle * s) / n * 1e3 for j, s in blocks])
    half = math.hypot(half, idle_half * seconds / n * 1e3)
    active = joules / seconds
    if net + _MAX_BELOW_ZERO * half <= _MIN_FRACTION * joules / n * 1e3:
        raise RunError(
            f"By {meter.source}, inferences took {active:.4g} W and idling {idle:.4g} W, a "
            f"difference of {net:.2g} +- {half:.2g} mJ per inference: stop other programs and "
            "measure again, or check whether this meter covers the device (target.meter, "
            "target.meter_channel)."
        )
    figure = Quantity(net, "measured", net - half, net + half)
    if net <= half:
        figure = _above_zero(net, half)
    return MeasuredEnergy(figure, idle, drift_w, active, _N * n, meter.source)


def _above_zero(net: float, half: float) -> Quantity:
    """Return the quantity of an energy that cannot be negative (truncated normal distribution)."""
    normal = statistics.NormalDist()
    sigma = half / normal.inv_cdf((1 + _COVERAGE) / 2)
    z = net / sigma
    above = normal.cdf(z)
    mean = net + sigma * normal.pdf(z) / above
    return Quantity(mean, "measured", 0.0, net - sigma * normal.inv_cdf((1 - _COVERAGE) * above))


def _watch(
    meter: EnergyMeter, act: Callable[[], _R], clock: Callable[[], float]
) -> tuple[_R, float, float]:
    """Return the result of ``act``, and the joules and seconds that it took."""
    joules, start = meter.read(), clock()
    result = act()
    return result, meter.read() - joules, clock() - start


def _check_block(meter: EnergyMeter, taken: float, joules: float, seconds: float) -> None:
    if joules <= 0:
        raise ConfigError(
            f"target.meter={meter.name}: the energy counter ({meter.source}) did not advance in "
            f"{seconds:.3g} s of inferences: it does not work, or updates too rarely. Use another "
            "meter, or set target.meter=none."
        )
    if not abs(taken - seconds) <= _TOLERANCE * seconds:
        raise RunError(
            f"{seconds:.3g} s passed between two readings of the meter, but inferences took "
            f"{taken:.3g} s: other work would be counted. Stop other programs and start again."
        )


def _block_size(run: Callable[[int], float], min_s: float) -> int:
    """Return the number of warm inferences that take at least ``min_s``."""
    run(1)
    n = 1
    while (seconds := run(n)) < min_s:
        if n == _MAX_INFERENCES:
            raise RunError(
                f"{n} inferences took {seconds:.3g} s, too short to measure their energy. Set "
                "target.meter=none."
            )
        needed = math.ceil(1.1 * n * min_s / seconds) if seconds > 0 else 10 * n
        n = min(max(n + 1, needed), 10 * n, _MAX_INFERENCES)
    return n


def _mean(values: list[float]) -> tuple[float, float]:
    """Return the mean of ``_N`` values and half the width of its 95 % interval."""
    return statistics.fmean(values), _T * statistics.stdev(values) / math.sqrt(_N)


@final
class PowerIntegral:
    """Energy in joules from sampled power: its integral by the trapezoidal rule, in a thread.

    Args:
        watts: Returns the present power in W.
        period_s: Seconds between two samples.
        clock: Returns seconds since an arbitrary start.
    """

    def __init__(
        self,
        watts: Callable[[], float],
        period_s: float = _PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._watts, self._period_s, self._clock = watts, period_s, clock
        self._joules, self._gap_s = 0.0, 0.0
        self._power, self._time = watts(), clock()
        self._error: HwnasError | None = None
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._sample_periodically, name="meter", daemon=True)
        self._thread.start()

    def read(self) -> float:
        """Return the joules since the object was created.

        Raises:
            ConfigError: the power cannot be read.
            RunError: since the last call, there was no sample for more than a second.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            self._sample()
            gap_s, self._gap_s = self._gap_s, 0.0
            if gap_s > _MAX_GAP_S:
                raise RunError(
                    f"The meter's power was not sampled for {gap_s:.2g} s: stop other programs, or "
                    "run inferences that do not block Python's threads."
                )
            return self._joules

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        power, now = self._watts(), self._clock()
        self._joules += (power + self._power) / 2 * (now - self._time)
        self._gap_s = max(self._gap_s, now - self._time)
        self._power, self._time = power, now

    def _sample_periodically(self) -> None:
        while not self._stop.wait(self._period_s):
            with self._lock:
                try:
                    self._sample()
                except HwnasError as error:  # raised by the next read()
                    self._error = error
                    return
