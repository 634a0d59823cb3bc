"""The oracle of the TFLite writer: an int8 network as ONNX in QDQ form, run by onnxruntime."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper

from hwnas.int8.network import QuantisedNetwork, QuantisedOp, Scale
from hwnas.op import INPUT

_OPSET = 13


def to_qdq(network: QuantisedNetwork) -> ModelProto:
    """Return the network with float input and output, each tensor quantised and dequantised."""
    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(name: str, value: NDArray[Any]) -> str:
        constants.append(numpy_helper.from_array(value, name))
        return name

    def requantise(name: str, scale: Scale) -> None:
        """``name.real`` to ``name`` by way of int8."""
        s = constant(f"{name}.s", np.array(scale.scale, np.float32))
        z = constant(f"{name}.z", np.array(scale.zero_point, np.int8))
        nodes.append(helper.make_node("QuantizeLinear", [f"{name}.real", s, z], [f"{name}.q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}.q", s, z], [name]))

    def dequantised(name: str, value: NDArray[Any], scales: NDArray[np.float32]) -> str:
        per_channel = len(scales) > 1
        scale = scales if per_channel else scales[0]
        zeros = np.zeros(np.shape(scale), value.dtype)
        inputs = [constant(f"{name}.i", value), constant(f"{name}.s", np.asarray(scale))]
        inputs.append(constant(f"{name}.z", zeros))
        nodes.append(helper.make_node("DequantizeLinear", inputs, [name], axis=0))
        return name

    requantise(INPUT, network.input)
    scales = {INPUT: network.input}
    for op in network.ops:
        name, inputs = op.node.name, list(op.node.inputs)
        if op.weights is not None:
            weight = dequantised(f"{name}.w", op.weights.weight, op.weights.scales)
            in_scale = np.float32(scales[inputs[0]].scale)
            bias = dequantised(f"{name}.b", op.weights.bias, op.weights.scales * in_scale)
            inputs += [weight, bias]
        nodes += _compute(op, inputs, constant)
        requantise(name, op.out)
        scales[name] = op.out
    c, h, w = network.input_shape
    last = network.ops[-1].node
    image = helper.make_tensor_value_info(f"{INPUT}.real", TensorProto.FLOAT, ["n", c, h, w])
    rank = 2 if last.op.base in ("linear", "mean") else 4
    out_shape: list[str | int | None] = ["n"]
    out_shape += last.op.out_shape[: rank - 1]
    logits = helper.make_tensor_value_info(last.name, TensorProto.FLOAT, out_shape)
    graph = helper.make_graph(nodes, "qdq", [image], [logits], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8)
    checker.check_model(model)
    return model


def _compute(
    op: QuantisedOp, inputs: list[str], constant: Callable[[str, NDArray[Any]], str]
) -> list[Any]:
    name, spec = op.node.name, op.node.op
    real = f"{name}.real"
    match spec.base:
        case "conv2d":
            p, bounded = spec.kernel // 2, spec.kind.endswith("relu6")
            attributes: dict[str, Any] = {
                "kernel_shape": [spec.kernel] * 2,
                "strides": [spec.stride] * 2,
                "pads": [p] * 4,
                "group": spec.groups,
            }
            out = f"{name}.acc" if bounded else real
            nodes = [helper.make_node("Conv", inputs, [out], **attributes)]
            if bounded:
                low = constant(f"{name}.low", np.array(0, np.float32))
                high = constant(f"{name}.high", np.array(6, np.float32))
                nodes.append(helper.make_node("Clip", [out, low, high], [real]))
            return nodes
        case "linear":
            return [helper.make_node("Gemm", inputs, [real], transB=1)]
        case "add":
            return [helper.make_node("Add", inputs, [real])]
        case "mean":
            return [helper.make_node("ReduceMean", inputs, [real], axes=[2, 3], keepdims=0)]
    raise NotImplementedError(spec.kind)


def oracle(network: QuantisedNetwork) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """Return onnxruntime's computation of the network; its graph is run as it is written."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = to_qdq(network).SerializeToString()
    session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(images: NDArray[np.float32]) -> NDArray[np.float32]:
        outputs: NDArray[np.float32] = session.run(None, {f"{INPUT}.real": images})[0]
        return outputs

    return run
