"""Real trackers and servers of TVM's RPC on loopback, for tests of failures."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from hwnas.hardware.target import PowerModel, Remote, Target
from hwnas.hardware.timing import TimingConfig
from hwnas.models.graph import INPUT, Node, OpSpec
from tests.conftest import TVM

ROOT = Path(__file__).parents[3]
KEY = "lab"
QUICK = TimingConfig(repeats=3, min_repeat_ms=1, drift=0.9, retries=0)
HOST = Target("host", "", "", "", runtime="tvm", dtype="float32", **TVM, power=PowerModel(1, 2, ""))
CONV = OpSpec("conv2d+bn+relu", (3, 8, 8), (16, 8, 8), 3, dtype="float32")
MEAN = OpSpec("mean", (16, 8, 8), (16, 1, 1), dtype="float32")
LINEAR = OpSpec("linear", (16, 1, 1), (10, 1, 1), dtype="float32")
NETWORK = (
    Node("conv", CONV, (INPUT,)),
    Node("mean", MEAN, ("conv",)),
    Node("linear", LINEAR, ("mean",)),
)

needs_rpc = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("tvm", "tornado", "cloudpickle")),
    reason="no TVM with RPC: pip install apache-tvm tornado cloudpickle",
)


def until(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def exists(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """A process group that receives signals together."""

    def __init__(self, module: str, *arguments: str):
        self.alive = True
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "--host", "127.0.0.1", *arguments],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def is_measuring(self) -> bool:
        """Return whether one of its processes is running continuously."""
        for _ in range(5):
            if "R" not in self._states():
                return False
            time.sleep(0.02)
        return True

    def _states(self) -> Iterator[str]:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
                if int(group) == self._process.pid:
                    yield state

    def freeze(self) -> None:
        os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        if self.alive:
            os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.alive = False
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Lab:
    """A tracker and its servers."""

    def __init__(self) -> None:
        self.port = free_port()
        self._tracker = Process(
            "tvm.exec.rpc_tracker", "--port", str(self.port), "--port-end", str(self.port + 9)
        )
        self.servers: list[Process] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def remote(self, timeout_s: float = 20.0, n_devices: int = 1, key: str = KEY) -> Remote:
        return Remote(self.address, key, timeout_s, n_devices)

    def serve(self, n: int = 1, key: str = KEY) -> list[Process]:
        """Start servers; return when they are free."""
        before = self.free(key)
        started = []
        for _ in range(n):
            port = free_port()
            started.append(
                Process(
                    "tvm.exec.rpc_server",
                    *("--tracker", self.address, "--key", key),
                    *("--port", str(port), "--port-end", str(port + 1)),
                )
            )
            self.servers.append(started[-1])
        until(lambda: self.free(key) == before + n)
        return started

    def free(self, key: str = KEY) -> int:
        """Return the number of servers that wait for a client."""
        from tvm.rpc import base

        from hwnas.hardware.backends.tvm import remote as tracker

        with suppress(OSError), tracker._dial(self.remote(), 5.0) as connection:
            base.sendjson(connection, [base.TrackerCode.SUMMARY])
            queues = base.recvjson(connection)[1]["queue_info"]
            return int(queues[key]["free"]) if key in queues else 0
        return 0  # it is not up yet

    def measuring(self) -> Process:
        """Wait for a server that is measuring and return it."""
        result: list[Process] = []

        def look() -> bool:
            result[:] = [s for s in self.servers if s.alive and s.is_measuring()]
            return bool(result)

        until(look)
        return result[0]

    @property
    def n_alive(self) -> int:
        return sum(server.alive for server in self.servers)

    def close(self) -> None:
        for process in (*self.servers, self._tracker):
            process.kill()


@contextmanager
def opened() -> Iterator[Lab]:
    lab = Lab()
    try:
        yield lab
    finally:
        lab.close()
