import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwnas.__main__ import run
from hwnas.core.errors import CompileError, ConfigError, DeviceError
from hwnas.hardware.backends.tvm import TvmSettings
from hwnas.hardware.target import Remote
from hwnas.models.graph import Graph
from tests.hardware.runtimes import rpc_lab
from tests.hardware.runtimes.rpc_lab import CONV, HOST, LINEAR, NETWORK, Lab, needs_rpc, until

pytestmark = needs_rpc


@pytest.fixture(scope="module")
def _lab() -> Iterator[Lab]:
    with rpc_lab.opened() as lab:
        yield lab


@pytest.fixture
def lab(_lab: Lab) -> Iterator[Lab]:
    """A tracker with one free server; a test may kill it."""
    if _lab.n_alive == 0:
        _lab.serve()
    until(lambda: _lab.free() == 1)
    yield _lab
    for server in _lab.servers:
        server.thaw()


Open = Callable[[Remote], Any]


@pytest.fixture
def connect() -> Iterator[Open]:
    """Return a function that opens a device; the device is released after the test."""
    from hwnas.hardware.backends.tvm.engine import open_device
    from hwnas.hardware.backends.tvm.remote import RemoteDevice

    devices = []

    def connect(remote: Remote) -> Any:
        devices.append(open_device(HOST, remote))
        return devices[-1]

    yield connect
    for device in devices:
        if isinstance(device, RemoteDevice):
            device.close()


def _plans(engine: Any) -> dict[Any, str]:
    return {node.op: engine.plans(node.op, 1)[0] for node in NETWORK}


def _operator(device: Any) -> tuple[Any, str, list[Any]]:
    """Return the convolution on a device, its name and its arguments."""
    from hwnas.hardware.backends.tvm.compiler import Compiler

    compiler = Compiler(HOST)
    compiled = compiler.compile(CONV, compiler.plans(CONV, 1)[0])
    rng = np.random.default_rng(1)
    arrays = [
        rng.standard_normal(s).astype(np.float32) for s in [b.shape for b in compiler.buffers(CONV)]
    ]
    return device.load(compiled.library), compiled.name, [device.tensor(a) for a in arrays]


@pytest.mark.slow
def test_remote_outputs_are_equal_to_local_ones(lab: Lab, connect: Open, tmp_path: Path) -> None:
    from hwnas.hardware.backends.tvm.engine import TvmEngine

    rng = np.random.default_rng(0)
    weights = {
        node.name: (
            rng.standard_normal(node.op.weight_shape).astype(np.float32),
            rng.standard_normal(node.op.out_shape[0]).astype(np.float32),
        )
        for node in NETWORK
        if node.op.weight_shape
    }
    images = rng.standard_normal((3, 3, 8, 8)).astype(np.float32)
    outputs = []
    for remote in (Remote(), lab.remote()):
        engine = TvmEngine(HOST, connect(remote))
        assert 0 < engine.operator(LINEAR, engine.plans(LINEAR, 1)[0])(10) < 1
        assert 0 < engine.network(Graph.of(NETWORK), _plans(engine))(10) < 1
        files = {}
        for suffix, content in engine.export(Graph.of(NETWORK), _plans(engine), weights).items():
            files[suffix] = tmp_path / f"network{remote.key}{suffix}"  # never one that is loaded
            files[suffix].write_bytes(content)
        loaded = engine.open(files)
        assert 0 < loaded.timer(10) < 1
        outputs.append(loaded.session.run(images))
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert np.ptp(outputs[0]) > 0


def test_remote_operator_matches_and_leaves_no_file(lab: Lab, connect: Open) -> None:
    outputs = []
    device = connect(lab.remote())
    for connection in (connect(Remote()), device):
        module, name, arguments = _operator(connection)
        connection.call(module, name, arguments)
        outputs.append(connection.array(arguments[-1]))
    np.testing.assert_array_equal(outputs[0], outputs[1])
    folder = device._connection.session.get_function("tvm.rpc.server.workpath")(".")
    assert list(Path(folder).iterdir()) == []


