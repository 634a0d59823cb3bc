"""The runners of an export: ten lines each, which need one runtime and numpy."""

from hwnas.tasks.base import Task

_HEAD = '''"""Print {answer} of each uint8 image (N, H, W, C) of a .npy file. Needs {needs}, numpy.

    python {name} images.npy{more}
"""

import json
import sys
from pathlib import Path

import numpy as np
{imports}

here = Path(__file__).parent
said = json.loads((here / "preprocessing.json").read_text())
images = np.load(sys.argv[1])
if images.dtype != np.uint8 or list(images.shape[1:]) != said["shape"]:
    sys.exit(f"Expected uint8 (N, *{{said['shape']}}), got {{images.dtype}} {{images.shape}}.")
mean, std = (np.array(said[key], np.float32) * 255 for key in ("mean", "std"))
x = (images.astype(np.float32) - mean) / std  # N, H, W, C
'''

_ONNX = """\
file = sys.argv[2] if len(sys.argv) > 2 else "{file}"
session = onnxruntime.InferenceSession(here / file)
(outputs,) = session.run(None, {{"images": np.ascontiguousarray(x.transpose(0, 3, 1, 2))}})
"""

_TFLITE = """\
network = Interpreter(str(here / "model.int8.tflite"))
network.allocate_tensors()
(inlet,), (outlet,) = network.get_input_details(), network.get_output_details()
scale, zero = inlet["quantization"]
outputs = np.empty((len(x), outlet["shape"][-1]), np.int8)
for i, image in enumerate(np.clip(np.round(x / scale) + zero, -128, 127).astype(np.int8)):
    network.set_tensor(inlet["index"], image[None])
    network.invoke()
    outputs[i] = network.get_tensor(outlet["index"])[0]
step, offset = outlet["quantization"]
outputs = (outputs.astype(np.float32) - offset) * step
"""

_TVM = """\
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


def runners(names: set[str], task: Task) -> dict[str, str]:
    """Return the text of each runner by its file name.

    Args:
        names: The artefacts that there are.
        task: What the networks are for.
    """
    found, tail, answer = {}, task.printing(), task.words.answer

    def head(name: str, needs: str, imports: str, more: str = "") -> str:
        return _HEAD.format(name=name, answer=answer, needs=needs, imports=imports, more=more)

    onnx = [name for name in ("model.int8.onnx", "model.fp32.onnx") if name in names]
    if onnx:
        first = head("run_onnx.py", "onnxruntime", "import onnxruntime", f" [{onnx[-1]}]")
        found["run_onnx.py"] = f"{first}{_ONNX.format(file=onnx[0])}{tail}"
    if "model.int8.tflite" in names:
        imports = "from ai_edge_litert.interpreter import Interpreter"
        found["run_tflite.py"] = head("run_tflite.py", "ai-edge-litert", imports) + _TFLITE + tail
    if "model.so" in names:
        found["run_tvm.py"] = head("run_tvm.py", "apache-tvm", "import tvm") + _TVM + tail
    return found
