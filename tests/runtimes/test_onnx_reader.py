import io
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from hwnas.errors import CompileError
from hwnas.op import ACTIVATIONS, Lowered, OpSpec, Shape, fuse
from hwnas.runtimes.base import Weights
from hwnas.runtimes.onnx_reader import read
from hwnas.runtimes.onnx_writer import random_weights, write_fp32
from hwnas.runtimes.ort import OrtSession
from hwnas.runtimes.torch_reader import read_torch
from tests.runtimes.test_onnx_writer import IMAGE, NETWORKS, ONE_INPUT, TOKENS, VECTOR, alone
from tests.runtimes.torch_models import MODELS, model

Array = NDArray[Any]
SIDE = 16  #: of the images that torch's models read


def images(shape: Sequence[int], n: int = 3) -> NDArray[np.float32]:
    return np.random.default_rng(2).standard_normal((n, *shape)).astype(np.float32)


def run(lowered: Lowered, weights: Weights, x: NDArray[np.float32]) -> NDArray[np.float32]:
    fused = fuse(lowered, "float32", lowered[0].op.batch)
    return OrtSession(write_fp32(fused, weights)).run(x)


def round_trip(lowered: Lowered) -> Lowered:
    """Write, read and write again; outputs are equal, and names and weights if none was fused."""
    lowered = tuple(replace(node, op=replace(node.op, dtype="float32")) for node in lowered)
    weights = random_weights(lowered, 1)
    written = write_fp32(lowered, weights)
    found, found_weights = read(written)
    assert {*found_weights} == {*weights}
    for name, arrays in weights.items():
        for array, other in zip(arrays, found_weights[name], strict=True):
            assert other.dtype == np.float32
            np.testing.assert_array_equal(array, other)
    x = images(lowered[0].op.in_shape)
    np.testing.assert_array_equal(OrtSession(written).run(x), run(found, found_weights, x))
    return found


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("op", ONE_INPUT.values(), ids=ONE_INPUT)
def test_operator_is_read_as_it_was_written(op: OpSpec, batch: int) -> None:
    op = replace(op, dtype="float32", batch=batch)
    (node,) = round_trip(alone(op))
    assert node.name == "operator"
    assert node.op == replace(op, kind=op.kind.replace("+bn", ""))


@pytest.mark.parametrize("activation", ["", *ACTIVATIONS])
@pytest.mark.parametrize("base", ["conv2d", "linear", "add", "mul"])
def test_activation_is_read_as_it_was_written(base: str, activation: str) -> None:
    for shape in (IMAGE, TOKENS, VECTOR) if base != "mul" else (VECTOR,):
        kind = f"{base}+{activation}".strip("+")
        (node,) = round_trip(alone(OpSpec(kind, shape, shape), 1 + (base in ("add", "mul"))))
        assert node.op.kind == kind


@pytest.mark.parametrize("shape", [IMAGE, TOKENS, VECTOR])
@pytest.mark.parametrize("base", ["conv2d", "linear"])
def test_sum_is_read_and_fused_again(base: str, shape: Shape) -> None:
    lowered = alone(OpSpec(f"{base}+add+relu", shape, shape), 2)
    found = round_trip(lowered)
    assert [node.op.kind for node in found] == [base, "add+relu"]
    assert [node.op.kind for node in fuse(found, "float32")] == [lowered[0].op.kind]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("lowered", NETWORKS.values(), ids=NETWORKS)
def test_network_is_read_as_it_was_written(lowered: Lowered, batch: int) -> None:
    lowered = tuple(replace(node, op=replace(node.op, batch=batch)) for node in lowered)
    found = round_trip(lowered)
    assert [node.name for node in found] == [node.name for node in lowered]
    assert [node.inputs for node in found] == [node.inputs for node in lowered]


