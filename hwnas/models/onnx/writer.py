"""Writer of ONNX models in float32, or in int8 with quantised tensors (QDQ).

ONNX nodes have the name of their operator as prefix (``stem``, ``stem/relu6``), and the metadata
lists the operators, so that profiles can be mapped back. Values are images ``(N, C, H, W)`` or, for
linear layers, rows ``(N * H * W, C)``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from hwnas.core.errors import CompileError
from hwnas.models.graph import ACTIVATIONS, BASES, INPUT, Graph, Node, OpSpec, Shape
from hwnas.models.int8.quantised_network import (
    QuantisationScale,
    QuantisedNetwork,
    QuantisedOp,
    Weights,
    int8_tensors,
    needs_inner,
)
from hwnas.models.onnx import BATCH, OPERATORS, THREADS

#: Names of the input, normalised images ``(N, C, H, W)``, and of the last output. Outputs of exits
#: have the names of their operators.
IMAGES, LOGITS = "images", "logits"

OPSET, _IR_VERSION = 23, 11  #: the first with Attention
_EPSILON = 1e-5  # of layer normalisation in torch
_INSIDE = ("layernorm", "attention")  # have inner tensors without a scale
_ACTIVATIONS = {
    "relu": "Relu",
    "hardswish": "HardSwish",
    "sigmoid": "Sigmoid",
    "gelu": "Gelu",
}


def write_fp32(graph: Graph, weights: Weights, *, any_batch: bool = False) -> bytes:
    """Return the content of an ``.onnx`` file of a float32 network.

    Args:
        graph: The graph, fused or not; its first operator has the batch size.
        weights: Weight (in torch's layout) and bias by operator; scale and shift of a layer norm.
        any_batch: Allow any batch size instead of that of the graph.

    Raises:
        CompileError: if an operator cannot be written, or its weights are missing.
    """
    model = _OnnxModel(BATCH if any_batch else graph[0].op.batch, graph[0].op.threads)
    values = {INPUT: _Value(IMAGES, graph[0].op.in_shape)}
    for node in graph:
        inputs = [values[name] for name in node.inputs]
        values[node.name] = model.operator(node, inputs, _parameters(model, node, weights))
    return model.serialised(graph, values)


def write_int8(
    network: QuantisedNetwork,
    *,
    any_batch: bool = False,
    batch: int | None = None,
    threads: int = 0,
) -> bytes:
    """Return the content of an ``.onnx`` file of an int8 network with float input and output.

    Every int8 tensor is quantised and dequantised (QDQ), which runtimes fuse into int8 operators.
    Activations are uint8, with values 128 higher: onnxruntime converts int8 to uint8 on x86-64 and
    then does not fuse residual blocks, which takes a third longer.

    Args:
        network: The network.
        any_batch: Allow any batch size, whatever ``batch`` is.
        batch: Batch size; default: that of the first operator.
        threads: Number of threads in the metadata; 0: that of the first operator.

    Raises:
        CompileError: if an operator cannot be written in int8.
    """
    graph = Graph(tuple(op.node for op in network.ops), network.output_names)
    check_int8(graph)
    first = graph[0].op
    model = _OnnxModel(BATCH if any_batch else batch or first.batch, threads or first.threads)
    scales = {INPUT: network.input, **{op.node.name: op.out for op in network.ops}}
    in_int8, values = int8_tensors(graph), {INPUT: _Value(IMAGES, network.input_shape)}
    if INPUT in in_int8:
        values[INPUT] = model.quantised(INPUT, values[INPUT], network.input)
    for op in network.ops:
        node, inputs = op.node, [values[name] for name in op.node.inputs]
        if node.in_float:
            weights = {} if op.real is None else {node.name: op.real}
            value = model.operator(node, inputs, _parameters(model, node, weights))
        else:
            parameters = _dequantise(model, op, scales[node.inputs[0]])
            value = model.quantised_operator(op, inputs, parameters)
        if node.name in in_int8:
            value = model.quantised(node.name, value, op.out)
        values[node.name] = value
    return model.serialised(graph, values)


@dataclass(frozen=True)
class _Value:
    """A tensor of the model: an image ``(N, C, H, W)``, or ``rows`` ``(N * H * W, C)``."""

    name: str
    shape: Shape
    rows: bool = False


@final
class _OnnxModel:
    """The nodes and constants of one model under construction."""

    def __init__(self, batch: int | str, threads: int):
        self._batch, self._threads = batch, threads
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def constant(self, name: str, value: Any, dtype: Any) -> str:
        self._constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def node(self, kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        """Append a node; return its output."""
        out = f"{name}:0"
        self._nodes.append(helper.make_node(kind, inputs, [out], name, **attributes))
        return out

    def operator(self, node: Node, inputs: list[_Value], parameters: list[str]) -> _Value:
        """Append an operator with its fused operations; return its output."""
        name, out = node.name, self._base(node, inputs, parameters)
        for part in node.op.fused:
            if part == "add":
                other = self._rows(inputs[-1], f"{name}/other") if out.rows else inputs[-1]
                other = other if out.rows else self._image(other, out.shape, f"{name}/other")
                out = replace(out, name=self.node("Add", [out.name, other.name], f"{name}/add"))
            elif part != "bn":
                out = replace(out, name=self._activation(part, out.name, f"{name}/{part}"))
        return out

    def quantised_operator(
        self, quantised: QuantisedOp, inputs: list[_Value], parameters: list[str]
    ) -> _Value:
        """Append an int8 operator, with a quantised input of its activation if it has a scale."""
        op, name = quantised.node.op, quantised.node.name
        if op.activation == "hardsigmoid" or needs_inner(op):
            plain = replace(op, kind=op.kind.replace(f"+{op.activation}", ""))
            value = self.operator(replace(quantised.node, op=plain), inputs, parameters)
        else:
            value = self.operator(quantised.node, inputs, parameters)
        if quantised.inner is not None:
            inner = self.quantised(f"{name}/inner", value, quantised.inner)
            active = self._activation(op.activation, inner.name, f"{name}/{op.activation}")
            value = replace(inner, name=active)
        return value

    def quantised(self, name: str, value: _Value, scale: QuantisationScale) -> _Value:
        """Return the value after quantisation and dequantisation."""
        s = self.constant(f"{name}/scale", scale.scale, np.float32)
        z = self.constant(f"{name}/zero_point", scale.zero_point + 128, np.uint8)
        uint8 = self.node("QuantizeLinear", [value.name, s, z], f"{name}/quantise")
        real = self.node("DequantizeLinear", [uint8, s, z], f"{name}/dequantise")
        return replace(value, name=real)

    def serialised(self, graph: Graph, values: Mapping[str, _Value]) -> bytes:
        """Return the model; outputs of one pixel have no height and width."""
        names = (*graph.exits, LOGITS)
        outputs = [
            self._output(values[source], name)
            for source, name in zip(graph.outputs, names, strict=True)
        ]
        image = (self._batch, *graph[0].op.in_shape)
        images = helper.make_tensor_value_info(IMAGES, TensorProto.FLOAT, image)
        proto = helper.make_graph(self._nodes, "hwnas", [images], outputs, self._constants)
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(proto, opset_imports=opset, ir_version=_IR_VERSION)
        metadata = {OPERATORS: "\n".join(node.name for node in graph)}
        if self._threads:
            metadata[THREADS] = str(self._threads)
        helper.set_model_props(model, metadata)
        return bytes(model.SerializeToString(deterministic=True))

    def _output(self, value: _Value, name: str) -> Any:
        """Append nodes for shape and name of an output; return its value info."""
        shape: tuple[int | str, ...] = (self._batch, *value.shape)
        # A one-pixel image that is not the last output stays an image for the next segment.
        if value.shape[1:] == (1, 1) and (value.rows or name == LOGITS):
            value, shape = self._rows(value, name), shape[:2]
        else:
            value = self._image(value, value.shape, name)
        self._nodes.append(helper.make_node("Identity", [value.name], [name]))
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    def _base(self, node: Node, inputs: list[_Value], parameters: list[str]) -> _Value:
        """Append an operator without its fused operations."""
        op, name = node.op, node.name
        in_rows = op.base in ("linear", "layernorm", "attention")
        if op.base in ("add", "mean"):
            in_rows = any(value.rows for value in inputs)
        shapes = {"add": [op.in_shape] * 2, "mul": [op.in_shape, (op.in_shape[0], 1, 1)]}
        operands = [
            self._rows(value, f"{name}/in{i}")
            if in_rows
            else self._image(value, shape, f"{name}/in{i}")
            for i, (value, shape) in enumerate(
                zip(inputs, shapes.get(op.base, [op.in_shape]), strict=False)
            )
        ]
        names = [value.name for value in operands]
        match op.base:
            case "conv2d":
                out = self.node("Conv", names + parameters, name, **_window(op), group=op.groups)
            case "linear":
                out = self.node("Gemm", names + parameters, name, transB=1)
            case "add" | "mul":
                out = self.node(op.base.capitalize(), names, name)
            case "mean" if in_rows:
                out = self._mean_of_rows(node, names[0])
            case "mean":
                out = self.node("GlobalAveragePool", names, name)
            case "max_pool2d":
                out = self.node("MaxPool", names, name, **_window(op))
            case "layernorm":
                attributes = {"axis": -1, "epsilon": _EPSILON}
                out = self.node("LayerNormalization", names + parameters, name, **attributes)
            case "attention":
                out = self._attention(node, names[0])
            case _:
                raise CompileError(
                    f"Operator '{name}' cannot be written as ONNX: {op}. Allowed: "
                    f"{', '.join(BASES)}. Choose another search space or target.runtime."
                )
        return _Value(out, op.out_shape, in_rows)

    def _mean_of_rows(self, node: Node, rows: str) -> str:
        c, h, w = node.op.in_shape
        tokens = self._reshape(rows, (h * w, c), f"{node.name}/tokens")
        axes = self.constant(f"{node.name}/axes", [1], np.int64)
        return self.node("ReduceMean", [tokens, axes], node.name, keepdims=0)

    def _attention(self, node: Node, rows: str) -> str:
        name, (c, h, w), heads = node.name, node.op.out_shape, node.op.groups
        tokens = self._reshape(rows, (h * w, 3 * c), f"{name}/tokens")
        parts = [f"{name}/{part}:0" for part in ("query", "key", "value")]
        split = helper.make_node("Split", [tokens], parts, f"{name}/split", axis=2, num_outputs=3)
        self._nodes.append(split)
        mixed = self.node("Attention", parts, name, q_num_heads=heads, kv_num_heads=heads)
        return self._reshape(mixed, (c,), f"{name}/rows", h * w)

    def _activation(self, kind: str, x: str, name: str) -> str:
        match kind:
            case "relu6":
                low = self.constant(f"{name}/low", 0, np.float32)
                return self.node(
                    "Clip", [x, low, self.constant(f"{name}/high", 6, np.float32)], name
                )
            case "hardsigmoid":
                return self.node("HardSigmoid", [x], name, alpha=1 / 6, beta=0.5)
            case "silu":
                return self.node("Mul", [x, self.node("Sigmoid", [x], f"{name}/sigmoid")], name)
        if kind not in _ACTIVATIONS:
            raise CompileError(
                f"Activation '{name}' cannot be written as ONNX: {kind}. Allowed: "
                f"{', '.join(ACTIVATIONS)}. Choose another search space or target.runtime."
            )
        return self.node(_ACTIVATIONS[kind], [x], name)

    def _rows(self, value: _Value, name: str) -> _Value:
        if value.rows:
            return value
        (c, h, w), x = value.shape, value.name
        if (h, w) != (1, 1):
            x = self.node("Transpose", [x], f"{name}/transpose", perm=(0, 2, 3, 1))
        return _Value(self._reshape(x, (c,), name, h * w), value.shape, rows=True)

    def _image(self, value: _Value, shape: Shape, name: str) -> _Value:
        if value.shape == shape and not value.rows:
            return value
        (c, h, w), x = shape, value.name
        if value.rows and (h, w) != (1, 1):
            x = self._reshape(x, (h, w, c), name)
            return _Value(
                self.node("Transpose", [x], f"{name}/transpose", perm=(0, 3, 1, 2)), shape
            )
        return _Value(self._reshape(x, (c, h, w), name), shape)

    def _reshape(self, x: str, shape: tuple[int, ...], name: str, n: int = 1) -> str:
        """Append a reshape to ``n`` rows of a shape per image."""
        first = self._batch * n if isinstance(self._batch, int) else -1
        target = self.constant(f"{name}/shape", (first, *shape), np.int64)
        return self.node("Reshape", [x, target], name)


def _window(op: OpSpec) -> dict[str, list[int]]:
    kernel, stride, padding = [op.kernel] * 2, [op.stride] * 2, [op.padding] * 4
    return {"kernel_shape": kernel, "strides": stride, "pads": padding}


def _parameters(model: _OnnxModel, node: Node, weights: Weights) -> list[str]:
    """Append the weight and bias of an operator, if any; return their names."""
    if not node.op.n_params:
        return []
    if node.name not in weights:
        raise CompileError(
            f"Operator '{node.name}' has no weights: {node.op}. This is an error in hwnas; please "
            "report it."
        )
    weight, bias = weights[node.name]
    return [
        model.constant(f"{node.name}/weight", weight, np.float32),
        model.constant(f"{node.name}/bias", bias, np.float32),
    ]


def check_int8(graph: Graph) -> None:
    """Check that all operators of a graph can be written in int8.

    Raises:
        CompileError: if one cannot.
    """
    for node in graph:
        if node.in_float:
            continue
        message = f"Operator '{node.name}' cannot be written in int8: {node.op}."
        if node.op.base in _INSIDE:
            raise CompileError(
                f"{message} int8 has no {node.op.base}. Set target.dtype=float32, or choose "
                "another search space."
            )
        if node.op.activation == "hardsigmoid" and not node.op.weight_shape:
            raise CompileError(
                f"{message} A hard sigmoid needs weights into which its slope is folded. Use it "
                "after a convolution or a linear layer."
            )
        if "add" in node.op.fused:
            raise CompileError(
                f"{message} Its addition must be a separate operator. This is an error in hwnas; "
                "please report it."
            )


def _dequantise(model: _OnnxModel, op: QuantisedOp, in_scale: QuantisationScale) -> list[str]:
    """Append the dequantised weight and bias of an operator, if any; return their names."""
    if op.weights is None:
        return []
    integers: dict[str, NDArray[Any]] = {"weight": op.weights.weight, "bias": op.weights.bias}
    scales = {"weight": op.weights.scales, "bias": op.weights.scales * np.float32(in_scale.scale)}
    parameters = []
    for part, array in integers.items():
        name = f"{op.node.name}/{part}"
        scale = scales[part] if len(scales[part]) > 1 else scales[part][0]
        inputs = [
            model.constant(name, array, array.dtype),
            model.constant(f"{name}/scale", scale, np.float32),
            model.constant(f"{name}/zero_point", np.zeros(np.shape(scale)), array.dtype),
        ]
        parameters.append(model.node("DequantizeLinear", inputs, f"{name}/dequantise", axis=0))
    return parameters
