import random
from dataclasses import replace

import numpy as np
import onnx
import pytest

from hwnas.core.errors import CompileError
from hwnas.hardware.backends import onnx_files
from hwnas.hardware.backends.onnx_files import random_weights
from hwnas.hardware.costs.measured_cost import fused_graph
from hwnas.models import families, spaces
from hwnas.models.graph import INPUT, Graph, Node, OpSpec, Signature
from hwnas.models.onnx.opsets import check_opset, with_lowest_opset
from hwnas.models.onnx.writer import OPSET, write_fp32
from tests.conftest import target

LOWERED = (Node("conv", OpSpec("conv2d+relu", (3, 8, 8), (4, 8, 8), 3, dtype="float32"), (INPUT,)),)


@pytest.fixture(scope="module")
def model() -> bytes:
    return write_fp32(Graph.of(LOWERED), random_weights(Graph.of(LOWERED), 0), any_batch=True)


def test_opset_is_read_from_file(model: bytes) -> None:
    assert check_opset(model) == OPSET
    other = onnx.load_model_from_string(model)
    other.opset_import[0].version = 17
    assert check_opset(other.SerializeToString()) == 17


@pytest.mark.parametrize("content", [b"", b"nothing", b"half"])
def test_invalid_onnx_is_refused(model: bytes, content: bytes) -> None:
    with pytest.raises(CompileError, match="not valid ONNX"):
        check_opset(model[: len(model) // 2] if content == b"half" else content)


def test_unknown_opset_and_wrong_shape_are_refused(model: bytes) -> None:
    future = onnx.load_model_from_string(model)
    future.opset_import[0].version = 999
    wrong = onnx.load_model_from_string(model)
    wrong.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 5
    for changed in (future, wrong):
        with pytest.raises(CompileError, match="not valid ONNX"):
            check_opset(changed.SerializeToString())


@pytest.mark.parametrize(
    ("name", "dtype", "versions"),
    [
        ("tiny", "float32", ("opset 13, IR 7",)),
        ("tiny", "int8", ("opset 13, IR 7",)),
        ("mbconv_mixed", "float32", ("opset 13, IR 7", "opset 14, IR 7")),
        ("resnet_small", "int8", ("opset 13, IR 7",)),
        ("vit_small", "float32", ("opset 23, IR 11",)),
    ],
)
def test_lowest_opset_is_valid_with_equal_outputs(
    name: str, dtype: str, versions: tuple[str, ...], task: Signature
) -> None:
    space, rng = spaces.load_space(spaces.find(name)), random.Random(0)
    family, device = families.get(space.family), replace(target("nvidia_t4"), dtype=dtype)
    for genotype in (space.smallest(), space.largest(), space.sample(rng)):
        lowered = fused_graph(family.lower(space, genotype, task), device)
        model = onnx_files.random_model(lowered)
        stamped, description = with_lowest_opset(model)
        assert description in versions
        assert description.startswith(f"opset {check_opset(stamped)},")
        images = np.random.default_rng(0).standard_normal((1, *lowered[0].op.in_shape))
        before, after = (
            onnx_files.session(content).run(images.astype(np.float32))
            for content in (model, stamped)
        )
        assert np.array_equal(before, after)
