"""ONNX graphs that are refused, because no operator of hwnas computes them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hwnas.core.errors import CompileError
from hwnas.models.onnx.importer import import_onnx
from tests.models.onnx.onnx_graphs import CHANNELS, RNG, SQUARE, conv, f32, graph, op

REFUSED: dict[str, tuple[list[Any], str]] = {
    "unknown operator": (
        [op("ConvTranspose", "x w")],
        r"'the ConvTranspose' \(ConvTranspose\): is not supported; allowed: Add, .*Unsqueeze",
    ),
    "foreign operator": (
        [helper.make_node("Magic", ["x"], ["y"], "m", domain="com.example")],
        r"'m' \(com.example.Magic\): is not supported",
    ),
    "unpadded": ([conv(pads=[0, 0, 0, 0], out="y")], r"pads \[0, 0, 0, 0\].*Allowed: square"),
    "padded on one side": ([conv(pads=[0, 0, 1, 1], out="y")], "Allowed: square windows"),
    "dilated": ([conv(dilations=[2, 2], out="y")], r"dilations \[2, 2\]"),
    "two strides": ([conv(strides=[1, 2], out="y")], r"strides \[1, 2\]"),
    "computed weight": ([conv("x x", out="y")], r"\(Conv\): input 1 must be a constant"),
    "tanh": ([conv(), op("Tanh", "c")], r"\(Tanh\): is not supported"),
    "hardsigmoid of another slope": (
        [conv(), op("HardSigmoid", "c")],
        r"\(HardSigmoid\): unknown function.* hardsigmoid is clip\(x / 6 \+ 0\.5, 0, 1\)",
    ),
    "another clip": ([conv(), op("Clip", "c zero one")], r"\(Clip\): unknown function"),
    "approximate gelu": (
        [conv(), op("Gelu", "c", approximate="tanh")],
        r"\(Gelu\): unknown function",
    ),
    "activation of the input": ([op("Relu", "x")], "an activation must follow a convolution"),
    "activation of a mean": ([op("GlobalAveragePool", "x", "p"), op("Relu", "p")], "must follow"),
    "activation beside a reader": (
        [conv(), op("Relu", "c", "r"), op("Add", "c r")],
        r"\(Add\): unknown function",
    ),
    "activation that another layer misses": (
        [conv(), op("Relu", "c", "r"), conv("r w", "d"), op("Add", "c d")],
        r"'the Relu' \(Relu\): an activation must follow .* that nothing else reads",
    ),
    "two activations": ([conv(), op("Relu", "c", "r"), op("Sigmoid", "r")], "unknown function"),
    "batch norm of the input": (
        [op("BatchNormalization", "x b b b b")],
        r"\(BatchNormalization\): a scale or shift must follow a convolution",
    ),
    "batch norm after an activation": (
        [conv(), op("Relu", "c", "r"), op("BatchNormalization", "r b b b b")],
        "a scale or shift must follow",
    ),
    "number for each pixel": ([conv(), op("Add", "c image")], "not a number for each pixel"),
    "sum of other shapes": (
        [op("GlobalAveragePool", "x", "p"), op("Add", "x p")],
        r"\(Add\): reads .* Allowed: the sum of two tensors of one shape",
    ),
    "product of images": ([conv(), op("Mul", "x c")], "a product with a gate"),
    "shuffled channels": (
        [
            op("Reshape", "x pairs", "s"),
            op("Transpose", "s", "t", perm=[0, 2, 1, 3, 4]),
            op("Reshape", "t whole", "u"),
            conv("u w", "y"),
        ],
        r"reads a tensor \(1, 8, 4, 4\), moved from 'input' .* that is not an image",
    ),
    "linear over pixels": (
        [op("MatMul", "x four")],
        r"\(MatMul\): reads a tensor .* that is not rows of all channels",
    ),
    "mean over channels": ([op("ReduceMean", "x one_axis")], "export with opset 17 or more"),
    "mean of windows": ([op("AveragePool", "x", kernel_shape=[2, 2])], "Allowed: over all pixels"),
    "softmax": (
        [op("GlobalAveragePool", "x", "p"), op("Softmax", "p", axis=1)],
        "Leave out a softmax after the classifier",
    ),
    "product of tensors": (
        [conv(), op("MatMul", "x c")],
        "a product of two tensors is only supported",
    ),
    "several indices": ([op("Gather", "x two", axis=1)], "several indices; allowed: one"),
    "part of a tensor": ([op("Gather", "x one_index", axis=1)], "output 'y' .* is a part of it"),
    "transposed output": (
        [conv(), op("Transpose", "c", perm=[0, 2, 3, 1])],
        "output 'y' .* in another order",
    ),
    "nothing": ([op("Identity", "x")], "or the input"),
    "a constant": ([op("Identity", "b")], "output 'y' is a constant"),
    "layer norm with another epsilon": (
        [
            op("Transpose", "x", "t", perm=[0, 2, 3, 1]),
            op("LayerNormalization", "t b b", epsilon=1e-3),
        ],
        r"axis=-1 and epsilon=0.001; allowed: the last axis and 1e-05",
    ),
    "impossible shape": (
        [op("Reshape", "x three")],
        r"'the Reshape' \(Reshape\): cannot be computed",
    ),
    "windows larger than the image": (
        [op("MaxPool", "x", kernel_shape=[5, 5], strides=[5, 5])],
        r"kernel \[5, 5\].* of shape \(8, 4, 4\)",
    ),
    "windows beyond the image": (
        [op("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, ceil_mode=1)],
        "windows that reach out",
    ),
}
CONSTANTS = {
    "w": SQUARE,
    "b": np.abs(CHANNELS),
    "zero": f32(0),
    "one": f32(1),
    "image": RNG.standard_normal((1, 8, 4, 4)).astype(np.float32),
    "pairs": np.array([1, 2, 4, 4, 4]),
    "whole": np.array([1, 8, 4, 4]),
    "three": np.array([1, 3, -1]),
    "four": RNG.standard_normal((4, 4)).astype(np.float32),
    "two": np.array([1, 2]),
    "one_axis": np.array([1]),
    "one_index": np.array(1),
}


@pytest.mark.parametrize("name", REFUSED)
def test_error_names_unsupported_node(name: str) -> None:
    nodes, message = REFUSED[name]
    used = {k: v for k, v in CONSTANTS.items() if any(k in node.input for node in nodes)}
    with pytest.raises(CompileError, match=message) as error:
        import_onnx(graph(nodes, 20, **used))
    assert "\n" not in str(error.value)
    if "output 'y'" not in str(error.value):
        assert str(error.value).startswith("ONNX node '")


@pytest.mark.parametrize("content", [b"", b"hello", bytes(100), Path(__file__).read_bytes()])
def test_invalid_model_is_refused(content: bytes) -> None:
    with pytest.raises(CompileError, match="This is not a valid ONNX model: ") as error:
        import_onnx(content)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 8), r"input 'x' is float \[1, 8\]; allowed: float32 images"),
        ((1, 8, "h", "w"), r"\[1, 8, 'h', 'w'\].* of fixed C, H and W"),
    ],
)
def test_model_without_image_input_is_refused(shape: Any, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        import_onnx(graph([op("Relu", "x")], shape=shape))


def test_other_inputs_opsets_and_files_are_refused() -> None:
    two = onnx.load_from_string(graph([op("Add", "x z")]))
    two.graph.input.add().CopyFrom(two.graph.input[0])
    two.graph.input[1].name = "z"
    with pytest.raises(
        CompileError, match="2 inputs and 1 outputs; allowed: one input and one output"
    ):
        import_onnx(two.SerializeToString())
    with pytest.raises(CompileError, match="opset 6; allowed: 7 or more"):
        import_onnx(graph([op("Relu", "x")], 6))
    outside = onnx.load_from_string(graph([conv(out="y")], w=SQUARE))
    outside.graph.initializer[0].data_location = TensorProto.EXTERNAL
    outside.graph.initializer[0].ClearField("raw_data")
    outside.graph.initializer[0].external_data.add(key="location", value="weights.bin")
    with pytest.raises(CompileError, match="keeps 'w' in another file; save it as one"):
        import_onnx(outside.SerializeToString())


def test_mixing_images_of_a_batch_is_refused() -> None:
    nodes = [op("Transpose", "x", "t", perm=[1, 0, 2, 3]), conv("t w", "y")]
    with pytest.raises(CompileError, match="that is not an image"):
        import_onnx(graph(nodes, shape=(8, 1, 4, 4), w=SQUARE))
