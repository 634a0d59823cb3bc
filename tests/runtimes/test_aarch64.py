"""What is compiled for another CPU is right: checked under an emulator, where there is one."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import target
from tests.runtimes.rpc_lab import CONV, needs_rpc

pytestmark = needs_rpc

RASPI4 = target("raspi4")
CROSS = "aarch64-linux-gnu-g++"
needs_cross_compiler = pytest.mark.skipif(
    shutil.which(CROSS) is None, reason="no package g++-aarch64-linux-gnu"
)


@pytest.fixture(scope="module")
def cross(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[tuple[int, ...]]]:
    """The convolution as a library for the Raspberry Pi, its name and the shapes it works on."""
    from hwnas.runtimes.relax import linker
    from hwnas.runtimes.relax.compiler import Compiler

    assert RASPI4.tvm is not None
    compiler = Compiler(RASPI4)
    compiled = compiler.compile(CONV, compiler.plans(CONV, 1)[0])
    path = tmp_path_factory.mktemp("cross") / "operator.so"
    path.write_bytes(linker.shared_library(linker.object_files(compiled.library), RASPI4.tvm.cc))
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
