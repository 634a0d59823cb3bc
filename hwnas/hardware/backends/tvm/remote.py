"""A device that TVM's RPC reaches: libraries are cross-compiled here, sent there and run there.

Devices come and go. A session that breaks, hangs or is refused is a ``DeviceError``; the next use
asks the tracker for a device again, and what was on the old one is put on the new one.
"""

import contextlib
import queue
import socket
import struct
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import rpc
from tvm.error import RPCError, RPCSessionTimeoutError
from tvm.rpc import base

from hwnas.core.errors import CompileError, ConfigError, DeviceError
from hwnas.hardware.backends.tvm import TvmSettings, linker
from hwnas.hardware.runtimes.worker import GRACE_S
from hwnas.hardware.target import Remote
from hwnas.hardware.timing import Timer

# Asks the tracker of TVM's RPC for a device that is free; TVM's own client may wait for ever.

_ANSWER_S = 5.0  #: in which a tracker says what it knows


def request_device(remote: Remote, deadline: float, mute: Sequence[str]) -> tuple[str, int, str]:
    """Return address, port and key of a device that is free; wait for one until the deadline.

    Args:
        remote: The tracker, and the key of the devices.
        deadline: When to give up, on the monotonic clock.
        mute: Devices that the tracker named before and that did not answer.

    Raises:
        DeviceError: no device is free in time, or there is no tracker.
    """
    try:
        with _dial(remote, max(0.1, deadline - time.monotonic())) as tracker:
            base.sendjson(tracker, [base.TrackerCode.REQUEST, remote.key, "", 1])
            code, found = base.recvjson(tracker)
    except TimeoutError:
        raise DeviceError(_nobody(remote, mute)) from None
    except (OSError, ValueError) as error:
        raise DeviceError(_no_tracker(remote, error)) from None
    if code != base.TrackerCode.SUCCESS:
        raise DeviceError(f"The tracker at {remote.tracker} refuses '{remote.key}': {found}.")
    host, port, key = found
    return host, port, key


def _dial(remote: Remote, timeout_s: float) -> socket.socket:
    """Return a connection to the tracker."""
    host, _, port = remote.tracker.rpartition(":")
    tracker = socket.create_connection((host, int(port)), timeout_s)
    try:
        magic = struct.pack("<i", base.RPC_TRACKER_MAGIC)
        tracker.sendall(magic)
        if base.recvall(tracker, len(magic)) != magic:
            raise ValueError("what answers there is no tracker")
    except BaseException:
        tracker.close()
        raise
    return tracker


def _nobody(remote: Remote, mute: Sequence[str]) -> str:
    """Return what the tracker knows when it has no device to give."""
    try:
        with _dial(remote, _ANSWER_S) as tracker:
            base.sendjson(tracker, [base.TrackerCode.SUMMARY])
            _, summary = base.recvjson(tracker)
    except (OSError, ValueError) as error:
        return _no_tracker(remote, error)
    keys = [server["key"].removeprefix("server:") for server in summary["server_info"]]
    n_mine, others = keys.count(remote.key), sorted({*keys} - {remote.key})
    found = f"{n_mine} registered, none free" if n_mine else "none registered"
    found += f", {len(mute)} without an answer ({', '.join(mute)})" if mute else ""
    found += f", other keys: {', '.join(others)}" if others else ""
    return (
        f"No device '{remote.key}' at {remote.tracker} within {remote.timeout_s:g} s: {found}. "
        "Start it, on the device, with: "
        f"python -m tvm.exec.rpc_server --tracker {remote.tracker} --key {remote.key} "
        "--host 127.0.0.1 --port 9090 --custom-addr 127.0.0.1, behind "
        "ssh -L 9090:localhost:9090: TVM's RPC is not authenticated."
    )


def _no_tracker(remote: Remote, error: Exception) -> str:
    port = remote.tracker.rpartition(":")[2]
    return (
        f"No tracker answers at {remote.tracker} for device '{remote.key}': {error}. "
        f"Start it with: python -m tvm.exec.rpc_tracker --host 127.0.0.1 --port {port} "
        f"--port-end {int(port) + 1}   TVM's RPC is not authenticated: whoever reaches it runs "
        "code. Keep it on 127.0.0.1 and tunnel to the device: "
        f"ssh -L 9090:localhost:9090 -R {port}:localhost:{port} USER@DEVICE"
    )


