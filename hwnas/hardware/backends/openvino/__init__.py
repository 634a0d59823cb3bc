"""The backend ``openvino``: this machine's CPU, measured."""

from hwnas.hardware.backends.description import ArtefactType, BackendDescription, RunnerScript

_NEEDS = {"openvino": "openvino"}
_NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8"}

_CODE = """\
file = sys.argv[2] if len(sys.argv) > 2 else "DEFAULT"
core = openvino.Core()
model = core.read_model(here / file)
precision = {"INFERENCE_PRECISION_HINT": model.get_rt_info("precision").astype(str)}
network = core.compile_model(model, "CPU", precision)
outputs = network(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))[0]
"""


def _artefact(dtype: str, short: str) -> ArtefactType:
    name, weights = f"model.{short}.xml", f"model.{short}.bin"
    return ArtefactType(
        name,
        "openvino",
        dtype,
        {".xml": name, ".bin": weights},
        {name: f"OpenVINO's IR, runs in {dtype}, any batch size", weights: "its weights"},
        "hwnas.hardware.backends.openvino.session:open_ir",
        _NEEDS,
        f"python run_openvino.py images.npy {name}",
    )


_ARTEFACTS = {dtype: _artefact(dtype, short) for dtype, short in _NAMES.items()}

DESCRIPTION = BackendDescription(
    name="openvino",
    about="OpenVINO on this machine's CPU, measured",
    factory="hwnas.hardware.backends.openvino.engine:backend",
    engine="hwnas.hardware.backends.openvino.engine:OpenVinoEngine",
    dtypes={dtype: artefact.name for dtype, artefact in _ARTEFACTS.items()},
    costs=("table", "measured", "roofline"),
    precisions=("float32", "int8"),
    required=("power",),
    needs={**_NEEDS, "onnx": "onnx"},
    extra="openvino",
    fingerprint_packages=("openvino",),
    artefacts=tuple(_ARTEFACTS.values()),
    runners=(
        RunnerScript(
            "run_openvino.py",
            tuple(artefact.name for artefact in _ARTEFACTS.values()),
            "openvino",
            "import openvino",
            _CODE,
        ),
    ),
    columns={".xml": "ir", ".bin": "ir_weights"},
    examples={"profile": ("profile +target=cpu target.runtime=openvino",)},
)
