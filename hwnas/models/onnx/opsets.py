"""The versions of ONNX that a file asks for: runtimes of devices may be years old."""

import onnx
from onnx import helper

from hwnas.core.errors import CompileError

#: The opset that an operator needs as ``onnx_writer`` writes it, where not the oldest will do.
_SINCE = {
    "HardSwish": 14,
    "LayerNormalization": 17,
    "ReduceMean": 18,  # whose axes are an input
    "Split": 18,  # into a number of parts
    "Gelu": 20,
    "Attention": 23,
}
_OLDEST = 13  #: the first that quantises each channel by a scale of its own


def lowest(model: bytes) -> tuple[bytes, str]:
    """Return a model of ``onnx_writer`` by the lowest versions that have its operators.

    Returns:
        The model, and its versions in words.
    """
    found = onnx.load_model_from_string(model)
    opset = max(_SINCE.get(node.op_type, _OLDEST) for node in found.graph.node)
    found.opset_import[0].version = opset
    found.ir_version = helper.find_min_ir_version_for(found.opset_import)
    words = f"opset {opset}, IR {found.ir_version}"
    return bytes(found.SerializeToString(deterministic=True)), words


# Whether a file is valid ONNX, and of which opset.


def checked_opset(model: bytes) -> int:
    """Return the opset of a model that passes ``onnx.checker``.

    Raises:
        CompileError: it does not.
    """
    try:
        loaded = onnx.load_model_from_string(model)
        onnx.checker.check_model(loaded, full_check=True)
    except Exception as error:  # protobuf's, the checker's and shape inference's have no common one
        (reason, *_) = str(error).strip().splitlines() or [type(error).__name__]
        raise CompileError(f"This is not valid ONNX: {reason}") from None
    opset = next((int(entry.version) for entry in loaded.opset_import if not entry.domain), 0)
    if not 0 < opset <= onnx.defs.onnx_opset_version():  # the checker takes any
        raise CompileError(f"This is not valid ONNX: there is no opset {opset}.")
    return opset
