"""Reader of ONNX files of ``onnx.writer``, and conversion of their boundary tensors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from hwnas.core.errors import CompileError
from hwnas.models.graph import INPUT, Graph, Node
from hwnas.models.int8.quantised_network import (
    QuantisationScale,
    QuantisedNetwork,
    QuantisedOp,
    QuantisedWeights,
    Weights,
    int8_tensors,
    needs_inner,
)

_Constants = Mapping[str, NDArray[Any]]
BOUNDARY = "activation"  #: name of the tensor between head and tail
_UNUSED = QuantisationScale(1.0, 0)  # of float32 tensors


def read_fp32(model: bytes, graph: Graph) -> Weights:
    """Return weight and bias by operator from a file of ``writer.write_fp32``.

    Args:
        model: The content of the file.
        graph: The graph of the network.

    Raises:
        CompileError: if the file is not valid ONNX, or of another network.
    """
    constants = _constants(model)
    return {node.name: _read_parameters(constants, node) for node in graph if node.op.n_params}


def read_int8(model: bytes, graph: Graph) -> QuantisedNetwork:
    """Return the network of a file of ``writer.write_int8``; arguments as of ``read_fp32``.

    Raises:
        CompileError: if the file is not valid ONNX, or of another network.
    """
    constants, in_int8 = _constants(model), int8_tensors(graph)

    def scale(name: str) -> QuantisationScale:
        return _scale(constants, name) if name in in_int8 else _UNUSED

    ops = []
    for node in graph:
        weights = None if node.in_float else _weights(constants, node)
        real = _read_parameters(constants, node) if node.in_float and node.op.n_params else None
        is_inner = needs_inner(node.op) and not node.in_float
        inner = _scale(constants, f"{node.name}/inner") if is_inner else None
        ops.append(QuantisedOp(node, weights, scale(node.name), inner, real))
    return QuantisedNetwork(graph[0].op.in_shape, scale(INPUT), tuple(ops), graph.outputs)


def with_uint8_output(model: bytes) -> bytes:
    """Return the ONNX model with a uint8 output: without the last dequantisation.

    It must be an int8 network of ``writer.write_int8``.
    """
    loaded = onnx.load_model_from_string(model)
    graph = loaded.graph
    nodes = {output: node for node in graph.node for output in node.output}
    last = nodes[graph.output[-1].name]
    real = nodes[last.input[0]]
    last.input[0] = real.input[0]
    if not any(real.output[0] in node.input for node in graph.node):
        graph.node.remove(real)
    return _as_bytes(loaded, graph.output[-1])


def with_uint8_input(model: bytes) -> bytes:
    """Return an int8 model of ``writer.write_int8`` with a uint8 input, without first quantisation.

    The input is the output of a model from ``with_uint8_output``.
    """
    loaded = onnx.load_model_from_string(model)
    graph, name = loaded.graph, loaded.graph.input[0].name
    (quantise,) = (node for node in graph.node if name in node.input)
    for node in graph.node:
        for i, tensor in enumerate(node.input):
            if tensor == quantise.output[0]:
                node.input[i] = name
    graph.node.remove(quantise)
    return _as_bytes(loaded, graph.input[0])


def rename_boundary(model: bytes, *, is_head: bool) -> bytes:
    """Return the ONNX model with its last output (of a head) or its input renamed ``BOUNDARY``.

    Head and tail are the first and the second part of a split network.
    """
    loaded = onnx.load_model_from_string(model)
    graph = loaded.graph
    value = graph.output[-1] if is_head else graph.input[0]
    for node in graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name == value.name:
                    names[i] = BOUNDARY
    value.name = BOUNDARY
    return bytes(loaded.SerializeToString(deterministic=True))


def _as_bytes(loaded: Any, value: Any) -> bytes:
    value.type.tensor_type.elem_type = TensorProto.UINT8
    onnx.checker.check_model(loaded)
    return bytes(loaded.SerializeToString(deterministic=True))


def _constants(model: bytes) -> _Constants:
    try:
        graph = onnx.load_model_from_string(model).graph
    except Exception as error:  # protobuf errors have no common class
        raise CompileError(
            f"This is not valid ONNX: {' '.join(str(error).split())}. Export the network again."
        ) from None
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}


def _constant(constants: _Constants, name: str) -> NDArray[Any]:
    if name not in constants:
        raise CompileError(
            f"This ONNX file is of another network: it has no constant '{name}'. Export the "
            "network again."
        )
    return constants[name]


def _scale(constants: _Constants, name: str) -> QuantisationScale:
    zero = int(_constant(constants, f"{name}/zero_point")) - 128  # see write_int8
    return QuantisationScale(float(_constant(constants, f"{name}/scale")), zero)


def _weights(constants: _Constants, node: Node) -> QuantisedWeights | None:
    if not node.op.n_params:
        return None
    weight, bias = _read_parameters(constants, node)
    scales = np.atleast_1d(_constant(constants, f"{node.name}/weight/scale"))
    return QuantisedWeights(weight, scales, bias)


def _read_parameters(constants: _Constants, node: Node) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return weight and bias of an operator."""
    weight, bias = (_constant(constants, f"{node.name}/{part}") for part in ("weight", "bias"))
    return weight, bias
