import onnx
import pytest

from hwnas.errors import CompileError
from hwnas.graph import INPUT, Graph, Node
from hwnas.op import OpSpec
from hwnas.runtimes.onnx_check import checked_opset
from hwnas.runtimes.onnx_writer import OPSET, write_fp32
from hwnas.runtimes.stand_in import random_weights

LOWERED = (Node("conv", OpSpec("conv2d+relu", (3, 8, 8), (4, 8, 8), 3, dtype="float32"), (INPUT,)),)


@pytest.fixture(scope="module")
def model() -> bytes:
    return write_fp32(Graph.of(LOWERED), random_weights(Graph.of(LOWERED), 0), any_batch=True)


def test_opset_is_the_file_s(model: bytes) -> None:
    assert checked_opset(model) == OPSET
    other = onnx.load_model_from_string(model)
    other.opset_import[0].version = 17
    assert checked_opset(other.SerializeToString()) == 17


@pytest.mark.parametrize("content", [b"", b"nothing", b"half"])
def test_what_is_not_onnx_is_refused(model: bytes, content: bytes) -> None:
    with pytest.raises(CompileError, match="not valid ONNX"):
        checked_opset(model[: len(model) // 2] if content == b"half" else content)


def test_unknown_opset_and_shapes_that_do_not_fit_are_refused(model: bytes) -> None:
    future = onnx.load_model_from_string(model)
    future.opset_import[0].version = 999
    wrong = onnx.load_model_from_string(model)
    wrong.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 5
    for changed in (future, wrong):
        with pytest.raises(CompileError, match="not valid ONNX"):
            checked_opset(changed.SerializeToString())