def export(module: torch.nn.Module, opset: int, **options: Any) -> bytes:
    file = io.BytesIO()
    example = torch.zeros(1, 3, SIDE, SIDE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the exporter itself
        torch.onnx.export(module, (example,), file, opset_version=opset, dynamo=False, **options)
    return file.getvalue()


def outputs(module: torch.nn.Module, x: NDArray[np.float32]) -> NDArray[np.float32]:
    with torch.no_grad():
        found: NDArray[np.float32] = module(torch.from_numpy(x)).numpy()
    return found


# Of a comparison in torch's own nn.MultiheadAttention.
tracing_is_no_error = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
# Layer norms are operators from 17 on, attention can be exported from 14 on.
EXPORTS = [
    (name, opset)
    for name in MODELS
    for opset in (13, 17)
    if opset == 17 or not name.startswith(("transformer", "convnext"))
]


@tracing_is_no_error
@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize(("name", "opset"), EXPORTS)
def test_export_computes_what_it_did(name: str, opset: int, free: bool) -> None:
    module, x = model(name), images((3, SIDE, SIDE))
    options = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}} if free else {}
    exported = export(module, opset, **options)
    found = run(*read(exported), x)
    expected = outputs(module, x)
    if not free:
        np.testing.assert_allclose(OrtSession(exported).run(x), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert np.ptp(expected) > 0.1


@tracing_is_no_error
@pytest.mark.parametrize("name", MODELS)
def test_module_is_read_without_a_file(name: str) -> None:
    module, x = model(name).train(), images((3, SIDE, SIDE))
    found = run(*read_torch(module, torch.zeros(1, 3, SIDE, SIDE)), x)
    assert module.training
    np.testing.assert_allclose(found, outputs(module.eval(), x), rtol=1e-4, atol=1e-4)


def test_module_that_torch_cannot_export_is_refused() -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.i0e(x)

    with pytest.raises(CompileError, match=r"Torch cannot export the module as ONNX: .*i0e"):
        read_torch(Odd(), torch.zeros(1, 3, 4, 4))


def test_batch_norm_that_was_exported_is_folded() -> None:
    module = model("resnet")
    kept = torch.onnx.TrainingMode.PRESERVE
    exported = export(module, 17, training=kept, do_constant_folding=False)
    kinds = [node.op_type for node in onnx.load_from_string(exported).graph.node]
    assert kinds.count("BatchNormalization") == 6
    lowered, weights = read(exported)
    x = images((3, SIDE, SIDE))
    np.testing.assert_allclose(run(lowered, weights, x), outputs(module, x), rtol=1e-4, atol=1e-4)
    assert [node.op.kind for node in fuse(lowered, "float32")] == [
        "conv2d+bn+relu",
        "max_pool2d",
        "conv2d+bn+relu",
        "conv2d+bn+add+relu",
        "conv2d+bn+relu",
        "conv2d+bn",
        "conv2d+bn+add+relu",
        "mean",
        "linear",
    ]


def test_operators_are_named_after_modules() -> None:
    lowered, _ = read(export(model("mobilenet v3"), 17))
    names = [node.name for node in lowered]
    assert names[:3] == ["0", "3.layers.0", "3.layers.3"]
    assert {"3.layers.6.fc1", "3.layers.6.fc2", "3.layers.7", "8"} <= {*names}


def test_foreign_network_is_compiled_by_tvm(tmp_path: Path) -> None:
    from hwnas.runtimes.relax.engine import LocalDevice, TvmEngine
    from tests.runtimes.rpc_lab import HOST

    module, x = model("transformer by hand"), images((3, SIDE, SIDE))
    lowered, weights = read(export(module, 17))
    lowered = fuse(lowered, "float32")
    engine = TvmEngine(HOST, LocalDevice(1))
    plans = {node.op: engine.plans(node.op, 1)[0] for node in lowered}
    files = {}
    for suffix, content in engine.export(lowered, plans, weights).items():
        files[suffix] = tmp_path / f"network{suffix}"
        files[suffix].write_bytes(content)
    found = engine.open(files).session.run(x)
    np.testing.assert_allclose(found, outputs(module, x), rtol=1e-4, atol=1e-4)


# Graphs as other exporters write them, node by node.

X = (8, 4, 4)
RNG = np.random.default_rng(0)
SQUARE = RNG.standard_normal((8, 8, 3, 3)).astype(np.float32)
MATRIX = RNG.standard_normal((8, 8)).astype(np.float32)
CHANNELS = RNG.standard_normal(8).astype(np.float32)


def graph(
    nodes: Sequence[Any], opset: int = 17, shape: Sequence[Any] = (1, *X), **constants: Any
) -> bytes:
    """Return a model whose nodes begin with ``x`` and end with ``y``."""
    made = helper.make_graph(
        nodes,
        "foreign",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("any",))],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.example", 1)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=10)
    serialised: bytes = model.SerializeToString()
    return serialised


