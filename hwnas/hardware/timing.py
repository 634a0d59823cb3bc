"""Timing: warm-up until stable, medians of long repeats, and detection of drift.

A ``Timer`` runs something ``n`` times and returns the seconds of all runs together.
"""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

from hwnas.core.options import bounded, check_bounds
from hwnas.core.quantity import NORMAL_95, Quantity

Timer = Callable[[int], float]  #: see the module

_STABLE = 0.02  #: warm-up ends when a repeat is not faster by more than this fraction
_MAX_WARM_UPS = 20
_MIN_SINGLE_RUNS, _MAX_SINGLE_RUNS = 400, 2000  #: number of single runs for the p99 latency
_SINGLE_RUNS_S = 20.0  #: seconds of single runs, if more than the minimum number fit
_TURNS = (4, 12)  #: minimum and maximum turns of a comparison, in repeats of a timing
_SHORTER = 8  # repeats of a comparison are shorter by this factor
_N_PROBES = 10  # runs that determine the length of a repeat
_COMPARED_S = 10.0  # seconds of turns beyond the minimum number
_N_LATEST = 60  #: latest sentinel readings that define the normal level


@dataclass
class TimingConfig:
    """Duration of measurements; longer ones are less noisy."""

    repeats: int = bounded("[3, 10_000]", 9)  #: repeats per timing; the result is their median
    #: minimum duration of a repeat (several runs), in milliseconds
    min_repeat_ms: float = bounded("(0, 60_000]", 10.0)
    #: relative increase of the sentinel's latency above which measurements are repeated
    drift: float = bounded("(0, 1)", 0.05)
    #: repetitions of a measurement during drift, before it is marked as drifted
    retries: int = bounded("[0, 1000]", 3)

    def __post_init__(self) -> None:
        check_bounds(self, "timing.")


@dataclass(frozen=True)
class Timing:
    """The latency of one run: the median of repeats with its 95 % interval."""

    median_ms: float  #: latency of one run
    low_ms: float  #: lower end of the interval
    high_ms: float  #: upper end of the interval
    n_repeats: int  #: number of repeats
    drifted: bool = False  #: True if the machine was slower than normal during the measurement

    @property
    def figure(self) -> Quantity:
        """The latency in ms with its interval, as a quantity with the source ``measured``."""
        return Quantity(self.median_ms, "measured", self.low_ms, self.high_ms)


def measure(timer: Timer, config: TimingConfig) -> Timing:
    """Return the latency of one run, from ``config.repeats`` repeats of at least the minimum time.

    Before, it is warmed up until repeats stop becoming faster, for at most 20 repeats.
    """
    number = _runs_per_repeat(timer, config.min_repeat_ms)
    fastest = math.inf
    for _ in range(_MAX_WARM_UPS):
        now = timer(number)
        if now >= fastest * (1 - _STABLE):
            break
        fastest = now
    return summarise([timer(number) / number * 1e3 for _ in range(config.repeats)])


def summarise(repeats_ms: Sequence[float]) -> Timing:
    """Return the median of ``repeats_ms`` with its 95 % interval from order statistics.

    The interval holds for any distribution. For fewer than six repeats it is their range, which
    covers the median with a lower probability.
    """
    ordered = sorted(repeats_ms)
    low, high = _median_interval(len(ordered))
    return Timing(statistics.median(ordered), ordered[low], ordered[high], len(ordered))


@dataclass(frozen=True)
class InterleavedTimings:
    """Latencies of two networks that were timed in turns."""

    first: Timing  #: latency of the first network
    second: Timing  #: latency of the second network
    ratio: Quantity  #: first / second, by turn: the median with its 95 % interval


def interleaved(first: Timer, second: Timer, config: TimingConfig) -> InterleavedTimings:
    """Return the latencies of two functions, timed in turns so that both see the same speed.

    The order within each turn is random, so that periodic disturbances do not always hit the same
    function. Repeats of both take about equally long. Only the quietest quarter of the turns
    counts, because disturbances make a run longer, never shorter.
    """
    timers, rng = (first, second), random.Random(0)
    numbers = [_undisturbed_runs(timer, config.min_repeat_ms / _SHORTER) for timer in timers]

    def turn() -> list[float]:
        seconds = [0.0, 0.0]
        for i in rng.sample((0, 1), 2):
            seconds[i] = timers[i](numbers[i])
        return seconds

    minimum, maximum = (n * config.repeats for n in _TURNS)
    turns = [turn() for _ in range(minimum)]
    while len(turns) < maximum and sum(map(sum, turns)) < _COMPARED_S:
        turns.append(turn())
    quiet = _quietest(turns)
    first_ms, second_ms = ([t[i] / numbers[i] * 1e3 for t in quiet] for i in (0, 1))
    ratio = summarise([a / b for a, b in zip(first_ms, second_ms, strict=True)])
    figure = Quantity(ratio.median_ms, "measured", ratio.low_ms, ratio.high_ms)
    return InterleavedTimings(summarise(first_ms), summarise(second_ms), figure)


def _undisturbed_runs(timer: Timer, repeat_ms: float) -> int:
    """Return the number of runs in a repeat of this length, without disturbances."""
    number = _runs_per_repeat(timer, repeat_ms)
    fastest_ms = min(timer(number) for _ in range(_N_PROBES)) / number * 1e3
    return max(1, round(repeat_ms / fastest_ms))


