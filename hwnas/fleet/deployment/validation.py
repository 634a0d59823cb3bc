"""Comparison of a server's latencies with the simulation of its batches.

The server is profiled from outside: batch times (pools of that maximum size, kept full), the
overhead of a request, and the additional time of a batch on an idle server. Then Poisson requests
arrive at one load after another.
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
    compare,
    comparison_row,
    open_loop,
)
from hwnas.fleet.deployment.pools import DeployedPool
from hwnas.fleet.deployment.servers import RunningServer
from hwnas.fleet.simulation import mean_with_interval
from hwnas.hardware.timing import Sentinel, TimingConfig

T = TypeVar("T")

_CLIENTS = 3  # clients per batch slot, so that batches are always full
_MIN_BATCHES = 4  # per measurement
_APART = 4  # request times between requests to an idle server
_MAX_DRIFT = 0.8  # highest value that messages suggest
_SENTINEL_MS, _SIDE = 40.0, 160  # duration of a reading; size of the multiplied matrices


@dataclass(frozen=True)
class ServeCheckOptions:
    """Options of the measurement, those of the verb ``serve-check``."""

    loads: Sequence[float]  #: requests/s as fractions of the capacity
    seconds: float  #: duration of the measurement at each load
    repeats: int  #: number of measurements at each load
    drift: float  #: tolerated relative slowdown of the machine
    retries: int  #: repetitions of a disturbed measurement
    seed: int  #: seed of the arrival times


@dataclass(frozen=True)
class ServiceTimeProfile:
    """Batch times of a server in ms, with 95 % intervals over repeats."""

    batch_ms: Mapping[int, Quantity]  #: time until the next batch can start, by size
    overhead_ms: Quantity  #: time of a request outside of its batch
    waking_ms: Quantity  #: additional time of a batch on an idle server
    jitter: float  #: standard deviation of the logarithm of single requests' times


def batch_sizes(pool: DeployedPool) -> list[int]:
    """Return the batch sizes to time, ascending: powers of two, and the maximum of the pool."""
    return sorted({1, pool.kind.batch, *(2**i for i in range(pool.kind.batch.bit_length() - 1))})


def pools_to_serve(pools: Sequence[DeployedPool]) -> list[DeployedPool]:
    """Return the pools, and a variant of each for every batch size to time."""
    return [
        variant for pool in pools for variant in (pool, *map(pool.with_batch, batch_sizes(pool)))
    ]


@final
class ServeChecker:
    """Measures servers, and checks between measurements that the machine keeps its speed."""

    def __init__(self, options: ServeCheckOptions, progress: Progress):
        self._options, self._progress = options, progress
        config = TimingConfig(drift=options.drift, min_repeat_ms=_SENTINEL_MS)
        self._sentinel = Sentinel(_constant_work, config)

    @property
    def readings_ms(self) -> tuple[float, ...]:
        """Times in ms of constant work before, between and after measurements."""
        return self._sentinel.readings_ms

    def checked(
        self, pool: DeployedPool, server: RunningServer
    ) -> tuple[ServiceTimeProfile, list[Row]]:
        """Measure a pool on a server; return its profile, and a row (``comparison_row``) per load.

        Each repeat profiles the server again, as the speed of machines changes within minutes.

        Raises:
            DeviceError: the machine slows down by more than ``drift``, or the server fails.
        """
        options = self._options
        readings: list[BatchTimes] = []
        result: list[list[LoadComparison]] = [[] for _ in options.loads]
        steps = options.repeats * (len(batch_sizes(pool)) + 2 + len(options.loads))
        with self._progress.phase(f"Check {pool.name}", steps) as advance:
            for repeat in range(options.repeats):
                reading = self._read(pool, server, advance)
                readings.append(reading)
                for load, repeats in zip(options.loads, result, strict=True):
                    seeds = [options.seed, repeat, round(1e3 * load)]
                    due = _poisson_times(load * reading.capacity, options.seconds, seeds)
                    block = partial(open_loop, server.port, server.request(pool), due)
                    samples, computed = self._measure_batches(server, pool, block)
                    repeats.append(compare(pool, reading, samples, computed, options.seed + repeat))
                    advance(1)
        capacity = float(np.mean([reading.capacity for reading in readings]))
        rows = [
            comparison_row(pool, server.name, load, load * capacity, repeats)
            for load, repeats in zip(options.loads, result, strict=True)
        ]
        return _mean_profile(readings), rows

    def _read(
        self, pool: DeployedPool, server: RunningServer, advance: Callable[[int], None]
    ) -> BatchTimes:
        """Return the current batch times, and the times of single requests."""
        batch_ms, computed_ms = {}, {}
        for n in batch_sizes(pool):
            full = pool.with_batch(n)
            block = partial(self._rate, server, server.request(full), n)
            rate, computed = self._measure_batches(server, full, block)
            batch_ms[n] = n / rate * 1e3
            if n in computed:
                computed_ms[n] = computed[n][1] / computed[n][0]
            advance(1)
        request = server.request(pool.with_batch(1))
        single = partial(closed_loop, server.port, request, 1, self._options.seconds / 4)
        alone = np.diff(self._measure_steadily(single)).ravel() * 1e3
        advance(1)
        usual = float(np.median(alone))
        rested, late = self._at_rest(server, request, usual)
        advance(1)
        overhead_ms = max(0.0, usual - batch_ms[1]) + late
        return BatchTimes(batch_ms, overhead_ms, max(0.0, rested - usual), alone, computed_ms)

    def _at_rest(
        self, server: RunningServer, request: bytes, usual_ms: float
    ) -> tuple[float, float]:
        """Return the time of requests to an idle server, and how late they are sent, in ms."""
        apart_s = _APART * usual_ms / 1e3
        due = np.arange(0.0, max(self._options.seconds / 4, _MIN_BATCHES * apart_s), apart_s)
        samples = self._measure_steadily(partial(open_loop, server.port, request, due))
        if samples.failed == due.size:
            raise DeviceError(
                "The server responds to none of the single requests of the measurement: repeat the "
                "check, or install another version of the server."
            )
        service_ms, lateness_ms = (
            np.nanmedian([samples.done_s - samples.sent_s, samples.sent_s - due], axis=1) * 1e3
        )
        return float(service_ms), float(lateness_ms)

    def _rate(self, server: RunningServer, request: bytes, n: int) -> float:
        """Return the requests/s in full batches of ``n``."""
        seconds = self._options.seconds / 4
        times = closed_loop(server.port, request, _CLIENTS * n, seconds)
        ends = np.sort(times[:, 1])
        ends = ends[ends >= times[:, 0].min() + WARM * seconds]
        if ends.size < _MIN_BATCHES * n:
            raise DeviceError(
                f"The server answered {ends.size} requests in {seconds:g} s, too few for batches "
                f"of {n}: increase the time, seconds={4 * self._options.seconds:g}."
            )
        return float((ends.size - n) / (ends[-1] - ends[n - 1]))  # from the end of the first batch

    def _measure_batches(
        self, server: RunningServer, pool: DeployedPool, block: Callable[[], T]
    ) -> tuple[T, Batches]:
        """Measure; return the result, and the batches that the server reports."""

        def watched() -> tuple[T, Batches]:
            before, result = server.computed(pool), block()
            return result, _batches_between(before, server.computed(pool))

        return self._measure_steadily(watched)

    def _measure_steadily(self, block: Callable[[], T]) -> T:
        """Measure between two readings of the sentinel; repeat while the machine is disturbed.

        Raises:
            DeviceError: the machine stays disturbed, or the server fails.
        """
        for _ in range(self._options.retries + 1):
            before = self._sentinel.disturbed()
            try:
                result = block()
            except OSError as error:
                raise DeviceError(
                    f"The server fails under load: {str(error) or 'no response in time'}. Reduce "
                    "loads, or repeat the check."
                ) from None
            if not self._sentinel.disturbed() and not before:
                return result
        readings = self._sentinel.readings_ms
        slower = max(readings[-2:]) / float(np.quantile(readings, 0.25)) - 1
        more = f", or allow more: drift={slower + 0.1:.1f}" if slower < _MAX_DRIFT else ""
        raise DeviceError(
            f"The machine is {slower:.0%} slower than at its best, more than drift="
            f"{self._options.drift:g} allows, after {self._options.retries} retries: measurements "
            f"are not comparable. End other programs{more}."
        )


def _constant_work(n: int) -> float:
    """Repeat constant work ``n`` times, and return the seconds."""
    matrix = np.full((_SIDE, _SIDE), 1e-3, np.float32)
    started = time.perf_counter()
    for _ in range(n):
        matrix @ matrix
    return time.perf_counter() - started


def _poisson_times(rate: float, seconds: float, seed: Sequence[int]) -> Array:
    """Return the times of Poisson requests."""
    rng = np.random.default_rng(seed)
    n = max(20, rng.poisson(rate * seconds))
    result: Array = np.sort(rng.random(n)) * (n / rate)
    return result


def _batches_between(before: Batches, after: Batches) -> Batches:
    """Return the batches between two statistics."""
    none = (0, 0.0)
    ends = {n: (before.get(n, none), end) for n, end in after.items()}
    return {n: (b[0] - a[0], b[1] - a[1]) for n, (a, b) in ends.items() if b[0] > a[0]}


def _mean_profile(readings: Sequence[BatchTimes]) -> ServiceTimeProfile:
    """Return the profile over repeats."""
    sizes_ms = {n: [reading.batch_ms[n] for reading in readings] for n in readings[0].batch_ms}
    return ServiceTimeProfile(
        {n: mean_with_interval(values, "measured") for n, values in sizes_ms.items()},
        mean_with_interval([reading.overhead_ms for reading in readings], "measured"),
        mean_with_interval([reading.waking_ms for reading in readings], "measured"),
        float(np.mean([reading.jitter for reading in readings])),
    )