def op(kind: str, inputs: str, out: str = "y", **attributes: Any) -> Any:
    names = [name.strip("-") for name in inputs.split()]
    return helper.make_node(kind, names, [out], f"the {kind}", **attributes)


def conv(inputs: str = "x w", out: str = "c", **attributes: Any) -> Any:
    return op("Conv", inputs, out, **{"pads": [1, 1, 1, 1], **attributes})


def f32(*values: Any) -> Array:
    return np.array(values if len(values) > 1 else values[0], np.float32)


def check(model: bytes, *kinds: str) -> None:
    """Compare a graph read with itself, run by onnxruntime."""
    from onnx.reference import ReferenceEvaluator

    x = images(X, 1)
    (expected,) = ReferenceEvaluator(onnx.load_from_string(model)).run(None, {"x": x})
    lowered, weights = read(model)
    assert tuple(node.op.kind for node in fuse(lowered, "float32")) == kinds
    found = run(lowered, weights, x)
    np.testing.assert_allclose(found.ravel(), expected.ravel(), rtol=1e-4, atol=1e-4)


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
def test_activation_is_known_however_it_is_written(name: str) -> None:
    nodes, opset, constants = SPELLINGS[name]
    check(graph([conv(), *nodes], opset, w=SQUARE, **constants), f"conv2d+{name.split()[0]}")


SCALED = {
    "Add": [op("Add", "c b")],
    "Sub": [op("Sub", "b c")],
    "Mul": [op("Mul", "c b")],
    "Div": [op("Div", "c b")],
    "a number": [op("Mul", "c h", "d"), op("Sub", "d h")],
    "relu after it": [op("Add", "b c", "d"), op("Relu", "d")],
}


@pytest.mark.parametrize("name", SCALED)
def test_scale_and_shift_are_folded(name: str) -> None:
    model = graph([conv(), *SCALED[name]], w=SQUARE, b=CHANNELS.reshape(1, 8, 1, 1), h=f32(0.5))
    check(model, "conv2d+relu" if "relu" in name else "conv2d")


def test_bias_of_one_channel_is_no_function() -> None:
    nodes = [conv(), op("Add", "c b", "d"), op("Relu", "d")]
    check(graph(nodes, w=SQUARE[:1], b=f32([0.3])), "conv2d+relu")


def test_batch_norm_of_a_vector_is_folded() -> None:
    nodes = [
        op("GlobalAveragePool", "x", "p"),
        op("Flatten", "p", "f"),
        op("Gemm", "f w b", "g", alpha=0.5, beta=2.0),
        op("BatchNormalization", "g s b b v"),
    ]
    check(graph(nodes, w=MATRIX, b=CHANNELS, s=CHANNELS + 1, v=CHANNELS**2 + 0.1), "mean", "linear")


POOLS: dict[str, tuple[list[Any], int]] = {
    "axes as attribute": ([op("ReduceMean", "x", axes=[2, 3], keepdims=0)], 13),
    "axes as input": ([op("ReduceMean", "x axes")], 18),
    "axes counted from the end": ([op("ReduceMean", "x", axes=[-1, -2])], 13),
    "windows": ([op("AveragePool", "x", kernel_shape=[4, 4])], 13),
    "tokens": ([op("Reshape", "x tokens", "t"), op("ReduceMean", "t", axes=[2])], 13),
}


@pytest.mark.parametrize("name", POOLS)
def test_mean_is_known_however_it_is_written(name: str) -> None:
    nodes, opset = POOLS[name]
    constants = {"axes": np.array([2, 3]), "tokens": np.array([0, 0, -1])}
    used = {k: v for k, v in constants.items() if any(k in node.input for node in nodes)}
    check(graph(nodes, opset, **used), "mean")


@pytest.mark.parametrize("lower", ["SAME_UPPER", "SAME_LOWER"])
def test_same_padding_is_taken_where_it_is_symmetric(lower: str) -> None:
    nodes = [op("Conv", "x w", "y", auto_pad=lower)]
    check(graph(nodes, w=SQUARE), "conv2d")
    strided = [op("Conv", "x w", "y", auto_pad=lower, strides=[2, 2])]
    with pytest.raises(CompileError, match=r"pads \[(0, 0, 1, 1|1, 1, 0, 0)\]"):
        read(graph(strided, w=SQUARE))


