import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwnas.errors import CompileError, ConfigError, DeviceError
from hwnas.target import Remote, Tvm
from tests.conftest import target
from tests.runtimes import rpc_lab
from tests.runtimes.rpc_lab import CONV, HOST, LINEAR, NETWORK, Lab, needs_rpc, until

pytestmark = needs_rpc

RASPI4 = target("raspi4")
CROSS = "aarch64-linux-gnu-g++"
needs_cross_compiler = pytest.mark.skipif(
    shutil.which(CROSS) is None, reason="no package g++-aarch64-linux-gnu"
)


@pytest.fixture(scope="module")
def _lab() -> Iterator[Lab]:
    with rpc_lab.opened() as lab:
        yield lab


@pytest.fixture
def lab(_lab: Lab) -> Iterator[Lab]:
    """A tracker with one server that is free; a test may kill it."""
    if _lab.n_alive == 0:
        _lab.serve()
    until(lambda: _lab.free() == 1)
    yield _lab
    for server in _lab.servers:
        server.thaw()


Open = Callable[[Remote], Any]


@pytest.fixture
def connect() -> Iterator[Open]:
    """Return a function that opens a device; it is given back after the test."""
    from hwnas.runtimes.relax.engine import open_device
    from hwnas.runtimes.relax.remote import RemoteDevice

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
    from hwnas.runtimes.relax.compiler import Compiler

    compiler = Compiler(HOST)
    compiled = compiler.compile(CONV, compiler.plans(CONV, 1)[0])
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in compiler.shapes(CONV)]
    return device.load(compiled.library), compiled.name, [device.tensor(a) for a in arrays]


def test_remote_outputs_are_equal_to_local_ones(lab: Lab, connect: Open, tmp_path: Path) -> None:
    from hwnas.runtimes.relax.engine import TvmEngine

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
        assert 0 < engine.network(NETWORK, _plans(engine))(10) < 1
        files = {}
        for suffix, content in engine.export(NETWORK, _plans(engine), weights).items():
            files[suffix] = tmp_path / f"network{suffix}"
            files[suffix].write_bytes(content)
        loaded = engine.open(files)
        assert 0 < loaded.timer(10) < 1
        outputs.append(loaded.session.run(images))
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert np.ptp(outputs[0]) > 0


def test_an_operator_computes_the_same_and_leaves_no_file(lab: Lab, connect: Open) -> None:
    outputs = []
    device = connect(lab.remote())
    for where in (connect(Remote()), device):
        module, name, arguments = _operator(where)
        where.call(module, name, arguments)
        outputs.append(where.array(arguments[-1]))
    np.testing.assert_array_equal(outputs[0], outputs[1])
    folder = device._connection.session.get_function("tvm.rpc.server.workpath")(".")
    assert list(Path(folder).iterdir()) == []


