"""Hardware that does not exist: its costs are modelled, and its accuracy is found on this host."""

from hwnas.hardware.backends.description import BackendDescription

_FLOATS = dict.fromkeys(("float16", "bfloat16", "float32"), "model.fp32.onnx")

DESCRIPTION = BackendDescription(
    name="modelled",
    about="hardware that does not exist, by its roofline",
    factory="hwnas.hardware.backends.modelled.backend:ModelledBackend",
    dtypes={"int8": "model.int8.onnx", **_FLOATS},
    costs=("roofline",),
    precisions=("float32", "int8"),
    required=("roofline",),
)
