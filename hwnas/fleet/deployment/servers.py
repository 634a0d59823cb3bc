"""Servers of pools on this machine, in separate processes.

A server may be installed for another interpreter, so that its requirements need not fit.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, TypedDict

from hwnas.core.errors import DeviceError, RunError, unknown_name
from hwnas.fleet.deployment import server_files
from hwnas.fleet.deployment.load import HOST, Batches, closed_loop
from hwnas.fleet.deployment.pools import DeployedPool

Pools = Sequence[DeployedPool]
Command = tuple[list[str], dict[str, str]]  #: a command line and its environment

_MODEL = Path(__file__).parent / "triton_model.py"
READY_S = 300.0  #: timeout of a server's start
_ANSWER_S = 20.0  # timeout of statistics
_WARM_CLIENTS, _WARM_S = 4, 0.5  # warm-up
_PROBE = """
import importlib.metadata as m, importlib.util as u, json, sys, sysconfig
def version(*names):
    try:
        return [m.version(name) for name in names][0]
    except m.PackageNotFoundError:
        return ""
print(json.dumps({
    "triton": version("nvidia-pytriton", "onnxruntime"),
    "site": sysconfig.get_path("platlib"), "lib": sysconfig.get_config_var("LIBDIR") or "",
    "python": f"{sys.version_info[0]}.{sys.version_info[1]}", "path": sys.path[1:]}))
