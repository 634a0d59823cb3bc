"""The section of a target file for devices out of reach."""

from dataclasses import dataclass

from hwnas.core.errors import ConfigError
from hwnas.core.options import bounded, check_bounds
from hwnas.hardware.backends.description import BackendDescription


@dataclass
class OfflineSettings:
    """What is known of a device beside its facts."""

    #: the file that ``profile measured=CSV`` writes; default: measured/TARGET-SETTING.json
    file: str = ""
    #: how many times what its data sheet allows a device takes: the interval of cost=roofline
    slower_low: float = bounded("[1, 1000]", 1.0)
    slower_high: float = bounded("[1, 1000]", 20.0)

    def __post_init__(self) -> None:
        check_bounds(self, "target.offline.")
        if self.slower_low > self.slower_high:
            raise ConfigError(
                "target.offline.slower_low must be at most slower_high, got "
                f"{self.slower_low:g} and {self.slower_high:g}."
            )


# Devices out of reach: phones, datacenter GPUs, NPUs with a vendor's own tool.
#
# Their latencies come from networks that were measured there, or from a data sheet alone.

COST = "device_model"  #: the cost model that reads measurements
_FLOATS = dict.fromkeys(("float16", "bfloat16", "float32"), "model.fp32.onnx")

DESCRIPTION = BackendDescription(
    name="offline",
    about="a device out of reach, from networks measured there by a kit, or from its data sheet",
    factory="hwnas.hardware.backends.offline.backend:OfflineBackend",
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
