"""Pools with real trackers and servers that are killed and frozen during tasks."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hwnas.core.errors import CompileError, DeviceError
from hwnas.hardware.runtimes.pool import DevicePool, RetryingPool
from hwnas.hardware.runtimes.worker import Worker
from hwnas.hardware.timing import Timing
from hwnas.models.graph import Graph, OpSpec
from tests.hardware.runtimes import rpc_lab
from tests.hardware.runtimes.rpc_lab import (
    CONV,
    HOST,
    LINEAR,
    NETWORK,
    QUICK,
    Lab,
    needs_rpc,
    until,
)

pytestmark = [pytest.mark.slow, needs_rpc]

IMPOSSIBLE = OpSpec("conv2d", (8, 4, 4), (16, 4, 4), 3, groups=2, dtype="float32")
LIMIT_S = 60.0


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
    return worker.time_network(Graph.of(NETWORK), _plans(worker))


def _for_minutes(worker: Worker, n: int = 10**10) -> Timing:
    worker.percentiles(Graph.of(NETWORK), _plans(worker), n)  # the first call runs a tenth of them
    raise AssertionError("it was not interrupted")


def _first(attempts: list[float], disturb: Callable[[], None]) -> Callable[[Worker], Timing]:
    """Return a task that is disturbed in its first attempt."""

    def task(worker: Worker) -> Timing:
        attempts.append(time.monotonic())
        if len(attempts) > 1:
            return _network(worker)
        threading.Thread(target=disturb).start()
        return _for_minutes(worker)

    return task


def test_two_boards_work_in_parallel(lab: Lab) -> None:
    both = threading.Barrier(2)

    def together(worker: Worker) -> int:
        both.wait(60)
        assert worker.time_operators([(LINEAR, worker.tune(LINEAR, 1))])[0].median_ms > 0
        return id(worker)

    def unfinished(worker: Worker) -> Timing:
        both.wait(60)
        threading.Timer(0.5, pool.close).start()
        return _for_minutes(worker, n=10**5)

    with DevicePool(HOST, QUICK, lab.remote(n_devices=2), LIMIT_S) as pool:
        tasks: list[Callable[[Worker], Any]] = [together, together, _network]
        computed = dict(pool.run([*tasks, lambda worker: worker.tune(IMPOSSIBLE, 2)]))
        assert RetryingPool(pool).tune(CONV, 1)
        ended = list(pool.run([unfinished, unfinished]))
    assert computed[0] != computed[1]
    assert isinstance(computed[2], Timing)
    assert isinstance(computed[3], CompileError)
    assert [str(result) for _, result in ended] == [
        "The workers were stopped before the task ended. Repeat the command."
    ] * 2
    # Servers survive workers that are stopped during short calls.
    until(lambda: lab.free() == 2, limit_s=10)


def test_task_of_frozen_board_moves_to_next(lab: Lab) -> None:
    attempts: list[float] = []
    with DevicePool(HOST, QUICK, lab.remote(timeout_s=4.0), LIMIT_S) as pool:
        computed = dict(pool.run([_network, _first(attempts, lambda: lab.measuring().freeze())]))
    assert all(isinstance(result, Timing) for result in computed.values())
    assert len(attempts) == 2
    assert 4.0 < attempts[1] - attempts[0] < 25.0  # and the start of a process


def test_tasks_fail_after_all_boards_are_killed(lab: Lab) -> None:
    attempts: list[float] = []

    def fatal(worker: Worker) -> Timing:
        threading.Thread(target=lambda: lab.measuring().kill()).start()
        return _for_minutes(worker)

    with DevicePool(HOST, QUICK, lab.remote(timeout_s=4.0), LIMIT_S) as pool:
        killed = _first(attempts, lambda: lab.measuring().kill())
        order = []
        for index, result in pool.run([_network, killed, _network, fatal, *[_network] * 20]):
            order.append((index, result, time.monotonic()))
    # Results are kept, and the task moves to the next board.
    assert [index for index, _, _ in order[:3]] == [0, 1, 2]
    assert all(isinstance(result, Timing) for _, result, _ in order[:3])
    assert len(attempts) == 2
    assert attempts[1] - attempts[0] < 20.0
    # Without boards, all other tasks fail together.
    assert len(order) == 24
    assert all(isinstance(result, DeviceError) for _, result, _ in order[3:])
    assert "none registered" in str(order[-1][1])
    assert 4.0 < order[-1][2] - order[2][2] < 30.0


INTERRUPTED = """
import sys
from hwnas.hardware.runtimes.pool import DevicePool as Pool
from hwnas.hardware.target import Remote
from tests.hardware.runtimes.rpc_lab import HOST
from tests.hardware.runtimes.rpc_lab import QUICK
from tests.hardware.runtimes.test_pool_rpc import _for_minutes
from tests.hardware.runtimes.test_pool_rpc import _network

if __name__ == "__main__":
    with Pool(HOST, QUICK, Remote(), 60.0) as pool:
        for _ in pool.run([_network, _for_minutes, _for_minutes]):
            print(pool._seats[0].worker._process.pid, flush=True)
"""


def test_ctrl_c_stops_all_processes(tmp_path: Any) -> None:
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
