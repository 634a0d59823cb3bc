"""Pools of worker processes, one per device; a task is retried on the next device."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import DeviceCrashError, DeviceError, HwnasError
from hwnas.hardware.runtimes.interfaces import DeviceEvaluation, OperatorPlans
from hwnas.hardware.runtimes.worker import GRACE_S, Worker
from hwnas.hardware.target import Remote, Target
from hwnas.hardware.timing import InterleavedTimings, Timing, TimingConfig
from hwnas.models.graph import Graph, OpSpec
from hwnas.models.int8.quantised_network import Parameters

T = TypeVar("T")

_ATTEMPTS = 3  #: attempts per task: it must not crash all devices
_PAUSE_S = 2.0  #: between two attempts to reach a device


@dataclass(eq=False)
class _Job:
    """A task and the queue of its result."""

    index: int
    task: Callable[[Worker], Any]
    results: queue.SimpleQueue[tuple[int, Any]]
    n_failures: int = 0
    failed_at: float = 0.0  #: time of the first failure

    def end(self, result: Any) -> None:
        self.results.put((self.index, result))


@dataclass(eq=False)
class _Seat:
    """A worker and the thread that uses it."""

    worker: Worker
    #: ``away``: no device; ``coming``: waits for one; then ``idle`` or ``busy``
    state: Literal["away", "coming", "idle", "busy"] = "away"
    thread: threading.Thread = field(init=False)


@final
class DevicePool:
    """A pool of workers: one per remote device, or one on this machine.

    If a device disconnects or does not answer in time, its task is retried on the next device,
    until ``remote.timeout_s`` after its first failure or three failures; then its result is a
    ``DeviceCrashError``. If no device has answered for ``remote.timeout_s``, a ``DeviceError`` is
    the result of all tasks. Several threads may submit tasks. ``limit_s`` is the time limit of each
    call of a worker.

    Raises:
        ConfigError: the target is remote, and its meter would read this machine.
    """

    def __init__(self, target: Target, timing: TimingConfig, remote: Remote, limit_s: float):
        self._timeout_s = remote.timeout_s
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._silent_since: float | None = None  #: time since which no device has answered
        n = remote.n_devices if remote.tracker else 1
        self._seats = [_Seat(Worker(target, timing, remote, limit_s)) for _ in range(n)]
        for seat in self._seats:
            seat.thread = threading.Thread(target=self._serve, args=(seat,), daemon=True)
            seat.thread.start()

    def run(self, tasks: Sequence[Callable[[Worker], T]]) -> Iterator[tuple[int, T | HwnasError]]:
        """Run tasks; yield the index of each and its result, in the order in which they end.

        The result of a task that failed is its ``HwnasError``, which is not raised. If the
        iteration is stopped, tasks that have not started are dropped.
        """
        results: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        jobs = [_Job(index, task, results) for index, task in enumerate(tasks)]
        with self._changed:
            assert not self._closed
            self._jobs.extend(jobs)
            self._changed.notify_all()
        try:
            for _ in jobs:
                index, result = results.get()
                if isinstance(result, Exception) and not isinstance(result, HwnasError):
                    raise result  # a bug in the task
                yield index, result
        finally:
            with self._changed:
                unfinished = {id(job) for job in jobs}
                self._jobs = deque(job for job in self._jobs if id(job) not in unfinished)

    def do(self, task: Callable[[Worker], T]) -> T:
        """Return the result of one task.

        Raises:
            HwnasError: the task raised it; ``DeviceError``: no device completed the task.
        """
        ((_, result),) = self.run([task])
        if isinstance(result, HwnasError):
            raise result
        return result

    def close(self) -> None:
        """Kill all worker processes; unfinished tasks end with a ``DeviceError``."""
        with self._changed:
            self._closed = True
            self._end_all(_stopped_error())
            self._changed.notify_all()
        since = time.monotonic()
        while busy := [seat for seat in self._seats if seat.thread.is_alive()]:
            for seat in busy:  # repeatedly: it may be starting a process
                seat.worker.kill(gently=time.monotonic() - since < GRACE_S)
            busy[0].thread.join(0.05)
        for seat in self._seats:
            seat.worker.close()

    def __enter__(self) -> "DevicePool":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _serve(self, seat: _Seat) -> None:
        """Run tasks with one worker until the pool is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._is_needed(seat))
                if self._closed:
                    return
                job = self._jobs.popleft() if seat.state == "idle" else None
                seat.state = "coming" if job is None else "busy"
            if job is None:
                self._connect(seat)
            else:
                self._do(seat, job)

    def _is_needed(self, seat: _Seat) -> bool:
        """Return whether there is a task for a worker; one without a device leaves it to others."""
        if not self._jobs or seat.state == "idle":
            return bool(self._jobs)
        ready = [other for other in self._seats if other.state in ("idle", "coming")]
        return len(self._jobs) > len(ready)

    def _connect(self, seat: _Seat) -> None:
        """Start a worker; it takes tasks only after its device answers."""
        since = time.monotonic()
        try:
            seat.worker.sentinel_ms()
        except DeviceError as error:
            self._note_failure(seat, since, error)
        except Exception as error:
            with self._changed:
                seat.state = "away"
                self._end_all(error)  # it would be the same for every task
        else:
            with self._changed:
                seat.state, self._silent_since = "idle", None

    def _note_failure(self, seat: _Seat, since: float, error: DeviceError) -> None:
        """Wait after a failed connection, or end all tasks after the time limit."""
        with self._changed:
            seat.state = "away"
            self._silent_since = self._silent_since or since
            others = any(other.state in ("idle", "busy") for other in self._seats)
            if not others and time.monotonic() - self._silent_since >= self._timeout_s:
                self._end_all(error)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or not self._jobs, _PAUSE_S)

    def _do(self, seat: _Seat, job: _Job) -> None:
        try:
            result = job.task(seat.worker)
        except DeviceError as error:
            self._retry(seat, job, error)
            return
        except Exception as error:
            result = _stopped_error() if self._closed else error
        with self._changed:
            seat.state, self._silent_since = "idle", None
        job.end(result)

    def _retry(self, seat: _Seat, job: _Job, error: DeviceError) -> None:
        """Queue a failed task again, unless it failed too often."""
        now = time.monotonic()
        job.failed_at = job.failed_at or now
        job.n_failures += 1
        late = now - job.failed_at >= self._timeout_s or job.n_failures >= _ATTEMPTS
        with self._changed:
            seat.state = "away"
            self._silent_since = self._silent_since or now
            if late or self._closed:
                # A device answered before each attempt: the task crashes devices.
                job.end(_stopped_error() if self._closed else DeviceCrashError(str(error)))
            else:
                self._jobs.appendleft(job)
            self._changed.notify_all()

    def _end_all(self, error: Exception) -> None:
        while self._jobs:
            self._jobs.popleft().end(error)


