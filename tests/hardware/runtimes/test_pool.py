import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from hwnas.core.errors import CompileError, DeviceCrashError, DeviceError
from hwnas.hardware.runtimes import pool as module
from hwnas.hardware.runtimes.pool import DevicePool
from hwnas.hardware.runtimes.worker import Worker
from hwnas.hardware.target import Remote
from tests.hardware.runtimes.rpc_lab import HOST, QUICK


class FakeWorker:
    """A worker with a device that a test can disconnect."""

    there = True
    made: list["FakeWorker"]

    def __init__(self, *arguments: Any):
        self.n_starts = 0
        self.killed = threading.Event()
        FakeWorker.made.append(self)

    def sentinel_ms(self) -> tuple[float, ...]:
        self.n_starts += 1
        if not FakeWorker.there:
            raise DeviceError("nobody")
        return ()

    def kill(self, gently: bool) -> None:
        self.killed.set()

    def close(self) -> None:
        pass


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    monkeypatch.setattr(FakeWorker, "there", True)
    monkeypatch.setattr(FakeWorker, "made", [], raising=False)
    monkeypatch.setattr(module, "Worker", FakeWorker)
    monkeypatch.setattr(module, "_PAUSE_S", 0.05)
    return FakeWorker


def _pool(timeout_s: float = 20.0, n_devices: int = 2, tracker: str = "there:1") -> DevicePool:
    return DevicePool(
        HOST, QUICK, Remote(tracker, "lab" if tracker else "", timeout_s, n_devices), 60
    )


def _count(device: list[int], fails: int) -> Callable[[Worker], int]:
    """Return a task whose device fails a few times."""

    def task(worker: Worker) -> int:
        device.append(id(worker))
        if len(device) <= fails:
            raise DeviceError("left")
        return len(device)

    return task


def test_local_pool_has_one_worker(fake: type[FakeWorker]) -> None:
    with _pool(n_devices=4, tracker=""):
        assert len(fake.made) == 1


def test_every_task_has_one_result(fake: type[FakeWorker]) -> None:
    def refuse(worker: Worker) -> int:
        raise CompileError("no")

    tasks: list[Callable[[Worker], int]] = [lambda worker, i=i: i * i for i in range(50)]  # type: ignore[misc]
    with _pool() as pool:
        result = dict(pool.run([*tasks, refuse]))
    assert isinstance(result.pop(50), CompileError)
    assert result == {i: i * i for i in range(50)}


def test_task_is_retried_on_available_device(fake: type[FakeWorker]) -> None:
    with _pool() as pool:
        assert pool.do(_count([], fails=2)) == 3
    assert sum(worker.n_starts for worker in fake.made) == 3  # a fresh session after each failure


def test_task_that_crashes_devices_is_abandoned(fake: type[FakeWorker]) -> None:
    attempts: list[int] = []
    with _pool() as pool:
        result = dict(pool.run([_count(attempts, fails=99), lambda worker: 7]))
    assert isinstance(result[0], DeviceCrashError)
    assert result[1] == 7
    assert len(attempts) == 3


def test_task_that_fails_late_is_abandoned(fake: type[FakeWorker]) -> None:
    attempts: list[int] = []

    def slow(worker: Worker) -> int:
        time.sleep(0.2)
        return _count(attempts, fails=99)(worker)

    with _pool(timeout_s=0.1) as pool, pytest.raises(DeviceError, match="left"):
        pool.do(slow)
    assert len(attempts) == 2


def test_other_errors_of_task_are_raised(fake: type[FakeWorker]) -> None:
    with _pool() as pool, pytest.raises(ZeroDivisionError):
        list(pool.run([lambda worker: 1 // 0]))


def test_without_devices_all_tasks_fail_after_timeout(fake: type[FakeWorker]) -> None:
    fake.there = False
    start = time.monotonic()
    with _pool(timeout_s=0.5) as pool:
        results = list(pool.run([lambda worker: 1] * 20))
    assert 0.5 <= time.monotonic() - start < 2.0
    assert [str(result) for _, result in results] == ["nobody"] * 20


def test_returning_device_is_used_again(fake: type[FakeWorker]) -> None:
    fake.there = False
    with _pool(timeout_s=20.0) as pool:
        threading.Timer(0.3, lambda: setattr(fake, "there", True)).start()
        assert pool.do(lambda worker: 1) == 1


def test_sequential_tasks_use_one_device(fake: type[FakeWorker]) -> None:
    with _pool(n_devices=3) as pool:
        assert [pool.do(lambda worker: id(worker)) for _ in range(5)]
    assert sum(worker.n_starts for worker in fake.made) == 1


def test_close_stops_running_tasks(fake: type[FakeWorker]) -> None:
    def hang(worker: Any) -> None:
        worker.killed.wait(30)
        raise CompileError("killed")

    with _pool() as pool:
        threading.Timer(0.3, pool.close).start()
        start = time.monotonic()
        results = list(pool.run([hang] * 5))
        assert time.monotonic() - start < 3.0
    assert [str(result) for _, result in results] == [
        "The workers were stopped before the task ended. Repeat the command."
    ] * 5


def test_abandoned_tasks_are_dropped(fake: type[FakeWorker]) -> None:
    done: list[int] = []

    def count(worker: Worker) -> None:
        time.sleep(0.05)
        done.append(1)

    with _pool(n_devices=1) as pool:
        for _ in pool.run([count] * 50):
            break
        assert pool.do(lambda worker: 5) == 5
    assert len(done) < 5
