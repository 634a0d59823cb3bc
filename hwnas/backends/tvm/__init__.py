"""All of TVM: operators, schedules, compiling, linking, running here and on remote devices."""

from hwnas.backends.description import Artefact, Description, Runner
from hwnas.backends.tvm.settings import Tvm

_SCHEDULES = ("layout", "operators", "scalars", "templates")
_INT8_SCHEDULES = (*_SCHEDULES, "dots", "int8_layout", "int8_operators", "int8_templates")
_NEEDS = {"tvm": "apache-tvm", "safetensors": "safetensors"}
_SO, _TAR, _WEIGHTS = "model.so", "model.tar", "model.tvm.safetensors"
_INT8_SO, _INT8_TAR = "model.int8.so", "model.int8.tar"
_INT8_WEIGHTS = "model.int8.tvm.safetensors"

_CODE = """\
file = sys.argv[2] if len(sys.argv) > 2 else "DEFAULT"
content = (here / file.replace(".so", ".tvm.safetensors")).read_bytes()
start = 8 + int.from_bytes(content[:8], "little")
made = json.loads(json.loads(content[8:start])["__metadata__"]["network"])
arrays = [np.zeros(shape, dtype) for shape, dtype in zip(made["parameters"], made["dtypes"])]
weights = np.frombuffer(content[start:], made["dtypes"][1])
memory, output = arrays[0], tvm.runtime.tensor(arrays[2])
others = [tvm.runtime.tensor(weights.copy()), output, tvm.runtime.tensor(arrays[3])]
network, outputs = tvm.runtime.load_module(str(here / file))[made["entry"]], []
for i in range(0, len(x), len(memory)):
    memory[: len(x[i : i + len(memory)]), ..., : x.shape[-1]] = x[i : i + len(memory)]
    network(tvm.runtime.tensor(memory), *others)
    outputs += [*output.numpy().reshape(len(memory), -1)[:, : made["n_outputs"]].copy()]
outputs = np.array(outputs[: len(x)])
"""


def _artefacts(dtype: str, so: str, tar: str, weights: str) -> tuple[Artefact, Artefact]:
    about = {weights: "its weights, packed"}
    library = Artefact(
        so,
        "tvm",
        dtype,
        {".so": so, ".safetensors": weights},
        {so: f"library of TVM, {dtype}", **about},
        needs=_NEEDS,
        command=f"python run_tvm.py images.npy {so}",
        one_batch=True,
    )
    objects = Artefact(
        tar,
        "tvm",
        dtype,
        {".tar": tar, ".safetensors": weights},
        {tar: f"its object files, to link elsewhere: `g++ -shared -fPIC -o {so} *.o`"},
        needs=_NEEDS,
        one_batch=True,
    )
    return library, objects


DESCRIPTION = Description(
    name="tvm",
    about="compiled by TVM for a CPU, here or on a board, measured",
    works="hwnas.backends.tvm.backend:backend",
    engine="hwnas.backends.tvm.engine:open_engine",
    remote=True,
    dtypes={"float32": _SO, "int8": _INT8_SO},
    runs=("batch",),
    sums=True,
    costs=("table", "measured", "roofline"),
    settings=Tvm,
    required=("tvm", "power"),
    needs=_NEEDS,
    decisive=("apache-tvm", "apache-tvm-ffi"),
    schedules={
        "float32": [f"{__name__}.{name}" for name in _SCHEDULES],
        "int8": [f"{__name__}.{name}" for name in _INT8_SCHEDULES],
    },
    artefacts=(
        *_artefacts("float32", _SO, _TAR, _WEIGHTS),
        *_artefacts("int8", _INT8_SO, _INT8_TAR, _INT8_WEIGHTS),
    ),
    runners=(Runner("run_tvm.py", (_INT8_SO, _SO), "apache-tvm", "import tvm", _CODE),),
    columns={".so": "so", ".safetensors": "weights"},
    start_hint="Does LLVM know target.tvm's mtriple, mcpu and mattr?",
)
