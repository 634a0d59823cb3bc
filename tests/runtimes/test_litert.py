import random
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from hwnas.backends.vela.litert import LiteRTSession
from hwnas.graph import Graph
from hwnas.int8.tflite import write
from hwnas.op import Signature
from hwnas.runtimes.base import Session
from hwnas.space import SearchSpace
from hwnas.testing import SessionContract
from tests.int8.networks import quantised
from tests.int8.qdq import oracle


class TestLiteRT(SessionContract):
    @pytest.fixture
    def session(
        self, tiny: SearchSpace, task: Signature
    ) -> tuple[Session, Graph, Callable[[NDArray[np.float32]], NDArray[np.float32]]]:
        _, lowered, network = quantised(tiny, tiny.sample(random.Random(0)), task)
        return LiteRTSession(write(network)), lowered, oracle(network)

    @pytest.fixture
    def tolerance(self, tiny: SearchSpace, task: Signature) -> float:
        _, _, network = quantised(tiny, tiny.sample(random.Random(0)), task)
        return 1.001 * network.ops[-1].out.scale


def test_loading_says_nothing_on_stderr(
    tiny: SearchSpace, task: Signature, capfd: pytest.CaptureFixture[str]
) -> None:
    _, _, network = quantised(tiny, tiny.smallest(), task)
    LiteRTSession(write(network))
    assert capfd.readouterr().err == ""
