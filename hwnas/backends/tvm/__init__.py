"""All of TVM: operators, schedules, compiling, linking, running here and on remote devices."""

from hwnas.backends.description import Artefact, Description, Runner
from hwnas.backends.tvm.settings import Tvm

_NEEDS = {"tvm": "apache-tvm", "safetensors": "safetensors"}
_SO, _TAR, _WEIGHTS = "model.so", "model.tar", "model.tvm.safetensors"
_WEIGHTS_ABOUT = {_WEIGHTS: "its weights, packed"}

_CODE = """\
content = (here / "model.tvm.safetensors").read_bytes()
start = 8 + int.from_bytes(content[:8], "little")
made = json.loads(json.loads(content[8:start])["__metadata__"]["network"])
shapes, weights = made["parameters"], np.frombuffer(content[start:], np.float32)
arrays = [np.zeros(shape, np.float32) for shape in shapes]
memory, output = arrays[0], tvm.runtime.tensor(arrays[2])
others = [tvm.runtime.tensor(weights.copy()), output, tvm.runtime.tensor(arrays[3])]
network, outputs = tvm.runtime.load_module(str(here / "model.so"))[made["entry"]], []
for i in range(0, len(x), len(memory)):
    memory[: len(x[i : i + len(memory)]), ..., : x.shape[-1]] = x[i : i + len(memory)]
    network(tvm.runtime.tensor(memory), *others)
    outputs += [*output.numpy().reshape(len(memory), -1)[:, : made["n_outputs"]].copy()]
outputs = np.array(outputs[: len(x)])
"""

DESCRIPTION = Description(
    name="tvm",
    about="compiled by TVM for a CPU, here or on a board, measured",
    works="hwnas.backends.tvm.backend:backend",
    engine="hwnas.backends.tvm.engine:open_engine",
    remote=True,
    dtypes={"float32": _SO},
    costs=("table", "measured", "roofline"),
    settings=Tvm,
    required=("tvm", "power"),
    needs=_NEEDS,
    decisive=("apache-tvm", "apache-tvm-ffi"),
    schedules=("hwnas.backends.tvm.operators", "hwnas.backends.tvm.templates"),
    artefacts=(
        Artefact(
            _SO,
            "tvm",
            "float32",
            {".so": _SO, ".safetensors": _WEIGHTS},
            {_SO: "library of TVM", **_WEIGHTS_ABOUT},
            needs=_NEEDS,
            command="python run_tvm.py images.npy",
        ),
        Artefact(
            _TAR,
            "tvm",
            "float32",
            {".tar": _TAR, ".safetensors": _WEIGHTS},
            {_TAR: "its object files, to link elsewhere: `g++ -shared -fPIC -o model.so *.o`"},
            needs=_NEEDS,
        ),
    ),
    runners=(Runner("run_tvm.py", (_SO,), "apache-tvm", "import tvm", _CODE),),
    columns={".so": "so", ".safetensors": "weights"},
    start_hint="Does LLVM know target.tvm's mtriple, mcpu and mattr?",
)
