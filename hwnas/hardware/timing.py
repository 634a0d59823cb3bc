"""How something is timed: warm-up until stable, medians of long repeats, drift that shows.

What is timed is a ``Timer``: ``timer(n)`` runs it ``n`` times and returns the seconds that took.
"""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

from hwnas.core.options import bounded, check_bounds
from hwnas.core.quantity import NORMAL_95, Quantity

Timer = Callable[[int], float]

_STABLE = 0.02  #: warm-up ends with a repeat that is not faster than all before by more than this
_MAX_WARM_UPS = 20
_LEAST_SINGLE, _MOST_SINGLE = 400, 2000  #: single runs that say how slow the slowest are
_SINGLE_S = 20.0  #: that they take, if they may be fewer
_TURNS = (4, 12)  #: of comparisons, as multiples of the repeats of a timing
_SHORTER = 8  # times are their repeats
_PROBES = 10  # from which their length is known
_COMPARED_S = 10.0  # that turns take beyond the least
_LATEST = 60  #: readings of the sentinel that say what is normal


@dataclass
class TimingConfig:
    """How long is measured; longer is less noisy."""

    repeats: int = bounded("[3, 10_000]", 9)  #: repeats of one timing; its median is the result
    #: a repeat runs often enough to take this long
    min_repeat_ms: float = bounded("(0, 60_000]", 10.0)
    #: change of the sentinel's latency beyond which a block is repeated
    drift: float = bounded("(0, 1)", 0.05)
    #: times that a drifting block is measured again before it is flagged
    retries: int = bounded("[0, 1000]", 3)

    def __post_init__(self) -> None:
        check_bounds(self, "timing.")


@dataclass(frozen=True)
class Timing:
    """The latency of one run: the median of repeats, and a 95 % interval of that median."""

    median_ms: float
    low_ms: float
    high_ms: float
    n_repeats: int
    drifted: bool = False  #: whether the machine's speed changed meanwhile

    @property
    def figure(self) -> Quantity:
        """The latency as a measured figure."""
        return Quantity(self.median_ms, "measured", self.low_ms, self.high_ms)


def measure(timer: Timer, config: TimingConfig) -> Timing:
    """Warm up until repeats don't become faster any more, then time."""
    number = _runs_per_repeat(timer, config.min_repeat_ms)
    fastest = math.inf
    for _ in range(_MAX_WARM_UPS):
        now = timer(number)
        if now >= fastest * (1 - _STABLE):
            break
        fastest = now
    return summarise([timer(number) / number * 1e3 for _ in range(config.repeats)])


def summarise(repeats_ms: Sequence[float]) -> Timing:
    """Return the median with its distribution-free interval, from order statistics."""
    ordered = sorted(repeats_ms)
    low, high = _median_interval(len(ordered))
    return Timing(statistics.median(ordered), ordered[low], ordered[high], len(ordered))


@dataclass(frozen=True)
class InterleavedTimings:
    """Two things that were timed in turns."""

    first: Timing
    second: Timing
    ratio: (
        Quantity  #: of the first over the second, turn by turn: the median, a 95 % interval of it
    )


def interleaved(first: Timer, second: Timer, config: TimingConfig) -> InterleavedTimings:
    """Time two things in turns of short repeats, so that the machine is as fast for both.

    Who begins is drawn for each turn: what disturbs at intervals would always meet the same one.
    Repeats are equally long, so that they are as often disturbed, and the quietest quarter of the
    turns counts: what interrupts a run makes it longer, never shorter.
    """
    timers, rng = (first, second), random.Random(0)
    numbers = [_undisturbed_runs(timer, config.min_repeat_ms / _SHORTER) for timer in timers]

    def turn() -> list[float]:
        seconds = [0.0, 0.0]
        for i in rng.sample((0, 1), 2):
            seconds[i] = timers[i](numbers[i])
        return seconds

    least, most = (n * config.repeats for n in _TURNS)
    turns = [turn() for _ in range(least)]
    while len(turns) < most and sum(map(sum, turns)) < _COMPARED_S:
        turns.append(turn())
    quiet = _quietest(turns)
    one, other = ([t[i] / numbers[i] * 1e3 for t in quiet] for i in (0, 1))
    ratio = summarise([a / b for a, b in zip(one, other, strict=True)])
    figure = Quantity(ratio.median_ms, "measured", ratio.low_ms, ratio.high_ms)
    return InterleavedTimings(summarise(one), summarise(other), figure)


