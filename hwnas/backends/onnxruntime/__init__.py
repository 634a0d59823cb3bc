"""onnxruntime on this machine, measured: on its CPU, or by another execution provider."""

from hwnas.backends.description import Artefact, Description, Runner
from hwnas.backends.onnxruntime.settings import OPTIONS, OnnxRuntime

_NEEDS = {"onnxruntime": "onnxruntime"}
_OPENS = "hwnas.backends.onnxruntime.session:opened"
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

DESCRIPTION = Description(
    name="onnxruntime",
    about="onnxruntime on this machine, measured: its CPU, or another execution provider",
    works="hwnas.backends.onnxruntime.backend:backend",
    engine="hwnas.backends.onnxruntime.engine:open_engine",
    dtypes={"float32": _FP32, "int8": _INT8},
    costs=("table", "measured", "roofline"),
    precisions=("float32", "int8"),
    exits=True,
    runs=("batch", "threads"),
    settings=OnnxRuntime,
    later=True,
    required=("power",),
    needs={**_NEEDS, "onnx": "onnx"},
    devices="hwnas.backends.onnxruntime.provider:devices",
    decisive=("onnxruntime",),
    artefacts=(
        Artefact(
            _FP32,
            "onnxruntime",
            "float32",
            {".onnx": _FP32},
            {_FP32: "ONNX, any batch size"},
            _OPENS,
            _NEEDS,
            f"python run_onnx.py images.npy {_FP32}",
        ),
        Artefact(
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
        Runner("run_onnx.py", (_INT8, _FP32), "onnxruntime", "import onnxruntime", _CODE),
        Runner("run_exits.py", _SEGMENTS, "onnxruntime", "import onnxruntime", _EXITS),
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