def _quietest(turns: list[list[float]]) -> list[list[float]]:
    """Return the fastest quarter of the turns, relative to the fastest run of each function."""
    fastest = [min(column) for column in zip(*turns, strict=True)]
    loads = [sum(a / b for a, b in zip(turn, fastest, strict=True)) for turn in turns]
    order = sorted(range(len(turns)), key=loads.__getitem__)
    return [turns[i] for i in order[: (len(turns) + 3) // 4]]


def percentiles(timer: Timer, n: int) -> dict[str, float]:
    """Return ``p50_ms``, ``p90_ms`` and ``p99_ms`` of ``n`` single runs, after warming up."""
    timer(max(1, n // 10))
    runs = sorted(timer(1) * 1e3 for _ in range(n))
    return {f"p{p}_ms": runs[min(n - 1, round(p / 100 * (n - 1)))] for p in (50, 90, 99)}


def single_runs(seconds: float) -> int:
    """Return the number of single runs for a p99 latency, from the seconds of one run.

    As many as take 20 s, but 400 to 2000.
    """
    return max(_MIN_SINGLE_RUNS, min(_MAX_SINGLE_RUNS, int(_SINGLE_RUNS_S / max(seconds, 1e-9))))


def median_and_p99(
    timer: Timer, limit_s: float = math.inf, uncounted: int = 0
) -> tuple[Timing, Quantity] | None:
    """Return the median and the p99 latency of single runs in ms, with their 95 % intervals.

    Both are of the same runs, so that the p99 is never below the median. ``single_runs`` are timed:
    fewer runs cannot resolve the 99th percentile. ``None``, after three runs, if so many would
    exceed the limit.

    Args:
        timer: Runs the network.
        limit_s: Limit for all runs, in seconds.
        uncounted: Additional inferences per call of the timer that it does not time.

    Source: Conover, "Practical nonparametric statistics", 1999, section 3.2.
    """
    once = min(timer(1) for _ in range(3))
    n = single_runs(once)
    if n * once * (1 + uncounted) > limit_s:
        return None
    runs = sorted(timer(1) * 1e3 for _ in range(n))
    middle, half = 0.99 * n, NORMAL_95 * math.sqrt(n * 0.99 * 0.01)
    low, rank, high = (
        runs[min(n, max(1, math.ceil(position))) - 1]
        for position in (middle - half, middle, middle + half)
    )
    return summarise(runs), Quantity(rank, "measured", low, high)


def _runs_per_repeat(timer: Timer, min_repeat_ms: float) -> int:
    timer(1)  # the first run may load kernels and choose algorithms
    number = 1
    while (elapsed_ms := timer(number) * 1e3) < min_repeat_ms:
        number = max(
            number * 2, min(number * 10, math.ceil(number * min_repeat_ms / (elapsed_ms or 1)))
        )
    return number


def _median_interval(n: int) -> tuple[int, int]:
    """Return the indices of the order statistics that enclose the median with 95 % probability.

    Source: Conover, "Practical nonparametric statistics", 1999, section 3.2.
    """
    below, k = 0.0, 0
    while (below := below + math.comb(n, k) / 2**n) <= 0.025:
        k += 1
    return (k - 1, n - k) if k else (0, n - 1)


@final
class Sentinel:
    """A constant workload that is timed between measurements, to detect a slower machine.

    The normal level is the lower quartile of the latest readings. If the machine stays slower, the
    lower speed becomes normal after some measurements marked ``drifted``. Eight readings are taken
    at once at the start.
    """

    def __init__(self, timer: Timer, config: TimingConfig):
        self._timer, self._config = timer, config
        self._number = _runs_per_repeat(timer, config.min_repeat_ms / 4)
        self._readings = [self._read() for _ in range(8)]

    def _read(self) -> float:
        return statistics.median(self._timer(self._number) for _ in range(3)) / self._number * 1e3

    @property
    def readings_ms(self) -> tuple[float, ...]:
        """All readings in ms, the oldest first."""
        return tuple(self._readings)

    def disturbed(self) -> bool:
        """Take a reading; return True if it is above normal by more than ``config.drift``."""
        self._readings.append(self._read())
        latest = sorted(self._readings[-_N_LATEST:])
        return self._readings[-1] > latest[len(latest) // 4] * (1 + self._config.drift)

    def watch(self, block: Callable[[], Sequence[Timing]]) -> list[Timing]:
        """Call ``block``, which measures, between two readings of the sentinel; return its timings.

        If a reading is slower than normal, ``block`` is called again; after ``config.retries``
        repetitions its last timings are returned, marked ``drifted``.
        """
        for _ in range(self._config.retries + 1):
            before = self.disturbed()
            timings = list(block())
            if not before and not self.disturbed():
                return timings
        return [replace(timing, drifted=True) for timing in timings]


@dataclass
class NetworksConfig:
    """Numbers of networks that are measured to calibrate a latency table."""

    fit: int = bounded("[6, 10_000]", 24)  #: networks that the coefficients are fitted to
    interval: int = bounded("[19, 10_000]", 59)  #: networks that set the width of the interval
    #: other networks, for the reported error
    held_out: int = bounded("[10, 10_000]", 60)

    def __post_init__(self) -> None:
        check_bounds(self, "networks.")


@dataclass
class TuningConfig:
    """Tuning of operators, and the time limit of calls."""

    n_plans: int = bounded("[1, 1000]", 6)  #: compilation plans that are tried for each operator
    #: time limit of one compilation or measurement, in seconds
    limit_s: float = bounded("(0, 86_400]", 120.0)

    def __post_init__(self) -> None:
        check_bounds(self, "tuning.")
