"""Symbolic tensors of ONNX graphs, and parsing of ONNX files.

Exporters reshape, transpose and split tensors in many ways. A symbolic tensor has the position of
each of its elements in the output of an operator: moving elements is the same as on any array, and
inputs of operators can be checked element by element. Elementwise functions (activations) are
identified by their curve, the values at ``samples()``, independently of how they are written.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from hwnas.core.errors import CompileError
from hwnas.models.graph import Shape

Positions = NDArray[np.int64]  #: positions in the flattened output of an operator, any shape
Curve = NDArray[np.float32]  #: values of a function at ``samples()``
Shape4 = tuple[int, int, int, int]  #: (N, C, H, W)
MAX_VALUES = 1 << 26  #: of a tensor
_TOLERANCE = 1e-6  # relative to the argument, of float32; GELU by tanh differs by 5e-4
_MIN_OPSET = 7  # the first with the present broadcasting
_EXTERNAL = onnx.TensorProto.EXTERNAL
OWN_DOMAINS = ("", "ai.onnx")  #: names of ONNX's own domain


@dataclass(frozen=True)
class ImportedTensor:
    """Elements of an operator's output, each after the same function."""

    source: str  #: name of the operator
    shape: Shape4  #: of its output
    positions: Positions  #: of the elements in the flattened output; its shape is the tensor's
    curve: Curve | None = None  #: of the function; ``None``: identity
    by: str = ""  #: the ONNX node of the function, for messages

    @property
    def image(self) -> Shape:
        """Shape ``(C, H, W)`` of the operator's output."""
        return self.shape[1:]

    @property
    def n_pixels(self) -> int:
        """Number of pixels, or tokens, of one image."""
        return self.shape[2] * self.shape[3]

    @property
    def whole(self) -> bool:
        """True if all elements are present, in any order."""
        return self.positions.size == math.prod(self.shape)

    @property
    def in_order(self) -> bool:
        """True if all elements are present in the original order."""
        return self.whole and np.array_equal(self.positions.ravel(), np.arange(self.positions.size))

    @property
    def channels(self) -> Positions:
        """Channel of each element: ``image * C + channel``, in the tensor's shape."""
        return self.positions // self.n_pixels

    def read_from(self, source: str) -> "ImportedTensor":
        """Return the same elements of another operator's output, without a function."""
        return replace(self, source=source, curve=None, by="")

    def as_image(self) -> "ImportedTensor | None":
        """Return the tensor if it is an image in its original order, else ``None``."""
        shape = self.positions.shape
        if len(shape) != 4 or shape[:2] != self.shape[:2] or not self.in_order:
            return None
        return replace(self, shape=shape)

    def same_positions(self, other: "ImportedTensor") -> bool:
        """Return True if elements have the same positions in outputs of the same layout."""
        return (self.shape[1], self.n_pixels) == (other.shape[1], other.n_pixels) and (
            np.array_equal(self.positions, other.positions)
        )

    def pixels(self) -> Positions | None:
        """Return the position of each pixel's first channel if the last axis is all channels.

        ``None`` if it is not.
        """
        c = self.shape[1]
        if not self.whole or not self.positions.ndim or self.positions.shape[-1] != c:
            return None
        rows = self.positions.reshape(-1, c)
        if not np.array_equal(rows, rows[:, :1] + np.arange(c) * self.n_pixels):
            return None
        return rows[:, 0]

    def per_channel(self, constant: NDArray[Any]) -> NDArray[np.float64] | None:
        """Return a constant that broadcasts to the tensor as one number per channel, ``(C,)``.

        ``None`` if it does not, or pixels of a channel have different numbers.
        """
        channels, full = self.channels % self.shape[1], _broadcast(constant, self.positions.shape)
        if full is None:
            return None
        result = np.zeros(self.shape[1])
        result[channels] = full
        return result if np.array_equal(result[channels], full) else None

    def gated_by(self, gate: "ImportedTensor") -> bool:
        """Return True if ``gate`` broadcasts to this tensor with one element for each channel."""
        if gate.n_pixels > 1 or gate.shape[1] != self.shape[1] or not (gate.whole and self.whole):
            return False
        channels = _broadcast(gate.positions, self.positions.shape)
        return channels is not None and np.array_equal(channels, self.channels)


@dataclass(frozen=True)
class AttentionScores:
    """Products of queries and keys, a part of attention."""

    sources: set[str]  #: names of the operators that compute queries and keys
    queries: Positions  #: ``(N, heads, tokens, d)``
    keys: Positions  #: ``(N, heads, tokens, d)``
    scale: float  #: factor of the products


def check_size(shape: Iterable[int]) -> None:
    """Check the size of a tensor before it is created.

    Raises:
        ValueError: if it is empty or too large.
    """
    if not 0 < (size := math.prod(map(int, shape))) <= MAX_VALUES:
        raise ValueError(f"it has a tensor of {size:g} values; allowed: 1 to {MAX_VALUES}")


def output_of(source: str, shape: Shape4) -> ImportedTensor:
    """Return the whole output ``(N, C, H, W)`` of an operator, in order.

    Raises:
        ValueError: if it is empty or too large.
    """
    check_size(shape)
    return ImportedTensor(source, shape, np.arange(math.prod(shape)).reshape(shape))


