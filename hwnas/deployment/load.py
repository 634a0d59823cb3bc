"""Requests over HTTP to a server of this machine: as fast as it answers, or when they are due.

Open loop: requests are sent when they are due, whatever was answered before, and latencies count
from then on: who waits for a late server is not left out (coordinated omission).
Source: Schroeder, Wierman, Harchol-Balter, "Open versus closed: a cautionary tale", NSDI 2006.
"""

import asyncio
import contextlib
import gc
import selectors
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

HOST = "127.0.0.1"
_MOST, _READY = 900, 32  # connections: select takes 1024 files; those that are there at first
_LATE_S = 30.0  # that an answer may take
_AHEAD_S = 0.1  # until the first request is due

Array = NDArray[np.float64]
T = TypeVar("T")


@dataclass(frozen=True)
class Seen:
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


def open_loop(port: int, request: bytes, due_s: Array) -> Seen:
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


class _Connection:
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
        self._port, self._every = port, list[_Connection]()

    async def __aenter__(self) -> "_Connections":
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(connection.close() for connection in self._every))

    async def open(self) -> _Connection:
        """Return a new one."""
        self._every.append(_Connection(*await asyncio.open_connection(HOST, self._port)))
        return self._every[-1]


async def _open_loop(port: int, request: bytes, due_s: Array) -> Seen:
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
    return Seen(due_s, sent, done)


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
