"""The backend ``onnxruntime``: this machine's CPU, or another execution provider."""

import hashlib
import json
import re
from dataclasses import dataclass, field

from hwnas.core.errors import ConfigError
from hwnas.hardware.backends.description import (
    ArtefactType,
    BackendDescription,
    BackendSettings,
    RunnerScript,
)

CPU = "cpu"
_SUFFIX = "ExecutionProvider"
#: Spelling of onnxruntime, without its suffix; other names are used as given.
_SPELT = (
    "ACL", "Azure", "CANN", "CoreML", "CPU", "CUDA", "Dml", "Dnnl", "MIGraphX", "Nnapi",
    "NvTensorRTRTX", "OpenVINO", "QNN", "Rknpu", "Tensorrt", "VitisAI", "WebGpu", "Xnnpack",
)  # fmt: skip
#: On x86 CPUs without VNNI, int8 products are added in 16 bits, which overflow without this option.
#: Source: onnxruntime_session_options_config_keys.h, kOrtSessionOptionsAvx2PrecisionMode.
EXACT = ("session.x64quantprecision", "1")
_KNOWN = {name.lower(): name for name in _SPELT}
_NVIDIA = ("cuda", "tensorrt", "nvtensorrtrtx")

_RUNNER = """\
options = onnxruntime.SessionOptions()
options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
{loads}try:
    session = onnxruntime.InferenceSession(
        here / file, options, ["{provider}"], [{options}], enable_fallback=0
    )
except Exception as error:  # and never the CPU instead
    sys.exit(f"{provider} alone does not run {{file}} here: {{error}}")
"""
#: Session options in runner scripts for the CPU.
OPTIONS = f"""\
options = onnxruntime.SessionOptions()
options.add_session_config_entry("{EXACT[0]}", "{EXACT[1]}")  # int8 without VNNI
"""
_ON_CPU = f"{OPTIONS}session = onnxruntime.InferenceSession(here / file, options)\n"
_LOADS = "onnxruntime.preload_dlls()  # of CUDA and cuDNN that pip installed\n"


@dataclass
class OnnxRuntimeSettings(BackendSettings):
    """The section ``onnxruntime`` of a target: its execution provider."""

    #: cpu, cuda, tensorrt, openvino, or any other execution provider of onnxruntime
    provider: str = CPU
    #: options of the provider: {device_id: '0', use_tf32: '0'}
    options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = self.provider.removesuffix(_SUFFIX)
        self.provider = given.lower() if given.lower() in _KNOWN else self.provider
        if not re.fullmatch(r"[A-Za-z0-9]{1,60}", self.provider):
            raise ConfigError(
                f"target.onnxruntime.provider must be the name of an execution provider (cpu, "
                f"cuda, tensorrt, ...): letters and digits, got {self.provider!r}."
            )
        if self.provider not in (CPU, "cuda"):  # ``cuda.yaml`` has an option that others lack
            self.options = {n: value for n, value in self.options.items() if n != "use_tf32"}
        if self.provider == CPU and self.options:
            raise ConfigError(
                "target.onnxruntime.options: the provider cpu has no options, got "
                f"{', '.join(self.options)}. Remove them, or set target.onnxruntime.provider."
            )

    @property
    def name(self) -> str:
        """Full name of the provider in onnxruntime, such as ``CUDAExecutionProvider``."""
        spelt = _KNOWN.get(self.provider)
        return self.provider if spelt is None else f"{spelt}{_SUFFIX}"

    @property
    def is_cpu(self) -> bool:
        """True if the provider is this machine's CPU."""
        return self.provider == CPU

    @property
    def is_nvidia(self) -> bool:
        """True if the provider is cuda, tensorrt or nvtensorrtrtx, for NVIDIA GPUs."""
        return self.provider in _NVIDIA

    @property
    def variant(self) -> str:
        """Provider, with six hex digits of a digest if it has options; empty for the CPU."""
        if self.is_cpu:
            return ""
        if not self.options:
            return self.provider
        options = json.dumps(self.options, sort_keys=True).encode()
        return f"{self.provider}.{hashlib.sha256(options).hexdigest()[:6]}"

    @property
    def is_default(self) -> bool:
        """True if the provider is the CPU, which has no options."""
        return self.is_cpu

    @property
    def substitutions(self) -> dict[str, str]:
        """Code for ``SESSION`` in the runner scripts of exports, which opens a session."""
        if self.is_cpu:
            return {"SESSION": _ON_CPU}
        loads = _LOADS if self.is_nvidia else ""
        opens = _RUNNER.format(loads=loads, provider=self.name, options=json.dumps(self.options))
        return {"SESSION": opens}

    @property
    def distribution(self) -> str:
        """The package with NVIDIA's providers, if this is one of them."""
        return "onnxruntime-gpu[cuda,cudnn]" if self.is_nvidia else ""


