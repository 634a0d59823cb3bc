import random
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from hwnas.core.errors import CompileError
from hwnas.hardware.backends.vela.litert import LiteRTSession, open_tflite
from hwnas.hardware.runtimes.interfaces import Session
from hwnas.models.graph import Graph, Signature
from hwnas.models.int8.tflite import write_tflite
from hwnas.models.spaces import SearchSpace
from hwnas.testing import SessionContract
from tests.models.int8.networks import quantised
from tests.models.int8.qdq import oracle


class TestLiteRT(SessionContract):
    @pytest.fixture
    def session(
        self, tiny: SearchSpace, task: Signature
    ) -> tuple[Session, Graph, Callable[[NDArray[np.float32]], NDArray[np.float32]]]:
        _, lowered, network = quantised(tiny, tiny.sample(random.Random(0)), task)
        return LiteRTSession(write_tflite(network)), lowered, oracle(network)

    @pytest.fixture
    def tolerance(self, tiny: SearchSpace, task: Signature) -> float:
        _, _, network = quantised(tiny, tiny.sample(random.Random(0)), task)
        return 1.001 * network.ops[-1].out.scale


def test_damaged_file_is_a_compile_error() -> None:
    with pytest.raises(CompileError, match="LiteRT cannot load the network: "):
        open_tflite({".tflite": b"not a flatbuffer"})


def test_loading_prints_nothing_on_stderr(
    tiny: SearchSpace, task: Signature, capfd: pytest.CaptureFixture[str]
) -> None:
    _, _, network = quantised(tiny, tiny.smallest(), task)
    LiteRTSession(write_tflite(network))
    assert capfd.readouterr().err == ""
