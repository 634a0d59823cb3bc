"""HTTP load on a server of this machine: closed loop, or open loop.

In an open loop requests are sent when they are due, and latencies count from then, which avoids
coordinated omission.
Source: Schroeder, Wierman, Harchol-Balter, "Open versus closed: a cautionary tale", NSDI 2006.
"""

import asyncio
import contextlib
import gc
import math
import selectors
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hwnas.core.run_folder import Row
from hwnas.fleet import events
from hwnas.fleet.deployment.pools import DeployedPool
from hwnas.fleet.placements import service_times
from hwnas.fleet.simulation import mean_with_interval

HOST = "127.0.0.1"
_MAX_CONNECTIONS, _READY = 900, 32  # select allows 1024 files; connections opened in advance
_LATE_S = 30.0  # timeout of a response
_AHEAD_S = 0.1  # delay of the first request

Array = NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True)
class LatencySamples:
    """Times of requests in seconds ``(requests,)``, from the begin of the measurement."""

    due_s: Array  #: when requests should be sent, ascending
    sent_s: Array  #: when they were sent: later if the generator was delayed; NaN: not sent
    done_s: Array  #: when the response was complete; NaN: no response, or an error

    @property
    def latency_ms(self) -> Array:
        """Time from ``due_s`` to the response in ms ``(requests,)``; infinite without one."""
        result: Array = np.where(np.isnan(self.done_s), np.inf, self.done_s - self.due_s) * 1e3
        return result

    @property
    def failed(self) -> int:
        """Number of requests without a response."""
        return int(np.isnan(self.done_s).sum())


def open_loop(port: int, request: bytes, due_s: Array) -> LatencySamples:
    """Send a request at each of the ascending times ``due_s``, and return the measured times.

    Requests that fail have no ``done_s``.

    Args:
        port: Port on this machine.
        request: HTTP request.
        due_s: Seconds from the begin ``(requests,)``.

    Raises:
        OSError: the server accepts no connections.
    """
    return _run(_open_loop(port, request, due_s))


def closed_loop(port: int, request: bytes, clients: int, seconds: float) -> Array:
    """Return the times at which requests were sent and answered, in seconds ``(requests, 2)``.

    Times are of a monotonic clock. Each of ``clients`` sends a request when its previous one is
    answered, until ``seconds`` have passed.

    Raises:
        OSError: a request failed, or has no response within 30 s.
    """
    return _run(_closed_loop(port, request, clients, seconds))


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a separate thread: notebooks already run a loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_run_in_thread, work).result()