def of_pixels(source: str, tensor: ImportedTensor, n_channels: int) -> ImportedTensor:
    """Return the output ``(..., n_channels)`` of an operator that maps the channels of each pixel.

    The last axis of the input ``tensor`` is the channels of a pixel, too.

    Raises:
        ValueError: if it is empty or too large.
    """
    first = tensor.pixels()
    assert first is not None
    n, c, h, w = tensor.shape
    check_size((n, n_channels, h, w))
    images, pixels = np.divmod(first, c * h * w)
    rows = (images * n_channels * h * w + pixels)[:, None] + np.arange(n_channels) * h * w
    positions = rows.reshape(*tensor.positions.shape[:-1], n_channels)
    return ImportedTensor(source, (n, n_channels, h, w), positions)


def mean_over(
    source: str, tensor: ImportedTensor, axes: tuple[int, ...], keep: bool
) -> ImportedTensor | None:
    """Return the mean over axes if these are all pixels of each channel, else ``None``.

    Args:
        source: Name of the operator of the mean.
        tensor: Its input.
        axes: Axes of the mean.
        keep: Keep these axes with a size of 1.
    """
    n, c = tensor.shape[:2]
    low, high = (f(tensor.channels, axis=axes, keepdims=keep) for f in (np.min, np.max))
    if not tensor.whole or low.size != n * c or not np.array_equal(low, high):
        return None
    return ImportedTensor(source, (n, c, 1, 1), np.asarray(low))


def in_heads(value: ImportedTensor, part: int, positions: Positions) -> bool:
    """Return True if positions are those of the queries, keys or values of attention.

    Args:
        value: Output ``(N, 3 C, H, W)`` of one operator: queries, keys and values, each head by
            head.
        part: 0 for queries, 1 for keys, 2 for values.
        positions: ``(N, heads, tokens, d)``.
    """
    n, c, h, w = value.shape
    images, heads, tokens, d = positions.shape
    if (images, tokens, 3 * heads * d) != (n, h * w, c):
        return False
    expected = np.arange(n * c * h * w).reshape(n, 3, heads, d, tokens)
    return np.array_equal(positions, expected[:, part].swapaxes(2, 3))


def _broadcast(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any] | None:
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        return None


@functools.cache
def samples() -> Curve:
    """Return the arguments ``(n,)`` at which functions are compared; 0 and 1 are among them."""
    few = [20.0, 100.0, 1e4, 1e30]
    return np.array([*np.linspace(-12, 12, 769), *few, *(-x for x in few)], np.float32)


def activation(curve: Curve) -> str | None:
    """Return the name of the activation function with these values, else ``None``."""
    allowed = _TOLERANCE * (1 + np.abs(samples().astype(np.float64)))
    for name, known in _activations().items():
        if np.all(np.abs(curve - known) <= allowed):
            return name
    return None


def line(curve: Curve | None) -> tuple[float, float] | None:
    """Return factor and constant of a linear function; ``None`` if it is constant or not linear."""
    if curve is None:
        return (1.0, 0.0)
    x, y = samples().astype(np.float64), curve.astype(np.float64)
    constant = float(y[x == 0][0])
    factor = float(y[x == 1][0]) - constant
    if not math.isfinite(factor) or not factor:
        return None
    allowed = _TOLERANCE * (np.abs(factor * x) + abs(constant))
    straight = np.all(np.abs(factor * x + constant - y) <= allowed)
    return (factor, constant) if straight else None


@functools.cache
def _activations() -> dict[str, NDArray[np.float64]]:
    x = samples().astype(np.float64)
    sigmoid = np.where(x < -500, 0, 1 / (1 + np.exp(-np.maximum(x, -500))))
    erf: Callable[[Any], Any] = np.vectorize(math.erf, otypes=[np.float64])
    return {
        "relu": np.maximum(x, 0),
        "relu6": np.clip(x, 0, 6),
        "hardswish": x * np.clip(x / 6 + 0.5, 0, 1),
        "hardsigmoid": np.clip(x / 6 + 0.5, 0, 1),
        "sigmoid": sigmoid,
        "silu": x * sigmoid,
        "gelu": x * 0.5 * (1 + erf(x / math.sqrt(2))),
    }


