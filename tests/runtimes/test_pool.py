import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hwnas.errors import CompileError, DeviceError
from hwnas.op import OpSpec
from hwnas.runtimes import pool as module
from hwnas.runtimes.pool import Pool, Retrying
from hwnas.runtimes.worker import Worker
from hwnas.target import Remote
from hwnas.timing import Timing
from tests.runtimes import rpc_lab
from tests.runtimes.rpc_lab import CONV, HOST, LINEAR, NETWORK, QUICK, Lab, needs_rpc, until

IMPOSSIBLE = OpSpec("conv2d", (8, 4, 4), (16, 4, 4), 3, groups=2, dtype="float32")
LIMIT_S = 60.0


class FakeWorker:
    """A worker whose device is there or not, as a test says."""

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


def _pool(timeout_s: float = 20.0, n_devices: int = 2, tracker: str = "there:1") -> Pool:
    return Pool(HOST, QUICK, Remote(tracker, "lab" if tracker else "", timeout_s, n_devices), 60)


def _count(device: list[int], fails: int) -> Callable[[Worker], int]:
    """Return a task whose device leaves a few times."""

    def task(worker: Worker) -> int:
        device.append(id(worker))
        if len(device) <= fails:
            raise DeviceError("left")
        return len(device)

    return task


def test_there_is_one_worker_on_this_machine(fake: type[FakeWorker]) -> None:
    with _pool(n_devices=4, tracker=""):
        assert len(fake.made) == 1


def test_every_task_has_one_result(fake: type[FakeWorker]) -> None:
    def refuse(worker: Worker) -> int:
        raise CompileError("no")

    tasks: list[Callable[[Worker], int]] = [lambda worker, i=i: i * i for i in range(50)]  # type: ignore[misc]
    with _pool() as pool:
        found = dict(pool.run([*tasks, refuse]))
    assert isinstance(found.pop(50), CompileError)
    assert found == {i: i * i for i in range(50)}


def test_a_task_is_tried_again_on_a_device_that_answers(fake: type[FakeWorker]) -> None:
    with _pool() as pool:
        assert pool.do(_count([], fails=2)) == 3
    assert sum(worker.n_starts for worker in fake.made) == 3  # a fresh session after each failure


def test_a_task_that_takes_devices_down_is_given_up(fake: type[FakeWorker]) -> None:
    attempts: list[int] = []
    with _pool() as pool:
        found = dict(pool.run([_count(attempts, fails=99), lambda worker: 7]))
    assert isinstance(found[0], DeviceError)
    assert found[1] == 7
    assert len(attempts) == 3


def test_a_task_that_fails_late_is_given_up(fake: type[FakeWorker]) -> None:
    attempts: list[int] = []

    def slow(worker: Worker) -> int:
        time.sleep(0.2)
        return _count(attempts, fails=99)(worker)

    with _pool(timeout_s=0.1) as pool, pytest.raises(DeviceError, match="left"):
        pool.do(slow)
    assert len(attempts) == 2