def _run_in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine with timers of microseconds; epoll rounds to milliseconds."""
    with asyncio.Runner(loop_factory=_loop) as runner, _no_collection():
        return runner.run(work)


def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _HttpConnection:
    """A persistent connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer

    async def ask(self, request: bytes) -> None:
        """Send a request and read the response.

        Raises:
            OSError: the response is an error or late, or the server is down.
        """
        async with asyncio.timeout(_LATE_S):  # TimeoutError is an OSError
            self._writer.write(request)
            try:
                head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
                _, _, size = head.partition(b"content-length:")
                await self._reader.readexactly(int(size.partition(b"\r\n")[0]))
            except (asyncio.IncompleteReadError, ValueError) as error:
                raise OSError(f"no answer: {error}") from None
        if head.split(None, 2)[1] != b"200":
            raise OSError(f"refused: {head.splitlines()[0].decode()}")

    async def close(self) -> None:
        """Close the connection, whatever its state."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class _Connections:
    """Connections to a server, all closed at the end."""

    def __init__(self, port: int):
        self._port, self._every = port, list[_HttpConnection]()

    async def __aenter__(self) -> "_Connections":
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(connection.close() for connection in self._every))

    async def open(self) -> _HttpConnection:
        """Return a new connection."""
        self._every.append(_HttpConnection(*await asyncio.open_connection(HOST, self._port)))
        return self._every[-1]


async def _open_loop(port: int, request: bytes, due_s: Array) -> LatencySamples:
    loop = asyncio.get_running_loop()
    sent, done = np.full(due_s.size, np.nan), np.full(due_s.size, np.nan)
    room = asyncio.Semaphore(_MAX_CONNECTIONS)

    async def ask(i: int) -> None:
        async with room:
            with contextlib.suppress(OSError):  # its connection is not used again
                connection = free.pop() if free else await connections.open()
                sent[i] = loop.time() - begin
                await connection.ask(request)
                done[i] = loop.time() - begin
                free.append(connection)

    async with _Connections(port) as connections:
        free = [await connections.open() for _ in range(min(_READY, due_s.size))]
        begin, tasks = loop.time() + _AHEAD_S, []
        for i, due in enumerate(due_s):
            await asyncio.sleep(max(0.0, begin + due - loop.time()))
            tasks.append(asyncio.create_task(ask(i)))
        await asyncio.gather(*tasks)
    return LatencySamples(due_s, sent, done)


async def _closed_loop(port: int, request: bytes, clients: int, seconds: float) -> Array:
    loop = asyncio.get_running_loop()
    end, result = loop.time() + seconds, list[tuple[float, float]]()

    async def client() -> None:
        connection = await connections.open()
        while (started := loop.time()) < end:
            await connection.ask(request)
            result.append((started, loop.time()))

    async with _Connections(port) as connections:
        answers = await asyncio.gather(*(client() for _ in range(clients)), return_exceptions=True)
    for error in answers:
        if error is not None:
            raise error
    return np.array(result)


# Comparison with a simulation of the profiled batch times and the same arrival times. If the
# simulation is off, batches may take longer under load: the server may report their times; the
# slowdown that makes the simulated p99 the measured one is computed, too.

Batches = Mapping[int, tuple[int, float]]  #: number of batches and their total ms, by size

QUANTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
WARM = 0.1  #: fraction of the time that is ignored: queues start empty
_MAX_JITTER = 1.0
_SLOWDOWNS, _HALVINGS = (0.5, 4.0), 12  # range and bisection steps of the slowdown


@dataclass(frozen=True)
class BatchTimes:
    """One measurement of a server's batch times in ms."""

    batch_ms: dict[int, float]  #: time until the next batch can start, by batch size
    overhead_ms: float  #: time of a request outside of its batch
    waking_ms: float  #: additional time of a batch on an idle server
    alone_ms: Array  #: times of single requests, sent one after another ``(requests,)``
    #: computing time by batch size as the server reports it; empty: not reported
    computed_ms: Mapping[int, float] = field(default_factory=dict)

    @property
    def jitter(self) -> float:
        """Standard deviation of the logarithm of ``alone_ms``, without outliers; at most 1."""
        quarters = np.quantile(np.log(self.alone_ms), [0.25, 0.75])
        return min(
            _MAX_JITTER, float(quarters[1] - quarters[0]) / 1.349
        )  # interquartile range of a normal distribution

    def slower(self, times: float) -> "BatchTimes":
        """Return a copy with ``batch_ms`` and ``waking_ms`` multiplied by a factor."""
        batches = {n: ms * times for n, ms in self.batch_ms.items()}
        return replace(self, batch_ms=batches, waking_ms=self.waking_ms * times)

    @property
    def capacity(self) -> float:
        """Maximum requests/s, with full batches."""
        return max(n / ms for n, ms in self.batch_ms.items()) * 1e3


@dataclass(frozen=True)
class LoadComparison:
    """Measurement and simulation of a server at one load."""

    measured: LatencySamples
    simulated_ms: Array  #: simulated latencies of the same requests ``(requests,)``
    #: factor of batch times, in [0.5, 4], that makes both p99 equal; NaN: over 1 % not answered
    slowdown: float
    #: factor of batch times relative to the profile, as the server reports; NaN: not reported
    batch_slowdown: float
    explained_ms: Array  #: latencies simulated with ``batch_slowdown``; empty: not reported

    @property
    def is_warm(self) -> NDArray[np.bool_]:
        """True for requests after the first 10 % of the time ``(requests,)``."""
        result: NDArray[np.bool_] = self.measured.due_s >= WARM * self.measured.due_s[-1]
        return result


