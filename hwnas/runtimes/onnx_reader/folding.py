"""Folds what stands alone in an ONNX graph into the operators that compute it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import CompileError
from hwnas.graph import Graph, Node
from hwnas.op import ACTIVATIONS, BASES
from hwnas.runtimes.base import Weights

#: Kinds of nodes that scale and shift each channel; their weights are scale and shift.
BATCH_NORM, AFFINE = "bn", "affine"
#: What can take a scale and a shift, and what an activation.
WEIGHTED, ACTIVATED = ("conv2d", "linear", "layernorm"), ("conv2d", "linear", "add", "mul")

Parameters = tuple[NDArray[Any], NDArray[Any]]


def fold(
    nodes: Sequence[Node], weights: Mapping[str, Parameters], output: str, origin: Mapping[str, str]
) -> tuple[Graph, Weights]:
    """Return the operators that an output needs, and their weights.

    Args:
        nodes: Operators in order of execution; beside ``op.BASES`` there are ``BATCH_NORM``,
            ``AFFINE``, activations, and the parts of an attention that none was made of.
        weights: Weight and bias by name.
        output: The node that computes the output.
        origin: What each node was made of, to name in errors.

    Raises:
        CompileError: something stands where no operator can take it.
    """
    needed = _needed(nodes, output)
    reads = Counter([output, *(source for node in needed for source in node.inputs)])
    folding = _Folding(reads, weights, origin)
    for node in needed:
        folding.add(node)
    return Graph.of(folding.found.values()), {
        name: (weight.astype(np.float32), bias.astype(np.float32))
        for name, (weight, bias) in folding.weights.items()
    }


def _needed(nodes: Sequence[Node], output: str) -> list[Node]:
    wanted, found = {output}, []
    for node in reversed(nodes):
        if node.name in wanted:
            wanted.update(node.inputs)
            found.append(node)
    return found[::-1]


@final
@dataclass
class _Folding:
    """The operators so far."""

    reads: Mapping[str, int]
    parameters: Mapping[str, Parameters]
    origin: Mapping[str, str]
    found: dict[str, Node] = field(default_factory=dict)
    weights: dict[str, Parameters] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)  #: operators that took others

    def add(self, node: Node) -> None:
        """Append an operator, or fold it into the one before it."""
        kind = node.op.base
        inputs = tuple(self.renamed.get(source, source) for source in node.inputs)
        if kind in BASES:
            self.found[node.name] = replace(node, inputs=inputs)
            if node.name in self.parameters:
                self.weights[node.name] = self.parameters[node.name]
            return
        into = self.found.get(inputs[0])
        if into is not None and self.reads[node.inputs[0]] > 1:
            into = None
        if kind in (BATCH_NORM, AFFINE):
            self._scale(node, into)
        elif kind in ACTIVATIONS:
            self._activate(node, into)
        else:
            raise self._refused(node, "a product of two tensors is only known within attention")
        assert into is not None
        self.renamed[node.name] = into.name

    def _scale(self, node: Node, into: Node | None) -> None:
        if into is None or into.op.base not in WEIGHTED or into.op.activation:
            raise self._refused(
                node, "a scale or shift must follow a convolution, linear layer or layer norm "
                "that nothing else reads"
            )  # fmt: skip
        scale, shift = self.parameters[node.name]
        weight, bias = (array.astype(np.float64) for array in self.weights[into.name])
        rows = scale.reshape(-1, *[1] * (weight.ndim - 1))
        self.weights[into.name] = (weight * rows, bias * scale + shift)
        if node.op.base == BATCH_NORM and into.op.kind == "conv2d":
            self.found[into.name] = replace(into, op=replace(into.op, kind="conv2d+bn"))

    def _activate(self, node: Node, into: Node | None) -> None:
        if into is None or into.op.base not in ACTIVATED or into.op.activation:
            raise self._refused(
                node, "an activation must follow a convolution, linear layer, sum or gate that "
                "has none and that nothing else reads"
            )  # fmt: skip
        kind = f"{into.op.kind}+{node.op.kind}"
        self.found[into.name] = replace(into, op=replace(into.op, kind=kind))

    def _refused(self, node: Node, reason: str) -> CompileError:
        return CompileError(f"{self.origin[node.name]}: {reason}.")
