import tempfile
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

from hwnas.core.errors import CompileError
from hwnas.hardware.backends.onnx_files import random_weights
from hwnas.hardware.backends.onnxruntime.session import OrtSession
from hwnas.models.graph import ACTIVATIONS, Graph, OpSpec, Shape, fuse
from hwnas.models.int8.quantised_network import Weights
from hwnas.models.onnx.importer import import_onnx
from hwnas.models.onnx.writer import write_fp32
from tests.hardware.runtimes.torch_models import MODELS, model
from tests.models.onnx.test_onnx_writer import IMAGE, NETWORKS, ONE_INPUT, TOKENS, VECTOR, alone

Array = NDArray[Any]
SIDE = 16  #: of the images of torch's models


def images(shape: Sequence[int], n: int = 3) -> NDArray[np.float32]:
    return np.random.default_rng(2).standard_normal((n, *shape)).astype(np.float32)


def run(lowered: Graph, weights: Weights, x: NDArray[np.float32]) -> NDArray[np.float32]:
    fused = fuse(lowered, "float32", lowered[0].op.batch)
    return OrtSession(write_fp32(fused, weights)).run(x)


def round_trip(lowered: Graph) -> Graph:
    """Write and read a network; check that outputs and weights are equal; return it."""
    lowered = Graph.of(replace(node, op=replace(node.op, dtype="float32")) for node in lowered)
    weights = random_weights(lowered, 1)
    written = write_fp32(lowered, weights)
    imported, imported_weights = import_onnx(written)
    assert {*imported_weights} == {*weights}
    for name, arrays in weights.items():
        for array, other in zip(arrays, imported_weights[name], strict=True):
            assert other.dtype == np.float32
            np.testing.assert_array_equal(array, other)
    x = images(lowered[0].op.in_shape)
    np.testing.assert_array_equal(OrtSession(written).run(x), run(imported, imported_weights, x))
    return imported


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("op", ONE_INPUT.values(), ids=ONE_INPUT)
def test_operator_round_trips(op: OpSpec, batch: int) -> None:
    op = replace(op, dtype="float32", batch=batch)
    (node,) = round_trip(alone(op))
    assert node.name == "operator"
    assert node.op == replace(op, kind=op.kind.replace("+bn", ""))


@pytest.mark.parametrize("activation", ["", *ACTIVATIONS])
@pytest.mark.parametrize("base", ["conv2d", "linear", "add", "mul"])
def test_activation_round_trips(base: str, activation: str) -> None:
    for shape in (IMAGE, TOKENS, VECTOR) if base != "mul" else (VECTOR,):
        kind = f"{base}+{activation}".strip("+")
        (node,) = round_trip(alone(OpSpec(kind, shape, shape), 1 + (base in ("add", "mul"))))
        assert node.op.kind == kind


@pytest.mark.parametrize("shape", [IMAGE, TOKENS, VECTOR])
@pytest.mark.parametrize("base", ["conv2d", "linear"])
def test_fused_sum_round_trips(base: str, shape: Shape) -> None:
    lowered = alone(OpSpec(f"{base}+add+relu", shape, shape), 2)
    imported = round_trip(lowered)
    assert [node.op.kind for node in imported] == [base, "add+relu"]
    assert [node.op.kind for node in fuse(imported, "float32")] == [lowered[0].op.kind]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("lowered", NETWORKS.values(), ids=NETWORKS)
def test_network_round_trips(lowered: Graph, batch: int) -> None:
    lowered = Graph.of(replace(node, op=replace(node.op, batch=batch)) for node in lowered)
    imported = round_trip(lowered)
    assert [node.name for node in imported] == [node.name for node in lowered]
    assert [node.inputs for node in imported] == [node.inputs for node in lowered]


def export(module: torch.nn.Module, opset: int, **options: Any) -> bytes:
    example = torch.zeros(1, 3, SIDE, SIDE)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the exporter itself
        path = Path(folder, "model.onnx")
        torch.onnx.export(module, (example,), path, opset_version=opset, dynamo=False, **options)
        return path.read_bytes()


