"""Devices out of reach: phones, datacenter GPUs, NPUs with a vendor's own tool.

Their latencies come from networks that were measured there, or from a data sheet alone.
"""

from hwnas.backends.description import Description
from hwnas.backends.elsewhere.settings import Elsewhere

COST = "measured_elsewhere"  #: the cost model that reads measurements
_FLOATS = dict.fromkeys(("float16", "bfloat16", "float32"), "model.fp32.onnx")

DESCRIPTION = Description(
    name="elsewhere",
    about="a device out of reach, from networks measured there by a kit, or from its data sheet",
    works="hwnas.backends.elsewhere.backend:ElsewhereBackend",
    dtypes={"float32": "model.fp32.onnx", "int8": "model.int8.onnx", **_FLOATS},
    costs=(COST, "roofline"),
    kits=True,
    settings=Elsewhere,
    later=True,
    required=("power",),
    examples={
        "profile": (
            "profile +target=jetson_orin_nano kit=DIR n=20",
            "profile +target=jetson_orin_nano measured=results.csv",
        ),
        "search": ("search +target=jetson_orin_nano cost=measured_elsewhere budget=none",),
    },
)