def test_session_is_renewed_before_it_expires(
    lab: Lab, connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hwnas.hardware.backends.tvm import remote

    monkeypatch.setattr(remote, "_RENEW", 0.0)
    device = connect(lab.remote())
    module, name, arguments = _operator(device)
    timer = device.timer(module, name, arguments)
    timer(1)
    before = device._connection
    timer(1)
    assert device._connection is not before


def test_early_end_of_session_is_a_device_error(
    lab: Lab, connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hwnas.hardware.backends.tvm import remote

    monkeypatch.setattr(remote, "_SESSION", 0.05)
    device = connect(lab.remote())
    module, name, arguments = _operator(device)
    with pytest.raises(DeviceError, match=r"ended the session after 1 s: a call hung"):
        device.timer(module, name, arguments)(10**8)
    monkeypatch.undo()
    device.call(module, name, arguments)  # the device is requested again


def test_refusal_of_device_is_no_device_error(lab: Lab, connect: Open, tmp_path: Path) -> None:
    device = connect(lab.remote())
    module, name, arguments = _operator(device)
    with pytest.raises(CompileError, match=r"Device 'lab' at 127\.0\.0\.1:\d+: "):
        device.call(module, name, arguments[:1])
    (tmp_path / "bad.so").write_text("no library")
    with pytest.raises(ConfigError, match=r"cannot load a library.*target\.tvm\.mtriple"):
        device.call(device.load_file(tmp_path / "bad.so"), name, arguments)
    device.call(module, name, arguments)


def test_error_for_missing_tracker_gives_command(connect: Open) -> None:
    port = rpc_lab.free_port()
    with pytest.raises(DeviceError) as error:
        connect(Remote(f"127.0.0.1:{port}", "lab", 20.0))
    assert f"No tracker answers at 127.0.0.1:{port} for device 'lab'" in str(error.value)
    assert f"python -m tvm.exec.rpc_tracker --host 127.0.0.1 --port {port}" in str(error.value)


def test_search_without_tracker_fails_before_loading_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    port, begin = rpc_lab.free_port(), time.monotonic()
    arguments = [f"rpc.tracker=127.0.0.1:{port}", "rpc.key=lab", "target.tvm.cc=g++"]
    assert run(["search", "+target=raspi4", *arguments]) == 2
    assert time.monotonic() - begin < 10  # rpc.timeout_s is 60
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"No tracker answers at 127.0.0.1:{port} for device 'lab'" in line
    assert not (tmp_path / "runs").exists()


def test_error_for_unknown_key_gives_command(lab: Lab, connect: Open) -> None:
    start = time.monotonic()
    with pytest.raises(DeviceError) as error:
        connect(lab.remote(timeout_s=1.0, key="board"))
    assert 1.0 <= time.monotonic() - start < 4.0
    assert str(error.value) == (
        f"No device 'board' at {lab.address} within 1 s: none registered, other keys: lab. Start "
        "it on the device with: "
        f"python -m tvm.exec.rpc_server --tracker {lab.address} --key board --host 127.0.0.1 "
        "--port 9090 --custom-addr 127.0.0.1, behind ssh -L 9090:localhost:9090: TVM's RPC is not "
        "authenticated."
    )


def test_busy_server_is_a_device_error(lab: Lab, connect: Open) -> None:
    connect(lab.remote())
    with pytest.raises(DeviceError, match="1 registered, none free"):
        connect(lab.remote(timeout_s=1.0))


@pytest.mark.slow
def test_killed_server_is_a_device_error(lab: Lab, connect: Open) -> None:
    device = connect(lab.remote())
    module, name, arguments = _operator(device)
    timer = device.timer(module, name, arguments)
    timer(1)
    start = time.monotonic()
    threading.Thread(target=lambda: lab.measuring().kill()).start()
    with pytest.raises(DeviceError, match="the connection broke"):
        timer(10**9)
    assert time.monotonic() - start < 3.0
    lab.serve()
    assert timer(1) > 0  # all data are uploaded to the next device


@pytest.mark.slow
def test_frozen_server_times_out(lab: Lab, connect: Open) -> None:
    device = connect(lab.remote(timeout_s=4.0))
    module, name, arguments = _operator(device)
    timer = device.timer(module, name, arguments)
    threading.Thread(target=lambda: lab.measuring().freeze()).start()
    start = time.monotonic()
    with pytest.raises(DeviceError, match=r"no answer within rpc\.timeout_s=4"):
        timer(10**9)
    assert 3.9 < time.monotonic() - start < 7.0
    lab.servers[-1].thaw()  # it ends the expired session
    until(lambda: lab.free() == 1)
    assert timer(1) > 0


@pytest.mark.slow
def test_frozen_idle_server_is_reported(
    lab: Lab, connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hwnas.hardware.backends.tvm import remote

    monkeypatch.setattr(remote, "_GREETING_S", 1.0)
    lab.servers[-1].freeze()
    with pytest.raises(DeviceError, match=r"1 registered, none free, 1 without an answer"):
        connect(lab.remote(timeout_s=3.0))
    lab.servers[-1].thaw()
    connect(lab.remote())


def test_error_for_missing_cross_compiler_names_package() -> None:
    from hwnas.hardware.backends.tvm.remote import RemoteDevice

    facts = TvmSettings(mtriple="riscv64-linux-gnu", mcpu="generic-rv64", cc="riscv64-none-gnu-g++")
    with pytest.raises(
        ConfigError, match=r"target\.tvm\.cc.*apt-get install g\+\+-riscv64-none-gnu"
    ):
        RemoteDevice(facts, Remote("127.0.0.1:1", "lab"))


@pytest.mark.slow
def test_interrupted_upload_is_a_device_error(lab: Lab, connect: Open, tmp_path: Path) -> None:
    device = connect(lab.remote())
    module, name, arguments = _operator(device)
    device.call(module, name, arguments)
    (tmp_path / "large.so").write_bytes(bytes(64 << 20))
    large = device.load_file(tmp_path / "large.so")
    lab.servers[-1].freeze()  # the upload stops with full sockets
    threading.Timer(0.5, lab.servers[-1].kill).start()
    with pytest.raises(DeviceError, match="the connection broke"):
        device.call(large, name, arguments)


def test_exiting_process_waits_for_pending_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hwnas.hardware.backends.tvm import remote

    start, answered, here = threading.Thread.start, threading.Event(), threading.get_ident()

    def start_and_end(thread: threading.Thread) -> None:
        start(thread)
        if threading.get_ident() == here:  # other tests' threads start some, too
            raise SystemExit  # a signal arrives here once in many thousand calls

    def answer() -> None:
        time.sleep(0.2)
        answered.set()

    monkeypatch.setattr(threading.Thread, "start", start_and_end)
    with pytest.raises(SystemExit):
        remote._within(60, answer)
    assert answered.is_set()
