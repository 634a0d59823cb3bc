from dataclasses import replace

import onnxruntime
import openvino
import pytest

from hwnas.hardware.backends.openvino import session
from hwnas.hardware.target import Target
from hwnas.testing import BackendContract
from tests.conftest import target

CPU = target("cpu")
TARGETS = [
    target("npu"),
    pytest.param(target("ethos_u65_256"), marks=pytest.mark.slow),
    pytest.param(CPU, marks=pytest.mark.slow),
    pytest.param(replace(CPU, dtype="int8"), marks=pytest.mark.slow),
    replace(CPU, runtime="onnxruntime"),
    replace(CPU, runtime="onnxruntime", dtype="int8"),
    replace(CPU, runtime="openvino", dtype="float32"),
    pytest.param(
        replace(CPU, runtime="openvino", dtype="int8"),
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(session._saturates(), reason="not run: this CPU has no VNNI"),
        ],
    ),
    pytest.param(
        replace(CPU, runtime="openvino", dtype="bfloat16"),
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(
                "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"),
                reason="not run: this CPU has no BF16",
            ),
        ],
    ),
    pytest.param(
        target("cuda"),
        marks=pytest.mark.skipif(
            "CUDAExecutionProvider" not in onnxruntime.get_available_providers(),
            reason="not run: the installed onnxruntime lists no CUDAExecutionProvider",
        ),
    ),
    target("sketch"),
    replace(target("sketch"), runtime="modelled", dtype="float16"),
    target("nvidia_t4"),
]


class TestBackends(BackendContract):
    @pytest.fixture(params=TARGETS, ids=lambda t: f"{t.name}-{t.runtime}-{t.dtype}")
    def backend_target(self, request: pytest.FixtureRequest) -> Target:
        result: Target = request.param
        return result
