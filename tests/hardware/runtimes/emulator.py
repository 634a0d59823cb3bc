"""An emulated Raspberry Pi that runs functions of cross-compiled libraries."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

CROSS = "aarch64-linux-gnu-g++"
needs_cross_compiler = pytest.mark.skipif(
    shutil.which(CROSS) is None, reason="no package g++-aarch64-linux-gnu"
)
needs_emulator = pytest.mark.skipif(
    not any(map(shutil.which, ("qemu-aarch64", "qemu-aarch64-static"))),
    reason="no package qemu-user",
)


def emulate(
    library: Path,
    name: str,
    arguments: Sequence[NDArray[Any]],
    folder: Path,
    cpu: str = "cortex-a72",
) -> list[NDArray[Any]]:
    """Run a function of a library on an emulated CPU; return its arguments afterwards."""
    import tvm_ffi

    (folder / "driver.c").write_text(DRIVER)
    includes = [f"-I{path}" for path in tvm_ffi.libinfo.include_paths()]
    command = [CROSS, "-x", "c++", "driver.c", "-x", "none", *includes, "-o", "driver"]
    subprocess.run([*command, "-rdynamic", "-ldl"], cwd=folder, check=True)
    paths = [folder / f"{index}.bin" for index in range(len(arguments))]
    for path, array in zip(paths, arguments, strict=True):
        array.tofile(path)
    emulator = shutil.which("qemu-aarch64") or "qemu-aarch64-static"
    shapes = [array.dtype.str[1:] + ",".join(map(str, array.shape)) for array in arguments]
    root = ["-L", "/usr/aarch64-linux-gnu", "-cpu", cpu]
    program = ["./driver", str(library), f"__tvm_ffi_{name}", *shapes]
    subprocess.run([emulator, *root, *program], cwd=folder, check=True)
    return [
        np.fromfile(path, array.dtype).reshape(array.shape)
        for path, array in zip(paths, arguments, strict=True)
    ]


#: Calls a function of a library like TVM's runtime, on tensors in files, and writes them back.
DRIVER = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <tvm/ffi/c_api.h>

static void* allocate(int, int, uint64_t size, int, int) {
  return aligned_alloc(64, (size + 63) / 64 * 64);
}
static int give_back(int, int, void* memory) { free(memory); return 0; }

typedef int (*Function)(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);

int main(int argc, char** argv) {
  void* library = dlopen(argv[1], RTLD_NOW);
  Function function = library ? (Function)dlsym(library, argv[2]) : NULL;
  if (!function) { fprintf(stderr, "%s\n", dlerror()); return 1; }
  // Where an operator needs memory of its own, the runtime tells the library how it gets some.
  void** place = (void**)dlsym(library, "__TVMBackendAllocWorkspace");
  if (place) *place = (void*)allocate;
  place = (void**)dlsym(library, "__TVMBackendFreeWorkspace");
  if (place) *place = (void*)give_back;
  TVMFFIAny arguments[8] = {}, result = {};
  static DLTensor tensors[8];
  static int64_t shapes[8][8], strides[8][8];
  static size_t sizes[8];
  int n = argc - 3;
  for (int i = 0; i < n; i++) {
    int rank = 0;
    char kind = argv[3 + i][0];  // and how many bytes: f4, i1
    uint8_t bytes = argv[3 + i][1] - '0';
    uint8_t code = kind == 'f' ? kDLFloat : kind == 'u' ? kDLUInt : kDLInt;
    size_t size = bytes;
    for (char* text = argv[3 + i] + 2; *text; text += *text == ',')
      size *= shapes[i][rank++] = strtoll(text, &text, 10);
    for (int64_t d = rank - 1, step = 1; d >= 0; step *= shapes[i][d--]) strides[i][d] = step;
    tensors[i] = (DLTensor){aligned_alloc(64, (size + 63) / 64 * 64), {kDLCPU, 0}, rank,
                            {code, (uint8_t)(8 * bytes), 1}, shapes[i], strides[i], 0};
    char name[16];
    snprintf(name, sizeof name, "%d.bin", i);
    sizes[i] = size;
    FILE* file = fopen(name, "rb");
    if (!file || fread(tensors[i].data, 1, size, file) != size) return 2;
    fclose(file);
    arguments[i].type_index = kTVMFFIDLTensorPtr;
    arguments[i].v_ptr = &tensors[i];
  }
  if (function(NULL, arguments, n, &result)) return 3;
  for (int i = 0; i < n; i++) {
    char name[16];
    snprintf(name, sizeof name, "%d.bin", i);
    FILE* file = fopen(name, "wb");
    if (!file || fwrite(tensors[i].data, 1, sizes[i], file) != sizes[i] || fclose(file)) return 4;
  }
  return 0;
}
// What the library takes from the runtime.
extern "C" void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t n) {
  for (int i = 0; i < n; i++) fputs(parts[i], stderr);
}
extern "C" void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* text) {
  fputs(text, stderr);
}
"""
