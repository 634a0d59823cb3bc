"""Different ONNX forms of an operator are recognised."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from hwnas.core.errors import CompileError
from hwnas.hardware.backends.onnxruntime.session import OrtSession
from hwnas.models.graph import fuse
from hwnas.models.onnx.importer import import_onnx
from hwnas.models.onnx.writer import write_fp32
from tests.models.onnx.onnx_graphs import CHANNELS, MATRIX, RNG, SQUARE, X, conv, f32, graph, op


def check_import(model: bytes, *kinds: str) -> None:
    """Compare an imported graph with ONNX's reference evaluator."""
    from onnx.reference import ReferenceEvaluator

    x = np.random.default_rng(2).standard_normal((1, *X)).astype(np.float32)
    (expected,) = map(
        np.asarray, ReferenceEvaluator(onnx.load_from_string(model)).run(None, {"x": x})
    )
    lowered, weights = import_onnx(model)
    fused = fuse(lowered, "float32")
    assert tuple(node.op.kind for node in fused) == kinds
    result = OrtSession(write_fp32(fused, weights)).run(x)
    np.testing.assert_allclose(result.ravel(), expected.ravel(), rtol=1e-4, atol=1e-4)


SPELLINGS: dict[str, tuple[list[Any], int, dict[str, Any]]] = {
    "relu6": ([op("Clip", "c", min=0.0, max=6.0)], 10, {}),
    "relu": ([op("Clip", "c a")], 17, {"a": f32(0)}),
    "hardsigmoid": (
        [op("Add", "c a", "d"), op("Clip", "d b e", "f"), op("Div", "f e")],
        17,
        {"a": f32(3), "b": f32(0), "e": f32(6)},
    ),
    "hardswish": (
        [
            op("Add", "a c", "d"),
            op("Clip", "d b e", "f"),
            op("Mul", "c f", "g"),
            op("Div", "g e"),
        ],
        17,
        {"a": f32(3), "b": f32(0), "e": f32(6)},
    ),
    "hardswish of a hardsigmoid": (
        [op("HardSigmoid", "c", "d", alpha=1 / 6), op("Mul", "c d")],
        13,
        {},
    ),
    "gelu": ([op("Gelu", "c")], 20, {}),
    "gelu by erf": (
        [
            op("Mul", "c a", "d"),
            op("Erf", "d", "e"),
            op("Add", "b e", "f"),
            op("Mul", "c h", "g"),
            op("Mul", "f g"),
        ],
        13,
        {"a": f32(0.5**0.5), "b": f32([1]), "h": f32(0.5)},
    ),
    "silu": ([op("Sigmoid", "c", "d"), op("Mul", "d c")], 13, {}),
    "silu by exp": (
        [
            op("Neg", "c", "d"),
            op("Exp", "d", "e"),
            op("Add", "e a", "f"),
            op("Div", "c f"),
        ],
        13,
        {"a": f32(1)},
    ),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_forms_of_activation_are_recognised(name: str) -> None:
    nodes, opset, constants = SPELLINGS[name]
    check_import(graph([conv(), *nodes], opset, w=SQUARE, **constants), f"conv2d+{name.split()[0]}")


SCALED = {
    "Add": [op("Add", "c b")],
    "Sub": [op("Sub", "b c")],
    "Mul": [op("Mul", "c b")],
    "Div": [op("Div", "c b")],
    "a number": [op("Mul", "c h", "d"), op("Sub", "d h")],
    "relu after scale": [op("Add", "b c", "d"), op("Relu", "d")],
}


@pytest.mark.parametrize("name", SCALED)
def test_scale_and_shift_are_folded(name: str) -> None:
    model = graph([conv(), *SCALED[name]], w=SQUARE, b=CHANNELS.reshape(1, 8, 1, 1), h=f32(0.5))
    check_import(model, "conv2d+relu" if "relu" in name else "conv2d")


def test_bias_of_one_channel_is_folded() -> None:
    nodes = [conv(), op("Add", "c b", "d"), op("Relu", "d")]
    check_import(graph(nodes, w=SQUARE[:1], b=f32([0.3])), "conv2d+relu")


def test_batch_norm_of_a_vector_is_folded() -> None:
    nodes = [
        op("GlobalAveragePool", "x", "p"),
        op("Flatten", "p", "f"),
        op("Gemm", "f w b", "g", alpha=0.5, beta=2.0),
        op("BatchNormalization", "g s b b v"),
    ]
    check_import(
        graph(nodes, w=MATRIX, b=CHANNELS, s=CHANNELS + 1, v=CHANNELS**2 + 0.1), "mean", "linear"
    )


POOLS: dict[str, tuple[list[Any], int]] = {
    "axes as attribute": ([op("ReduceMean", "x", axes=[2, 3], keepdims=0)], 13),
    "axes as input": ([op("ReduceMean", "x axes")], 18),
    "axes counted from the end": ([op("ReduceMean", "x", axes=[-1, -2])], 13),
    "windows": ([op("AveragePool", "x", kernel_shape=[4, 4])], 13),
    "tokens": ([op("Reshape", "x tokens", "t"), op("ReduceMean", "t", axes=[2])], 13),
}


@pytest.mark.parametrize("name", POOLS)
def test_forms_of_mean_are_recognised(name: str) -> None:
    nodes, opset = POOLS[name]
    constants = {"axes": np.array([2, 3]), "tokens": np.array([0, 0, -1])}
    used = {k: v for k, v in constants.items() if any(k in node.input for node in nodes)}
    check_import(graph(nodes, opset, **used), "mean")


@pytest.mark.parametrize("lower", ["SAME_UPPER", "SAME_LOWER"])
def test_symmetric_same_padding_is_accepted(lower: str) -> None:
    nodes = [op("Conv", "x w", "y", auto_pad=lower)]
    check_import(graph(nodes, w=SQUARE), "conv2d")
    strided = [op("Conv", "x w", "y", auto_pad=lower, strides=[2, 2])]
    with pytest.raises(CompileError, match=r"pads \[(0, 0, 1, 1|1, 1, 0, 0)\]"):
        import_onnx(graph(strided, w=SQUARE))


def test_valid_padding_of_1x1_kernel_is_accepted() -> None:
    check_import(graph([op("Conv", "x w", "y", auto_pad="VALID")], w=SQUARE[..., :1, :1]), "conv2d")


def test_weights_may_be_computed_from_constants() -> None:
    nodes = [
        op("Cast", "q", "f", to=TensorProto.FLOAT),
        op("Mul", "f s", "d"),
        op("Transpose", "d", "t", perm=[1, 0, 2, 3]),
        op("Identity", "t", "w"),
        conv(out="y"),
    ]
    q = RNG.integers(-128, 128, (8, 8, 3, 3)).astype(np.int8)
    check_import(graph(nodes, q=q, s=f32(0.01)), "conv2d")


def test_unused_nodes_are_removed() -> None:
    nodes = [conv(out="unused"), conv(out="c"), op("Dropout", "c", "d"), op("Relu", "d")]
    check_import(graph(nodes, w=SQUARE), "conv2d+relu")


def test_residual_sum_is_fused_in_any_order() -> None:
    for terms in ("c x", "x c"):
        check_import(
            graph([conv(), op("Add", terms, "s"), op("Relu", "s")], w=SQUARE), "conv2d+add+relu"
        )