"""


class InstalledPackages(TypedDict):
    """Packages and folders of a Python interpreter."""

    triton: str  #: version of nvidia-pytriton; empty: it or onnxruntime is not installed
    site: str  #: folder of installed packages
    lib: str  #: folder of libpython
    python: str  #: version, as ``3.12``
    path: list[str]  #: ``sys.path``


@dataclass(frozen=True)
class RunningServer:
    """A server that is ready."""

    name: str  #: key of ``SERVERS``
    version: str
    port: int  #: port on 127.0.0.1
    ready_s: float  #: seconds from the start to the first response
    request: Callable[[DeployedPool], bytes]  #: returns an HTTP request with one image
    #: returns (number, total ms) of batches since the start by size; empty: not reported
    computed: Callable[[DeployedPool], Batches]


@dataclass(frozen=True)
class Server:
    """Functions of a type of server."""

    install: str  #: command that installs it, after ``python -m``
    #: returns command and environment for an interpreter, its packages, pools, a folder and a port
    command: Callable[[str, InstalledPackages, Pools, Path, int], Command]
    request: Callable[[DeployedPool, bytes], bytes]  #: returns an HTTP request with an image
    version: Callable[[InstalledPackages], str]  #: returns the version; empty: not installed
    #: returns (number, total ms) of batches by size, for a port and a pool
    computed: Callable[[int, DeployedPool], Batches]


def probe(python: str) -> InstalledPackages:
    """Return the packages of a Python interpreter, given its path.

    Raises:
        RunError: the interpreter cannot be run.
    """
    try:
        text = subprocess.run(
            [python, "-c", _PROBE], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        result: InstalledPackages = json.loads(
            text.strip().rpartition("\n")[2]
        )  # the last line: site packages may print before it
    except (OSError, subprocess.SubprocessError, ValueError):
        raise RunError(
            f"python={python} is not a working Python interpreter: give the path of one, as "
            "VENV/bin/python."
        ) from None
    return result


def choose_server(name: str, python: str, packages: InstalledPackages) -> str:
    """Return the name of the server to start; for ``auto`` the first one that is installed.

    Args:
        name: A key of ``SERVERS``, or ``auto``.
        python: Path of the interpreter, for messages.
        packages: Its packages, from ``probe``.

    Raises:
        RunError: the server is unknown, not installed (the message has the command), or ``ray``.
    """
    if name == "ray":
        raise RunError(
            "serve-check does not start Ray Serve: Ray opens ports without authentication on all "
            "network interfaces; give server=triton."
        )
    if name not in ("auto", *SERVERS):
        raise RunError(unknown_name("server", name, ("auto", *SERVERS)))
    for candidate in SERVERS if name == "auto" else [name]:
        if SERVERS[candidate].version(packages):
            return candidate
    commands = " or ".join(f"{python} -m {server.install}" for server in SERVERS.values())
    raise RunError(
        f"serve-check needs onnxruntime and a server in {python}; install a server with "
        f"{commands}; if onnxruntime is missing, also: {python} -m pip install onnxruntime"
    )


@contextlib.contextmanager
def run_server(
    name: str, python: str, packages: InstalledPackages, pools: Sequence[DeployedPool]
) -> Iterator[RunningServer]:
    """Start a server of pools on 127.0.0.1, and yield it when it responds.

    It is stopped at the end of the ``with`` block. ``name`` is the result of ``choose_server``,
    ``packages`` that of ``probe``; all ``pools`` must have a model file.

    Raises:
        DeviceError: the server does not start or does not respond.
    """
    server = SERVERS[name]
    with tempfile.TemporaryDirectory(prefix="hwnas-") as temporary:
        folder, port = Path(temporary), _free_port()
        command, environment = server.command(python, packages, pools, folder, port)
        log = folder / "server.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            started = time.monotonic()
            requests = {pool.name: server.request(pool, _zero_image(pool)) for pool in pools}
            ready = [
                _wait_until_ready(process, port, requests[pool.name], started, log) - started
                for pool in pools
            ]
            yield RunningServer(
                name, server.version(packages), port, ready[0], lambda pool: requests[pool.name],
                partial(server.computed, port),
            )  # fmt: skip
        finally:
            _stop(process)


def _zero_image(pool: DeployedPool) -> bytes:
    assert pool.model is not None
    return bytes(pool.model.request_bytes)


def _free_port() -> int:
    with socket.socket() as result:
        result.bind((HOST, 0))
        return int(result.getsockname()[1])


def _wait_until_ready(
    process: "subprocess.Popen[bytes]", port: int, request: bytes, started: float, log: Path
) -> float:
    """Wait until a server responds, and warm it up; return the time of the first response."""
    while True:
        try:
            closed_loop(port, request, 1, 0.0001)
            result = time.monotonic()
            closed_loop(port, request, _WARM_CLIENTS, _WARM_S)
            return result
        except OSError as error:
            if process.poll() is not None or time.monotonic() - started > READY_S:
                text = log.read_text(errors="replace").strip() or str(error) or "it has none"
                why = "ended" if process.poll() is not None else f"did not respond in {READY_S:g} s"
                raise DeviceError(
                    f"The server {why} at its start. Repeat the check, or install another version "
                    f"of the server. Last line of its log: {text.splitlines()[-1][:300]}"
                ) from None
            time.sleep(0.1)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Stop a server and its processes."""
    for sign, limit in ((signal.SIGINT, 20), (signal.SIGKILL, 20)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(limit)
    process.wait()


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    return {**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **more}


def _triton(
    python: str, packages: InstalledPackages, pools: Pools, folder: Path, port: int
) -> Command:
    """Write the model repository, and return the command line of the wheel's server.

    It has only the Python backend, which runs the same model in the same runtime.
    """
    package = Path(packages["site"], "pytriton", "tritonserver")
    backend = folder / "backends" / "python"
    shutil.copytree(package / "backends" / "python", backend)
    stub = package / "python_backend_stubs" / packages["python"] / "triton_python_backend_stub"
    shutil.copy(stub, backend)
    (backend / stub.name).chmod(0o755)
    for pool in pools:
        assert pool.model is not None
        version = folder / "models" / pool.name / "1"
        version.mkdir(parents=True)
        (version / "model.onnx").write_bytes(pool.model.content)
        shutil.copy(_MODEL, version / "model.py")
        (version.parent / "config.pbtxt").write_text(server_files.python_config(pool))
    server = package / "bin" / "tritonserver"
    libraries = f"{packages['lib']}:{packages['site']}/nvidia_pytriton.libs"
    environment = _environment({
        "PATH": f"{Path(python).parent}:{os.environ.get('PATH', '')}",
        "PYTHONPATH": ":".join(packages["path"]), "LD_LIBRARY_PATH": libraries,
    })  # fmt: skip
    return [
        str(server), f"--model-repository={folder / 'models'}",
        f"--backend-directory={backend.parent}", f"--http-address={HOST}", f"--http-port={port}",
        "--allow-grpc=false", "--allow-metrics=false",
    ], environment  # fmt: skip


def _triton_request(pool: DeployedPool, image: bytes) -> bytes:
    assert pool.model is not None
    tensor: dict[str, Any] = {
        "name": pool.model.image, "shape": [1, *pool.model.shape],
        "datatype": pool.model.types[0],
        "parameters": {"binary_data_size": len(image)},
    }  # fmt: skip
    outputs = [{"name": pool.model.answer, "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": [tensor], "outputs": outputs}).encode()
    extra = f"Inference-Header-Content-Length: {len(head)}\r\n"
    return _post(f"/v2/models/{pool.name}/infer", extra, head + image)


def _triton_computed(port: int, pool: DeployedPool) -> Batches:
    """Return Triton's statistics of a model: number and total time of batches by size."""
    with contextlib.closing(HTTPConnection(HOST, port, timeout=_ANSWER_S)) as connection:
        connection.request("GET", f"/v2/models/{pool.name}/stats")
        (model,) = json.load(connection.getresponse())["model_stats"]
    return {
        row["batch_size"]: (
            row["compute_infer"]["count"],
            sum(row[f"compute_{part}"]["ns"] for part in ("input", "infer", "output")) / 1e6,
        )
        for row in model.get("batch_stats", [])
    }


def _post(path: str, extra: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(body)}\r\n"
    head += f"Content-Type: application/octet-stream\r\n{extra}\r\n"
    return head.encode() + body


SERVERS: dict[str, Server] = {
    "triton": Server(
        "pip install --no-deps nvidia-pytriton",
        _triton,
        _triton_request,
        lambda packages: packages["triton"],
        _triton_computed,
    )
}
