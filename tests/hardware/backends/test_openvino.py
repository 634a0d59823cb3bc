from dataclasses import replace
from pathlib import Path

import numpy as np
import openvino
import pytest

from hwnas.core import machine
from hwnas.core.errors import CompileError, ConfigError
from hwnas.hardware.backends import base, onnx_files
from hwnas.hardware.backends.openvino import session
from hwnas.hardware.backends.openvino.engine import OpenVinoEngine
from hwnas.hardware.target import Remote
from hwnas.hardware.timing import TimingConfig
from hwnas.models.graph import INPUT, Graph, Node, OpSpec
from tests.conftest import target

CPU = replace(target("cpu"), runtime="openvino")
QUICK = TimingConfig(repeats=3, min_repeat_ms=0.1)
CONV = OpSpec("conv2d+bn+relu6", (3, 8, 8), (16, 8, 8), 3, dtype="float32")
OPS = [
    CONV,
    OpSpec("conv2d+bn", (16, 8, 8), (16, 4, 4), 5, 2, 16, dtype="float32"),
    OpSpec("conv2d+bn+add", (32, 6, 6), (16, 6, 6), dtype="float32"),
    OpSpec("add", (16, 6, 6), (16, 6, 6), dtype="float32"),
    OpSpec("mul", (16, 6, 6), (16, 6, 6), dtype="float32"),
    OpSpec("mean", (16, 6, 6), (16, 1, 1), dtype="float32"),
    OpSpec("linear", (16, 1, 1), (10, 1, 1), dtype="float32"),
]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.kind)
def test_every_operator_is_timed(op: OpSpec, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if dtype == "int8" and "add" in op.fused:
        pytest.skip("sums are not fused in int8")
    monkeypatch.setattr(session, "_saturates", lambda: False)  # only timed
    engine = OpenVinoEngine(replace(CPU, dtype=dtype), Remote())
    timing = engine.time_operator(replace(op, dtype=dtype), "", QUICK)
    assert 0 < timing.low_ms <= timing.median_ms <= timing.high_ms


@pytest.mark.parametrize(
    ("flags", "is_refused"),
    [
        ("fpu avx avx2 fma", True),
        ("fpu avx2 avx512f avx512_vnni", False),
        ("fpu avx2 avx_vnni", False),
        ("fp asimd asimddp", False),  # Arm
    ],
)
def test_int8_is_refused_where_sums_saturate(
    flags: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "describe", lambda: {"flags": flags.split()})
    if is_refused:
        with pytest.raises(ConfigError, match=r"target\.dtype=int8: this CPU has no VNNI"):
            base.backend_of(replace(CPU, dtype="int8"))
    else:
        base.backend_of(replace(CPU, dtype="int8"))


def _contents(dtype: str) -> dict[str, bytes]:
    op = replace(CONV, dtype="int8" if dtype == "int8" else "float32")
    return session.openvino_ir(
        onnx_files.random_model(Graph.of((Node("conv", op, (INPUT,)),))), dtype
    )


def test_files_have_precision_hint() -> None:
    hints = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "f32"}
    for dtype, hint in hints.items():
        contents = _contents(dtype)
        assert contents == _contents(dtype)
        model = openvino.Core().read_model(contents[".xml"], contents[".bin"])
        assert model.get_rt_info("precision").astype(str) == hint
    assert len(_contents("float16")[".bin"]) < 0.6 * len(_contents("float32")[".bin"])


def test_error_names_precision_that_cpu_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        def get_property(self, device: str, name: str) -> list[str]:
            return ["FP32", "INT8"]

    monkeypatch.setattr(openvino, "Core", Old)
    message = r"target.dtype=float16: this CPU has no FP16.* Allowed here: float32, int8\."
    with pytest.raises(ConfigError, match=message):
        base.backend_of(replace(CPU, dtype="float16"))
    with pytest.raises(ConfigError, match=message):
        OpenVinoEngine(replace(CPU, dtype="float16"), Remote())


def test_invalid_file_and_wrong_image_shape_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="OpenVINO cannot run the network"):
        session.open_ir({".xml": b"no network", ".bin": b""})
    with pytest.raises(
        CompileError, match=r"reads images \(C, H, W\) of \[3, 8, 8\], not \[3, 9, 9\]"
    ):
        session.open_ir(_contents("float32")).run(np.zeros((2, 3, 9, 9), np.float32))