def compare(
    pool: DeployedPool, reading: BatchTimes, samples: LatencySamples, computed: Batches, seed: int
) -> LoadComparison:
    """Return the measured and simulated latencies, and the slowdown relative to the profile.

    Args:
        pool: Pool with one replica.
        reading: Profile of the server.
        samples: Measured times.
        computed: Batches during the measurement, as the server reports; empty: not reported.
        seed: Seed of the simulation.
    """
    simulated = _simulate_latencies(pool, reading, samples.due_s, seed)
    result = LoadComparison(samples, simulated, math.nan, math.nan, np.empty(0))
    if computed and reading.computed_ms:
        times = _batch_slowdown(reading, computed, pool.kind.batch)
        explained = _simulate_latencies(pool, reading.slower(times), samples.due_s, seed)
        result = replace(result, batch_slowdown=times, explained_ms=explained)
    warm, (low, high) = result.is_warm, _SLOWDOWNS
    measured = _quantile(samples.latency_ms[warm], QUANTILES["p99_ms"])
    if math.isinf(measured):  # more than 1 % were not answered
        return result
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        slower = _simulate_latencies(pool, reading.slower(middle), samples.due_s, seed)[warm]
        is_enough = _quantile(slower, QUANTILES["p99_ms"]) >= measured
        low, high = (low, middle) if is_enough else (middle, high)
    return replace(result, slowdown=(low * high) ** 0.5)


def comparison_row(
    pool: DeployedPool, server: str, load: float, rate: float, repeats: Sequence[LoadComparison]
) -> Row:
    """Return the row of a pool and load in the result of ``serve-check``.

    Columns are simulated and measured percentiles in ms with 95 % intervals over repeats, their
    relative errors (simulated over measured, minus 1), and slowdowns.

    Args:
        pool: Pool.
        server: Name of the server.
        load: Requests/s as a fraction of the capacity.
        rate: Requests/s.
        repeats: Comparisons at this load.
    """
    samples = [run.measured for run in repeats]
    lateness = np.concatenate([(run.sent_s - run.due_s) * 1e3 for run in samples])
    row: Row = {
        "pool": pool.name, "server": server, "batch": pool.kind.batch,
        "wait_ms": pool.kind.wait_ms, "load": load, "rate_per_s": rate,
        "requests": sum(run.due_s.size for run in samples), "repeats": len(samples),
        "failed": sum(run.failed for run in samples),
        "sent_late_p99_ms": float(np.nanquantile(lateness, 0.99)),
    }  # fmt: skip
    for name, q in QUANTILES.items():
        measured = mean_with_interval(
            [_quantile(run.measured.latency_ms[run.is_warm], q) for run in repeats], "measured"
        )
        simulated = mean_with_interval(
            [_quantile(run.simulated_ms[run.is_warm], q) for run in repeats]
        )
        row |= simulated.columns(f"simulated_{name}") | measured.columns(f"measured_{name}")
        row[f"error_{name.removesuffix('_ms')}"] = simulated.value / measured.value - 1
    row |= mean_with_interval([run.slowdown for run in repeats]).columns("slowdown")
    if not all(run.explained_ms.size for run in repeats):
        return row
    p99 = [_quantile(run.explained_ms[run.is_warm], QUANTILES["p99_ms"]) for run in repeats]
    explained = mean_with_interval(p99)
    row |= mean_with_interval([run.batch_slowdown for run in repeats], "measured").columns(
        "batch_slowdown"
    )
    row |= explained.columns("explained_p99_ms")
    return row | {"error_explained_p99": explained.value / row["measured_p99_ms"] - 1}


def _simulate_latencies(pool: DeployedPool, reading: BatchTimes, due_s: Array, seed: int) -> Array:
    """Return simulated latencies in ms of requests at the given times."""
    service = service_times(reading.batch_ms, pool.kind.batch)
    noise, waking_s = reading.alone_ms / reading.alone_ms.mean(), reading.waking_ms / 1e3
    pools, routes = events.single_pool(service, pool.kind.wait_ms / 1e3, 1, noise, waking_s)
    route = np.zeros(due_s.size, np.int32)
    result: Array = events.simulate(due_s, route, pools, routes, seed=seed).latency_s * 1e3
    return result + reading.overhead_ms


def _batch_slowdown(reading: BatchTimes, computed: Batches, largest: int) -> float:
    """Return the batch times relative to those of the same sizes in the profile."""
    profiled_ms = service_times(dict(reading.computed_ms), largest) * 1e3
    usual = sum(n * profiled_ms[size - 1] for size, (n, _) in computed.items())
    return float(sum(ms for _, ms in computed.values()) / usual)


def _quantile(latencies_ms: Array, q: float) -> float:
    return float(np.quantile(latencies_ms, q, method="higher"))
