"""Importer of ONNX models of any exporter, to be compiled and timed like networks of hwnas.

Nothing is approximated: nodes that do not equal operators of ``OpSpec`` are refused.
"""

from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from hwnas.core.errors import CompileError
from hwnas.models.graph import Graph
from hwnas.models.int8.quantised_network import Weights
from hwnas.models.onnx.import_graph import ImportedTensor, OnnxNode, parse, samples
from hwnas.models.onnx.import_network import WEIGHTED, ImportedNetwork
from hwnas.models.onnx.import_operators import OPERATORS

_OF_CONSTANTS = {  # evaluated on import, mostly for shapes
    "Abs", "Add", "And", "Cast", "Ceil", "Concat", "Constant", "ConstantOfShape", "Div", "Equal",
    "Expand", "Floor", "Gather", "Greater", "Identity", "Less", "Max", "Min", "Mod", "Mul", "Neg",
    "Not", "Or", "Pow", "Range", "ReduceProd", "Reshape", "Shape", "Size", "Slice", "Split", "Sqrt",
    "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip
_MOVES = {
    "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose",
    "Unsqueeze",
}  # fmt: skip
_ARITHMETIC = {"Add", "Div", "Mul", "Sub"}
_FUNCTIONS = {  # elementwise: activations and their parts
    "Clip", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Max", "Min", "Neg", "Pow",
    "Reciprocal", "Relu", "Sigmoid", "Swish", *_ARITHMETIC,
}  # fmt: skip


def import_onnx(model: bytes) -> tuple[Graph, Weights]:
    """Return the float32 graph of an ONNX model, and weight and bias of its operators by name.

    The batch size is the model's, or 1 if that is free. Batch norm, scales and shifts are folded,
    and activations are fused, into the operator before them.

    Args:
        model: Content of an ``.onnx`` file of opset 7 or more, exported for inference.

    Raises:
        CompileError: if the file is invalid, or a node is not supported; the message names it.
    """
    graph = parse(model)
    network = ImportedNetwork(graph)
    for node in graph.nodes:
        try:
            _add(network, node)
        except CompileError:
            raise
        except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise node.refused(f"cannot be imported: {reason}") from None
    return network.finish()


def _add(network: ImportedNetwork, node: OnnxNode) -> None:
    """Add the outputs of a node to the network."""
    names = [name for name in node.inputs if name]
    tensors = {name: network.values[name] for name in names if name in network.values}
    known = {name: network.constants[name] for name in names if name in network.constants}
    missing = [name for name in names if name not in tensors and name not in known]
    if missing:
        raise node.refused(f"reads the tensor '{missing[0]}', which no node before it computes")
    if node.kind in _OF_CONSTANTS and not tensors:
        network.constants.update(_outputs(node, node.evaluate(known)))
    elif node.kind in ("Shape", "Size") and tensors:
        network.constants.update(_outputs(node, node.evaluate(_positions(tensors))))
    elif node.kind == "Dropout" and tensors and not any(known[n] for n in names[2:]):
        network.values[node.outputs[0]] = tensors[names[0]]
    elif node.kind in _MOVES and list(tensors) == names[:1]:
        network.values.update(_move(node, tensors[names[0]], known))
    else:
        network.values[node.outputs[0]] = _compute(network, node, tensors, known)


def _outputs(node: OnnxNode, arrays: list[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return dict(zip([name for name in node.outputs if name], arrays, strict=True))


def _positions(tensors: dict[str, ImportedTensor]) -> dict[str, NDArray[Any]]:
    return {name: value.positions for name, value in tensors.items()}


def _move(
    node: OnnxNode, value: ImportedTensor, known: dict[str, NDArray[Any]]
) -> dict[str, ImportedTensor]:
    """Return outputs that are moved elements of a value."""
    if node.kind == "Gather" and any(array.size != 1 for array in known.values()):
        raise node.refused("has several indices; allowed: one")
    arrays = node.evaluate({node.inputs[0]: value.positions, **known})
    return {name: replace(value, positions=a) for name, a in _outputs(node, arrays).items()}


def _compute(
    network: ImportedNetwork,
    node: OnnxNode,
    tensors: dict[str, ImportedTensor],
    known: dict[str, NDArray[Any]],
) -> ImportedTensor:
    """Return the output of a node that computes new values."""
    if node.kind in _FUNCTIONS and tensors:
        value = _function(network, node, tensors, known)
        if value is not None:
            return value
    if node.kind not in OPERATORS or not tensors:
        allowed = ", ".join(sorted({*OPERATORS, *_FUNCTIONS, *_MOVES, "Dropout"}))
        raise node.refused(f"is not supported; allowed: {allowed}")
    return OPERATORS[node.kind](network, node)


def _function(
    network: ImportedNetwork,
    node: OnnxNode,
    tensors: dict[str, ImportedTensor],
    known: dict[str, NDArray[Any]],
) -> ImportedTensor | None:
    """Return the output of an elementwise function of one tensor, if the node is one."""
    first = next(iter(tensors.values()))
    same = all(v.source == first.source and v.same_positions(first) for v in tensors.values())
    numbers = all(a.size == 1 and a.ndim <= first.positions.ndim for a in known.values())
    of_one = known or len(node.inputs) == 1 or any(v.curve is not None for v in tensors.values())
    if not same or not numbers or not of_one or _is_bias(network, node, tensors):
        return None
    feeds = {name: samples() if v.curve is None else v.curve for name, v in tensors.items()}
    curve = node.evaluate({**feeds, **{name: array.reshape(()) for name, array in known.items()}})
    return replace(first, curve=curve[0], by=str(node))


def _is_bias(network: ImportedNetwork, node: OnnxNode, tensors: dict[str, ImportedTensor]) -> bool:
    """Return True if a scalar is the bias of an operator of one channel, not a function."""
    ((name, value), *more) = tensors.items()
    plain = value.curve is None and network.reads[name] == 1 and not more
    weighted = value.shape[1] == 1 and network.kinds[value.source] in WEIGHTED
    return plain and weighted and node.kind in _ARITHMETIC
