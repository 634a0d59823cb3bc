"""Remote devices of TVM's RPC: libraries are cross-compiled here, uploaded and run there.

A session that breaks, hangs or is refused is a ``DeviceError``. The next use requests a device from
the tracker again, and uploads its content again.
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

from hwnas.core.errors import CompileError, ConfigError, DeviceError, last_line
from hwnas.hardware.backends.tvm import (
    ANSWER_S,
    TvmSettings,
    find_compiler,
    linker,
    no_tracker_message,
)
from hwnas.hardware.runtimes.worker import GRACE_S
from hwnas.hardware.target import Remote
from hwnas.hardware.timing import Timer


def request_device(remote: Remote, deadline: float, silent: Sequence[str]) -> tuple[str, int, str]:
    """Return host, port and session key of a free device; wait for one until the deadline.

    TVM's own client has no deadline.

    Args:
        remote: The tracker, and the key of the devices.
        deadline: End of the wait, as a value of ``time.monotonic()``.
        silent: Addresses (``HOST:PORT``) that the tracker gave earlier and that did not answer, for
            the message.

    Raises:
        DeviceError: no device is free in time, or the tracker does not answer or refuses the key.
    """
    try:
        with _dial(remote, max(0.1, deadline - time.monotonic())) as tracker:
            base.sendjson(tracker, [base.TrackerCode.REQUEST, remote.key, "", 1])
            code, reply = base.recvjson(tracker)
    except TimeoutError:
        raise DeviceError(_no_device(remote, silent)) from None
    except (OSError, ValueError) as error:
        raise DeviceError(no_tracker_message(remote, error)) from None
    if code != base.TrackerCode.SUCCESS:
        raise DeviceError(
            f"The tracker at rpc.tracker={remote.tracker} refuses rpc.key={remote.key}: {reply}. "
            "List the keys with: python -m tvm.exec.query_rpc_tracker "
            f"--host {remote.tracker.rpartition(':')[0]} --port {remote.tracker.rpartition(':')[2]}"
        )
    host, port, key = reply
    return host, port, key


def _dial(remote: Remote, timeout_s: float) -> socket.socket:
    """Return a connection to the tracker."""
    host, _, port = remote.tracker.rpartition(":")
    tracker = socket.create_connection((host, int(port)), timeout_s)
    try:
        magic = struct.pack("<i", base.RPC_TRACKER_MAGIC)
        tracker.sendall(magic)
        if base.recvall(tracker, len(magic)) != magic:
            raise ValueError(f"the server at {remote.tracker} is not a TVM tracker")
    except BaseException:
        tracker.close()
        raise
    return tracker


def _no_device(remote: Remote, silent: Sequence[str]) -> str:
    """Return the message if the tracker has no free device."""
    try:
        with _dial(remote, ANSWER_S) as tracker:
            base.sendjson(tracker, [base.TrackerCode.SUMMARY])
            _, summary = base.recvjson(tracker)
    except (OSError, ValueError) as error:
        return no_tracker_message(remote, error)
    keys = [server["key"].removeprefix("server:") for server in summary["server_info"]]
    n_registered, others = keys.count(remote.key), sorted({*keys} - {remote.key})
    status = f"{n_registered} registered, none free" if n_registered else "none registered"
    status += f", {len(silent)} without an answer ({', '.join(silent)})" if silent else ""
    status += f", other keys: {', '.join(others)}" if others else ""
    return (
        f"No device '{remote.key}' at {remote.tracker} within {remote.timeout_s:g} s: {status}. "
        "Start it on the device with: "
        f"python -m tvm.exec.rpc_server --tracker {remote.tracker} --key {remote.key} "
        "--host 127.0.0.1 --port 9090 --custom-addr 127.0.0.1, behind "
        "ssh -L 9090:localhost:9090: TVM's RPC is not authenticated."
    )


T = TypeVar("T")

_GREETING_S = 10.0  #: time limit for a free server to answer
#: A server ends a session after this multiple of ``timeout_s``, so that a board is free again if
#: its client is gone or its code hangs. Sessions are renewed earlier: ``timeout_s`` is always left.
_SESSION, _RENEW = 1.5, 0.5


@final
class RemoteDevice:
    """A device that registers at a tracker under a key; any free one is used.

    If a session with it ends, the next use requests a device again. Every method that uses the
    device may raise ``DeviceError`` if it does not answer, ``CompileError`` if it reports an error.

    Raises:
        ConfigError: the compiler that links for the device is not installed.
        DeviceError: the tracker does not answer, or no device is free within ``rpc.timeout_s``.
    """

    by_library = True  #: modules are linked to libraries and uploaded

    def __init__(self, settings: TvmSettings, remote: Remote, threads: int = 1):
        find_compiler(settings.cc)  # before a device is requested
        self._settings, self._remote, self._threads = settings, remote, threads
        self._connection: _RpcConnection | None = self._connect()

    def load(self, module: Any) -> "_RemoteObject":
        """Return a compiled module, linked here; it is uploaded at its first use.

        Raises:
            CompileError: it cannot be linked.
        """
        return self._library(self.link(linker.object_files(module)))

    def load_file(self, path: Path) -> "_RemoteObject":
        """Return the module of a library file; it is uploaded at its first use."""
        return self._library(path.read_bytes())

    def link(self, objects: bytes) -> bytes:
        """Return a shared library for the device, linked here from a ``.tar`` of object files.

        Raises:
            CompileError: the files cannot be linked.
        """
        return linker.shared_library(objects, self._settings.cc)

    def tensor(self, array: NDArray[Any]) -> "_RemoteObject":
        """Return a tensor with the content of ``array``; it is uploaded at its first use."""
        copy = np.array(array)
        return _RemoteObject(lambda connection: tvm.runtime.tensor(copy, connection.device))

    def array(self, tensor: "_RemoteObject") -> NDArray[np.float32]:
        """Return the content of a tensor of the device as an array of the same shape."""
        # No new session here: the tensor would have its initial content in it.
        return self._ask(lambda connection: np.array(connection.value(tensor).numpy()))

    def call(
        self, module: "_RemoteObject", name: str, arguments: Sequence["_RemoteObject"]
    ) -> None:
        """Run the function ``name`` of a module on the device, for at most ``timeout_s``."""

        def run(connection: _RpcConnection) -> None:
            connection.value(module)[name](*connection.values(arguments))

        self._renew()
        self._ask(run)

    def timer(
        self, module: "_RemoteObject", name: str, arguments: Sequence["_RemoteObject"]
    ) -> Timer:
        """Return a timer of the function ``name``: seconds for ``n`` calls, on the device alone."""

        def run(n: int) -> float:
            self._renew()
            return self._ask(lambda connection: timed(connection, n))

        def timed(connection: _RpcConnection, n: int) -> float:
            evaluate = connection.value(module).time_evaluator
            result = evaluate(name, connection.device, number=n, repeat=1)
            return float(result(*connection.values(arguments)).median) * n

        return run

    def close(self) -> None:
        """Release the device; the next use requests one again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _library(self, content: bytes) -> "_RemoteObject":
        def put(connection: _RpcConnection) -> Any:
            name = f"{uuid.uuid4().hex}.so"
            try:
                connection.session.upload(bytearray(content), name)
                module = connection.session.load_module(name)
                connection.session.remove(name)  # the server removes files of broken sessions
            except RPCSessionTimeoutError:
                raise
            except RPCError as error:
                raise ConfigError(
                    f"{self._name} cannot load a library: {last_line(error)}. Check "
                    "target.tvm.mtriple, mcpu and cc, and the space left on the device."
                ) from None
            return module

        return _RemoteObject(put)

    def _ask(self, work: Callable[["_RpcConnection"], T]) -> T:
        """Run ``work`` on the device, for at most ``timeout_s``."""
        if self._connection is None:
            self._connection = self._connect()
        connection, limit_s = self._connection, self._remote.timeout_s
        try:
            return _within(limit_s, lambda: work(connection))
        except queue.Empty:
            connection.keep_all()
            self._connection = None
            raise DeviceError(
                f"{self._name}: no answer within rpc.timeout_s={limit_s:g}. Restart its server, or "
                "set a larger rpc.timeout_s."
            ) from None
        except RPCSessionTimeoutError:
            self.close()
            raise DeviceError(
                f"{self._name} ended the session after {_SESSION * limit_s:g} s: a call hung, or "
                f"rpc.timeout_s={limit_s:g} is too short. Set a larger one, or restart the server."
            ) from None
        except RPCError as error:  # the device answered with an error
            raise CompileError(
                f"{self._name}: the device reports: {last_line(error).rstrip('.')}. Check the "
                "output of its server (tvm.exec.rpc_server)."
            ) from None
        except (OSError, RuntimeError) as error:
            self.close()
            raise DeviceError(
                f"{self._name}: the connection broke: {last_line(error)}. Check the device, and "
                "that its server (tvm.exec.rpc_server) runs."
            ) from None

    def _renew(self) -> None:
        """Start a new session if the present one has less than ``timeout_s`` left."""
        connection = self._connection
        if connection and time.monotonic() - connection.since > _RENEW * self._remote.timeout_s:
            self.close()  # before a new one: the tracker may have no other device

    def _connect(self) -> "_RpcConnection":
        """Return a session with a free device that answers.

        Raises:
            DeviceError: there is none in time.
        """
        deadline = time.monotonic() + self._remote.timeout_s
        silent: list[str] = []
        while True:
            address = request_device(self._remote, deadline, silent)
            remaining_s = max(0.1, deadline - time.monotonic())
            try:
                return _within(min(_GREETING_S, remaining_s), partial(self._greet, *address))
            except (queue.Empty, OSError, RuntimeError):
                silent.append(f"{address[0]}:{address[1]}")

    def _greet(self, host: str, port: int, key: str) -> "_RpcConnection":
        session = rpc.connect(host, port, key, session_timeout=_SESSION * self._remote.timeout_s)
        return _RpcConnection(session, self._threads)

    @property
    def _name(self) -> str:
        return f"Device '{self._remote.key}' at {self._remote.tracker}"


