"""ONNX opset versions: lowering for old runtimes, and validation."""

import onnx
from onnx import helper

from hwnas.core.errors import CompileError
from hwnas.models.onnx.import_graph import OWN_DOMAINS

#: Minimum opset of operators as written by ``onnx.writer``, if above ``_OLDEST``.
_SINCE = {
    "HardSwish": 14,
    "LayerNormalization": 17,
    "ReduceMean": 18,  # with axes as an input
    "Split": 18,  # into equal parts
    "Gelu": 20,
    "Attention": 23,
}
_OLDEST = 13  #: the first with quantisation per channel


def with_lowest_opset(model: bytes) -> tuple[bytes, str]:
    """Return a model of ``onnx.writer`` with the lowest possible versions of opset and IR.

    The second value is these versions as text: ``opset 13, IR 7``.
    """
    loaded = onnx.load_model_from_string(model)
    opset = max(_SINCE.get(node.op_type, _OLDEST) for node in loaded.graph.node)
    loaded.opset_import[0].version = opset
    loaded.ir_version = helper.find_min_ir_version_for(loaded.opset_import)
    versions = f"opset {opset}, IR {loaded.ir_version}"
    return bytes(loaded.SerializeToString(deterministic=True)), versions


def check_opset(model: bytes) -> int:
    """Return the opset version of a model after a check by ``onnx.checker``.

    Raises:
        CompileError: if the model is invalid, or newer than the installed package ``onnx``.
    """
    try:
        loaded = onnx.load_model_from_string(model)
        onnx.checker.check_model(loaded, full_check=True)
    except Exception as error:  # protobuf, checker and shape inference have no common error class
        (reason, *_) = str(error).strip().splitlines() or [type(error).__name__]
        raise CompileError(f"This is not valid ONNX: {reason}. Export the model again.") from None
    opset = next(
        (int(entry.version) for entry in loaded.opset_import if entry.domain in OWN_DOMAINS), 0
    )
    if not 0 < opset <= onnx.defs.onnx_opset_version():  # the checker accepts any
        raise CompileError(
            f"This is not valid ONNX: its opset is {opset}; allowed: 1 to "
            f"{onnx.defs.onnx_opset_version()}, the newest of the installed package onnx. Update "
            "it: pip install --upgrade onnx; or export the model with such an opset."
        )
    return opset
