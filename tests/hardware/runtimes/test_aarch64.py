"""Cross-compiled operators, checked under an emulator if installed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hwnas.hardware.backends.tvm import TvmSettings
from tests.conftest import target
from tests.hardware.runtimes.emulator import emulate, needs_cross_compiler, needs_emulator
from tests.hardware.runtimes.rpc_lab import CONV, needs_rpc

pytestmark = needs_rpc

RASPI4 = target("raspi4")


@pytest.fixture(scope="module")
def cross(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[tuple[int, ...]]]:
    """The convolution as a library for the Raspberry Pi, its name and buffer shapes."""
    from hwnas.hardware.backends.tvm import linker
    from hwnas.hardware.backends.tvm.compiler import Compiler

    compiler = Compiler(RASPI4)
    compiled = compiler.compile(CONV, compiler.plans(CONV, 1)[0])
    path = tmp_path_factory.mktemp("cross") / "operator.so"
    cc = RASPI4.section(TvmSettings).cc
    path.write_bytes(linker.shared_library(linker.object_files(compiled.library), cc))
    return path, compiled.name, [b.shape for b in compiler.buffers(CONV)]


@needs_cross_compiler
def test_library_is_for_raspberry_pi(cross: tuple[Path, str, list[tuple[int, ...]]]) -> None:
    path, name, _ = cross
    head = path.read_bytes()[:20]
    assert head[:5] == b"\x7fELF\x02"  # 64 bits
    assert int.from_bytes(head[18:20], "little") == 183  # EM_AARCH64
    assert f"__tvm_ffi_{name}".encode() in path.read_bytes()


@pytest.mark.slow
@needs_cross_compiler
@needs_emulator
def test_library_matches_torch_under_qemu(
    cross: tuple[Path, str, list[tuple[int, ...]]], tmp_path: Path
) -> None:
    from hwnas.hardware.backends.tvm.layout import pack

    path, name, shapes = cross
    rng = np.random.default_rng(2)
    weight, bias = (
        rng.standard_normal(CONV.weight_shape).astype(np.float32),
        rng.standard_normal(16).astype(np.float32),
    )
    image = rng.standard_normal((1, 3, 8, 8)).astype(np.float32)
    packed = [image.transpose(0, 2, 3, 1), *pack(CONV, weight, bias, 4)]
    assert [array.shape for array in packed] == shapes[:-1]
    output = emulate(path, name, [*packed, np.zeros(shapes[-1], np.float32)], tmp_path)[-1]
    np.testing.assert_allclose(output, _convolve(image, weight, bias), rtol=1e-5, atol=1e-5)


def _convolve(image: Any, weight: Any, bias: Any) -> Any:
    import torch

    x, w, b = (torch.from_numpy(array) for array in (image, weight, bias))
    return torch.relu(torch.nn.functional.conv2d(x, w, b, padding=1)).numpy().transpose(0, 2, 3, 1)