@final
class _RemoteObject:
    """An object on the device that can be created again in another session."""

    def __init__(self, put: Callable[["_RpcConnection"], Any]):
        self.put = put


@final
class _RpcConnection:
    """A session, and the objects on its device."""

    def __init__(self, session: Any, threads: int):
        self.session, self.since = session, time.monotonic()
        self.device = session.cpu()
        self._values: weakref.WeakKeyDictionary[_RemoteObject, Any] = weakref.WeakKeyDictionary()
        self._references: list[Any] = []
        session.get_function("runtime.config_threadpool")(1, threads)

    def value(self, remote_object: _RemoteObject) -> Any:
        """Return an object's value on the device; create it if necessary."""
        if remote_object not in self._values:
            self._values[remote_object] = remote_object.put(self)
        return self._values[remote_object]

    def values(self, objects: Iterable[_RemoteObject]) -> list[Any]:
        """Return the values of several objects."""
        return [self.value(remote_object) for remote_object in objects]

    def close(self) -> None:
        """Release the device."""
        with contextlib.suppress(OSError, RuntimeError):  # it may be disconnected
            self.session.get_function("CloseRPCConnection")()

    def keep_all(self) -> None:
        """Keep all references while a call hangs: freeing waits for the device, too."""
        self._references = list(self._values.values())


def _within(limit_s: float, work: Callable[[], T]) -> T:
    """Return the result of ``work``; raise ``queue.Empty`` after the time limit.

    TVM's calls have no time limit. A call that hangs is left in its thread.
    """
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
    thread = threading.Thread(target=_answer, args=([work], answers), daemon=True)
    answer: T
    try:
        thread.start()
        answer, error = answers.get(timeout=limit_s)
    # also while the thread starts: it may be calling already
    except (SystemExit, KeyboardInterrupt):
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
        # The work is popped from the list so that this thread is not the last to hold a reference
        # to objects on the device: it would free them while the other thread continues or is
        # killed. Servers do not survive a client that is killed during an answer.
        answers.put((work.pop()(), None))
    except BaseException as error:
        answers.put((None, error))
