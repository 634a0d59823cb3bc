"""The graph under construction while an ONNX model is imported, with folding of its nodes."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hwnas.core.errors import CompileError
from hwnas.models.graph import ACTIVATIONS, BASES, INPUT, Graph, Node, OpSpec
from hwnas.models.int8.quantised_network import Weights
from hwnas.models.onnx import import_graph
from hwnas.models.onnx.import_graph import AttentionScores, ImportedTensor, OnnxGraph, OnnxNode

#: Kinds of nodes that scale and shift channels; their weights are scale and shift.
BATCH_NORM, AFFINE = "bn", "affine"
#: Operators that scales and shifts can be folded into, and activations.
WEIGHTED, ACTIVATED = ("conv2d", "linear", "layernorm"), ("conv2d", "linear", "add", "mul")

ArrayPair = tuple[NDArray[Any], NDArray[Any]]


def fold(
    nodes: Sequence[Node], weights: Mapping[str, ArrayPair], output: str, origin: Mapping[str, str]
) -> tuple[Graph, Weights]:
    """Return the graph that computes an output, and weight and bias of its operators by name.

    Args:
        nodes: Nodes in order of execution: ``BASES``, ``BATCH_NORM``, ``AFFINE``, activations, and
            unused parts of attention.
        weights: Weight and bias by node name.
        output: Name of the output node.
        origin: Description of the ONNX node by node name, for messages.

    Raises:
        CompileError: if a node cannot be folded into an operator.
    """
    needed = _needed_nodes(nodes, output)
    reads = Counter([output, *(source for node in needed for source in node.inputs)])
    folding = _Folding(reads, weights, origin)
    for node in needed:
        folding.add(node)
    return Graph.of(folding.nodes.values()), {
        name: (weight.astype(np.float32), bias.astype(np.float32))
        for name, (weight, bias) in folding.weights.items()
    }


def _needed_nodes(nodes: Sequence[Node], output: str) -> list[Node]:
    names, needed = {output}, []
    for node in reversed(nodes):
        if node.name in names:
            names.update(node.inputs)
            needed.append(node)
    return needed[::-1]


@final
@dataclass
class _Folding:
    """Operators in order of execution, with all other nodes folded into them."""

    reads: Mapping[str, int]
    parameters: Mapping[str, ArrayPair]
    origin: Mapping[str, str]
    nodes: dict[str, Node] = field(default_factory=dict)
    weights: dict[str, ArrayPair] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)  #: operators by folded nodes

    def add(self, node: Node) -> None:
        """Append an operator, or fold it into the one before it."""
        kind = node.op.base
        inputs = tuple(self.renamed.get(source, source) for source in node.inputs)
        if kind in BASES:
            self.nodes[node.name] = replace(node, inputs=inputs)
            if node.name in self.parameters:
                self.weights[node.name] = self.parameters[node.name]
            return
        into = self.nodes.get(inputs[0])
        if into is not None and self.reads[node.inputs[0]] > 1:
            into = None
        if kind in (BATCH_NORM, AFFINE):
            self._scale(node, into)
        elif kind in ACTIVATIONS:
            self._activate(node, into)
        else:
            raise self._error(
                node, "a product of two tensors is only supported as a part of attention"
            )
        assert into is not None
        self.renamed[node.name] = into.name

    def _scale(self, node: Node, into: Node | None) -> None:
        if into is None or into.op.base not in WEIGHTED or into.op.activation:
            raise self._error(
                node, "a scale or shift must follow a convolution, linear layer or layer norm "
                "that nothing else reads"
            )  # fmt: skip
        scale, shift = self.parameters[node.name]
        weight, bias = (array.astype(np.float64) for array in self.weights[into.name])
        rows = scale.reshape(-1, *[1] * (weight.ndim - 1))
        self.weights[into.name] = (weight * rows, bias * scale + shift)
        if node.op.base == BATCH_NORM and into.op.kind == "conv2d":
            self.nodes[into.name] = replace(into, op=replace(into.op, kind="conv2d+bn"))

    def _activate(self, node: Node, into: Node | None) -> None:
        if into is None or into.op.base not in ACTIVATED or into.op.activation:
            raise self._error(
                node, "an activation must follow a convolution, linear layer, sum or gate that "
                "has none and that nothing else reads"
            )  # fmt: skip
        kind = f"{into.op.kind}+{node.op.kind}"
        self.nodes[into.name] = replace(into, op=replace(into.op, kind=kind))

    def _error(self, node: Node, reason: str) -> CompileError:
        return CompileError(f"{self.origin[node.name]}: {reason}.")


@final
class ImportedNetwork:
    """Tensors by name, and the operators that compute them."""

    def __init__(self, graph: OnnxGraph):
        self.constants: dict[str, NDArray[Any]] = dict(graph.constants)
        self.values: dict[str, ImportedTensor] = {
            graph.input: import_graph.output_of(INPUT, graph.shape)
        }
        self.reads = Counter(name for node in graph.nodes for name in node.inputs)
        self.kinds = {INPUT: INPUT}  #: of operators by name
        self.scores: dict[str, AttentionScores] = {}  #: by part of attention
        self._steps = {INPUT: -1}  #: order of operators after folding
        self._output, self._batch = graph.output, graph.shape[0]
        self._nodes: list[Node] = []
        self._weights: dict[str, ArrayPair] = {}
        self._origin: dict[str, str] = {}  #: ONNX nodes by operator

    def append(
        self, node: OnnxNode, op: OpSpec, inputs: tuple[str, ...], weights: ArrayPair | None = None
    ) -> str:
        """Append the operator of an ONNX node, with weight and bias; return its name."""
        return self._append(Node(self._free_name(node), op, inputs), str(node), weights)

    def finish(self) -> tuple[Graph, Weights]:
        """Return the graph of the output and its weights.

        Raises:
            CompileError: if a node cannot be folded, or the output is not an operator's.
        """
        if self._output not in self.values:
            raise CompileError(
                f"The ONNX model's output '{self._output}' is a constant; it must depend on the "
                "input. Export a model whose output does."
            )
        output = self.settle(self.values[self._output])
        if not output.in_order or output.source == INPUT:
            raise CompileError(
                f"The ONNX model's output '{self._output}' {output.positions.shape} is not the "
                f"output {output.image} of its last operator '{output.source}': it is a part of "
                "it, in another order, or the input. Export the model without these last steps."
            )
        return fold(self._nodes, self._weights, output.source, self._origin)

    def value(self, node: OnnxNode, index: int = 0) -> ImportedTensor:
        """Return the input ``index`` of a node as the output of an operator.

        Raises:
            CompileError: if it is a constant, or not the output of an operator.
        """
        if index >= len(node.inputs) or node.inputs[index] not in self.values:
            raise node.refused(f"input {index} must not be a constant")
        return self.settle(self.values[node.inputs[index]])

    def constant(self, node: OnnxNode, index: int) -> NDArray[Any] | None:
        """Return the constant input ``index`` of a node; ``None`` if it is omitted.

        Raises:
            CompileError: if it is not constant.
        """
        name = node.inputs[index] if index < len(node.inputs) else ""
        if name and name not in self.constants:
            raise node.refused(f"input {index} must be a constant")
        return self.constants[name] if name else None

    def image(self, node: OnnxNode) -> ImportedTensor:
        """Return the first input of a node, an image ``(N, C, H, W)``.

        Raises:
            CompileError: if it is something else.
        """
        value = self.value(node)
        return value.as_image() or self._misread(node, value, "an image (N, C, H, W)")

    def rows(self, node: OnnxNode) -> ImportedTensor:
        """Return the first input of a node, whose last axis is the channels of a pixel.

        Raises:
            CompileError: if it is not.
        """
        value = self.value(node)
        if value.pixels() is None:
            self._misread(node, value, "rows of all channels of a pixel (token)")
        return value

    def settle(self, value: ImportedTensor) -> ImportedTensor:
        """Return a value after its function was appended as an operator.

        The function must be an activation, or a scale and shift.

        Raises:
            CompileError: if the function is neither.
        """
        if value.curve is None:
            return value
        kind, line = import_graph.activation(value.curve), import_graph.line(value.curve)
        if line == (1, 0):
            return value.read_from(value.source)
        if (kind is None and line is None) or not value.whole:
            raise CompileError(
                f"{value.by}: unknown function. Allowed: {', '.join(ACTIVATIONS)}, or scale and "
                "shift, each of all elements of a tensor; hardsigmoid is clip(x / 6 + 0.5, 0, 1), "
                "hardswish x * hardsigmoid, gelu x / 2 * (1 + erf(x / sqrt(2)))."
            )
        name = f"{value.source}+{kind or line}"
        if name not in self.kinds:
            op = OpSpec(kind or AFFINE, value.image, value.image)
            weights = None
            if line is not None:
                weights = (np.full(value.shape[1], line[0]), np.full(value.shape[1], line[1]))
            self._append(Node(name, op, (value.source,)), value.by, weights)
        return value.read_from(name)

    def in_order(self, *read: ImportedTensor) -> tuple[str, ...]:
        """Return the name of the operator that computes each tensor, in order of execution."""
        return tuple(sorted((v.source for v in read), key=lambda name: self._steps[name]))

    def map(
        self, node: OnnxNode, kind: str, value: ImportedTensor, weights: ArrayPair
    ) -> ImportedTensor:
        """Append an operator that does not move elements; return its output."""
        op = OpSpec(kind, value.image, value.image)
        return value.read_from(self.append(node, op, (value.source,), weights))

    def _append(self, node: Node, origin: str, weights: ArrayPair | None) -> str:
        self._nodes.append(replace(node, op=replace(node.op, dtype="float32", batch=self._batch)))
        self._origin[node.name] = origin
        self.kinds[node.name] = node.op.kind
        is_operator = node.op.kind in BASES
        self._steps[node.name] = len(self._nodes) if is_operator else self._steps[node.inputs[0]]
        if weights is not None:
            self._weights[node.name] = weights
        return node.name

    def _misread(self, node: OnnxNode, value: ImportedTensor, expected: str) -> ImportedTensor:
        raise node.refused(
            f"reads a tensor {value.positions.shape}, moved from '{value.source}' {value.image}, "
            f"that is not {expected}{_of_channels_last(value)}"
        )

    def _free_name(self, node: OnnxNode) -> str:
        """Return an unused name, such as ``block.0.conv`` for ``/block/block.0/conv/Conv``."""
        parts = re.findall(r"[\w.-]+", node.name) or [node.kind]
        inner = [a for a, b in pairwise(parts) if not b.startswith(f"{a}.")]
        full = ".".join([*inner, parts[-1]])
        kind = re.fullmatch(rf"{node.kind}(_\d+)?", parts[-1])
        names = [".".join(inner)] if kind and inner else []
        names += [full, *(f"{full}_{i}" for i in range(2, len(self.kinds) + 3))]
        return next(name for name in names if name not in self.kinds)


def _of_channels_last(value: ImportedTensor) -> str:
    """Return advice for messages if the model's input is probably ``(N, H, W, C)``; else ""."""
    if value.source != INPUT or value.image[2] not in (1, 3):
        return ""
    return (
        "; its input is probably (N, H, W, C): convert the model to (N, C, H, W), with tf2onnx by "
        "--inputs-as-nchw INPUT"
    )