def _undisturbed_runs(timer: Timer, repeat_ms: float) -> int:
    """Return how many runs take so long where nothing disturbs them."""
    number = _runs_per_repeat(timer, repeat_ms)
    fastest_ms = min(timer(number) for _ in range(_PROBES)) / number * 1e3
    return max(1, round(repeat_ms / fastest_ms))


def _quietest(turns: list[list[float]]) -> list[list[float]]:
    """Return the quarter of turns in which two things, each beside its fastest, took least."""
    fastest = [min(column) for column in zip(*turns, strict=True)]
    loads = [sum(a / b for a, b in zip(turn, fastest, strict=True)) for turn in turns]
    order = sorted(range(len(turns)), key=loads.__getitem__)
    return [turns[i] for i in order[: (len(turns) + 3) // 4]]


def percentiles(timer: Timer, n: int) -> dict[str, float]:
    """Return p50, p90 and p99 in ms of ``n`` single runs."""
    timer(max(1, n // 10))
    runs = sorted(timer(1) * 1e3 for _ in range(n))
    return {f"p{p}_ms": runs[min(n - 1, round(p / 100 * (n - 1)))] for p in (50, 90, 99)}


def single_runs(seconds: float) -> int:
    """Return how many single runs say how slow the slowest are, by the seconds that one takes."""
    return max(_LEAST_SINGLE, min(_MOST_SINGLE, int(_SINGLE_S / max(seconds, 1e-9))))


def tail(timer: Timer, limit_s: float = math.inf, uncounted: int = 0) -> Quantity | None:
    """Return the p99 latency of single runs in ms, with a 95 % interval from order statistics.

    Up to 2000 runs are timed, fewer where they take more than 20 s, and 400 at least: of fewer, the
    slowest may be faster than 99 % of all. ``None`` where so many take longer than the limit.

    Args:
        timer: Of what is run.
        limit_s: Seconds that the runs may take.
        uncounted: Inferences of each call of the timer beside those that it times.

    Source: Conover, "Practical nonparametric statistics", 1999, section 3.2.
    """
    once = min(timer(1) for _ in range(3))
    n = single_runs(once)
    if n * once * (1 + uncounted) > limit_s:
        return None
    runs = sorted(timer(1) * 1e3 for _ in range(n))
    middle, half = 0.99 * n, NORMAL_95 * math.sqrt(n * 0.99 * 0.01)
    low, rank, high = (
        runs[min(n, max(1, math.ceil(at))) - 1] for at in (middle - half, middle, middle + half)
    )
    return Quantity(rank, "measured", low, high)


def _runs_per_repeat(timer: Timer, min_repeat_ms: float) -> int:
    number = 1
    while (took := timer(number) * 1e3) < min_repeat_ms:
        number = max(number * 2, min(number * 10, math.ceil(number * min_repeat_ms / (took or 1))))
    return number


def _median_interval(n: int) -> tuple[int, int]:
    """Return the indices of the order statistics that enclose the median with 95 %, if any do.

    Source: Conover, "Practical nonparametric statistics", 1999, section 3.2.
    """
    below, k = 0.0, 0
    while (below := below + math.comb(n, k) / 2**n) <= 0.025:
        k += 1
    return (k - 1, n - k) if k else (0, n - 1)


@final
class Sentinel:
    """Something of constant work that is timed between blocks, to see the machine slow down.

    Its level is the lower quartile of the latest readings: what the machine can do when nothing
    disturbs it. A machine that is slower for good becomes the new normal after some flagged blocks.
    """

    def __init__(self, timer: Timer, config: TimingConfig):
        self._timer, self._config = timer, config
        self._number = _runs_per_repeat(timer, config.min_repeat_ms / 4)
        self._readings = [self._read() for _ in range(8)]

    def _read(self) -> float:
        return statistics.median(self._timer(self._number) for _ in range(3)) / self._number * 1e3

    @property
    def readings_ms(self) -> tuple[float, ...]:
        """All readings, in ms."""
        return tuple(self._readings)

    def disturbed(self) -> bool:
        """Read once more; return whether the machine is slower than it can be."""
        self._readings.append(self._read())
        latest = sorted(self._readings[-_LATEST:])
        return self._readings[-1] > latest[len(latest) // 4] * (1 + self._config.drift)

    def watch(self, block: Callable[[], Sequence[Timing]]) -> list[Timing]:
        """Measure a block between two readings; repeat it while disturbed, in the end flag it."""
        for _ in range(self._config.retries + 1):
            before = self.disturbed()
            timings = list(block())
            if not before and not self.disturbed():
                return timings
        return [replace(timing, drifted=True) for timing in timings]