def _stopped_error() -> DeviceError:
    return DeviceError("The workers were stopped before the task ended. Repeat the command.")


@final
class RetryingPool:
    """The methods of ``Worker``, run by any worker of a pool, with retries.

    Methods raise ``CompileError`` for what cannot be compiled or crashes, and ``DeviceError`` if no
    device answers.
    """

    def __init__(self, pool: DevicePool):
        self._pool = pool

    def tune(self, op: OpSpec, limit: int) -> str:
        """Return the fastest of at most ``limit`` compilation plans, see ``DeviceBench.tune``."""
        return self._pool.do(lambda worker: worker.tune(op, limit))

    def time_operators(self, work: Sequence[tuple[OpSpec, str]]) -> list[Timing]:
        """Return the latency of each pair (operator, compilation plan) in ``work``, in order."""
        return self._pool.do(lambda worker: worker.time_operators(work))

    def time_network(self, graph: Graph, plans: OperatorPlans) -> Timing:
        """Return the latency of a fused network, see ``DeviceBench.time_network``."""
        return self._pool.do(lambda worker: worker.time_network(graph, plans))

    def interleaved_networks(self, first: Graph, second: Graph) -> InterleavedTimings:
        """Return the latencies of two fused networks, timed in turns with random weights.

        Raises:
            CompileError: the runtime needs compilation plans.
        """
        return self._pool.do(lambda worker: worker.interleaved_networks(first, second))

    def export(self, graph: Graph, plans: OperatorPlans, weights: Parameters) -> dict[str, bytes]:
        """Compile a fused network; return its files, see ``DeviceBench.export``."""
        return self._pool.do(lambda worker: worker.export(graph, plans, weights))

    def evaluate(self, files: Mapping[str, Path], images: NDArray[np.float32]) -> DeviceEvaluation:
        """Return outputs and measurements of a network, see ``DeviceBench.evaluate``."""
        return self._pool.do(lambda worker: worker.evaluate(files, images))

    def interleaved(
        self, first: Mapping[str, Path], second: Mapping[str, Path]
    ) -> InterleavedTimings:
        """Return the latencies of two networks, loaded from files by suffix and timed in turns."""
        return self._pool.do(lambda worker: worker.interleaved(first, second))

    def run(self, files: Mapping[str, Path], images: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the outputs ``(N, n_outputs)`` for images, see ``DeviceBench.run``."""
        return self._pool.do(lambda worker: worker.run(files, images))
