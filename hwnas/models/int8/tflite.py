"""Writer of int8 networks as TFLite flatbuffers (NHWC, batch 1)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, final

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from hwnas.core.errors import CompileError
from hwnas.models.graph import INPUT, Node, OpSpec, padding
from hwnas.models.int8.quantised_network import (
    QuantisationScale,
    QuantisedNetwork,
    QuantisedOp,
    QuantisedWeights,
    is_identity_mean,
    needs_inner,
)


def trim_kernel(quantised: QuantisedOp) -> QuantisedOp:
    """Return a convolution with the smallest kernel that has the same result.

    Other operators are returned as they are.

    On a single pixel, eight weights of a 3x3 convolution are multiplied by padding zeros. Compilers
    store and compute them nevertheless; without them the result is bit-identical.
    """
    op, weights = quantised.node.op, quantised.weights
    if op.base != "conv2d" or weights is None:
        return quantised
    kernel, stride = _smallest_window(op)
    if kernel == op.kernel:
        return quantised
    first = op.padding - padding(kernel, stride)
    window = slice(first, first + kernel)
    return replace(
        quantised,
        node=replace(quantised.node, op=replace(op, kernel=kernel, stride=stride)),
        weights=replace(weights, weight=weights.weight[:, :, window, window]),
    )


def _smallest_window(op: OpSpec) -> tuple[int, int]:
    """Return kernel and stride of the smallest equivalent square window."""
    (_, height, width), side = op.in_shape, max(op.in_shape[1:])
    if not op.padding or op.kernel % 2 == 0:
        return op.kernel, op.stride
    if side == 1:
        return 1, 1
    if op.stride == 1:
        return min(op.kernel, 2 * side - 1), 1
    if height == width == op.stride == 2:
        return 2, 2  # a single window, starting at the first pixel
    return op.kernel, op.stride


_OP = schema.BuiltinOperator
_OPTIONS = schema.BuiltinOptions
_ACTIVATIONS = {
    "relu6": schema.ActivationFunctionType.RELU6,
    "relu": schema.ActivationFunctionType.RELU,
}
#: Operations that can be fused; ``hardsigmoid`` is a clip after layers with weights.
_FUSED = {
    "conv2d": {"bn", "relu", "relu6", "hardswish", "hardsigmoid"},
    "linear": {"relu", "relu6", "hardswish", "hardsigmoid"},
    "add": {"relu", "relu6"},
    "mul": {"relu", "relu6"},
}
# The operator versions that introduced int8, as the TFLite converter writes them.
_VERSIONS = {
    _OP.CONV_2D: 3,
    _OP.DEPTHWISE_CONV_2D: 3,
    _OP.FULLY_CONNECTED: 4,
    _OP.ADD: 2,
    _OP.MEAN: 2,
    _OP.PAD: 2,
    _OP.MUL: 2,
    _OP.MAX_POOL_2D: 2,
    _OP.HARD_SWISH: 1,
    _OP.RESHAPE: 1,
}


def check_writable(graph: Sequence[Node]) -> None:
    """Check that ``write_tflite`` can write all operators of a network.

    Raises:
        CompileError: if it cannot write one.
    """
    kinds = {node.name: node.op for node in graph}
    for node in graph:
        op, (c, h, w) = node.op, node.op.out_shape
        fits = {
            "conv2d": op.groups == 1 or op.groups == c == op.in_shape[0],
            "linear": (h, w) == (1, 1),
            "add": True,
            "mul": True,
            "mean": True,
            # Zero padding equals the minimum only after a relu.
            "max_pool2d": op.padding == 0
            or (
                (source := kinds.get(node.inputs[0])) is not None
                and source.activation in ("relu", "relu6")
            ),
        }
        if not fits.get(op.base, False) or {*op.fused} - _FUSED.get(op.base, set()):
            raise CompileError(
                f"Operator '{node.name}' cannot be written for the NPU: {op}. Allowed: "
                "convolutions, dense or depthwise, and linear layers on one pixel, with relu, "
                "relu6, hardswish or hardsigmoid; add and mul with relu or relu6; mean; max_pool2d "
                "without padding, or after relu or relu6. Choose another search space or target."
            )


def write_tflite(network: QuantisedNetwork) -> bytes:
    """Return the content of a ``.tflite`` file of batch size 1; it is deterministic.

    Raises:
        CompileError: if an operator cannot be written.
    """
    check_writable([op.node for op in network.ops])
    c, h, w = network.input_shape
    model = _TfliteModel()
    tensors = {INPUT: model.activation(INPUT, (1, h, w, c), network.input)}
    scales = {INPUT: network.input}
    for op in network.ops:
        inputs = [tensors[name] for name in op.node.inputs]
        tensors[op.node.name] = _add(model, trim_kernel(op), inputs, scales[op.node.inputs[0]])
        scales[op.node.name] = op.out
    return model.pack(tensors[INPUT], [tensors[name] for name in network.output_names])


def _add(
    model: "_TfliteModel", quantised: QuantisedOp, inputs: list[int], in_scale: QuantisationScale
) -> int:
    """Append an operator with its fused operations; return the index of its output tensor."""
    op, name = quantised.node.op, quantised.node.name
    c, h, w = op.out_shape
    shape = (1, c) if op.base in ("linear", "mean") else (1, h, w, c)
    if not needs_inner(op):
        out = model.activation(name, shape, quantised.out)
        _add_plain(model, quantised, inputs, out, in_scale)
        return out
    assert quantised.inner is not None
    assert op.activation == "hardswish"
    inner = model.activation(f"{name}.inner", shape, quantised.inner)
    _add_plain(model, quantised, inputs, inner, in_scale)
    out = model.activation(name, shape, quantised.out)
    model.operator(_OP.HARD_SWISH, [inner], out, "HardSwishOptions", schema.HardSwishOptionsT())
    return out


def _add_plain(
    model: "_TfliteModel",
    quantised: QuantisedOp,
    inputs: list[int],
    out: int,
    in_scale: QuantisationScale,
) -> None:
    """Append an operator with a clip of its output."""
    op, name = quantised.node.op, quantised.node.name
    clip = _ACTIVATIONS.get(op.activation, 0)
    match op.base:
        case "conv2d":
            _add_conv(model, quantised, inputs[0], out, in_scale)
        case "linear":
            assert quantised.weights is not None
            weight = model.weight(name, quantised.weights.weight, quantised.weights.scales, 0)
            bias = model.bias(name, quantised.weights, in_scale)
            options: Any = schema.FullyConnectedOptionsT()
            options.fusedActivationFunction = clip
            inputs = [inputs[0], weight, bias]
            model.operator(_OP.FULLY_CONNECTED, inputs, out, "FullyConnectedOptions", options)
        case "add":
            options = schema.AddOptionsT()
            options.fusedActivationFunction = clip
            model.operator(_OP.ADD, inputs, out, "AddOptions", options)
        case "mul":
            options = schema.MulOptionsT()
            options.fusedActivationFunction = clip
            model.operator(_OP.MUL, inputs, out, "MulOptions", options)
        case "mean" if is_identity_mean(op) and quantised.out == in_scale:
            options = schema.ReshapeOptionsT()
            options.newShape = shape = np.array([1, op.out_shape[0]], np.int32)
            inputs = [inputs[0], model.constant(f"{name}.shape", shape)]
            model.operator(_OP.RESHAPE, inputs, out, "ReshapeOptions", options)
        case "mean":
            axes = model.constant(f"{name}.axes", np.array([1, 2], np.int32))
            inputs = [inputs[0], axes]
            model.operator(_OP.MEAN, inputs, out, "ReducerOptions", schema.ReducerOptionsT())
        case "max_pool2d":
            options = schema.Pool2DOptionsT()
            x = _add_padding(model, quantised, inputs[0], in_scale, options)
            options.filterHeight = options.filterWidth = op.kernel
            model.operator(_OP.MAX_POOL_2D, [x], out, "Pool2DOptions", options)
        case _:
            raise AssertionError(f"{op.kind} was not refused")


def _add_conv(
    model: "_TfliteModel", quantised: QuantisedOp, x: int, out: int, in_scale: QuantisationScale
) -> None:
    op, name, weights = quantised.node.op, quantised.node.name, quantised.weights
    assert weights is not None
    if op.depthwise:
        options: Any = schema.DepthwiseConv2DOptionsT()
        options.depthMultiplier = 1
        layout, axis = weights.weight.transpose(1, 2, 3, 0), 3
    else:
        options = schema.Conv2DOptionsT()
        layout, axis = weights.weight.transpose(0, 2, 3, 1), 0
    x = _add_padding(model, quantised, x, in_scale, options)
    options.dilationHFactor = options.dilationWFactor = 1
    options.fusedActivationFunction = _ACTIVATIONS.get(op.activation, 0)
    code = _OP.DEPTHWISE_CONV_2D if op.depthwise else _OP.CONV_2D
    kind = "DepthwiseConv2DOptions" if op.depthwise else "Conv2DOptions"
    weight = model.weight(name, layout, weights.scales, axis)
    model.operator(code, [x, weight, model.bias(name, weights, in_scale)], out, kind, options)


def _add_padding(
    model: "_TfliteModel", quantised: QuantisedOp, x: int, in_scale: QuantisationScale, options: Any
) -> int:
    """Set strides and padding of an operator on windows; return what it reads."""
    op = quantised.node.op
    same = _is_same(op)
    options.padding = schema.Padding.SAME if same else schema.Padding.VALID
    options.strideH = options.strideW = op.stride
    return x if same or not op.padding else _add_pad(model, quantised, x, in_scale)


def _is_same(op: OpSpec) -> bool:
    """Whether ``op.padding`` on every side is what TFLite's SAME padding does.

    SAME pads an even side less at its start when the stride is 2.
    """
    return op.kernel == 1 or all(
        max((-(-size // op.stride) - 1) * op.stride + op.kernel - size, 0) == 2 * op.padding
        for size in op.in_shape[1:]
    )


def _add_pad(
    model: "_TfliteModel", quantised: QuantisedOp, x: int, scale: QuantisationScale
) -> int:
    """Append an explicit padding, which compilers fold into the convolution."""
    op, name = quantised.node.op, quantised.node.name
    (c, h, w), p = op.in_shape, op.padding
    pads = model.constant(f"{name}.pads", np.array([[0, 0], [p, p], [p, p], [0, 0]], np.int32))
    padded = model.activation(f"{name}.padded", (1, h + 2 * p, w + 2 * p, c), scale)
    model.operator(_OP.PAD, [x, pads], padded, "PadOptions", schema.PadOptionsT())
    return padded


@final
class _TfliteModel:
    """The tables of one TFLite model under construction."""

    def __init__(self) -> None:
        self._tensors: list[Any] = []
        self._buffers: list[Any] = [schema.BufferT()]  # buffer 0 is empty by convention
        self._operators: list[Any] = []
        self._codes: list[int] = []

    def activation(self, name: str, shape: tuple[int, ...], scale: QuantisationScale) -> int:
        scales, zero = np.array([scale.scale], np.float32), scale.zero_point
        return self._tensor(name, shape, schema.TensorType.INT8, _quantisation(scales, zero))

    def weight(
        self, name: str, data: NDArray[np.int8], scales: NDArray[np.float32], axis: int
    ) -> int:
        quantisation = _quantisation(scales, 0, axis if len(scales) > 1 else 0)
        kind = schema.TensorType.INT8
        return self._tensor(f"{name}.weight", data.shape, kind, quantisation, data)

    def bias(self, name: str, weights: QuantisedWeights, in_scale: QuantisationScale) -> int:
        quantisation = _quantisation(weights.scales * np.float32(in_scale.scale), 0)
        kind, data = schema.TensorType.INT32, weights.bias
        return self._tensor(f"{name}.bias", data.shape, kind, quantisation, data)

    def constant(self, name: str, data: NDArray[np.int32]) -> int:
        return self._tensor(name, data.shape, schema.TensorType.INT32, None, data)

    def operator(
        self, code: int, inputs: list[int], out: int, options_type: str, options: Any
    ) -> None:
        if code not in self._codes:
            self._codes.append(code)
        operator = schema.OperatorT()
        operator.opcodeIndex = self._codes.index(code)
        operator.inputs = np.array(inputs, np.int32)
        operator.outputs = np.array([out], np.int32)
        operator.builtinOptionsType = getattr(_OPTIONS, options_type)
        operator.builtinOptions = options
        self._operators.append(operator)

    def pack(self, first: int, answered: Sequence[int]) -> bytes:
        subgraph = schema.SubGraphT()
        subgraph.name = b"main"
        subgraph.tensors, subgraph.operators = self._tensors, self._operators
        subgraph.inputs = np.array([first], np.int32)
        subgraph.outputs = np.array(answered, np.int32)
        model = schema.ModelT()
        model.version = 3
        model.description = b"hwnas"
        model.subgraphs, model.buffers = [subgraph], self._buffers
        model.operatorCodes = [_operator_code(code) for code in self._codes]
        builder = flatbuffers.Builder(1 << 20)
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
        return bytes(builder.Output())

    def _tensor(
        self,
        name: str,
        shape: tuple[int, ...],
        kind: int,
        quantisation: Any,
        data: NDArray[Any] | None = None,
    ) -> int:
        tensor = schema.TensorT()
        tensor.name, tensor.type = name.encode(), kind
        tensor.shape = np.array(shape, np.int32)
        tensor.quantization = quantisation
        tensor.buffer = 0
        if data is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            self._buffers.append(buffer)
            tensor.buffer = len(self._buffers) - 1
        self._tensors.append(tensor)
        return len(self._tensors) - 1


def _quantisation(scales: NDArray[np.float32], zero_point: int, axis: int = 0) -> Any:
    quantisation = schema.QuantizationParametersT()
    quantisation.scale = scales.astype(np.float32)
    quantisation.zeroPoint = np.full(scales.shape, zero_point, np.int64)
    quantisation.quantizedDimension = axis
    return quantisation


def _operator_code(code: int) -> Any:
    entry = schema.OperatorCodeT()
    entry.builtinCode, entry.version = code, _VERSIONS[code]
    entry.deprecatedBuiltinCode = min(code, 127)
    return entry
