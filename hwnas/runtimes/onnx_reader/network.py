"""The network that is read out of an ONNX graph, as far as it is known."""

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import CompileError
from hwnas.graph import INPUT, Graph, Node
from hwnas.op import ACTIVATIONS, BASES, OpSpec
from hwnas.runtimes.base import Weights
from hwnas.runtimes.onnx_reader import values
from hwnas.runtimes.onnx_reader.folding import AFFINE, Parameters, fold
from hwnas.runtimes.onnx_reader.graph import OnnxGraph, OnnxNode
from hwnas.runtimes.onnx_reader.values import Scores, Value


@final
class Network:
    """Tensors by their names in the graph, and the operators that compute them."""

    def __init__(self, graph: OnnxGraph):
        self.constants: dict[str, NDArray[Any]] = dict(graph.constants)
        self.values: dict[str, Value] = {graph.input: values.computed(INPUT, graph.shape)}
        self.reads = Counter(name for node in graph.nodes for name in node.inputs)
        self.kinds = {INPUT: INPUT}  #: of operators, by their names
        self.scores: dict[str, Scores] = {}  #: of the parts of attention
        self._steps = {INPUT: -1}  #: when each operator runs, after folding
        self._output, self._batch = graph.output, graph.shape[0]
        self._nodes: list[Node] = []
        self._weights: dict[str, Parameters] = {}
        self._origin: dict[str, str] = {}  #: ONNX nodes, by the operators that they became

    def append(
        self, node: OnnxNode, op: OpSpec, inputs: tuple[str, ...], weights: Parameters | None = None
    ) -> str:
        """Append an operator that an ONNX node is; return its name."""
        return self._append(Node(self._free_name(node), op, inputs), str(node), weights)

    def finished(self) -> tuple[Graph, Weights]:
        """Return the operators that compute the output, and their weights.

        Raises:
            CompileError: an operator cannot take what follows it, or there is none.
        """
        if self._output not in self.values:
            raise CompileError(f"The ONNX model's output '{self._output}' is a constant.")
        output = self.settle(self.values[self._output])
        if not output.in_order or output.source == INPUT:
            raise CompileError(
                f"The ONNX model's output '{self._output}' {output.places.shape} is not what its "
                f"last operator '{output.source}' computes, {output.image}: it is part of that, "
                "in another order, or not computed at all."
            )
        return fold(self._nodes, self._weights, output.source, self._origin)

    def value(self, node: OnnxNode, index: int = 0) -> Value:
        """Return an input of a node as an operator computes it.

        Raises:
            CompileError: it is a constant, or no operator computes it.
        """
        if index >= len(node.inputs) or node.inputs[index] not in self.values:
            raise node.refused(f"input {index} must not be a constant")
        return self.settle(self.values[node.inputs[index]])

    def constant(self, node: OnnxNode, index: int) -> NDArray[Any] | None:
        """Return a constant input of a node, or nothing where it is left out.

        Raises:
            CompileError: it is computed.
        """
        name = node.inputs[index] if index < len(node.inputs) else ""
        if name and name not in self.constants:
            raise node.refused(f"input {index} must be a constant")
        return self.constants[name] if name else None

    def image(self, node: OnnxNode) -> Value:
        """Return the first input of a node, an image ``(N, C, H, W)``."""
        value = self.value(node)
        return value.as_image() or self._misread(node, value, "an image (N, C, H, W)")

    def rows(self, node: OnnxNode) -> Value:
        """Return the first input of a node, whose last axis has all channels of a pixel."""
        value = self.value(node)
        if value.pixels() is None:
            self._misread(node, value, "rows of all channels of a pixel (token)")
        return value

    def settle(self, value: Value) -> Value:
        """Return a value whose function is an operator: an activation, a scale and a shift.

        Raises:
            CompileError: no operator computes it.
        """
        if value.curve is None:
            return value
        kind, line = values.activation(value.curve), values.line(value.curve)
        if line == (1, 0):
            return value.read_from(value.source)
        if (kind is None and line is None) or not value.whole:
            raise CompileError(
                f"{value.by}: this function is no operator. Allowed: {', '.join(ACTIVATIONS)}, or "
                "a scale and a shift, each of a whole tensor."
            )
        name = f"{value.source}+{kind or line}"
        if name not in self.kinds:
            op = OpSpec(kind or AFFINE, value.image, value.image)
            weights = None
            if line is not None:
                weights = (np.full(value.shape[1], line[0]), np.full(value.shape[1], line[1]))
            self._append(Node(name, op, (value.source,)), value.by, weights)
        return value.read_from(name)

    def in_order(self, *read: Value) -> tuple[str, ...]:
        """Return the operators that compute values, those that run first first."""
        return tuple(sorted((v.source for v in read), key=lambda name: self._steps[name]))

    def map(self, node: OnnxNode, kind: str, value: Value, weights: Parameters) -> Value:
        """Append an operator that leaves all elements where they are; return its output."""
        op = OpSpec(kind, value.image, value.image)
        return value.read_from(self.append(node, op, (value.source,), weights))

    def _append(self, node: Node, origin: str, weights: Parameters | None) -> str:
        self._nodes.append(replace(node, op=replace(node.op, dtype="float32", batch=self._batch)))
        self._origin[node.name] = origin
        self.kinds[node.name] = node.op.kind
        own = node.op.kind in BASES
        self._steps[node.name] = len(self._nodes) if own else self._steps[node.inputs[0]]
        if weights is not None:
            self._weights[node.name] = weights
        return node.name

    def _misread(self, node: OnnxNode, value: Value, what: str) -> Value:
        raise node.refused(
            f"reads a tensor {value.places.shape}, moved from '{value.source}' {value.image}, that "
            f"is not {what}"
        )

    def _free_name(self, node: OnnxNode) -> str:
        """Return a new name without slashes: ``/block/block.0/conv/Conv`` is ``block.0.conv``."""
        parts = re.findall(r"[\w.-]+", node.name) or [node.kind]
        inner = [a for a, b in pairwise(parts) if not b.startswith(f"{a}.")]
        full = ".".join([*inner, parts[-1]])
        kind = re.fullmatch(rf"{node.kind}(_\d+)?", parts[-1])
        names = [".".join(inner)] if kind and inner else []
        names += [full, *(f"{full}_{i}" for i in range(2, len(self.kinds) + 3))]
        return next(name for name in names if name not in self.kinds)