_NEEDS = {"onnxruntime": "onnxruntime"}
_OPENS = "hwnas.hardware.backends.onnxruntime.session:open_onnx"
_FP32, _INT8 = "model.fp32.onnx", "model.int8.onnx"
_SEGMENTS = ("segment0.fp32.onnx", "segment0.int8.onnx")
_INT8_ABOUT = "ONNX, quantised (QDQ), any batch size; float input and output"

_CODE = """\
file = sys.argv[2] if len(sys.argv) > 2 else "DEFAULT"
SESSION(outputs,) = session.run(None, {"images": np.ascontiguousarray(x.transpose(0, 3, 1, 2))})
"""

_EXITS = (
    OPTIONS
    + """\
exits = json.loads((here / "exits.json").read_text())
segments = [onnxruntime.InferenceSession(here / name, options) for name in exits["segments"]]
left, outputs = [0] * len(segments), []
for image in np.ascontiguousarray(x.transpose(0, 3, 1, 2))[:, None]:
    for i, (segment, threshold) in enumerate(zip(segments, [*exits["thresholds"], 0])):
        *further, (logits,) = segment.run(None, {"images": image})
        if 1 / np.exp(logits - logits.max().astype(np.float64)).sum() >= threshold:
            break
        (image,) = further
    left[i] += 1
    outputs.append(logits)
outputs = np.stack(outputs)
print("left at exits, and at the end:", *left, file=sys.stderr)
"""
)

DESCRIPTION = BackendDescription(
    name="onnxruntime",
    about="onnxruntime on this machine's CPU or another execution provider, measured",
    factory="hwnas.hardware.backends.onnxruntime.engine:backend",
    engine="hwnas.hardware.backends.onnxruntime.engine:open_engine",
    dtypes={"float32": _FP32, "int8": _INT8},
    costs=("table", "measured", "roofline"),
    precisions=("float32", "int8"),
    exits=True,
    runs=("batch", "threads"),
    settings=OnnxRuntimeSettings,
    added_after_release=True,
    required=("power",),
    needs={**_NEEDS, "onnx": "onnx"},
    devices="hwnas.hardware.backends.onnxruntime.provider:devices",
    fingerprint_packages=("onnxruntime",),
    artefacts=(
        ArtefactType(
            _FP32,
            "onnxruntime",
            "float32",
            {".onnx": _FP32},
            {_FP32: "ONNX, any batch size"},
            _OPENS,
            _NEEDS,
            f"python run_onnx.py images.npy {_FP32}",
        ),
        ArtefactType(
            _INT8,
            "onnxruntime",
            "int8",
            {".onnx": _INT8},
            {_INT8: _INT8_ABOUT},
            _OPENS,
            _NEEDS,
            f"python run_onnx.py images.npy {_INT8}",
        ),
    ),
    runners=(
        RunnerScript("run_onnx.py", (_INT8, _FP32), "onnxruntime", "import onnxruntime", _CODE),
        RunnerScript("run_exits.py", _SEGMENTS, "onnxruntime", "import onnxruntime", _EXITS),
    ),
    columns={".onnx": "onnx"},
    examples={
        "verify": ("verify runs/export/<time>/<id> +target=cpu target.runtime=onnxruntime",),
        "split": (
            "split runs/export/<time>/<id> '+target=[npu,cpu]' cpu.target.dtype=int8"
            " cpu.target.runtime=onnxruntime",
        ),
        "profile": (
            "profile +target=cpu target.runtime=onnxruntime target.dtype=int8",
            "profile +target=cuda",
        ),
    },
)