def outputs(module: torch.nn.Module, x: NDArray[np.float32]) -> NDArray[np.float32]:
    with torch.no_grad():
        result: NDArray[np.float32] = module(torch.from_numpy(x)).numpy()
    return result


# From a comparison in torch's nn.MultiheadAttention.
tracing_is_no_error = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
# Layer norms require opset 17, attention opset 14.
EXPORTS = [
    (name, opset)
    for name in MODELS
    for opset in (13, 17)
    if opset == 17 or not name.startswith(("transformer", "convnext"))
]


@tracing_is_no_error
@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize(("name", "opset"), EXPORTS)
def test_imported_export_matches_torch(name: str, opset: int, is_dynamic: bool) -> None:
    module, x = model(name), images((3, SIDE, SIDE))
    options = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}} if is_dynamic else {}
    exported = export(module, opset, **options)
    result = run(*import_onnx(exported), x)
    expected = outputs(module, x)
    if not is_dynamic:
        np.testing.assert_allclose(OrtSession(exported).run(x), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    assert np.ptp(expected) > 0.1


@tracing_is_no_error
def test_exported_batch_norm_is_folded() -> None:
    module = model("resnet")
    mode = torch.onnx.TrainingMode.PRESERVE
    exported = export(module, 17, training=mode, do_constant_folding=False)
    kinds = [node.op_type for node in onnx.load_from_string(exported).graph.node]
    assert kinds.count("BatchNormalization") == 6
    lowered, weights = import_onnx(exported)
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
    lowered, _ = import_onnx(export(model("mobilenet v3"), 17))
    names = [node.name for node in lowered]
    assert names[:3] == ["0", "3.layers.0", "3.layers.3"]
    assert {"3.layers.6.fc1", "3.layers.6.fc2", "3.layers.7", "8"} <= {*names}


def test_foreign_network_is_compiled_by_tvm(tmp_path: Path) -> None:
    from hwnas.hardware.backends.tvm.engine import LocalDevice, TvmEngine
    from tests.hardware.runtimes.rpc_lab import HOST

    module, x = model("transformer by hand"), images((3, SIDE, SIDE))
    lowered, weights = import_onnx(export(module, 17))
    lowered = fuse(lowered, "float32")
    engine = TvmEngine(HOST, LocalDevice(1))
    plans = {node.op: engine.plans(node.op, 1)[0] for node in lowered}
    files = {}
    for suffix, content in engine.export(lowered, plans, weights).items():
        files[suffix] = tmp_path / f"network{suffix}"
        files[suffix].write_bytes(content)
    result = engine.open(files).session.run(x)
    np.testing.assert_allclose(result, outputs(module, x), rtol=1e-4, atol=1e-4)


class FaultyAttention(torch.nn.Module):
    """Attention with a fault."""

    def __init__(self, fault: str):
        super().__init__()
        self.fault = fault
        self.qkv = torch.nn.Conv2d(3, 24, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).reshape(1, 3, 2, 4, -1).transpose(-1, -2).unbind(1)
        if self.fault == "order":
            q, k = k, q
        scores: torch.Tensor = q @ k.transpose(-1, -2) * (0.7 if self.fault == "scale" else 0.5)
        if self.fault == "no values":
            return scores
        if self.fault == "mask":
            scores = scores + torch.ones(SIDE**2, SIDE**2).tril()
        shares = scores.softmax(-2 if self.fault == "axis" else -1)
        mixed = shares * (2 if self.fault == "shares" else 1) @ v
        out: torch.Tensor = mixed.transpose(-1, -2).reshape(1, -1, SIDE, SIDE)
        return out


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("scale", "scaled by 0.7. Allowed: all three computed by one layer, in this order"),
        ("order", "Allowed: all three computed by one layer, in this order"),
        ("mask", "not a number for each pixel or token"),
        ("axis", "over the last axis of products of queries and keys"),
        ("shares", r"\(MatMul(_\d)?\): is a product of "),
        ("no values", "a product of two tensors is only supported as a part of attention"),
    ],
)
def test_faulty_attention_is_refused(fault: str, message: str) -> None:
    import_onnx(export(FaultyAttention(""), 17))
    with pytest.raises(CompileError, match=message):
        import_onnx(export(FaultyAttention(fault), 17))
