"""An ONNX file as nodes, constants, one input and one output; what nodes mean is not known here."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from hwnas.errors import CompileError

_OLDEST_OPSET = 7  # the first whose operators broadcast as they do now
_EXTERNAL = onnx.TensorProto.EXTERNAL
_MOST_VALUES = 1 << 26  # of a tensor
_OWN = ("", "ai.onnx")  # names of ONNX's own operators


@dataclass(frozen=True)
class OnnxNode:
    """One node of an ONNX graph."""

    name: str
    kind: str  #: with its domain, if that is not ONNX's own
    inputs: tuple[str, ...]  #: ``""`` for what is left out
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    proto: Any
    opset: int

    def __str__(self) -> str:
        return f"ONNX node '{self.name}' ({self.kind})"

    def refused(self, reason: str) -> CompileError:
        """Return an error that names the node."""
        return CompileError(f"{self}: {reason}.")

    def evaluate(self, feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return what the node computes, as ONNX's own reference has it.

        Raises:
            CompileError: the reference refuses the node or its inputs.
        """
        self._check_growth(feeds)
        read, out = (
            [helper.make_tensor_value_info(name, 0, None) for name in names if name]
            for names in (feeds, self.outputs)
        )
        graph = helper.make_graph([self.proto], "node", read, out)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        try:
            with np.errstate(all="ignore"):
                return [np.asarray(a) for a in ReferenceEvaluator(model).run(None, dict(feeds))]
        except Exception as error:
            raise self.refused(f"cannot be computed: {_first_line(error)}") from None

    def _check_growth(self, feeds: Mapping[str, NDArray[Any]]) -> None:
        """Refuse to make more of constants than any tensor holds.

        Raises:
            CompileError: it would.
        """
        if "sparse_value" in self.attributes:
            raise self.refused("a sparse constant; allowed: dense ones")
        given = [feeds[name].astype(float) for name in self.inputs if name in feeds]
        size = _GROWING[self.kind](given) if self.kind in _GROWING and given else 0.0
        if not size <= _MOST_VALUES:
            raise self.refused(f"makes {size:g} values; allowed: at most {_MOST_VALUES}")


#: How many values nodes make of what their inputs say; of others, no more than these have.
_GROWING: Mapping[str, Callable[[list[NDArray[Any]]], float]] = {
    "ConstantOfShape": lambda given: float(np.prod(given[0])),
    "Expand": lambda given: given[0].size * float(np.prod(np.maximum(given[-1], 1))),
    "Range": lambda given: float(np.max(np.abs((given[1] - given[0]) / given[2]), initial=0)),
    "Tile": lambda given: given[0].size * float(np.prod(given[-1])),
}


@dataclass(frozen=True)
class OnnxGraph:
    """A model that reads images and answers with one tensor."""

    nodes: tuple[OnnxNode, ...]  #: in order of execution
    constants: Mapping[str, NDArray[Any]]
    input: str
    shape: tuple[int, int, int, int]  #: ``(N, C, H, W)`` of the input; one image if N is free
    output: str


def parse(model: bytes) -> OnnxGraph:
    """Return what an ``.onnx`` file holds.

    Raises:
        CompileError: it is no ONNX model, or not one of one image tensor and one output.
    """
    try:
        proto = onnx.load_from_string(model)
        outside = [t.name for t in proto.graph.initializer if t.data_location == _EXTERNAL]
        if not outside:
            onnx.checker.check_model(proto)
            constants = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    except Exception as error:
        raise CompileError(f"This is no valid ONNX model: {_first_line(error)}.") from None
    if outside:
        raise CompileError(
            f"The ONNX model keeps '{outside[0]}' in another file; save it as one file "
            "(onnx.save(model, path, save_as_external_data=False))."
        )
    graph = proto.graph
    opset = next((entry.version for entry in proto.opset_import if entry.domain in _OWN), 0)
    if opset < _OLDEST_OPSET:
        raise CompileError(f"The ONNX model is of opset {opset}; allowed: {_OLDEST_OPSET} or more.")
    inputs = [value for value in graph.input if value.name not in constants]
    if len(inputs) != 1 or len(graph.output) != 1:
        raise CompileError(
            f"The ONNX model has {len(inputs)} inputs and {len(graph.output)} outputs; "
            "allowed: one of each."
        )
    nodes = tuple(_node(node, opset) for node in graph.node)
    return OnnxGraph(
        nodes, constants, inputs[0].name, _image_shape(inputs[0]), graph.output[0].name
    )


def _node(proto: Any, opset: int) -> OnnxNode:
    attributes = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
    return OnnxNode(
        name=proto.name or proto.output[0],
        kind=proto.op_type if proto.domain in _OWN else f"{proto.domain}.{proto.op_type}",
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        attributes={k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()},
        proto=proto,
        opset=opset,
    )


def _image_shape(value: Any) -> tuple[int, int, int, int]:
    tensor = value.type.tensor_type
    shape = [dim.dim_value for dim in tensor.shape.dim]  # 0 where a name or nothing stands
    sized = min(shape[1:], default=0) > 0 and math.prod(n or 1 for n in shape) <= _MOST_VALUES
    if tensor.elem_type != onnx.TensorProto.FLOAT or len(shape) != 4 or not sized or shape[0] < 0:
        found = [dim.dim_value or dim.dim_param or "?" for dim in tensor.shape.dim]
        kind = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
        raise CompileError(
            f"The ONNX model's input '{value.name}' is {kind} {found}; allowed: float images "
            "(N, C, H, W) of fixed C, H and W, of 2^26 values at most."
        )
    return (shape[0] or 1, shape[1], shape[2], shape[3])


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200].rstrip(".")
