"""What a server's latencies are, against what the simulator says of its own batches.

The server is profiled from outside: how long batches of each size take, by pools whose largest
batch is that size, kept full; what a request takes beside its batch; and how much longer a batch
takes that finds the server at rest. Then requests come at random, at one load after the other.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, final

import numpy as np

from hwnas.core.errors import DeviceError
from hwnas.core.progress import Progress
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row
from hwnas.fleet.deployment.load import (
    WARM,
    Array,
    Batches,
    BatchTimes,
    LoadComparison,
    closed_loop,
    held,
    open_loop,
    row,
)
from hwnas.fleet.deployment.pools import DeployedPool
from hwnas.fleet.deployment.servers import RunningServer
from hwnas.fleet.simulation import over_few
from hwnas.hardware.timing import Sentinel, TimingConfig

T = TypeVar("T")

_CLIENTS = 3  # batches' worth of clients, so that there is always a full one
_LEAST = 4  # batches that are seen
_APART = 4  # times as long as one takes, between requests that find the server at rest
_MOST_DRIFT = 0.8  # that is proposed
_SENTINEL_MS, _SIDE = 40.0, 160  # of a reading; of the matrices that are multiplied


@dataclass(frozen=True)
class ServeCheckOptions:
    """How is measured."""

    loads: Sequence[float]
    seconds: float
    repeats: int
    drift: float
    retries: int
    seed: int


@dataclass(frozen=True)
class ServiceTimeProfile:
    """How long a server takes for batches, over repeats."""

    batch_ms: Mapping[int, Quantity]  #: until the next can begin, by size
    overhead_ms: Quantity  #: of a request beside its batch
    waking_ms: Quantity  #: more of a batch that finds the server with nothing to do
    jitter: float  #: standard deviation of the log of what single requests take


def sizes(pool: DeployedPool) -> list[int]:
    """Return the sizes of batches that are timed: powers of two, and the largest."""
    return sorted({1, pool.kind.batch, *(2**i for i in range(pool.kind.batch.bit_length() - 1))})


def served(pools: Sequence[DeployedPool]) -> list[DeployedPool]:
    """Return what a server must run for pools to be checked: they, and each size of batch."""
    return [each for pool in pools for each in (pool, *map(pool.with_batch, sizes(pool)))]


@final
class ServeChecker:
    """Measures on a machine whose speed is watched."""

    def __init__(self, options: ServeCheckOptions, progress: Progress):
        self._options, self._progress = options, progress
        config = TimingConfig(drift=options.drift, min_repeat_ms=_SENTINEL_MS)
        self._sentinel = Sentinel(_work, config)

    @property
    def readings_ms(self) -> tuple[float, ...]:
        """What the sentinel took, before, between and after."""
        return self._sentinel.readings_ms

    def checked(
        self, pool: DeployedPool, server: RunningServer
    ) -> tuple[ServiceTimeProfile, list[Row]]:
        """Return how long batches of a pool take on a server, and a row for each load.

        Rows have simulated and measured percentiles. Each repeat profiles the server anew: what a
        machine did some minutes ago is not what it does now.

        Raises:
            DeviceError: the machine's speed drifts, or the server fails.
        """
        options = self._options
        readings: list[BatchTimes] = []
        found: list[list[LoadComparison]] = [[] for _ in options.loads]
        steps = options.repeats * (len(sizes(pool)) + 2 + len(options.loads))
        with self._progress.phase(f"Check {pool.name}", steps) as advance:
            for repeat in range(options.repeats):
                reading = self._read(pool, server, advance)
                readings.append(reading)
                for load, repeats in zip(options.loads, found, strict=True):
                    seeds = [options.seed, repeat, round(1e3 * load)]
                    due = _poisson(load * reading.capacity, options.seconds, seeds)
                    block = partial(open_loop, server.port, server.request(pool), due)
                    seen, computed = self._computing(server, pool, block)
                    repeats.append(held(pool, reading, seen, computed, options.seed + repeat))
                    advance(1)
        capacity = float(np.mean([reading.capacity for reading in readings]))
        rows = [
            row(pool, server.name, load, load * capacity, repeats)
            for load, repeats in zip(options.loads, found, strict=True)
        ]
        return _over(readings), rows

    def _read(
        self, pool: DeployedPool, server: RunningServer, advance: Callable[[int], None]
    ) -> BatchTimes:
        """Return how long batches take now, and what requests take that come one by one."""
        batch_ms, computed_ms = {}, {}
        for n in sizes(pool):
            full = pool.with_batch(n)
            block = partial(self._rate, server, server.request(full), n)
            rate, computed = self._computing(server, full, block)
            batch_ms[n] = n / rate * 1e3
            if n in computed:
                computed_ms[n] = computed[n][1] / computed[n][0]
            advance(1)
        request = server.request(pool.with_batch(1))
        single = partial(closed_loop, server.port, request, 1, self._options.seconds / 4)
        alone = np.diff(self._steady(single)).ravel() * 1e3
        advance(1)
        usual = float(np.median(alone))
        rested, late = self._at_rest(server, request, usual)
        advance(1)
        beside = max(0.0, usual - batch_ms[1]) + late
        return BatchTimes(batch_ms, beside, max(0.0, rested - usual), alone, computed_ms)

    def _at_rest(
        self, server: RunningServer, request: bytes, usual_ms: float
    ) -> tuple[float, float]:
        """Return what requests take that find nothing to wait for, and how late they leave, ms."""
        apart_s = _APART * usual_ms / 1e3
        due = np.arange(0.0, max(self._options.seconds / 4, _LEAST * apart_s), apart_s)
        seen = self._steady(partial(open_loop, server.port, request, due))
        if seen.failed == due.size:
            raise DeviceError("The server answers no request that comes by itself.")
        took, late = np.nanmedian([seen.done_s - seen.sent_s, seen.sent_s - due], axis=1) * 1e3
        return float(took), float(late)

    def _rate(self, server: RunningServer, request: bytes, n: int) -> float:
        """Return the requests a second that are answered in batches of ``n``, always full ones."""
        seconds = self._options.seconds / 4
        times = closed_loop(server.port, request, _CLIENTS * n, seconds)
        ends = np.sort(times[:, 1])
        ends = ends[ends >= times[:, 0].min() + WARM * seconds]
        if ends.size < _LEAST * n:
            raise DeviceError(
                f"The server answered {ends.size} requests in {seconds:g} s, too few for batches "
                f"of {n}: give more time, seconds={4 * self._options.seconds:g}."
            )
        return float((ends.size - n) / (ends[-1] - ends[n - 1]))  # from the first batch's end on

    def _computing(
        self, server: RunningServer, pool: DeployedPool, block: Callable[[], T]
    ) -> tuple[T, Batches]:
        """Measure; return what was found, and what the server says that it computed meanwhile."""

        def watched() -> tuple[T, Batches]:
            before, found = server.computed(pool), block()
            return found, _since(before, server.computed(pool))

        return self._steady(watched)

    def _steady(self, block: Callable[[], T]) -> T:
        """Measure between two readings of the sentinel, again while the machine is disturbed.

        Raises:
            DeviceError: it stays so, or the server fails.
        """
        for _ in range(self._options.retries + 1):
            before = self._sentinel.disturbed()
            try:
                found = block()
            except OSError as error:
                raise DeviceError(f"The server fails under load: {error}.") from None
            if not self._sentinel.disturbed() and not before:
                return found
        readings = self._sentinel.readings_ms
        slower = max(readings[-2:]) / float(np.quantile(readings, 0.25)) - 1
        more = f", or allow more: drift={slower + 0.1:.1f}" if slower < _MOST_DRIFT else ""
        raise DeviceError(
            f"The machine is {slower:.0%} slower than it can be, more than drift="
            f"{self._options.drift:g} allows, after {self._options.retries} retries: nothing that "
            f"is measured now is comparable. End other programs{more}."
        )


def _work(n: int) -> float:
    """Do constant work so many times, and return the seconds that it took."""
    matrix = np.full((_SIDE, _SIDE), 1e-3, np.float32)
    begun = time.perf_counter()
    for _ in range(n):
        matrix @ matrix
    return time.perf_counter() - begun


def _poisson(rate: float, seconds: float, seed: Sequence[int]) -> Array:
    """Return when requests are due, which come at random at a rate."""
    rng = np.random.default_rng(seed)
    n = max(20, rng.poisson(rate * seconds))
    found: Array = np.sort(rng.random(n)) * (n / rate)
    return found


def _since(before: Batches, after: Batches) -> Batches:
    """Return what was computed in between."""
    none = (0, 0.0)
    ends = {n: (before.get(n, none), end) for n, end in after.items()}
    return {n: (b[0] - a[0], b[1] - a[1]) for n, (a, b) in ends.items() if b[0] > a[0]}


def _over(readings: Sequence[BatchTimes]) -> ServiceTimeProfile:
    """Return what repeats come to."""
    sizes_ms = {n: [each.batch_ms[n] for each in readings] for n in readings[0].batch_ms}
    return ServiceTimeProfile(
        {n: over_few(values, "measured") for n, values in sizes_ms.items()},
        over_few([each.overhead_ms for each in readings], "measured"),
        over_few([each.waking_ms for each in readings], "measured"),
        float(np.mean([each.jitter for each in readings])),
    )