@dataclass(frozen=True)
class OnnxNode:
    """One node of an ONNX graph."""

    name: str  #: its name in the file, or that of its first output
    kind: str  #: operator type, with the domain unless it is ONNX's own
    inputs: tuple[str, ...]  #: names of tensors; ``""`` for omitted ones
    outputs: tuple[str, ...]  #: names of tensors
    attributes: Mapping[str, Any]
    proto: Any  #: the ``onnx.NodeProto``
    opset: int  #: opset version of the model

    def __str__(self) -> str:
        return f"ONNX node '{self.name}' ({self.kind})"

    def refused(self, reason: str) -> CompileError:
        """Return, not raise, the error that names this node and the reason."""
        return CompileError(f"{self}: {reason}.")

    def evaluate(self, feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the outputs of the node for inputs by name, by ONNX's reference implementation.

        Raises:
            CompileError: if it cannot be computed.
        """
        self._check_growth(feeds)
        inputs, out = (
            [helper.make_tensor_value_info(name, 0, None) for name in names if name]
            for names in (feeds, self.outputs)
        )
        graph = helper.make_graph([self.proto], "node", inputs, out)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        try:
            with np.errstate(all="ignore"):
                return [np.asarray(a) for a in ReferenceEvaluator(model).run(None, dict(feeds))]
        except Exception as error:
            raise self.refused(f"cannot be computed: {_first_line(error)}") from None

    def _check_growth(self, feeds: Mapping[str, NDArray[Any]]) -> None:
        """Check the size of outputs that may be larger than the inputs.

        Raises:
            CompileError: if they are too large.
        """
        if "sparse_value" in self.attributes:
            raise self.refused("has a sparse constant; only dense ones are supported")
        given = [feeds[name].astype(float) for name in self.inputs if name in feeds]
        size = _GROWING[self.kind](given) if self.kind in _GROWING and given else 0.0
        if not size <= MAX_VALUES:
            raise self.refused(f"creates {size:g} values; allowed: at most {MAX_VALUES}")


#: Number of output values of nodes whose outputs may be larger than their inputs.
_GROWING: Mapping[str, Callable[[list[NDArray[Any]]], float]] = {
    "ConstantOfShape": lambda given: float(np.prod(given[0])),
    "Expand": lambda given: given[0].size * float(np.prod(np.maximum(given[-1], 1))),
    "Range": lambda given: float(np.max(np.abs((given[1] - given[0]) / given[2]), initial=0)),
    "Tile": lambda given: given[0].size * float(np.prod(given[-1])),
}


@dataclass(frozen=True)
class OnnxGraph:
    """A model with an image input and one output."""

    nodes: tuple[OnnxNode, ...]  #: in order of execution
    constants: Mapping[str, NDArray[Any]]  #: by tensor name
    input: str  #: name of the tensor
    shape: tuple[int, int, int, int]  #: ``(N, C, H, W)`` of the input; N is 1 if it is free
    output: str  #: name of the tensor


def parse(model: bytes) -> OnnxGraph:
    """Return the content of an ``.onnx`` file.

    Raises:
        CompileError: if it is not valid ONNX of opset 7 or more, in one file, with one image input
            and one output.
    """
    try:
        proto = onnx.load_from_string(model)
        outside = [t.name for t in proto.graph.initializer if t.data_location == _EXTERNAL]
        if not outside:
            onnx.checker.check_model(proto)
            constants = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    except Exception as error:
        raise CompileError(
            f"This is not a valid ONNX model: {_first_line(error)}. Export it again."
        ) from None
    if outside:
        raise CompileError(
            f"The ONNX model keeps '{outside[0]}' in another file; save it as one file "
            "(onnx.save(model, path, save_as_external_data=False))."
        )
    graph = proto.graph
    opset = next((entry.version for entry in proto.opset_import if entry.domain in OWN_DOMAINS), 0)
    if opset < _MIN_OPSET:
        raise CompileError(
            f"The ONNX model is of opset {opset}; allowed: {_MIN_OPSET} or more. Export it with "
            "opset_version=17."
        )
    inputs = [value for value in graph.input if value.name not in constants]
    if len(inputs) != 1 or len(graph.output) != 1:
        raise CompileError(
            f"The ONNX model has {len(inputs)} inputs and {len(graph.output)} outputs; allowed: "
            "one input and one output. Export the part from one input to one output."
        )
    nodes = tuple(_node(node, opset) for node in graph.node)
    return OnnxGraph(
        nodes, constants, inputs[0].name, _image_shape(inputs[0]), graph.output[0].name
    )


def _node(proto: Any, opset: int) -> OnnxNode:
    attributes = {a.name: helper.get_attribute_value(a) for a in proto.attribute}
    return OnnxNode(
        name=proto.name or proto.output[0],
        kind=proto.op_type if proto.domain in OWN_DOMAINS else f"{proto.domain}.{proto.op_type}",
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        attributes={k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()},
        proto=proto,
        opset=opset,
    )


def _image_shape(value: Any) -> tuple[int, int, int, int]:
    tensor = value.type.tensor_type
    shape = [dim.dim_value for dim in tensor.shape.dim]  # 0 for symbolic or missing sizes
    sized = min(shape[1:], default=0) > 0 and math.prod(n or 1 for n in shape) <= MAX_VALUES
    if tensor.elem_type != onnx.TensorProto.FLOAT or len(shape) != 4 or not sized or shape[0] < 0:
        dimensions = [dim.dim_value or dim.dim_param or "?" for dim in tensor.shape.dim]
        kind = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
        raise CompileError(
            f"The ONNX model's input '{value.name}' is {kind} {dimensions}; allowed: float32 "
            "images (N, C, H, W) of fixed C, H and W, of 2^26 values at most. Export the model "
            "with such an input."
        )
    return (shape[0] or 1, shape[1], shape[2], shape[3])


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200].rstrip(".")