def test_valid_padding_is_taken_where_there_is_none() -> None:
    check(graph([op("Conv", "x w", "y", auto_pad="VALID")], w=SQUARE[..., :1, :1]), "conv2d")


def test_weights_may_be_computed_from_constants() -> None:
    nodes = [
        op("Cast", "q", "f", to=TensorProto.FLOAT),
        op("Mul", "f s", "d"),
        op("Transpose", "d", "t", perm=[1, 0, 2, 3]),
        op("Identity", "t", "w"),
        conv(out="y"),
    ]
    q = RNG.integers(-128, 128, (8, 8, 3, 3)).astype(np.int8)
    check(graph(nodes, q=q, s=f32(0.01)), "conv2d")


def test_what_nothing_needs_is_left_out() -> None:
    nodes = [conv(out="unused"), conv(out="c"), op("Dropout", "c", "d"), op("Relu", "d")]
    check(graph(nodes, w=SQUARE), "conv2d+relu")


def test_sum_of_a_layer_and_its_input_is_fused_in_any_order() -> None:
    for terms in ("c x", "x c"):
        check(graph([conv(), op("Add", terms, "s"), op("Relu", "s")], w=SQUARE), "conv2d+add+relu")


REFUSED: dict[str, tuple[list[Any], str]] = {
    "unknown operator": (
        [op("ConvTranspose", "x w")],
        r"'the ConvTranspose' \(ConvTranspose\): not supported; allowed: Add, .*Unsqueeze",
    ),
    "foreign operator": (
        [helper.make_node("Magic", ["x"], ["y"], "m", domain="com.example")],
        r"'m' \(com.example.Magic\): not supported",
    ),
    "unpadded": ([conv(pads=[0, 0, 0, 0], out="y")], r"pads \[0, 0, 0, 0\].*Allowed: square"),
    "padded on one side": ([conv(pads=[0, 0, 1, 1], out="y")], "Allowed: square windows"),
    "dilated": ([conv(dilations=[2, 2], out="y")], r"dilations \[2, 2\]"),
    "two strides": ([conv(strides=[1, 2], out="y")], r"strides \[1, 2\]"),
    "computed weight": ([conv("x x", out="y")], r"\(Conv\): input 1 must be a constant"),
    "tanh": ([conv(), op("Tanh", "c")], r"\(Tanh\): not supported"),
    "another hardsigmoid": ([conv(), op("HardSigmoid", "c")], "Allowed: relu, relu6, hardswish"),
    "another clip": ([conv(), op("Clip", "c zero one")], r"\(Clip\): this function is no operator"),
    "approximate gelu": ([conv(), op("Gelu", "c", approximate="tanh")], r"\(Gelu\): this function"),
    "activation of the input": ([op("Relu", "x")], "an activation must follow a convolution"),
    "activation of a mean": ([op("GlobalAveragePool", "x", "p"), op("Relu", "p")], "must follow"),
    "activation beside a reader": (
        [conv(), op("Relu", "c", "r"), op("Add", "c r")],
        r"\(Add\): this function is no operator",
    ),
    "activation that another layer misses": (
        [conv(), op("Relu", "c", "r"), conv("r w", "d"), op("Add", "c d")],
        r"'the Relu' \(Relu\): an activation must follow .* that nothing else reads",
    ),
    "two activations": ([conv(), op("Relu", "c", "r"), op("Sigmoid", "r")], "this function"),
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
        r"\(Add\): of .* Allowed: the sum of two tensors of one shape",
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
    ),  # fmt: skip
    "linear over pixels": (
        [op("MatMul", "x four")],
        r"\(MatMul\): reads a tensor .* that is not rows of all channels",
    ),
    "mean over channels": ([op("ReduceMean", "x one_axis")], "needs opset 17 or more"),
    "mean of windows": ([op("AveragePool", "x", kernel_shape=[2, 2])], "Allowed: over all pixels"),
    "softmax": (
        [op("GlobalAveragePool", "x", "p"), op("Softmax", "p", axis=1)],
        "Leave out a softmax after the classifier",
    ),
    "product of tensors": ([conv(), op("MatMul", "x c")], "a product of two tensors is only known"),
    "several indices": ([op("Gather", "x two", axis=1)], "several indices; allowed: one"),
    "part of a tensor": ([op("Gather", "x one_index", axis=1)], "output 'y' .* is part of that"),
    "transposed output": (
        [conv(), op("Transpose", "c", perm=[0, 2, 3, 1])],
        "output 'y' .* in another order",
    ),
    "nothing": ([op("Identity", "x")], "not computed at all"),
    "a constant": ([op("Identity", "b")], "output 'y' is a constant"),
    "layer norm with another epsilon": (
        [
            op("Transpose", "x", "t", perm=[0, 2, 3, 1]),
            op("LayerNormalization", "t b b", epsilon=1e-3),
        ],
        r"axis=-1, epsilon=0.001; allowed: the last, 1e-05",
    ),  # fmt: skip
    "what cannot be": (
        [op("Reshape", "x three")],
        r"'the Reshape' \(Reshape\): cannot be computed",
    ),
    "windows that reach out": (
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
def test_what_is_no_operator_is_refused_by_name(name: str) -> None:
    nodes, message = REFUSED[name]
    used = {k: v for k, v in CONSTANTS.items() if any(k in node.input for node in nodes)}
    with pytest.raises(CompileError, match=message) as caught:
        read(graph(nodes, 20, **used))
    assert "\n" not in str(caught.value)
    if "output 'y'" not in str(caught.value):
        assert str(caught.value).startswith("ONNX node '")


@pytest.mark.parametrize("content", [b"", b"hello", bytes(100), Path(__file__).read_bytes()])
def test_what_is_no_model_is_refused(content: bytes) -> None:
    with pytest.raises(CompileError, match="This is no valid ONNX model: ") as caught:
        read(content)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 8), r"input 'x' is float \[1, 8\]; allowed: float images"),
        ((1, 8, "h", "w"), r"\[1, 8, 'h', 'w'\].* of fixed C, H and W"),
    ],
)
def test_what_reads_no_images_is_refused(shape: Any, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        read(graph([op("Relu", "x")], shape=shape))


def test_other_inputs_opsets_and_files_are_refused() -> None:
    two = onnx.load_from_string(graph([op("Add", "x z")]))
    two.graph.input.add().CopyFrom(two.graph.input[0])
    two.graph.input[1].name = "z"
    with pytest.raises(CompileError, match="2 inputs and 1 outputs; allowed: one of each"):
        read(two.SerializeToString())
    with pytest.raises(CompileError, match="opset 6; allowed: 7 or more"):
        read(graph([op("Relu", "x")], 6))
    outside = onnx.load_from_string(graph([conv(out="y")], w=SQUARE))
    outside.graph.initializer[0].data_location = TensorProto.EXTERNAL
    outside.graph.initializer[0].ClearField("raw_data")
    outside.graph.initializer[0].external_data.add(key="location", value="weights.bin")
    with pytest.raises(CompileError, match="keeps 'w' in another file; save it as one"):
        read(outside.SerializeToString())


class Spread(torch.nn.Module):
    """Attention with something wrong."""

    def __init__(self, fault: str):
        super().__init__()
        self.fault = fault
        self.qkv = torch.nn.Conv2d(3, 24, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).reshape(1, 3, 2, 4, -1).transpose(-1, -2).unbind(1)
        scale = 0.7 if self.fault == "scale" else 0.5
        if self.fault == "order":
            q, k = k, q
        scores = q @ k.transpose(-1, -2) * scale
        if self.fault == "mask":
            scores = scores + torch.ones(SIDE**2, SIDE**2).tril()
        shares = scores.softmax(-2 if self.fault == "axis" else -1)
        if self.fault == "shares":
            shares = shares * 2
        if self.fault == "no values":
            return scores
        return (shares @ v).transpose(-1, -2).reshape(1, -1, SIDE, SIDE)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("scale", "scaled by 0.7. Allowed: all three computed by one layer, in this order"),
        ("order", "Allowed: all three computed by one layer, in this order"),
        ("mask", "not a number for each pixel or token"),
        ("axis", "over the last axis of products of queries and keys"),
        ("shares", r"\(MatMul(_\d)?\): of "),
        ("no values", "a product of two tensors is only known within attention"),
    ],
)
def test_attention_with_a_fault_is_refused(fault: str, message: str) -> None:
    example = torch.zeros(1, 3, SIDE, SIDE)
    read_torch(Spread(""), example)
    with pytest.raises(CompileError, match=message):
        read_torch(Spread(fault), example)
