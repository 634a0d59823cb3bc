"""How the energy of an inference is measured, whatever the meter (those are in ``meters.py``).

What makes a measurement impossible (a meter that is dead or cannot be read) is a ``ConfigError``;
one measurement that says nothing is a ``RunError``. Neither is ever replaced by another figure.
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

_PERIOD_S = 0.02  # of sampling, where a meter gives power only
_LONGEST_GAP_S = 1.0  # between two samples
_N = 6  # blocks, and slices of idle time: half of these before the blocks, half after
_T = 2.5705818  # Student's t for 95 % and _N - 1 degrees of freedom
_MOST_INFERENCES = 10**9
_TOLERANCE = 0.1  # share of a block that may pass outside the inferences
_ROUNDING = 1e-6  # of the energy of a block: what may be left of it without idle must be more
_BELOW = 3  # half widths that energy may be measured below zero by chance (1 of 3,000)
_SHARE = 0.95
_R = TypeVar("_R")


class EnergyMeter(Protocol):
    """What counts the joules that a device takes."""

    @property
    def name(self) -> str:
        """Its name in ``target.meter``."""
        ...

    @property
    def source(self) -> str:
        """What is counted and where it is read, for reports."""
        ...

    def read(self) -> float:
        """Return the joules since an arbitrary start; they never fall."""
        ...

    def close(self) -> None:
        """Give back what the meter holds."""
        ...


@dataclass(frozen=True)
class MeasuredEnergy:
    """Energy of an inference above idle, as a meter measured it."""

    figure: Quantity  #: mJ an inference, idle power subtracted
    idle_w: float  #: power without inferences; it is what was subtracted
    idle_drift_w: float  #: idle power after the inferences, less that before them
    active_w: float  #: power while inferences ran, idle power included
    n: int  #: inferences that were counted
    meter: str  #: what was read: the meter's ``source``

    @property
    def words(self) -> str:
        """How the figure came about, for reports."""
        hidden = "" if self.figure.low else "; not told from idling"
        return (
            f"{self.meter}; {self.active_w:.3g} W over {self.n} inferences, less idle power of "
            f"{self.idle_w:.3g} W (which drifted by {self.idle_drift_w:+.2g} W){hidden}"
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
    """Measure the energy of an inference above idle.

    Six blocks of inferences are counted, after one that is not: counters lag behind. Idle power is
    measured before and after them, with all that inferences need in place; the first quarter of
    each idle time is not counted. The interval (95 %, Student's t) holds the spread of the blocks
    and that of idle power, its drift included. Where it reaches zero, inferences are not told from
    idling: no energy above idle is below zero, so that the figure is the mean of the normal
    distribution without what is below zero (95 % lie between 0 and its upper end).

    Args:
        meter: What is read. It should renew its value many times in ``min_s`` and ``idle_s / 4``.
        run: Executes n inferences, nothing else, and returns the seconds they took.
        idle_s: Idle time, before and again after.
        min_s: Time of a block, or more where one inference takes longer.
        clock: Seconds since an arbitrary start.
        sleep: Waits for so many seconds.
        uncounted: Inferences that ``run`` executes beside its n, and whose seconds it leaves out.

    Raises:
        ConfigError: The meter did not advance during a block, or cannot be read.
        RunError: The blocks took less power than idling, by more than chance, or the same in
            every block; or ``run`` does not fill them.
    """
    if not (idle_s > 0 and min_s > 0):
        raise ConfigError(f"idle_s and min_s must be positive, got {idle_s:g} and {min_s:g}.")

    def idle_watts() -> list[float]:
        sleep(idle_s / 4)
        slices = [_watch(meter, lambda: sleep(idle_s / 4), clock) for _ in range(_N // 2)]
        return [joules / seconds for _, joules, seconds in slices]

    n = _block_size(run, min_s)
    all_of_them = n + uncounted
    before = idle_watts()
    run(n)
    blocks = [_watch(meter, lambda: run(n), clock) for _ in range(_N)]
    after = idle_watts()
    for taken, joules, seconds in blocks:
        _check_block(meter, taken * all_of_them / n, joules, seconds)
    drift_w = statistics.fmean(after) - statistics.fmean(before)
    return _energy(meter, all_of_them, [block[1:] for block in blocks], before + after, drift_w)


def _energy(
    meter: EnergyMeter,
    n: int,
    blocks: list[tuple[float, float]],
    idle_w: list[float],
    drift_w: float,
) -> MeasuredEnergy:
    """Return the energy of an inference from (joules, seconds) of blocks of ``n`` each."""
    joules, seconds = (statistics.fmean(column) for column in zip(*blocks, strict=True))
    idle, idle_half = _mean(idle_w)
    net, half = _mean([(j - idle * s) / n * 1e3 for j, s in blocks])
    half = math.hypot(half, idle_half * seconds / n * 1e3)
    active = joules / seconds
    if net + _BELOW * half <= _ROUNDING * joules / n * 1e3:
        raise RunError(
            f"By {meter.source}, inferences took {active:.4g} W and idling {idle:.4g} W, which "
            f"leaves {net:.2g} +- {half:.2g} mJ an inference: stop what else the device does, "
            "measure for longer, or see whether this meter sees the device at all."
        )
    figure = Quantity(net, "measured", net - half, net + half)
    if net <= half:
        figure = _above_zero(net, half)
    return MeasuredEnergy(figure, idle, drift_w, active, _N * n, meter.source)


def _above_zero(net: float, half: float) -> Quantity:
    """Return what a reading says of an energy that cannot be below zero (all above as likely)."""
    normal = statistics.NormalDist()
    sigma = half / normal.inv_cdf((1 + _SHARE) / 2)
    at = net / sigma
    above = normal.cdf(at)
    mean = net + sigma * normal.pdf(at) / above
    return Quantity(mean, "measured", 0.0, net - sigma * normal.inv_cdf((1 - _SHARE) * above))


def _watch(
    meter: EnergyMeter, act: Callable[[], _R], clock: Callable[[], float]
) -> tuple[_R, float, float]:
    """Return what ``act`` returns, the joules and the seconds that passed."""
    joules, start = meter.read(), clock()
    result = act()
    return result, meter.read() - joules, clock() - start


def _check_block(meter: EnergyMeter, taken: float, joules: float, seconds: float) -> None:
    if joules <= 0:
        raise ConfigError(
            f"target.meter={meter.name}: {meter.source} did not advance in {seconds:.3g} s of "
            f"inferences: it is dead or far too coarse; choose another or set target.meter=none."
        )
    if not abs(taken - seconds) <= _TOLERANCE * seconds:
        raise RunError(
            f"{seconds:.3g} s passed between two readings of the meter, inferences say they took "
            f"{taken:.3g} s of it: what else happened would count as theirs; measure them alone."
        )


def _block_size(run: Callable[[int], float], min_s: float) -> int:
    """Return how many inferences take ``min_s`` or longer, warm."""
    run(1)
    n = 1
    while (seconds := run(n)) < min_s:
        if n == _MOST_INFERENCES:
            raise RunError(f"{n} inferences say they took {seconds:.3g} s: no time to measure.")
        needed = math.ceil(1.1 * n * min_s / seconds) if seconds > 0 else 10 * n
        n = min(max(n + 1, needed), 10 * n, _MOST_INFERENCES)
    return n


def _mean(values: list[float]) -> tuple[float, float]:
    """Return the mean of ``_N`` values and half the width of its 95 % interval."""
    return statistics.fmean(values), _T * statistics.stdev(values) / math.sqrt(_N)


@final
class PowerIntegral:
    """Joules of a power that can only be sampled: a thread adds up trapezoids."""

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
        self._thread = threading.Thread(target=self._follow, name="meter", daemon=True)
        self._thread.start()

    def read(self) -> float:
        """Return the joules since the start."""
        with self._lock:
            if self._error is not None:
                raise self._error
            self._sample()
            gap_s, self._gap_s = self._gap_s, 0.0
            if gap_s > _LONGEST_GAP_S:
                raise RunError(
                    f"The meter's power was not sampled for {gap_s:.2g} s; stop what else keeps "
                    "this machine busy, or run inferences so that Python's threads can go on."
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

    def _follow(self) -> None:
        while not self._stop.wait(self._period_s):
            with self._lock:
                try:
                    self._sample()
                except HwnasError as error:  # told by the next read()
                    self._error = error
                    return