def test_a_session_is_renewed_before_it_ends(
    lab: Lab, connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hwnas.runtimes.relax import remote

    monkeypatch.setattr(remote, "_RENEW", 0.0)
    device = connect(lab.remote())
    module, name, arguments = _operator(device)
    timer = device.timer(module, name, arguments)
    timer(1)
    before = device._connection
    timer(1)
    assert device._connection is not before


def test_a_session_that_ends_too_early_is_a_device_error(
    lab: Lab, connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hwnas.runtimes.relax import remote

    monkeypatch.setattr(remote, "_SESSION", 0.05)
    device = connect(lab.remote())
    module, name, arguments = _operator(device)
    with pytest.raises(DeviceError, match=r"ended the session after 1 s; something hung"):
        device.timer(module, name, arguments)(10**8)
    monkeypatch.undo()
    device.call(module, name, arguments)  # the device is asked for again


def test_what_the_device_refuses_is_no_device_error(
    lab: Lab, connect: Open, tmp_path: Path
) -> None:
    device = connect(lab.remote())
    module, name, arguments = _operator(device)
    with pytest.raises(CompileError, match=r"Device 'lab' at 127\.0\.0\.1:\d+: "):
        device.call(module, name, arguments[:1])
    (tmp_path / "bad.so").write_text("no library")
    with pytest.raises(ConfigError, match=r"cannot load a library.*target\.tvm\.mtriple"):
        device.call(device.load_file(tmp_path / "bad.so"), name, arguments)
    device.call(module, name, arguments)


def test_no_tracker(connect: Open) -> None:
    port = rpc_lab.free_port()
    with pytest.raises(DeviceError) as error:
        connect(Remote(f"127.0.0.1:{port}", "lab", 20.0))
    assert f"No tracker answers at 127.0.0.1:{port} for device 'lab'" in str(error.value)
    assert f"python -m tvm.exec.rpc_tracker --host 0.0.0.0 --port {port}" in str(error.value)


def test_a_key_without_a_server(lab: Lab, connect: Open) -> None:
    start = time.monotonic()
    with pytest.raises(DeviceError) as error:
        connect(lab.remote(timeout_s=1.0, key="board"))
    assert 1.0 <= time.monotonic() - start < 4.0
    assert str(error.value) == (
        f"No device 'board' at {lab.address} within 1 s: none registered, other keys: lab. Start "
        "it, on the device, with: "
        f"python -m tvm.exec.rpc_server --tracker {lab.address} --key board"
    )


def test_a_server_that_is_not_free(lab: Lab, connect: Open) -> None:
    connect(lab.remote())
    with pytest.raises(DeviceError, match="1 registered, none free"):
        connect(lab.remote(timeout_s=1.0))


@pytest.mark.slow
def test_a_server_killed_in_the_middle_of_a_run(lab: Lab, connect: Open) -> None:
    device = connect(lab.remote())
    module, name, arguments = _operator(device)
    timer = device.timer(module, name, arguments)
    timer(1)
    start = time.monotonic()
    threading.Timer(0.5, lab.servers[-1].kill).start()
    with pytest.raises(DeviceError, match="is gone"):
        timer(10**9)
    assert time.monotonic() - start < 3.0
    lab.serve()
    assert timer(1) > 0  # everything is put on the next device


@pytest.mark.slow
def test_an_upload_that_is_cut(lab: Lab, connect: Open, tmp_path: Path) -> None:
    device = connect(lab.remote())
    module, name, arguments = _operator(device)
    device.call(module, name, arguments)
    (tmp_path / "large.so").write_bytes(bytes(64 << 20))
    large = device.load_file(tmp_path / "large.so")
    lab.servers[-1].freeze()  # so that the upload stops where the sockets are full
    threading.Timer(0.5, lab.servers[-1].kill).start()
    with pytest.raises(DeviceError, match="is gone"):
        device.call(large, name, arguments)
    lab.serve()
    device.call(module, name, arguments)


@pytest.mark.slow
def test_a_server_frozen_in_the_middle_of_a_run(lab: Lab, connect: Open) -> None:
    device = connect(lab.remote(timeout_s=4.0))
    module, name, arguments = _operator(device)
    timer = device.timer(module, name, arguments)
    threading.Timer(0.5, lab.servers[-1].freeze).start()
    start = time.monotonic()
    with pytest.raises(DeviceError, match="no answer within 4 s"):
        timer(10**9)
    assert 3.9 < time.monotonic() - start < 7.0
    lab.servers[-1].thaw()  # it ends the session, which is too old
    until(lambda: lab.free() == 1)
    assert timer(1) > 0


@pytest.mark.slow
def test_a_server_frozen_while_it_is_free(
    lab: Lab, connect: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hwnas.runtimes.relax import remote

    monkeypatch.setattr(remote, "_GREETING_S", 1.0)
    lab.servers[-1].freeze()
    with pytest.raises(DeviceError, match=r"1 registered, none free, 1 without an answer"):
        connect(lab.remote(timeout_s=3.0))
    lab.servers[-1].thaw()
    connect(lab.remote())


def test_a_missing_cross_compiler_is_named_with_its_package() -> None:
    from hwnas.runtimes.relax.remote import RemoteDevice

    facts = Tvm(mtriple="riscv64-linux-gnu", mcpu="generic-rv64", cc="riscv64-none-gnu-g++")
    with pytest.raises(
        ConfigError, match=r"target\.tvm\.cc.*apt-get install g\+\+-riscv64-none-gnu"
    ):
        RemoteDevice(facts, Remote("127.0.0.1:1", "lab"))


@pytest.fixture(scope="module")
def cross(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[tuple[int, ...]]]:
    """The convolution as a library for the Raspberry Pi, its name and the shapes it works on."""
    from hwnas.runtimes.relax import linker
    from hwnas.runtimes.relax.compiler import Compiler

    assert RASPI4.tvm is not None
    compiler = Compiler(RASPI4)
    compiled = compiler.compile(CONV, compiler.plans(CONV, 1)[0])
    path = tmp_path_factory.mktemp("cross") / "operator.so"
    path.write_bytes(linker.shared_library(compiled.library, RASPI4.tvm.cc))
    return path, compiled.name, compiler.shapes(CONV)


@needs_cross_compiler
def test_a_library_for_the_raspberry_pi(cross: tuple[Path, str, list[tuple[int, ...]]]) -> None:
    path, name, _ = cross
    head = path.read_bytes()[:20]
    assert head[:5] == b"\x7fELF\x02"  # 64 bits
    assert int.from_bytes(head[18:20], "little") == 183  # EM_AARCH64
    assert f"__tvm_ffi_{name}".encode() in path.read_bytes()


@pytest.mark.slow
@needs_cross_compiler
@pytest.mark.skipif(
    not any(map(shutil.which, ("qemu-aarch64", "qemu-aarch64-static"))),
    reason="no package qemu-user",
)
def test_the_library_computes_the_same_under_qemu(
    cross: tuple[Path, str, list[tuple[int, ...]]], tmp_path: Path
) -> None:
    from hwnas.runtimes.relax.operators import pack

    path, name, shapes = cross
    rng = np.random.default_rng(2)
    weight, bias = (
        rng.standard_normal(CONV.weight_shape).astype(np.float32),
        rng.standard_normal(16).astype(np.float32),
    )
    image = rng.standard_normal((1, 3, 8, 8)).astype(np.float32)
    packed = [image.transpose(0, 2, 3, 1), *pack(CONV, weight, bias, 4)]
    assert [array.shape for array in packed] == shapes[:-1]
    for index, array in enumerate(packed):
        array.tofile(tmp_path / f"{index}.bin")
    output = _emulate(path, name, shapes, tmp_path)
    np.testing.assert_allclose(output, _convolve(image, weight, bias), rtol=1e-5, atol=1e-5)


def _convolve(image: Any, weight: Any, bias: Any) -> Any:
    import torch

    x, w, b = (torch.from_numpy(array) for array in (image, weight, bias))
    return torch.relu(torch.nn.functional.conv2d(x, w, b, padding=1)).numpy().transpose(0, 2, 3, 1)


def _emulate(library: Path, name: str, shapes: list[tuple[int, ...]], folder: Path) -> Any:
    """Run an operator on an emulated CPU; return its last argument."""
    import tvm_ffi

    (folder / "driver.c").write_text(DRIVER)
    includes = [f"-I{path}" for path in tvm_ffi.libinfo.include_paths()]
    command = [CROSS, "-x", "c++", "driver.c", "-x", "none", *includes, "-o", "driver"]
    subprocess.run([*command, "-rdynamic", "-ldl"], cwd=folder, check=True)
    emulator = shutil.which("qemu-aarch64") or "qemu-aarch64-static"
    sizes = [",".join(map(str, shape)) for shape in shapes]
    root = ["-L", "/usr/aarch64-linux-gnu", "-cpu", "cortex-a72"]
    program = ["./driver", str(library), f"__tvm_ffi_{name}", *sizes]
    subprocess.run([emulator, *root, *program], cwd=folder, check=True)
    return np.fromfile(folder / "output.bin", np.float32).reshape(shapes[-1])


#: Calls a function of a library as TVM's runtime does, with tensors read from files.
DRIVER = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <tvm/ffi/c_api.h>

typedef int (*Function)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);

int main(int argc, char** argv) {
  void* library = dlopen(argv[1], RTLD_NOW);
  Function function = library ? (Function)dlsym(library, argv[2]) : NULL;
  if (!function) { fprintf(stderr, "%s\n", dlerror()); return 1; }
  TVMFFIAny arguments[8] = {}, result = {};
  static DLTensor tensors[8];
  static int64_t shapes[8][8], strides[8][8];
  size_t size = 0;
  int n = argc - 3;
  for (int i = 0; i < n; i++) {
    int rank = 0;
    size = 4;
    for (char* text = argv[3 + i]; *text; text += *text == ',')
      size *= shapes[i][rank++] = strtoll(text, &text, 10);
    for (int64_t d = rank - 1, step = 1; d >= 0; step *= shapes[i][d--]) strides[i][d] = step;
    tensors[i] = (DLTensor){aligned_alloc(64, (size + 63) / 64 * 64), {kDLCPU, 0}, rank,
                            {kDLFloat, 32, 1}, shapes[i], strides[i], 0};
    char name[16];
    snprintf(name, sizeof name, "%d.bin", i);
    FILE* file = fopen(name, "rb");
    if (file && fread(tensors[i].data, 1, size, file) != size) return 2;
    if (file) fclose(file);
    arguments[i].type_index = kTVMFFIDLTensorPtr;
    arguments[i].v_ptr = &tensors[i];
  }
  if (function(NULL, arguments, n, &result)) return 3;
  FILE* file = fopen("output.bin", "wb");
  fwrite(tensors[n - 1].data, 1, size, file);
  return fclose(file);
}
// What the library takes from the runtime.
extern "C" void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t n) {
  for (int i = 0; i < n; i++) fputs(parts[i], stderr);
}
extern "C" void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* text) {
  fputs(text, stderr);
}
"""
