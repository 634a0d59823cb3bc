"""ONNX files as servers of models take them: any number of images, and how sure each answer is."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hwnas.core.errors import CompileError
from hwnas.models.onnx import BATCH

CONFIDENCE = "confidence"  #: the output that says the largest probability of a class, ``(N, 1)``
_FLOAT = TensorProto.FLOAT
_TYPES = {_FLOAT: "FP32", TensorProto.UINT8: "UINT8"}  # as Triton calls them


@dataclass(frozen=True)
class ServedModel:
    """A model as it is served."""

    content: bytes  #: of the ``.onnx`` file
    image: str  #: the name of its input
    shape: tuple[int, int, int]  #: of an image: channels, height, width
    shrinks: bool  #: whether it first makes images smaller
    answer: str  #: the name of what it answers: logits, or what the tail of a network reads
    answered: tuple[int, ...]  #: its shape but for the batch: classes, or as ``shape``
    types: tuple[str, str] = ("FP32", "FP32")  #: of its input and of that, as Triton calls them

    @property
    def is_head(self) -> bool:
        """Whether it is the first part of a network that was cut."""
        return len(self.answered) > 1

    @property
    def outputs(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all that it answers, by name."""
        own = {self.answer: self.answered}
        return own if self.is_head else own | {CONFIDENCE: (1,)}

    @property
    def request_bytes(self) -> int:
        """What a request of one image, or of what a tail reads, has."""
        return math.prod(self.shape) * (1 if self.types[0] == "UINT8" else 4)


def served(model: bytes, size: tuple[int, int] | None = None) -> ServedModel:
    """Return a classifier that reads any number of images, and says how sure it is of each.

    Of a network that was cut in two the head answers what the tail reads, and is sure of nothing.

    Args:
        model: The bytes of a file that hwnas wrote, for a number of images or for any.
        size: Height and width of images that it is sent; default: those that it reads. Larger ones
            are resized as in training, bilinear with antialiasing, but not rounded to pixels.

    Raises:
        CompileError: it has not one input, images, and one output, ``(N, classes)`` or what the
            tail of a network reads.
    """
    loaded = _loaded(model)
    graph = loaded.graph
    images, answer = graph.input[0], graph.output[0]
    shape, outputs = _sizes(images), _sizes(answer)
    types = [_TYPES.get(value.type.tensor_type.elem_type, "") for value in (images, answer)]
    is_known = all((*shape, *outputs, *types))
    if len(shape) != 3 or len(outputs) not in (1, 3) or not is_known:
        raise CompileError(f"No classifier of images: it reads {shape} and answers {outputs}.")
    if images.type.tensor_type.shape.dim[0].dim_value:
        _free(graph)
    for value in (images, answer):
        value.type.tensor_type.shape.dim[0].dim_param = BATCH
    del graph.value_info[:]
    c, h, w = shape
    height, width = size or (h, w)
    if (height, width) != (h, w):
        _shrink(graph, height, width)
    if len(outputs) == 1:
        _rate(graph, answer.name)
    content = loaded.SerializeToString(deterministic=True)
    whole, said = (c, height, width), (types[0], types[1])
    return ServedModel(content, images.name, whole, whole != shape, answer.name, outputs, said)


def _loaded(model: bytes) -> Any:
    try:
        loaded = onnx.load_model_from_string(model)
        onnx.checker.check_model(loaded)
    except Exception as error:  # protobuf's and the checker's have no common one
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CompileError(f"This is not valid ONNX: {reason}") from None
    if (len(loaded.graph.input), len(loaded.graph.output)) != (1, 1):
        raise CompileError("No classifier of images: it has not one input and one output.")
    return loaded


def _sizes(value: Any) -> tuple[int, ...]:
    """Return the sizes of a value but for how many images it is of; 0: one is not fixed."""
    return tuple(int(dim.dim_value) for dim in value.type.tensor_type.shape.dim)[1:]


def _free(graph: Any) -> None:
    """Let reshapes take any number of images: all other sizes are fixed."""
    names = {node.input[1] for node in graph.node if node.op_type == "Reshape"}
    for constant in graph.initializer:
        if constant.name in names:
            sizes = numpy_helper.to_array(constant).copy()
            sizes[0] = -1
            constant.CopyFrom(numpy_helper.from_array(sizes, constant.name))


def _shrink(graph: Any, height: int, width: int) -> None:
    """Resize what comes in to the size that the network reads."""
    images = graph.input[0]
    sizes = [int(dim.dim_value) for dim in images.type.tensor_type.shape.dim][2:]
    inner = f"{images.name}/resized"
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name == images.name:
                node.input[i] = inner
    wanted = numpy_helper.from_array(np.array(sizes), f"{inner}/sizes")
    graph.initializer.append(wanted)
    node = helper.make_node(
        "Resize", [images.name, "", "", wanted.name], [inner], inner,
        mode="linear", antialias=1, exclude_outside=1, axes=[2, 3],
    )  # fmt: skip
    graph.node.insert(0, node)
    for dim, side in zip(images.type.tensor_type.shape.dim[2:], (height, width), strict=True):
        dim.dim_value = side


def _rate(graph: Any, logits: str) -> None:
    """Append the largest probability of a class as an output."""
    axes = numpy_helper.from_array(np.array([1]), f"{CONFIDENCE}/axes")
    graph.initializer.append(axes)
    inner = f"{CONFIDENCE}/probabilities"
    graph.node.append(helper.make_node("Softmax", [logits], [inner], inner, axis=1))
    graph.node.append(
        helper.make_node("ReduceMax", [inner, axes.name], [CONFIDENCE], CONFIDENCE, keepdims=1)
    )
    graph.output.append(helper.make_tensor_value_info(CONFIDENCE, _FLOAT, (BATCH, 1)))
