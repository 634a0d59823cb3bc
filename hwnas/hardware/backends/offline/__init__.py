"""The backend ``offline``: devices that are not connected, such as phones or datacenter GPUs.

Latencies are predicted from networks measured on the device, or from its data sheet.
"""

from dataclasses import dataclass

from hwnas.core.errors import ConfigError
from hwnas.core.options import bounded, check_bounds
from hwnas.hardware.backends.description import BackendDescription

COST = "device_model"  #: the cost model that is fitted to measurements
_FLOATS = dict.fromkeys(("float16", "bfloat16", "float32"), "model.fp32.onnx")


@dataclass
class OfflineSettings:
    """The section ``offline`` of a target."""

    #: device file that ``profile measured=CSV`` writes; default: measured/TARGET-SETTING.json,
    #: where SETTING is dtype, threads and batch, such as int8-4t-b1
    file: str = ""
    #: lowest ratio of actual latency to that of the data sheet, for intervals of cost=roofline
    slower_low: float = bounded("[1, 1000]", 1.0)
    #: highest ratio of actual latency to that of the data sheet, for intervals of cost=roofline
    slower_high: float = bounded("[1, 1000]", 20.0)

    def __post_init__(self) -> None:
        check_bounds(self, "target.offline.")
        if self.slower_low > self.slower_high:
            raise ConfigError(
                f"target.offline.slower_low={self.slower_low:g} must be at most "
                f"target.offline.slower_high, {self.slower_high:g}."
            )


DESCRIPTION = BackendDescription(
    name="offline",
    about="a device that is not connected, from networks measured on it or its data sheet",
    factory="hwnas.hardware.backends.offline.backend:backend",
    dtypes={"float32": "model.fp32.onnx", "int8": "model.int8.onnx", **_FLOATS},
    costs=(COST, "roofline"),
    is_offline=True,
    settings=OfflineSettings,
    added_after_release=True,
    required=("power",),
    examples={
        "profile": (
            "profile +target=jetson_orin_nano kit=DIR n=20",
            "profile +target=jetson_orin_nano measured=results.csv",
        ),
        "search": ("search +target=jetson_orin_nano cost=device_model budget=none",),
    },
)
