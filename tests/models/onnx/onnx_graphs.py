"""ONNX graphs in the form of other exporters, node by node."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
X = (8, 4, 4)
RNG = np.random.default_rng(0)
SQUARE = RNG.standard_normal((8, 8, 3, 3)).astype(np.float32)
MATRIX = RNG.standard_normal((8, 8)).astype(np.float32)
CHANNELS = RNG.standard_normal(8).astype(np.float32)


def graph(nodes: Sequence[Any], opset: int = 17, shape: Any = (1, *X), **constants: Array) -> bytes:
    """Return a model from input ``x`` to output ``y``."""
    proto = helper.make_graph(
        nodes,
        "foreign",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("any",))],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.example", 1)]
    model = helper.make_model(proto, opset_imports=opsets, ir_version=10)
    serialised: bytes = model.SerializeToString()
    return serialised


def op(kind: str, inputs: str, out: str = "y", **attributes: Any) -> Any:
    names = [name.strip("-") for name in inputs.split()]
    return helper.make_node(kind, names, [out], f"the {kind}", **attributes)


def conv(inputs: str = "x w", out: str = "c", **attributes: Any) -> Any:
    return op("Conv", inputs, out, **{"pads": [1, 1, 1, 1], **attributes})


def f32(*values: Any) -> Array:
    return np.array(values if len(values) > 1 else values[0], np.float32)
