"""ONNX models for servers: a free batch size, and an output ``confidence``."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hwnas.core.errors import CompileError
from hwnas.models.onnx import BATCH

CONFIDENCE = "confidence"  #: output: largest class probability ``(N, 1)``
_FLOAT = TensorProto.FLOAT
_TYPES = {_FLOAT: "FP32", TensorProto.UINT8: "UINT8"}  # Triton's names


@dataclass(frozen=True)
class ServedModel:
    """An ONNX model as servers run it: with a free batch size and an output ``confidence``."""

    content: bytes  #: content of the ONNX file
    image: str  #: name of the input
    shape: tuple[int, int, int]  #: of an input image: channels, height, width
    shrinks: bool  #: True if it first resizes images to the size of the network
    answer: str  #: name of the output: logits, or the tensor that the first part of a split sends
    answered: tuple[int, ...]  #: shape of the output without the batch
    types: tuple[str, str] = ("FP32", "FP32")  #: of input and output: ``FP32`` or ``UINT8``

    @property
    def is_head(self) -> bool:
        """True for the first part of a split network."""
        return len(self.answered) > 1

    @property
    def outputs(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all outputs without the batch, by name."""
        shapes = {self.answer: self.answered}
        return shapes if self.is_head else shapes | {CONFIDENCE: (1,)}

    @property
    def request_bytes(self) -> int:
        """Size of the input of one image in bytes."""
        return math.prod(self.shape) * (1 if self.types[0] == "UINT8" else 4)


def to_served_model(model: bytes, size: tuple[int, int] | None = None) -> ServedModel:
    """Return a classifier with a free batch size and an output ``confidence``.

    The first part of a split network gets no ``confidence``.

    Args:
        model: Content of an ONNX file written by hwnas.
        size: Height and width of the images; default: the model's. Images of another size are
            resized as in training, bilinear with antialiasing, but without rounding to pixel
            values.

    Raises:
        CompileError: the file is not valid ONNX, or does not have one input ``(N, C, H, W)`` and
            one output ``(N, classes)`` or ``(N, C, H, W)``.
    """
    loaded = _load_onnx(model)
    graph = loaded.graph
    images, answer = graph.input[0], graph.output[0]
    shape, outputs = _sizes(images), _sizes(answer)
    types = [_TYPES.get(value.type.tensor_type.elem_type, "") for value in (images, answer)]
    is_known = all((*shape, *outputs, *types))
    if len(shape) != 3 or len(outputs) not in (1, 3) or not is_known:
        raise CompileError(
            f"The ONNX model is not an image classifier: its input has shape (N, "
            f"{', '.join(map(str, shape))}), its output (N, {', '.join(map(str, outputs))}); "
            "expected (N, C, H, W) and (N, classes): plan with exports of hwnas."
        )
    if images.type.tensor_type.shape.dim[0].dim_value:
        _free_batch_size(graph)
    for value in (images, answer):
        value.type.tensor_type.shape.dim[0].dim_param = BATCH
    del graph.value_info[:]
    c, h, w = shape
    height, width = size or (h, w)
    if (height, width) != (h, w):
        _add_resize(graph, height, width)
    if len(outputs) == 1:
        _add_confidence(graph, answer.name)
    content = loaded.SerializeToString(deterministic=True)
    full_shape, dtypes = (c, height, width), (types[0], types[1])
    return ServedModel(
        content, images.name, full_shape, full_shape != shape, answer.name, outputs, dtypes
    )


def _load_onnx(model: bytes) -> Any:
    try:
        loaded = onnx.load_model_from_string(model)
        onnx.checker.check_model(loaded)
    except Exception as error:  # protobuf and the checker have no common base class
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CompileError(
            f"The model file is not valid ONNX: {reason}. Export the network again."
        ) from None
    if (len(loaded.graph.input), len(loaded.graph.output)) != (1, 1):
        raise CompileError(
            f"The ONNX model has {len(loaded.graph.input)} inputs and {len(loaded.graph.output)} "
            "outputs; expected one each: plan with exports of hwnas."
        )
    return loaded


def _sizes(value: Any) -> tuple[int, ...]:
    """Return the shape of a value without the batch; 0: a free dimension."""
    return tuple(int(dim.dim_value) for dim in value.type.tensor_type.shape.dim)[1:]


def _free_batch_size(graph: Any) -> None:
    """Let reshapes accept any batch size; all other dimensions are fixed."""
    names = {node.input[1] for node in graph.node if node.op_type == "Reshape"}
    for constant in graph.initializer:
        if constant.name in names:
            sizes = numpy_helper.to_array(constant).copy()
            sizes[0] = -1
            constant.CopyFrom(numpy_helper.from_array(sizes, constant.name))


def _add_resize(graph: Any, height: int, width: int) -> None:
    """Resize inputs to the size of the network."""
    images = graph.input[0]
    sizes = [int(dim.dim_value) for dim in images.type.tensor_type.shape.dim][2:]
    inner = f"{images.name}/resized"
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name == images.name:
                node.input[i] = inner
    target_sizes = numpy_helper.from_array(np.array(sizes), f"{inner}/sizes")
    graph.initializer.append(target_sizes)
    node = helper.make_node(
        "Resize", [images.name, "", "", target_sizes.name], [inner], inner,
        mode="linear", antialias=1, exclude_outside=1, axes=[2, 3],
    )  # fmt: skip
    graph.node.insert(0, node)
    for dim, side in zip(images.type.tensor_type.shape.dim[2:], (height, width), strict=True):
        dim.dim_value = side


def _add_confidence(graph: Any, logits: str) -> None:
    """Add the largest class probability as an output."""
    axes = numpy_helper.from_array(np.array([1]), f"{CONFIDENCE}/axes")
    graph.initializer.append(axes)
    inner = f"{CONFIDENCE}/probabilities"
    graph.node.append(helper.make_node("Softmax", [logits], [inner], inner, axis=1))
    graph.node.append(
        helper.make_node("ReduceMax", [inner, axes.name], [CONFIDENCE], CONFIDENCE, keepdims=1)
    )
    graph.output.append(helper.make_tensor_value_info(CONFIDENCE, _FLOAT, (BATCH, 1)))
