"""Whether a file is valid ONNX, and of which opset."""

import onnx

from hwnas.errors import CompileError


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