def test_a_mistake_in_a_task_is_raised(fake: type[FakeWorker]) -> None:
    with _pool() as pool, pytest.raises(ZeroDivisionError):
        list(pool.run([lambda worker: 1 // 0]))


def test_without_any_device_all_tasks_end_together(fake: type[FakeWorker]) -> None:
    fake.there = False
    start = time.monotonic()
    with _pool(timeout_s=0.5) as pool:
        found = list(pool.run([lambda worker: 1] * 20))
    assert 0.5 <= time.monotonic() - start < 2.0
    assert [str(result) for _, result in found] == ["nobody"] * 20


def test_a_device_that_comes_back_is_used_again(fake: type[FakeWorker]) -> None:
    fake.there = False
    with _pool(timeout_s=20.0) as pool:
        threading.Timer(0.3, lambda: setattr(fake, "there", True)).start()
        assert pool.do(lambda worker: 1) == 1


def test_one_task_after_another_takes_one_device(fake: type[FakeWorker]) -> None:
    with _pool(n_devices=3) as pool:
        assert [pool.do(lambda worker: id(worker)) for _ in range(5)]
    assert sum(worker.n_starts for worker in fake.made) == 1


def test_close_ends_what_is_under_way(fake: type[FakeWorker]) -> None:
    def hang(worker: Any) -> None:
        worker.killed.wait(30)
        raise DeviceError("killed")

    with _pool() as pool:
        threading.Timer(0.3, pool.close).start()
        start = time.monotonic()
        found = list(pool.run([hang] * 5))
        assert time.monotonic() - start < 3.0
    assert all(isinstance(result, DeviceError) for _, result in found)


def test_tasks_that_nobody_waits_for_are_dropped(fake: type[FakeWorker]) -> None:
    done: list[int] = []

    def count(worker: Worker) -> None:
        time.sleep(0.05)
        done.append(1)

    with _pool(n_devices=1) as pool:
        for _ in pool.run([count] * 50):
            break
        assert pool.do(lambda worker: 5) == 5
    assert len(done) < 5


# ---- with real processes


@pytest.fixture(scope="module")
def _lab() -> Iterator[Lab]:
    with rpc_lab.opened() as lab:
        yield lab


@pytest.fixture
def lab(_lab: Lab) -> Iterator[Lab]:
    """A tracker with two servers that are free; a test may kill them."""
    if _lab.n_alive < 2:
        _lab.serve(2 - _lab.n_alive)
    until(lambda: _lab.free() == 2)
    yield _lab
    for server in _lab.servers:
        server.thaw()


def _plans(worker: Worker) -> dict[OpSpec, str]:
    return {node.op: worker.tune(node.op, 1) for node in NETWORK}


def _network(worker: Worker) -> Timing:
    return worker.time_network(NETWORK, _plans(worker))


def _for_minutes(worker: Worker) -> Timing:
    worker.percentiles(NETWORK, _plans(worker), 10**6)
    raise AssertionError("it was not interrupted")


def _first(attempts: list[float], disturb: Callable[[], None]) -> Callable[[Worker], Timing]:
    """Return a task that is disturbed in the middle when it is tried first."""

    def task(worker: Worker) -> Timing:
        attempts.append(time.monotonic())
        if len(attempts) > 1:
            return _network(worker)
        threading.Timer(0.5, disturb).start()
        return _for_minutes(worker)

    return task


@pytest.mark.slow
@needs_rpc
def test_two_boards_work_at_the_same_time(lab: Lab) -> None:
    both = threading.Barrier(2)

    def together(worker: Worker) -> int:
        both.wait(60)
        assert worker.time_operators([(LINEAR, worker.tune(LINEAR, 1))])[0].median_ms > 0
        return id(worker)

    def unfinished(worker: Worker) -> Timing:
        both.wait(60)
        threading.Timer(0.5, pool.close).start()
        return _for_minutes(worker)

    with Pool(HOST, QUICK, lab.remote(n_devices=2), LIMIT_S) as pool:
        tasks: list[Callable[[Worker], Any]] = [together, together, _network]
        found = dict(pool.run([*tasks, lambda worker: worker.tune(IMPOSSIBLE, 2)]))
        assert Retrying(pool).tune(CONV, 1)
        ended = list(pool.run([unfinished, unfinished]))
    assert found[0] != found[1]
    assert isinstance(found[2], Timing)
    assert isinstance(found[3], CompileError)
    assert all(isinstance(result, DeviceError) for _, result in ended)
    # Servers outlive workers that are ended in the middle of many short calls.
    until(lambda: lab.free() == 2, limit_s=10)


@pytest.mark.slow
@needs_rpc
def test_a_task_whose_board_freezes_goes_to_the_next(lab: Lab) -> None:
    attempts: list[float] = []
    with Pool(HOST, QUICK, lab.remote(timeout_s=4.0), LIMIT_S) as pool:
        found = dict(pool.run([_network, _first(attempts, lambda: lab.in_use.freeze())]))
    assert all(isinstance(result, Timing) for result in found.values())
    assert len(attempts) == 2
    assert 4.0 < attempts[1] - attempts[0] < 25.0  # and the start of a process


@pytest.mark.slow
@needs_rpc
def test_boards_that_are_killed_one_after_the_other(lab: Lab) -> None:
    attempts: list[float] = []

    def fatal(worker: Worker) -> Timing:
        threading.Timer(0.5, lab.kill_servers).start()
        return _for_minutes(worker)

    with Pool(HOST, QUICK, lab.remote(timeout_s=4.0), LIMIT_S) as pool:
        killed = _first(attempts, lambda: lab.in_use.kill())
        order = []
        for index, result in pool.run([_network, killed, _network, fatal, *[_network] * 20]):
            order.append((index, result, time.monotonic()))
    # What was measured is kept, and the task goes to the next board.
    assert [index for index, _, _ in order[:3]] == [0, 1, 2]
    assert all(isinstance(result, Timing) for _, result, _ in order[:3])
    assert len(attempts) == 2
    assert attempts[1] - attempts[0] < 20.0
    # When that is gone too, all others end together.
    assert len(order) == 24
    assert all(isinstance(result, DeviceError) for _, result, _ in order[3:])
    assert "none registered" in str(order[-1][1])
    assert 4.0 < order[-1][2] - order[2][2] < 30.0


INTERRUPTED = """
import sys
from hwnas.runtimes.pool import Pool
from hwnas.target import Remote
from tests.runtimes.rpc_lab import HOST, QUICK
from tests.runtimes.test_pool import _for_minutes, _network

if __name__ == "__main__":
    with Pool(HOST, QUICK, Remote(), 60.0) as pool:
        for _ in pool.run([_network, _for_minutes, _for_minutes]):
            print(pool._seats[0].worker._process.pid, flush=True)
"""


@pytest.mark.slow
@needs_rpc
def test_ctrl_c_ends_everything(tmp_path: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    with subprocess.Popen(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(rpc_lab.ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        _, errors = process.communicate(timeout=30)
    assert time.monotonic() - start < 5.0
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert not rpc_lab.exists(pid)