T = TypeVar("T")

_GREETING_S = 10.0  #: in which a server that is free must answer
#: A server ends a session that is older than this many times ``timeout_s``, whatever it does: so a
#: board is free again when its client is gone or its code hangs. A session that is in order is
#: renewed before: there is always ``timeout_s`` left.
_SESSION, _RENEW = 1.5, 0.5


@final
class RemoteDevice:
    """A device that registers at a tracker under a key; whichever is free is taken."""

    by_library = True

    def __init__(self, tvm_facts: TvmSettings, remote: Remote, threads: int = 1):
        linker.find_compiler(tvm_facts.cc)  # before a device is taken
        self._facts, self._remote, self._threads = tvm_facts, remote, threads
        self._connection: _RpcConnection | None = self._connect()

    def load(self, module: Any) -> "_RemoteObject":
        """Return a compiled module as something that runs on the device.

        Raises:
            CompileError: it cannot be linked.
        """
        return self._library(self.link(linker.object_files(module)))

    def load_file(self, path: Path) -> "_RemoteObject":
        """Return what an exported library holds, as something that runs on the device."""
        return self._library(path.read_bytes())

    def link(self, objects: bytes) -> bytes:
        """Return a ``.tar`` of object files as a shared library for the device."""
        return linker.shared_library(objects, self._facts.cc)

    def tensor(self, array: NDArray[Any]) -> "_RemoteObject":
        """Return a tensor on the device."""
        copy = np.array(array)
        return _RemoteObject(lambda connection: tvm.runtime.tensor(copy, connection.device))

    def array(self, tensor: "_RemoteObject") -> NDArray[np.float32]:
        """Return what a tensor holds."""
        # Not renewed: in a new session the tensor would hold what it held at first.
        return self._ask(lambda connection: np.array(connection.value(tensor).numpy()))

    def call(
        self, module: "_RemoteObject", name: str, arguments: Sequence["_RemoteObject"]
    ) -> None:
        """Run one of a module's functions."""

        def run(connection: _RpcConnection) -> None:
            connection.value(module)[name](*connection.values(arguments))

        self._renew()
        self._ask(run)

    def timer(
        self, module: "_RemoteObject", name: str, arguments: Sequence["_RemoteObject"]
    ) -> Timer:
        """Return a timer that runs on the device itself: the way there is not counted."""

        def run(n: int) -> float:
            self._renew()
            return self._ask(lambda connection: timed(connection, n))

        def timed(connection: _RpcConnection, n: int) -> float:
            evaluate = connection.value(module).time_evaluator
            result = evaluate(name, connection.device, number=n, repeat=1)
            return float(result(*connection.values(arguments)).median) * n

        return run

    def close(self) -> None:
        """Give the device back; whatever is used next asks for one again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _library(self, content: bytes) -> "_RemoteObject":
        def put(connection: _RpcConnection) -> Any:
            name = f"{uuid.uuid4().hex}.so"
            try:
                connection.session.upload(bytearray(content), name)
                module = connection.session.load_module(name)
                connection.session.remove(
                    name
                )  # loaded; of a broken session the server removes all
            except RPCSessionTimeoutError:
                raise
            except RPCError as error:
                raise ConfigError(
                    f"{self._name} cannot load a library: {_last(error)}. Check "
                    "target.tvm.mtriple, mcpu and cc, and the space left on the device."
                ) from None
            return module

        return _RemoteObject(put)

    def _ask(self, work: Callable[["_RpcConnection"], T]) -> T:
        """Do something on the device, for ``timeout_s`` at most."""
        if self._connection is None:
            self._connection = self._connect()
        connection, limit_s = self._connection, self._remote.timeout_s
        try:
            return _within(limit_s, lambda: work(connection))
        except queue.Empty:
            connection.keep_all()
            self._connection = None
            raise DeviceError(f"{self._name}: no answer within {limit_s:g} s.") from None
        except RPCSessionTimeoutError:
            self.close()
            raise DeviceError(
                f"{self._name} ended the session after {_SESSION * limit_s:g} s; something hung, "
                "or rpc.timeout_s is too short."
            ) from None
        except RPCError as error:  # the device is there and says what is wrong
            raise CompileError(f"{self._name}: {_last(error)}") from None
        except (OSError, RuntimeError) as error:
            self.close()
            raise DeviceError(f"{self._name} is gone: {_last(error)}") from None

    def _renew(self) -> None:
        """Begin a new session if the present one has less than ``timeout_s`` to go."""
        connection = self._connection
        if connection and time.monotonic() - connection.since > _RENEW * self._remote.timeout_s:
            self.close()  # first: the tracker may know no other device

    def _connect(self) -> "_RpcConnection":
        """Return a session with a device that is free and answers.

        Raises:
            DeviceError: there is none in time.
        """
        deadline = time.monotonic() + self._remote.timeout_s
        mute: list[str] = []
        while True:
            address = request_device(self._remote, deadline, mute)
            left = max(0.1, deadline - time.monotonic())
            try:
                return _within(min(_GREETING_S, left), partial(self._greet, *address))
            except (queue.Empty, OSError, RuntimeError):
                mute.append(f"{address[0]}:{address[1]}")

    def _greet(self, host: str, port: int, key: str) -> "_RpcConnection":
        session = rpc.connect(host, port, key, session_timeout=_SESSION * self._remote.timeout_s)
        return _RpcConnection(session, self._threads)

    @property
    def _name(self) -> str:
        return f"Device '{self._remote.key}' at {self._remote.tracker}"


@final
class _RemoteObject:
    """Something on the device that can be put there again, in another session."""

    def __init__(self, put: Callable[["_RpcConnection"], Any]):
        self.put = put


@final
class _RpcConnection:
    """A session, and what is on the device as long as it lasts."""

    def __init__(self, session: Any, threads: int):
        self.session, self.since = session, time.monotonic()
        self.device = session.cpu()
        self._values: weakref.WeakKeyDictionary[_RemoteObject, Any] = weakref.WeakKeyDictionary()
        self._kept: list[Any] = []
        session.get_function("runtime.config_threadpool")(1, threads)

    def value(self, held: _RemoteObject) -> Any:
        """Return something as it is on the device; put it there if it is not."""
        if held not in self._values:
            self._values[held] = held.put(self)
        return self._values[held]

    def values(self, several: Iterable[_RemoteObject]) -> list[Any]:
        """Return several things as they are on the device."""
        return [self.value(held) for held in several]

    def close(self) -> None:
        """Give the device back, whatever still refers to it."""
        with contextlib.suppress(OSError, RuntimeError):  # it may be gone
            self.session.get_function("CloseRPCConnection")()

    def keep_all(self) -> None:
        """Free nothing while a call hangs: freeing waits for the device too."""
        self._kept = list(self._values.values())


def _within(limit_s: float, work: Callable[[], T]) -> T:
    """Return what ``work`` returns; raise ``queue.Empty`` if that takes too long.

    TVM's calls know no time limit. What hangs is left behind in its thread, with all it refers to.
    """
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
    thread = threading.Thread(target=_answer, args=([work], answers), daemon=True)
    answer: T
    try:
        thread.start()
        answer, error = answers.get(timeout=limit_s)
    except (SystemExit, KeyboardInterrupt):  # also while the thread starts: it may ask already
        with contextlib.suppress(queue.Empty):
            answers.get(timeout=GRACE_S)
        raise
    if error is not None:
        raise error
    return answer


def _answer(
    work: list[Callable[[], Any]], answers: queue.SimpleQueue[tuple[Any, BaseException | None]]
) -> None:
    try:
        # Out of the list: the last to refer to what is on the device must not be this thread, which
        # would free it while the other goes on, or is killed. Servers don't outlive a client that
        # is killed in the middle of an answer.
        answers.put((work.pop()(), None))
    except BaseException as error:
        answers.put((None, error))


def _last(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]
