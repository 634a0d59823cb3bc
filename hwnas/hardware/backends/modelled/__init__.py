"""The backend ``modelled``: hardware that does not exist, with costs from a roofline."""

from hwnas.hardware.backends.description import BackendDescription

_FLOATS = dict.fromkeys(("float16", "bfloat16", "float32"), "model.fp32.onnx")

DESCRIPTION = BackendDescription(
    name="modelled",
    about="hardware that does not exist, modelled by its roofline",
    factory="hwnas.hardware.backends.modelled.backend:backend",
    dtypes={"int8": "model.int8.onnx", **_FLOATS},
    costs=("roofline",),
    precisions=("float32", "int8"),
    required=("roofline",),
)
