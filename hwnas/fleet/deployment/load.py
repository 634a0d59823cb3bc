"""Requests over HTTP to a server of this machine: as fast as it answers, or when they are due.

Open loop: requests are sent when they are due, whatever was answered before, and latencies count
from then on: who waits for a late server is not left out (coordinated omission).
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
from hwnas.fleet.simulation import over_few

HOST = "127.0.0.1"
_MOST, _READY = 900, 32  # connections: select takes 1024 files; those that are there at first
_LATE_S = 30.0  # that an answer may take
_AHEAD_S = 0.1  # until the first request is due

Array = NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True)
class LatencySamples:
    """What requests saw that were due at times."""

    due_s: Array
    sent_s: Array  #: later than due where the generator was held up
    done_s: Array  #: not a number: there was no answer, or a refusal

    @property
    def latency_ms(self) -> Array:
        """From when each was due until it was answered; infinite: it was not."""
        found: Array = np.where(np.isnan(self.done_s), np.inf, self.done_s - self.due_s) * 1e3
        return found

    @property
    def failed(self) -> int:
        """How many were not answered."""
        return int(np.isnan(self.done_s).sum())


def open_loop(port: int, request: bytes, due_s: Array) -> LatencySamples:
    """Send a request at each of the times, and return what was seen.

    Args:
        port: Of the server.
        request: All bytes of the request.
        due_s: When they are due, from the first moment on, in order.
    """
    return _ran(_open_loop(port, request, due_s))


def closed_loop(port: int, request: bytes, clients: int, seconds: float) -> Array:
    """Return when requests of clients were sent and answered, in seconds: ``(requests, 2)``.

    Each client sends a request as soon as the last is answered.

    Raises:
        OSError: a request failed.
    """
    return _ran(_closed_loop(port, request, clients, seconds))


def _ran(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine, in a thread of its own: notebooks have a loop that runs already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_ran_here, work).result()


def _ran_here(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine with timers of microseconds, which epoll rounds to milliseconds."""
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
    """A connection that is kept open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer

    async def ask(self, request: bytes) -> None:
        """Send a request, and read the answer.

        Raises:
            OSError: it is a refusal, comes too late, or the server has gone.
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
        """Close it, whatever became of it."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class _Connections:
    """Connections to a server; all are closed at the end."""

    def __init__(self, port: int):
        self._port, self._every = port, list[_HttpConnection]()

    async def __aenter__(self) -> "_Connections":
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(connection.close() for connection in self._every))

    async def open(self) -> _HttpConnection:
        """Return a new one."""
        self._every.append(_HttpConnection(*await asyncio.open_connection(HOST, self._port)))
        return self._every[-1]


async def _open_loop(port: int, request: bytes, due_s: Array) -> LatencySamples:
    loop = asyncio.get_running_loop()
    sent, done = np.full(due_s.size, np.nan), np.full(due_s.size, np.nan)
    room = asyncio.Semaphore(_MOST)

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
        for i, at in enumerate(due_s):
            await asyncio.sleep(max(0.0, begin + at - loop.time()))
            tasks.append(asyncio.create_task(ask(i)))
        await asyncio.gather(*tasks)
    return LatencySamples(due_s, sent, done)


async def _closed_loop(port: int, request: bytes, clients: int, seconds: float) -> Array:
    loop = asyncio.get_running_loop()
    end, found = loop.time() + seconds, list[tuple[float, float]]()

    async def client() -> None:
        connection = await connections.open()
        while (begun := loop.time()) < end:
            await connection.ask(request)
            found.append((begun, loop.time()))

    async with _Connections(port) as connections:
        answers = await asyncio.gather(*(client() for _ in range(clients)), return_exceptions=True)
    for error in answers:
        if error is not None:
            raise error
    return np.array(found)


# What a server did at a load, against what the simulator says of its own batches.
#
# The simulator is given how long batches took when the server was profiled, and the very times at
# which requests were due. Where it is off, batches may have taken longer under load than in the
# profile: the server itself may say so, else it is told by how much longer they have to be for the
# simulated p99 to be the one that was measured.

Batches = Mapping[int, tuple[int, float]]  #: by size: how many were computed, and ms of all

QUANTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
WARM = 0.1  #: of the time: what comes first finds empty queues
_MOST_JITTER = 1.0
_SLOWDOWNS, _HALVINGS = (0.5, 4.0), 12  # that are looked for, and how finely


@dataclass(frozen=True)
class BatchTimes:
    """How long a server took for batches, at one time."""

    batch_ms: dict[int, float]
    overhead_ms: float
    waking_ms: float
    alone_ms: Array  #: that each of many requests took, one after the other
    #: what the server itself says that it computed for a batch; empty: it does not say
    computed_ms: Mapping[int, float] = field(default_factory=dict)

    @property
    def jitter(self) -> float:
        """The standard deviation of the log of what they took, outliers left out."""
        quarters = np.quantile(np.log(self.alone_ms), [0.25, 0.75])
        return min(_MOST_JITTER, float(quarters[1] - quarters[0]) / 1.349)  # of a normal one

    def slower(self, times: float) -> "BatchTimes":
        """Return the same of a server whose batches take so many times as long."""
        batches = {n: ms * times for n, ms in self.batch_ms.items()}
        return replace(self, batch_ms=batches, waking_ms=self.waking_ms * times)

    @property
    def capacity(self) -> float:
        """Requests a second that it answers at most."""
        return max(n / ms for n, ms in self.batch_ms.items()) * 1e3


@dataclass(frozen=True)
class LoadComparison:
    """What one server did at one load, against its simulation."""

    seen: LatencySamples
    simulated_ms: Array
    #: how many times as long as in the profile batches must take for both p99 to be the same; not a
    #: number: too few requests were answered
    slowdown: float
    batch_slowdown: float  #: the same by the server's own count; not a number: it does not say
    explained_ms: Array  #: simulated with that; empty: it does not say

    @property
    def is_warm(self) -> NDArray[np.bool_]:
        """Whether each request came when queues were as they are in the long run."""
        found: NDArray[np.bool_] = self.seen.due_s >= WARM * self.seen.due_s[-1]
        return found


def held(
    pool: DeployedPool, reading: BatchTimes, seen: LatencySamples, computed: Batches, seed: int
) -> LoadComparison:
    """Return what a server did against its simulation, and how much slower it was than profiled.

    Args:
        pool: Of one replica.
        reading: Its profile.
        seen: What requests saw.
        computed: What the server says that it computed meanwhile; empty: it does not say.
        seed: Of the simulation.
    """
    simulated = _simulated(pool, reading, seen.due_s, seed)
    found = LoadComparison(seen, simulated, math.nan, math.nan, np.empty(0))
    if computed and reading.computed_ms:
        times = _times_as_long(reading, computed, pool.kind.batch)
        explained = _simulated(pool, reading.slower(times), seen.due_s, seed)
        found = replace(found, batch_slowdown=times, explained_ms=explained)
    warm, (low, high) = found.is_warm, _SLOWDOWNS
    measured = _quantile(seen.latency_ms[warm], QUANTILES["p99_ms"])
    if math.isinf(measured):  # more than one of a hundred was not answered
        return found
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        slower = _simulated(pool, reading.slower(middle), seen.due_s, seed)[warm]
        is_enough = _quantile(slower, QUANTILES["p99_ms"]) >= measured
        low, high = (low, middle) if is_enough else (middle, high)
    return replace(found, slowdown=(low * high) ** 0.5)


def row(
    pool: DeployedPool, server: str, load: float, rate: float, repeats: Sequence[LoadComparison]
) -> Row:
    """Return percentiles in ms over repeats, simulated and measured, and how they differ."""
    seen = [each.seen for each in repeats]
    lateness = np.concatenate([(each.sent_s - each.due_s) * 1e3 for each in seen])
    row: Row = {
        "pool": pool.name, "server": server, "batch": pool.kind.batch,
        "wait_ms": pool.kind.wait_ms, "load": load, "rate_per_s": rate,
        "requests": sum(each.due_s.size for each in seen), "repeats": len(seen),
        "failed": sum(each.failed for each in seen),
        "sent_late_p99_ms": float(np.nanquantile(lateness, 0.99)),
    }  # fmt: skip
    for name, q in QUANTILES.items():
        measured = over_few(
            [_quantile(each.seen.latency_ms[each.is_warm], q) for each in repeats], "measured"
        )
        simulated = over_few([_quantile(each.simulated_ms[each.is_warm], q) for each in repeats])
        row |= simulated.columns(f"simulated_{name}") | measured.columns(f"measured_{name}")
        row[f"error_{name.removesuffix('_ms')}"] = simulated.value / measured.value - 1
    row |= over_few([each.slowdown for each in repeats]).columns("slowdown")
    if not all(each.explained_ms.size for each in repeats):
        return row
    p99 = [_quantile(each.explained_ms[each.is_warm], QUANTILES["p99_ms"]) for each in repeats]
    explained = over_few(p99)
    row |= over_few([each.batch_slowdown for each in repeats], "measured").columns("batch_slowdown")
    row |= explained.columns("explained_p99_ms")
    return row | {"error_explained_p99": explained.value / row["measured_p99_ms"] - 1}


def _simulated(pool: DeployedPool, reading: BatchTimes, due_s: Array, seed: int) -> Array:
    """Return latencies in ms of requests that are due then."""
    service = service_times(reading.batch_ms, pool.kind.batch)
    noise, waking_s = reading.alone_ms / reading.alone_ms.mean(), reading.waking_ms / 1e3
    pools, routes = events.single(service, pool.kind.wait_ms / 1e3, 1, noise, waking_s)
    route = np.zeros(due_s.size, np.int32)
    found: Array = events.simulate(due_s, route, pools, routes, seed=seed).latency_s * 1e3
    return found + reading.overhead_ms


def _times_as_long(reading: BatchTimes, computed: Batches, largest: int) -> float:
    """Return what batches took over what those of their sizes did in the profile."""
    profiled_ms = service_times(dict(reading.computed_ms), largest) * 1e3
    usual = sum(n * profiled_ms[size - 1] for size, (n, _) in computed.items())
    return float(sum(ms for _, ms in computed.values()) / usual)


def _quantile(latencies_ms: Array, q: float) -> float:
    return float(np.quantile(latencies_ms, q, method="higher"))
