"""Reads back the ONNX files that ``onnx_writer`` wrote, and passes on int8 tensors as bytes."""

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
    needs_inner,
    through_int8,
)
from hwnas.models.parameters import Weights

_Constants = Mapping[str, NDArray[Any]]
PASSED = "activation"  #: what a head answers and its tail reads
_UNUSED = QuantisationScale(1.0, 0)  # of tensors that are in float alone


def read_fp32(model: bytes, lowered: Graph) -> Weights:
    """Return weight and bias by operator of a file that ``write_fp32`` wrote.

    Args:
        model: The bytes of the file.
        lowered: Its operators; only those that have weights are read.

    Raises:
        CompileError: it is of another network.
    """
    constants = _constants(model)
    return {node.name: _written(constants, node) for node in lowered if node.op.n_params}


def read_int8(model: bytes, lowered: Graph) -> QuantisedNetwork:
    """Return the network of a file that ``write_int8`` wrote.

    Args:
        model: The bytes of the file.
        lowered: Its operators.

    Raises:
        CompileError: it is of another network.
    """
    constants, through = _constants(model), through_int8(lowered)

    def scale(name: str) -> QuantisationScale:
        return _scale(constants, name) if name in through else _UNUSED

    ops = []
    for node in lowered:
        weights = None if node.in_float else _weights(constants, node)
        real = _written(constants, node) if node.in_float and node.op.n_params else None
        is_inner = needs_inner(node.op) and not node.in_float
        inner = _scale(constants, f"{node.name}/inner") if is_inner else None
        ops.append(QuantisedOp(node, weights, scale(node.name), inner, real))
    return QuantisedNetwork(lowered[0].op.in_shape, scale(INPUT), tuple(ops), lowered.outputs)


def answering_bytes(model: bytes) -> bytes:
    """Return an int8 network that answers its last output as uint8, before it is made real."""
    loaded = onnx.load_model_from_string(model)
    graph = loaded.graph
    nodes = {output: node for node in graph.node for output in node.output}
    last = nodes[graph.output[-1].name]
    real = nodes[last.input[0]]
    last.input[0] = real.input[0]
    if not any(real.output[0] in node.input for node in graph.node):
        graph.node.remove(real)
    return _as_bytes(loaded, graph.output[-1])


def reading_bytes(model: bytes) -> bytes:
    """Return an int8 network that reads uint8, what ``answering_bytes`` answers."""
    loaded = onnx.load_model_from_string(model)
    graph, name = loaded.graph, loaded.graph.input[0].name
    (quantise,) = (node for node in graph.node if name in node.input)
    for node in graph.node:
        for i, read in enumerate(node.input):
            if read == quantise.output[0]:
                node.input[i] = name
    graph.node.remove(quantise)
    return _as_bytes(loaded, graph.input[0])


def passing(model: bytes, *, answers: bool) -> bytes:
    """Return a part whose last output, or else its input, is called ``PASSED``."""
    loaded = onnx.load_model_from_string(model)
    graph = loaded.graph
    value = graph.output[-1] if answers else graph.input[0]
    for node in graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                if name == value.name:
                    names[i] = PASSED
    value.name = PASSED
    return bytes(loaded.SerializeToString(deterministic=True))


def _as_bytes(loaded: Any, value: Any) -> bytes:
    value.type.tensor_type.elem_type = TensorProto.UINT8
    onnx.checker.check_model(loaded)
    return bytes(loaded.SerializeToString(deterministic=True))


def _constants(model: bytes) -> _Constants:
    try:
        graph = onnx.load_model_from_string(model).graph
    except Exception as error:  # protobuf's have no common one
        raise CompileError(f"This is not valid ONNX: {error}") from None
    return {each.name: numpy_helper.to_array(each) for each in graph.initializer}


def _of(constants: _Constants, name: str) -> NDArray[Any]:
    if name not in constants:
        raise CompileError(f"This ONNX file is of another network: it has no '{name}'.")
    return constants[name]


def _scale(constants: _Constants, name: str) -> QuantisationScale:
    zero = int(_of(constants, f"{name}/zero_point")) - 128  # see write_int8
    return QuantisationScale(float(_of(constants, f"{name}/scale")), zero)


def _weights(constants: _Constants, node: Node) -> QuantisedWeights | None:
    if not node.op.n_params:
        return None
    weight, bias = _written(constants, node)
    scales = np.atleast_1d(_of(constants, f"{node.name}/weight/scale"))
    return QuantisedWeights(weight, scales, bias)


def _written(constants: _Constants, node: Node) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return weight and bias as they are written."""
    weight, bias = (_of(constants, f"{node.name}/{part}") for part in ("weight", "bias"))
    return weight, bias
